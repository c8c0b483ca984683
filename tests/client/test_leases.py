"""Until when a worker may act on a lease, by its own clock, and never a moment longer."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly.client import server_clock
from duly.client.handlers import Handler
from duly.client.leased_tasks import LeasedTask
from duly.client.leases import LeaseBook, Run, Stop
from duly.client.server_clock import DOUBT_S_MAX, KNOWN_FOR_S, ServerClock

START = datetime(2026, 1, 1, tzinfo=UTC)


async def nothing(ctx: Any) -> None: ...


def lease(timeout_s: float = 60.0, lease_s: float = 15.0) -> LeasedTask:
    return LeasedTask(
        id="t",
        fence=1,
        attempt=1,
        max_attempts=5,
        type="a",
        scheduled_for=START,
        started_at=START,
        lease_until=START + timedelta(seconds=min(lease_s, timeout_s)),
        timeout_s=timeout_s,
        execution_key="k",
    )


def run_of(task: LeasedTask, granted_at: float = 100.0, timeout_s: float | None = None) -> Run:
    return Run(task, Handler("a", nothing, "async", timeout_s=timeout_s), granted_at)


def test_a_handler_is_stopped_before_the_end_of_its_lease_and_a_heartbeat_moves_it() -> None:
    """One that is stopped at the end has no time left to stop in."""
    run = run_of(lease())
    assert run.reason_to_stop(113.9) is None
    assert run.reason_to_stop(114.0) is Stop.EXPIRING
    run.extend(110.0, 15.0)
    assert run.reason_to_stop(123.9) is None
    assert run.reason_to_stop(124.0) is Stop.EXPIRING


def test_no_heartbeat_moves_the_end_of_an_attempt() -> None:
    """The server refuses them, and has the task run elsewhere."""
    run = run_of(lease(timeout_s=20.0))
    run.extend(110.0, 15.0)
    assert run.deadline == 120.0
    assert run.reason_to_stop(119.0) is Stop.TIMEOUT


def test_the_handlers_own_limit_counts_from_its_start() -> None:
    """It has waited for nobody's queue then."""
    run = run_of(lease(), timeout_s=2.0)
    run.start_clock(105.0)
    assert run.reason_to_stop(106.9) is None
    assert run.reason_to_stop(107.0) is Stop.TIMEOUT


def test_a_lease_that_ended_a_moment_ago_is_still_known() -> None:
    """The answer to a request that was sent before that may name it once more."""
    book, run = LeaseBook(), run_of(lease())
    book.add(run)
    assert book.is_known(run.key)
    book.remove(run)
    assert book.is_known(run.key)
    book.gone.clear()
    assert not book.is_known(run.key)


def test_the_age_of_a_lease_is_told_unless_its_limit_hides_it() -> None:
    """Guessed too young it is run twice, too old it is given back for ever."""
    task = lease(timeout_s=60.0)
    assert task.age_s(START + timedelta(seconds=18), 15.0) == 3.0
    assert task.age_s(START + timedelta(seconds=60), 15.0) is None


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    instant = [1000.0]
    monkeypatch.setattr(server_clock, "monotonic", lambda: instant[0])
    return instant


def test_without_any_knowledge_only_a_quick_answer_is_beyond_doubt(now: list[float]) -> None:
    """A poll that waited says nothing about when its lease was granted."""
    clock = ServerClock()
    assert clock.granted_at(START, 999.9, 1000.0) == 999.9
    assert clock.granted_at(START, 1000.0 - DOUBT_S_MAX - 0.1, 1000.0) is None


def test_one_known_instant_dates_the_leases_after_it(now: list[float]) -> None:
    """Also one whose answer lay unread while the process was stopped: it is old, and seen to be."""
    clock = ServerClock()
    clock.note(1000.0, START)
    fresh = START + timedelta(seconds=20)
    assert clock.granted_at(fresh, 1001.0, 1020.01) == pytest.approx(1020.0)
    assert clock.granted_at(fresh, 1001.0, 1035.0) is None


def test_the_tightest_bound_is_kept_and_forgotten_in_time(now: list[float]) -> None:
    """A looser one would bring doubt back with every long poll; an old one may have drifted."""
    clock = ServerClock()
    clock.note(1000.0, START)
    now[0] = 1020.0
    clock.note(1001.0, START + timedelta(seconds=20))
    fresh = START + timedelta(seconds=30)
    assert clock.granted_at(fresh, 1001.0, 1030.01) == pytest.approx(1030.0)
    later = KNOWN_FOR_S + 1
    fresh = START + timedelta(seconds=later)
    assert clock.granted_at(fresh, 1000.0, 1000.0 + later) is None


def test_a_clock_that_was_set_forward_makes_no_lease_younger_than_its_answer(
    now: list[float],
) -> None:
    """An hour forward there must not become an hour of lease here."""
    clock = ServerClock()
    clock.note(1000.0, START)
    assert clock.granted_at(START + timedelta(hours=1), 1001.0, 1001.1) == 1001.1
