"""A receiver of webhooks in this process, in threads, for stories about real duly processes."""

import contextlib
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from tests.processes import eventually
from tests.story.duly_up import REQUEST_TIMEOUT_S, RunningDuly

Answer = tuple[int, dict[str, str], bytes]
Behave = Callable[[dict[str, str], bytes], Answer]
DONE: Answer = (200, {}, b'{"received": true}')


def always(answer: Answer) -> Behave:
    def behave(headers: dict[str, str], body: bytes) -> Answer:
        return answer

    return behave


class Hooks:
    """`requests` are the headers, in lower case, of all that came."""

    def __init__(self) -> None:
        self.requests: list[dict[str, str]] = []
        self.behave: Behave = always(DONE)
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def wait_for(self, count: int, timeout_s: float = 30.0) -> None:
        eventually(lambda: len(self.requests) >= count, f"{count} requests came", timeout_s)


@contextlib.contextmanager
def hooks() -> Iterator[Hooks]:
    opened = Hooks()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers["content-length"]))
            opened.requests.append(headers)
            status, more, said = opened.behave(headers, body)
            with contextlib.suppress(ConnectionError):
                self.send_response(status)
                for name, value in (more | {"Content-Length": str(len(said))}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(said)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Tests are quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    opened.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield opened
    finally:
        server.shutdown()
        server.socket.close()
        thread.join()


def call(
    duly: RunningDuly, key: str, method: str, path: str, body: Any = None
) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        duly.url + path,
        method=method,
        data=None if body is None else msgspec.json.encode(body),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S + 30) as response:
            return response.status, msgspec.json.decode(response.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, msgspec.json.decode(error.read())
