"""Workers as real processes: told to stop, killed, frozen, and left without a server."""

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from duly import Client
from duly.client.task import Attempt
from duly.client.worker import LEAVE_S
from tests.processes import Child, child, eventually
from tests.servers import ServerOfTheRun
from tests.story.duly_up import RunningDuly, duly_up

pytestmark = pytest.mark.slow
WAIT_S = 30.0
StartWorker = Callable[..., contextlib.AbstractContextManager[Child]]


@pytest.fixture
def calls(duly: RunningDuly) -> Iterator[Client]:
    with Client(duly.url, duly.ready["api_key"]) as client:
        yield client


@pytest.fixture
def start_worker(duly: RunningDuly, pool: str) -> StartWorker:
    def start(*more: str, **options: Any) -> contextlib.AbstractContextManager[Child]:
        options = {"url": duly.url, "pools": [pool], "lease_s": 2.0, "drain_s": 4.0, **options}
        environ = {"DULY_API_KEY": duly.ready["api_key"]}
        arguments = ("-m", "tests.client.worker_process", json.dumps(options), *more)
        return child(*arguments, environ=environ)

    return start


def attempts(client: Client, task_id: str) -> list[Attempt]:
    return sorted(client.attempts(task_id), key=lambda attempt: attempt.fence)


def outcomes(client: Client, task_id: str) -> list[str]:
    return [attempt.outcome for attempt in attempts(client, task_id)]


def test_a_signal_lets_handlers_finish_and_releases_the_rest(
    calls: Client, start_worker: StartWorker, pool: str
) -> None:
    """Every deployment sends it, in the middle of everything."""
    with start_worker(drain_s=3.0) as process:
        short = calls.submit("wait", {"seconds": 1.0}, pool=pool)
        long = calls.submit("wait", {"seconds": 60}, pool=pool)
        assert [process.answer()["event"] for _ in range(2)] == ["started", "started"]
        process.signal(signal.SIGTERM)
        signalled_at = time.monotonic()
        later = calls.submit("wait", {"seconds": 0}, pool=pool)
        assert process.wait() == 0
        assert time.monotonic() - signalled_at < 3.5
    assert calls.get(short.id).state == "COMPLETED"
    assert outcomes(calls, long.id) == ["released"]
    assert calls.get(long.id).attempt == 0
    assert outcomes(calls, later.id) in ([], ["released"])
    with start_worker():
        assert calls.wait(later.id, WAIT_S).state == "COMPLETED"


@pytest.mark.parametrize("kind", ["block", "sleep.in.thread"])
def test_a_handler_that_cannot_be_stopped_does_not_hold_up_the_end(
    calls: Client, start_worker: StartWorker, pool: str, kind: str
) -> None:
    """Blocked loop or sleeping thread: the process is gone in time, and the task is given back."""
    with start_worker(drain_s=1.5) as process:
        task = calls.submit(kind, pool=pool)
        assert process.answer()["event"] == "started"
        process.signal(signal.SIGTERM)
        signalled_at = time.monotonic()
        process.wait()
        assert time.monotonic() - signalled_at < 4.0
    assert outcomes(calls, task.id) == ["released"]


def test_what_a_program_does_after_its_worker_is_not_cut_off(
    calls: Client, start_worker: StartWorker, pool: str
) -> None:
    """A report that is written at the end, and the exit code that a supervisor looks at."""
    with start_worker(str(LEAVE_S + 1.0), drain_s=0.5) as process:
        calls.submit("wait", {"seconds": 0}, pool=pool)
        assert [process.answer()["event"] for _ in range(2)] == ["started", "ended"]
        process.signal(signal.SIGTERM)
        assert process.answer()["event"] == "after run"
        assert process.wait() == 0


@pytest.mark.parametrize("after", [[], [str(LEAVE_S + 1.0)]])
def test_a_thread_that_is_left_does_not_keep_a_stopped_worker(
    calls: Client, start_worker: StartWorker, pool: str, after: list[str]
) -> None:
    """The interpreter waits for threads of libraries at its end, for as long as they like."""
    with start_worker(*after, drain_s=0.5) as process:
        calls.submit("leave.thread", pool=pool)
        assert process.answer()["event"] == "started"
        process.signal(signal.SIGTERM)
        assert process.wait() == 1
        assert "Timeout" in process.said_on_errors


def test_a_second_signal_ends_it_at_once(
    calls: Client, start_worker: StartWorker, pool: str
) -> None:
    """A second Ctrl-C ends the worker at once."""
    with start_worker(drain_s=60.0) as process:
        calls.submit("wait", pool=pool)
        assert process.answer()["event"] == "started"
        process.signal(signal.SIGINT)
        eventually(lambda: "stopping" in process.said_on_errors, "it has heard the first one")
        process.signal(signal.SIGINT)
        assert process.wait(5.0) == 128 + signal.SIGINT


def test_after_a_kill_the_next_attempt_has_the_same_key_and_a_higher_fence(
    calls: Client, start_worker: StartWorker, pool: str
) -> None:
    """By these two a receiver tells the second delivery from another task."""
    with start_worker() as first:
        task = calls.submit("wait", {"seconds": 1.0}, pool=pool, retry={"initial_s": 0})
        before = first.answer()
        first.kill()
        with start_worker() as second:
            after = second.answer()
            assert calls.wait(task.id, WAIT_S).state == "COMPLETED"
    assert (after["id"], after["key"]) == (before["id"], before["key"])
    assert after["fence"] > before["fence"]
    assert after["attempt"] == before["attempt"] + 1
    assert outcomes(calls, task.id) == ["lease_lost", "completed"]


def test_a_frozen_worker_that_wakes_up_stops_its_handler_and_changes_nothing(
    calls: Client, start_worker: StartWorker, pool: str
) -> None:
    """It believes that a second has passed; the task is somebody else's by now."""
    with start_worker(lease_s=1.0) as zombie:
        waits = {"first": 60, "seconds": 1.0}
        task = calls.submit("wait", waits, pool=pool, retry={"initial_s": 0})
        assert zombie.answer()["event"] == "started"
        zombie.signal(signal.SIGSTOP)
        try:
            with start_worker(lease_s=1.0) as second:
                taken = second.answer()
                assert taken["event"] == "started"
                zombie.signal(signal.SIGCONT)
                assert zombie.answer()["event"] == "cancelled"
                assert calls.wait(task.id, WAIT_S).output == taken["fence"]
        finally:
            zombie.signal(signal.SIGCONT)
    assert_lost_then_completed(calls, task.id)


def assert_lost_then_completed(calls: Client, task_id: str) -> None:
    """Lost more than once if the frozen worker's open poll was the first in the queue again."""
    *before, last = outcomes(calls, task_id)
    assert set(before) == {"lease_lost"}
    assert last == "completed"


def test_a_late_settlement_changes_nothing(
    calls: Client, start_worker: StartWorker, pool: str
) -> None:
    """Frozen with its work done but not told: what it says then comes after the next attempt's."""
    with start_worker(lease_s=1.0) as zombie:
        task = calls.submit("block", {"seconds": 1.0}, pool=pool, retry={"initial_s": 0})
        assert zombie.answer()["event"] == "started"
        zombie.signal(signal.SIGSTOP)
        try:
            with start_worker(lease_s=1.0):
                ended = calls.wait(task.id, WAIT_S)
                zombie.signal(signal.SIGCONT)
                eventually(
                    lambda: "settlement refused" in zombie.said_on_errors, "its words came too late"
                )
        finally:
            zombie.signal(signal.SIGCONT)
    assert calls.get(task.id).finished_at == ended.finished_at
    assert_lost_then_completed(calls, task.id)


def test_a_worker_outlives_its_server(server: ServerOfTheRun, pool: str) -> None:
    """Servers are restarted; nobody restarts a hundred workers after each of them."""
    with server.database() as name:
        environ = {
            "DULY_DATABASE_URL": server.engine_url(name),
            "DULY_MIGRATION_DATABASE_URL": server.url(name),
        }
        with contextlib.ExitStack() as stack:
            with duly_up(environ=environ) as duly:
                url, key = duly.url, duly.ready["api_key"]
                options = {"url": url, "pools": [pool], "lease_s": 2.0}
                process = stack.enter_context(
                    child(
                        "-m",
                        "tests.client.worker_process",
                        json.dumps(options),
                        environ={"DULY_API_KEY": key},
                    )
                )
                with Client(url, key) as client:
                    task = client.submit("wait", {"seconds": 0.0}, pool=pool)
                    assert client.wait(task.id, WAIT_S).state == "COMPLETED"
                    assert [process.answer()["event"] for _ in range(2)] == ["started", "ended"]
            eventually(lambda: "failed" in process.said_on_errors, "the worker has noticed")
            port = url.rpartition(":")[2]
            with duly_up("--port", port, environ=environ), Client(url, key) as client:
                task = client.submit("wait", {"seconds": 0.0}, pool=pool)
                assert client.wait(task.id, WAIT_S).state == "COMPLETED"
                process.signal(signal.SIGTERM)
                assert process.wait() == 0
