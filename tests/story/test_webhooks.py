"""Webhooks of a real duly: delivered, taken over, cut off by kill -9 and SIGTERM, kept outside."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.processes import child
from tests.story.duly_up import RunningDuly, duly_up
from tests.story.hooks import DONE, Answer, Hooks, always, call, hooks

pytestmark = pytest.mark.slow

RECLAIM_S = 40.0
ACCEPTED: Answer = (202, {"Duly-Async": "1"}, b"")


@pytest.fixture
def environ(owner_url: str, engine_url: str) -> dict[str, str]:
    return {"DULY_DATABASE_URL": engine_url, "DULY_MIGRATION_DATABASE_URL": owner_url}


@pytest.fixture
def receiver() -> Iterator[Hooks]:
    with hooks() as opened:
        yield opened


def submit(duly: RunningDuly, key: str, receiver: Hooks, **more: Any) -> str:
    task = {"type": "invoice.charge", "payload": {"a": 1}, "target": {"url": receiver.url}} | more
    status, made = call(duly, key, "POST", "/v1/tasks", task)
    assert status == 201, made
    task_id: str = made["id"]
    return task_id


def ended(duly: RunningDuly, key: str, task_id: str) -> dict[str, Any]:
    status, task = call(duly, key, "GET", f"/v1/tasks/{task_id}/wait?timeout_s=30")
    assert status == 200
    return task


def attempts(duly: RunningDuly, key: str, task_id: str) -> list[tuple[str, int]]:
    _, found = call(duly, key, "GET", f"/v1/tasks/{task_id}/attempts")
    return [(item["outcome"], item["attempt"]) for item in found["items"]]


def test_after_kill_9_in_mid_request_the_next_attempt_has_the_same_id_and_a_higher_fence(
    environ: dict[str, str], receiver: Hooks
) -> None:
    """The receiver may have acted: only the same id and a higher fence let it act once."""
    never = threading.Event()

    def hang(headers: dict[str, str], body: bytes) -> Answer:
        never.wait(RECLAIM_S * 2)
        return DONE

    receiver.behave = hang
    with duly_up(environ=environ) as duly:
        key = duly.ready["api_key"]
        task_id = submit(duly, key, receiver, idempotency_key="invoice-7")
        receiver.wait_for(1)
        duly.process.kill()
    receiver.behave = always(DONE)
    with duly_up(environ=environ) as duly:
        receiver.wait_for(2, RECLAIM_S)
        assert ended(duly, key, task_id)["state"] == "COMPLETED"
        assert attempts(duly, key, task_id) == [("lease_lost", 1), ("completed", 2)]
    first, second = receiver.requests
    assert first["webhook-id"] == second["webhook-id"] == "invoice-7"
    assert int(second["duly-fence"]) > int(first["duly-fence"])
    assert (first["duly-attempt"], second["duly-attempt"]) == ("1", "2")
    never.set()


def test_a_stop_releases_what_hangs_and_charges_nothing(
    environ: dict[str, str], receiver: Hooks
) -> None:
    """A deployment that waits for every slow receiver never ends; one that kills charges them."""
    over = threading.Event()

    def hang(headers: dict[str, str], body: bytes) -> Answer:
        over.wait(60)
        return DONE

    receiver.behave = hang
    with duly_up(environ=environ | {"DULY_STOP_TIMEOUT_S": "4"}) as duly:
        key = duly.ready["api_key"]
        task_id = submit(duly, key, receiver)
        receiver.wait_for(1)
        began = time.monotonic()
        duly.process.signal(signal.SIGTERM)
        assert duly.process.wait() == 0
        assert time.monotonic() - began < 8
        assert "Traceback" not in duly.process.said_on_errors
    receiver.behave = always(DONE)
    with duly_up(environ=environ) as duly:
        assert ended(duly, key, task_id)["state"] == "COMPLETED"
        assert attempts(duly, key, task_id) == [("released", 0), ("completed", 1)]
    over.set()


def test_a_receiver_that_takes_over_settles_by_the_fence_it_was_given(
    environ: dict[str, str], receiver: Hooks
) -> None:
    """Long work does not fit into one request; whoever does it must be able to say how it ended."""
    receiver.behave = always(ACCEPTED)
    with duly_up(environ=environ) as duly:
        key = duly.ready["api_key"]
        task_id = submit(duly, key, receiver, timeout_s=3600)
        receiver.wait_for(1)
        fence = int(receiver.requests[0]["duly-fence"])
        path = f"/v1/tasks/{task_id}/settle"
        done = {"fence": fence, "outcome": "completed", "result": {"charged": True}}
        status, refused = call(duly, key, "POST", path, done | {"fence": fence + 1})
        assert (status, refused["code"]) == (409, "stale")
        # As fast as it can, which may be before duly noted that it took the task over.
        status, settled = call(duly, key, "POST", path, done)
        assert (status, settled["status"]) == (200, "settled"), settled
        status, again = call(duly, key, "POST", path, done)
        assert (status, again["status"]) == (200, "replay"), again
        task = ended(duly, key, task_id)
        assert (task["state"], task["result"]) == ("COMPLETED", {"charged": True})
        assert attempts(duly, key, task_id) == [("completed", 1)]


def test_one_that_settles_before_it_answers_is_believed(
    environ: dict[str, str], receiver: Hooks
) -> None:
    """Its worker is faster than its web server: a refusal here would lose the result."""
    told: list[tuple[int, dict[str, Any]]] = []
    with duly_up(environ=environ) as duly:
        key = duly.ready["api_key"]

        def settle_first(headers: dict[str, str], body: bytes) -> Answer:
            done = {"fence": int(headers["duly-fence"]), "outcome": "completed", "result": 7}
            path = f"/v1/tasks/{headers['duly-task-id']}/settle"
            told.append(call(duly, key, "POST", path, done))
            return ACCEPTED

        receiver.behave = settle_first
        task_id = submit(duly, key, receiver)
        task = ended(duly, key, task_id)
    assert [status for status, _ in told] == [200], told
    assert (task["state"], task["result"]) == ("COMPLETED", 7)


def test_a_receiver_that_took_over_and_is_silent_times_out(
    environ: dict[str, str], receiver: Hooks
) -> None:
    """A receiver that forgot the task must not keep it for ever."""
    receiver.behave = always(ACCEPTED)
    with duly_up(environ=environ) as duly:
        key = duly.ready["api_key"]
        retry = {"max_attempts": 2, "initial_s": 0}
        task_id = submit(duly, key, receiver, timeout_s=1, retry=retry)
        task = ended(duly, key, task_id)
        assert (task["state"], task["reason"]) == ("FAILED", "exhausted")
        assert task["error"].startswith("timed out")
        assert attempts(duly, key, task_id) == [("failed", 1), ("failed", 2)]
        late = {"fence": int(receiver.requests[0]["duly-fence"]), "outcome": "completed"}
        status, refused = call(duly, key, "POST", f"/v1/tasks/{task_id}/settle", late)
        assert (status, refused["code"]) == (409, "stale")


@contextlib.contextmanager
def duly_serve(environ: dict[str, str]) -> Iterator[RunningDuly]:
    with child("-m", "duly", "serve", "--json", "--port", "0", environ=environ) as process:
        yield RunningDuly(process)


def test_private_targets_are_for_a_duly_that_only_this_machine_can_reach(
    environ: dict[str, str], receiver: Hooks
) -> None:
    """On a server, a tenant's URL would reach whatever the server can reach."""
    task = {"type": "t", "target": {"url": receiver.url}}
    with duly_up(environ=environ) as duly:
        key = duly.ready["api_key"]
        assert call(duly, key, "POST", "/v1/tasks", task)[0] == 201
        receiver.wait_for(1)
    shut = {"DULY_WEBHOOK_ALLOW_PRIVATE": "false"}
    with duly_up(environ=environ | shut) as duly:
        assert refused_pointer(duly, key, task) == "/target/url"
    with duly_up("--host", "0.0.0.0", environ=environ) as duly:
        duly.url = duly.url.replace("0.0.0.0", "127.0.0.1")
        assert refused_pointer(duly, key, task) == "/target/url"
    with duly_serve(environ) as duly:
        assert refused_pointer(duly, key, task) == "/target/url"
    listed = {
        "DULY_WEBHOOK_ALLOW_NETWORKS": "127.0.0.1/32",
        "DULY_WEBHOOK_PORTS": f"443,{receiver.port}",
    }
    with duly_serve(environ | listed) as duly:
        task_id = submit(duly, key, receiver)
        assert ended(duly, key, task_id)["state"] == "COMPLETED"
    assert len(receiver.requests) == 2


def refused_pointer(duly: RunningDuly, key: str, task: dict[str, Any]) -> str:
    status, refused = call(duly, key, "POST", "/v1/tasks", task)
    assert status == 422, refused
    pointer: str = refused["errors"][0]["pointer"]
    return pointer


def test_a_laptop_is_told_that_private_targets_are_allowed(environ: dict[str, str]) -> None:
    """A default that depends on where it runs must say so where it runs."""
    with child("-m", "duly", "up", "--port", "0", environ=environ) as process:
        lines = [process.line()]
        while not lines[-1].startswith("Ctrl-C"):
            lines.append(process.line())
    assert any("webhook_allow_private" in line for line in lines), lines


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DULY_WEBHOOK_ALLOW_NETWORKS", "10.0.0.0/33"),
        ("DULY_WEBHOOK_ALLOW_NETWORKS", "10.0.0.1/8"),
        ("DULY_WEBHOOK_PORTS", "0"),
        ("DULY_WEBHOOK_PORTS", "70000"),
    ],
)
def test_a_setting_that_makes_no_sense_stops_the_start(
    environ: dict[str, str], name: str, value: str
) -> None:
    """A network that was misspelled must not open nothing, or everything, in silence."""
    with child("-m", "duly", "up", "--port", "0", environ=environ | {name: value}) as process:
        assert process.wait() == 2
        assert process.said_on_errors.count("\n") == 1, process.said_on_errors
        assert name.removeprefix("DULY_").lower() in process.said_on_errors
