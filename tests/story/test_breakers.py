"""A receiver, or a type of workers' tasks, that fails gets no more work: seen in the API,
explained, and given its work back."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
        eventually(lambda: client.explain(held.id).binding == "breaker", "it says so")
        calls = Receiver.calls
        Receiver.status = 200
        assert client.get(held.id).state in ("READY", "SCHEDULED")
        assert Receiver.calls == calls
        client.call("POST", "/v1/breakers/close", {"host": breaker["host"]})
        assert held.wait(timeout_s=60).state == "COMPLETED"
        assert client.call("GET", "/v1/breakers")["items"] == []


def test_a_type_whose_worker_tasks_all_fail_gets_no_more_until_its_breaker_is_closed(
    tmp_path: Path,
) -> None:
    """Sixty of sixty tasks failed, and every further one was sent to fail as well."""
    with embedded_duly(tmp_path) as duly, Client(duly.url, duly.ready["api_key"]) as client:
        for _ in range(60):
            client.submit("a.bad", 1, retry={"max_attempts": 1})
        failed = 0

        def all_failed() -> bool:
            nonlocal failed
            tasks = lease(client)
            failed += len(tasks)
            settle(client, tasks, "failed")
            return failed == 60

        eventually(all_failed, "every task failed")
        eventually(lambda: client.call("GET", "/v1/breakers")["items"], "the breaker opens")
        (breaker,) = client.call("GET", "/v1/breakers")["items"]
        found = {name: breaker[name] for name in ("kind", "name", "host", "phase")}
        assert found == {"kind": "type", "name": "a.bad", "host": None, "phase": "open"}
        eventually(lambda: knows_breaker(duly, client), "the scheduler knows of it")
        held = client.submit("a.bad", 2)
        good = client.submit("a.good", 3)
        eventually(lambda: client.explain(held.id).binding == "breaker", "it says so")
        eventually(lambda: settle(client, lease(client), "completed"), "another type goes on")
        assert client.get(good.id).state == "COMPLETED"
        assert client.get(held.id).state == "READY"
        client.call("POST", "/v1/breakers/close", {"type": "a.bad"})
        eventually(lambda: settle(client, lease(client), "completed"), "its work is back")
        assert client.call("GET", "/v1/breakers")["items"] == []


def knows_breaker(duly: RunningDuly, client: Client) -> bool:
    """One that is submitted before the scheduler has heard of the breaker is sent."""
    client.submit("a.bad", 0, retry={"max_attempts": 1})
    settle(client, lease(client), "rejected")
    return has_refused(duly)


def lease(client: Client) -> list[dict[str, Any]]:
    body = {"worker_id": "w", "max": 50, "wait_s": 1}
    tasks: list[dict[str, Any]] = client.call("POST", "/v1/worker/lease", body)["tasks"]
    return tasks


def settle(client: Client, tasks: list[dict[str, Any]], outcome: str) -> bool:
    ends = [{"id": task["id"], "fence": task["fence"], "outcome": outcome} for task in tasks]
    if ends:
        client.call("POST", "/v1/worker/settle", {"worker_id": "w", "settlements": ends})
    return bool(ends)
