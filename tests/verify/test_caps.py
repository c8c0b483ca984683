"""The judge of caps, judged: leases too many at one instant are found, and only those."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from uuid import UUID

from duly.verify.check import check
from duly.verify.history import AttemptRow, Fault, Logs, Tables, TaskRow, TimerRow

HOLDER = UUID(int=99)
DONE = "completed"


def at(seconds: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def history(
    leases: Iterable[tuple[float, float]], caps: dict[int, int], key: str | None = None
) -> Tables:
    """One task for each lease, as (begin, end)."""
    spans = list(enumerate(leases, 1))
    return Tables(
        tasks=tuple(
            TaskRow(UUID(int=n), 1, at(0), 3, concurrency_key=key, concurrency_limit=1)
            for n, _ in spans
        ),
        attempts=tuple(
            AttemptRow(UUID(int=n), 1, 1, HOLDER, at(begin), at(end), DONE, "COMPLETED")
            for n, (begin, end) in spans
        ),
        caps=caps,
    )


def found(tables: Tables, logs: Logs | None = None) -> list[UUID | None]:
    return [v.task for v in check(logs or Logs(), tables) if v.invariant == "I10"]


def test_one_lease_too_many_is_found() -> None:
    """Two in flight for half a second are two in flight."""
    assert found(history([(1, 3), (2.5, 4)], {1: 1})) == [UUID(int=2)]
    assert found(history([(1, 3), (2.5, 4)], {1: 2})) == []


def test_a_lease_that_begins_as_another_ends_is_none_too_many() -> None:
    """The end made the room."""
    assert found(history([(1, 3), (3, 4)], {1: 1})) == []


def test_a_key_has_a_limit_of_its_own() -> None:
    """No tenant's cap is needed for it."""
    assert found(history([(1, 3), (2, 4)], {}, key="k")) == [UUID(int=2)]
    assert found(history([(1, 3), (2, 4)], {})) == []


def test_a_lease_that_is_held_now_counts() -> None:
    """It has no end yet, and no attempt."""
    tables = history([(1, 3)], {1: 1})
    timer = TimerRow(UUID(int=2), 1, 0, at(9), HOLDER, at(2))
    task = TaskRow(UUID(int=2), 1, at(0), 3)
    held = Tables((*tables.tasks, task), (timer,), tables.attempts, caps={1: 1})
    assert found(held) == [UUID(int=2)]


def test_a_clock_that_was_set_back_leaves_caps_unjudged() -> None:
    """Its instants have no order."""
    logs = Logs(faults=(Fault("clock", at(1), step_back_s=5.0),))
    assert found(history([(1, 3), (2, 4)], {1: 1}), logs) == []
