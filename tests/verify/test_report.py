"""The report of `duly verify`: everything is counted, a bounded number is kept."""

from datetime import timedelta
from uuid import UUID

from duly.verify.check import INVARIANTS
from duly.verify.history import AttemptRow, SlotHolderRow, Tables, TaskRow, TimerRow
from duly.verify.report import CLAIMS, CLOCK_STEP_S, GRACE_S, Verification
from tests.verify.histories import OTHER, TASK, WORKER, at


def lost(count: int) -> Tables:
    return Tables(tasks=tuple(TaskRow(UUID(int=n), 1, at(0), 3) for n in range(1, count + 1)))


def judged(tables: Tables, kept_max: int = 10) -> Verification:
    verification = Verification(kept_max)
    verification.judge_tasks(tables, [row.id for row in tables.tasks], at(100))
    return verification


def test_every_violation_is_counted_and_only_some_are_kept() -> None:
    """A broken table of a million rows must not fill the memory of whoever looks at it."""
    verification = judged(lost(25))
    verification.judge_tasks(lost(5), [UUID(int=n) for n in range(1, 6)], at(100))
    assert verification.counts["I1"] == 30
    assert len(verification.violations) == 10
    assert not verification.is_clean


def test_only_the_chosen_tasks_are_judged() -> None:
    """What is read because another task names it is judged on its own page, not twice."""
    verification = Verification(10)
    verification.judge_tasks(lost(2), [TASK], at(100))
    assert [found.task for found in verification.violations] == [TASK]


def test_what_a_pause_may_explain_is_a_warning() -> None:
    """An alarm for every paused tenant is an alarm that nobody hears."""
    late = TimerRow(TASK, 0, 0, at(100) - timedelta(seconds=GRACE_S + 1))
    verification = judged(Tables((TaskRow(TASK, 1, at(0), 3),), (late,)))
    verification.judge_slots(
        [SlotHolderRow(1, None, at(0)), SlotHolderRow(2, WORKER, at(200))], at(100)
    )
    verification.judge_cap(1, 5, 5)
    verification.judge_cap(1, 5, 6)
    assert verification.is_clean
    assert [found.invariant for found in verification.warnings] == ["overdue", "slots", "caps"]


def test_a_clock_a_little_behind_accuses_nobody() -> None:
    """After a fail-over the next server's clock may be a moment late; fences still decide."""
    for early_s, names in ((CLOCK_STEP_S / 2, set()), (CLOCK_STEP_S * 2, {"I12"})):
        row = AttemptRow(OTHER, 1, 1, WORKER, at(50 - early_s), at(60), "completed", "COMPLETED")
        verification = judged(Tables((TaskRow(OTHER, 1, at(50), 3),), (), (row,)))
        assert {found.invariant for found in verification.violations} == names


def test_every_claim_is_an_invariant_of_the_checker() -> None:
    """A line of the report that nothing stands behind is always clean."""
    assert {claim.name for claim in CLAIMS} <= INVARIANTS.keys()
