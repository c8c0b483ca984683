"""The connection of the command line, against a server that answers as it is told to."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from duly.client.errors import Conflict, RateLimited, Unreachable
from duly.client.http_sync import PlainConnection
from duly.client.server import Server
from duly.client.wire import Retrying

Said = tuple[int, dict[str, str], bytes]

OK: Said = (200, {}, b'{"id": "x"}')
DROP = None
BUSY: Said = (503, {"Retry-After": "0"}, b'{"code": "unavailable", "detail": "busy"}')
LATER: Said = (429, {"Retry-After": "3600"}, b'{"code": "rate_limited", "detail": "later"}')
CONFLICT: Said = (409, {}, b'{"code": "running", "detail": "it runs", "errors": []}')
STRANGER: Said = (502, {}, b"<html>bad gateway</html>")


class Scripted(HTTPServer):
    """Answers in order; `asked` keeps what it was asked."""

    def __init__(self, answers: list[Any]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        self.asked: list[tuple[str, str, str | None]] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        assert isinstance(self.server, Scripted)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key = self.headers.get("Idempotency-Key")
        self.server.asked.append((self.command, self.path, key))
        said = self.server.answers.pop(0)
        if said is None:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        status, headers, body = said
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer  # noqa: N815 (the names that the standard library calls)

    def log_message(self, *_: object) -> None:
        """Silent."""


@contextlib.contextmanager
def scripted(*answers: Any) -> Iterator[tuple[Scripted, PlainConnection]]:
    with Scripted(list(answers)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/prefix"
        try:
            with PlainConnection(Server(url, "key"), tries=3) as connection:
                yield server, connection
        finally:
            server.shutdown()
            thread.join()


def test_a_write_whose_answer_is_lost_is_repeated_with_the_same_key() -> None:
    """Repeated with another key, one submit would become two tasks."""
    with scripted(DROP, BUSY, OK) as (server, connection):
        assert connection.call("POST", "/v1/tasks", {"type": "x"}, query={"a": 1, "b": None}) == {
            "id": "x"
        }
    assert {method for method, _, _ in server.asked} == {"POST"}
    assert {path for _, path, _ in server.asked} == {"/prefix/v1/tasks?a=1"}
    (key,) = {key for _, _, key in server.asked}
    assert key
    assert len(server.asked) == 3


def test_a_chosen_key_is_the_one_that_is_sent() -> None:
    """The user's own key is what finds the task again tomorrow."""
    with scripted(OK) as (server, connection):
        connection.call("POST", "/v1/tasks", {}, idempotency_key="mine")
    assert server.asked == [("POST", "/prefix/v1/tasks", "mine")]


def test_a_refusal_is_raised_at_once_and_the_connection_goes_on() -> None:
    """Trying again what was refused wastes everybody's time."""
    with scripted(CONFLICT, LATER, OK) as (server, connection):
        with pytest.raises(Conflict, match="running: it runs"):
            connection.call("POST", "/v1/x")
        with pytest.raises(RateLimited):
            connection.call("POST", "/v1/x")
        assert connection.call("GET", "/v1/x") == {"id": "x"}
    assert len(server.asked) == 3


def test_tries_that_are_used_up_end_with_what_happened() -> None:
    """For ever is not an answer, and neither is a page of somebody's proxy."""
    with scripted(DROP, DROP, DROP) as (_, connection), pytest.raises(Unreachable):
        connection.call("GET", "/v1/x")
    with scripted(STRANGER) as (_, connection), pytest.raises(Exception, match="http_502"):
        connection.call("GET", "/v1/x")


def test_a_certificate_that_is_not_trusted_is_no_reason_to_try_again() -> None:
    """The next try ends the same, and the person waits for all of them."""
    retrying = Retrying("https://duly.example.com", tries=5)
    distrust = ssl.SSLCertVerificationError("certificate verify failed")
    distrust.verify_message = "certificate has expired"
    with pytest.raises(Unreachable, match="not trusted: certificate has expired"):
        retrying.pause_after(distrust)
    assert retrying.pause_after(ConnectionResetError()) > 0
