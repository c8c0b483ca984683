"""A receiver that fails is left alone, seen in the API, explained, and given its work back."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from duly.client.synchronous import Client
from duly.domain.breaker import ATTEMPTS_MIN
from tests.processes import eventually
from tests.story.duly_up import RunningDuly, embedded_duly

pytestmark = pytest.mark.slow


class Receiver(http.server.BaseHTTPRequestHandler):
    """Answers what the test says, and counts."""

    status = 500
    calls = 0

    def do_POST(self) -> None:
        Receiver.calls += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(Receiver.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Not into the test's output."""


@pytest.fixture
def receiver() -> Iterator[str]:
    Receiver.status, Receiver.calls = 500, 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook"
    server.shutdown()
    server.server_close()
    thread.join()


def has_refused(duly: RunningDuly) -> bool:
    """What the API says comes from the database, and the scheduler may not have looked there yet;
    what the scheduler did is in its metrics."""
    return b'duly_refused_total{gate="breaker"}' in duly.get("/metrics")[1]


def test_a_failing_receiver_is_left_alone_until_somebody_says_otherwise(
    tmp_path: Path, receiver: str
) -> None:
    """Retries of everything against a host that is down keep it down."""
    with embedded_duly(tmp_path) as duly, Client(duly.url, duly.ready["api_key"]) as client:
        for _ in range(ATTEMPTS_MIN):
            client.submit("a.b", 1, url=receiver, retry={"max_attempts": 1})
        eventually(lambda: client.call("GET", "/v1/breakers")["items"], "the breaker opens")
        (breaker,) = client.call("GET", "/v1/breakers")["items"]
        assert (breaker["phase"], breaker["host"]) == ("open", receiver.split("/")[2])
        # What is sent before the scheduler has heard of the breaker fails, and its retry may be a
        # minute away: so another is submitted at every look.
        tasks = []

        def is_one_held_back() -> bool:
            tasks.append(client.submit("a.b", 2, url=receiver))
            return has_refused(duly)

        eventually(is_one_held_back, "the scheduler knows of it, and holds it back")
        held = tasks[-1]
        eventually(lambda: client.explain(held.id)["binding"] == "breaker", "it says so")
        calls = Receiver.calls
        Receiver.status = 200
        assert client.get(held.id).state in ("READY", "SCHEDULED")
        assert Receiver.calls == calls
        client.call("POST", "/v1/breakers/close", {"host": breaker["host"]})
        assert held.wait(timeout_s=60).state == "COMPLETED"
        assert client.call("GET", "/v1/breakers")["items"] == []
