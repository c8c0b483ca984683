"""Ends of attempts while the heartbeat thread looks at them."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from duly.client.clock import monotonic
from duly.client.handlers import Handler
from duly.client.heartbeat import QUEUED_S_MAX, HeartbeatLoop
from duly.client.leased_tasks import LeasedTask
from duly.client.leases import LeaseBook, Run, Stop
from duly.client.middleware import HandlerCaller, Middleware
from duly.client.outcomes import HandlerOutcome, failed, rejected
from duly.client.runner import Runner
from duly.client.server_clock import ServerClock

START = datetime(2026, 1, 1, tzinfo=UTC)
LEASE_S = 15.0


async def nothing(ctx: Any) -> None: ...


HANDLER = Handler("a", nothing, "async")
CALLER = HandlerCaller(Middleware(), {})


def old_run() -> Run:
    """One that was granted longer ago than anything may lie in the queue."""
    task = LeasedTask(
        id="t",
        fence=1,
        attempt=1,
        max_attempts=5,
        type="a",
        scheduled_for=START,
        started_at=START,
        lease_until=START + timedelta(seconds=LEASE_S),
        timeout_s=60.0,
        execution_key="k",
    )
    return Run(task, HANDLER, monotonic() - QUEUED_S_MAX - 1.0)


class StubSettling:
    def __init__(self) -> None:
        self.told: list[HandlerOutcome | None] = []
        self.worker_api: Any = None

    def add(self, run: Run) -> None:
        self.told.append(run.verdict)


def heart_of(runner: Runner) -> HeartbeatLoop:
    """Not started: the test looks in its place."""
    nobody: Any = None
    return HeartbeatLoop(
        nobody, "w", LEASE_S, runner.book, ServerClock(), runner.stop, runner.abandon
    )


@pytest.mark.parametrize("verdict", [failed("no", "Error"), rejected("no", "Error")])
async def test_a_look_in_the_middle_of_an_end_does_not_change_what_it_says(
    monkeypatch: pytest.MonkeyPatch, verdict: HandlerOutcome
) -> None:
    """A failure that becomes a release is charged to nobody, and tried again for ever."""
    settling = StubSettling()
    runner = Runner({"a": HANDLER}, CALLER, 1, 0, 1, LeaseBook(), cast(Any, settling))
    heartbeat_loop, run = heart_of(runner), old_run()
    run.start_clock(monotonic())
    looks: list[float] = []

    def look_and_tell() -> float:
        now = monotonic()
        looks.append(heartbeat_loop.look_at(run, now))
        return now

    monkeypatch.setattr("duly.client.runner.monotonic", look_and_tell)
    runner.ended(run, verdict)
    runner.close()
    assert looks
    assert settling.told == [verdict]


async def test_a_task_that_waits_too_long_for_its_turn_is_given_back() -> None:
    """Another worker could have run it by now."""
    runner = Runner({"a": HANDLER}, CALLER, 1, 0, 1, LeaseBook(), cast(Any, StubSettling()))
    run = old_run()
    heart_of(runner).look_at(run, monotonic())
    runner.close()
    assert run.stop is Stop.RELEASE
