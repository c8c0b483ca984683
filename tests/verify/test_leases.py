"""The checker reports leases that overlap, zombies that write, and attempts that are missing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from duly.verify.history import Effect, Fault, Operation
from tests.verify.histories import TASK, THIEF, WORKER, Story, at, failed, finished, running


def overlap(story: Story) -> None:
    story.spoil_attempt(0, ended_at=at(11))


def keep_the_fence(story: Story) -> None:
    story.spoil_attempt(0, fence=2)


def share_a_fence(story: Story) -> None:
    story.beat(1, 3, 8, holder=THIEF)


def move_without_a_fence(story: Story) -> None:
    story.move(5, 5)


def reap_too_early(story: Story) -> None:
    story.spoil_attempt(1, ended_at=at(16.9))


@pytest.mark.parametrize(
    "spoil", [overlap, keep_the_fence, share_a_fence, reap_too_early, move_without_a_fence]
)
def test_two_holders_at_once_are_reported(spoil: Callable[[Story], None]) -> None:
    """Two holders at once do the work twice, and neither knows."""
    story = finished()
    spoil(story)
    assert "I2" in story.verdicts()


@pytest.mark.parametrize("changes", [{"fence": 3}, {"fence": 4}, {"started_at": at(16)}])
def test_a_lease_that_overlaps_the_last_attempt_is_reported(changes: dict[str, Any]) -> None:
    """The lease that runs now counts too, not only those on record."""
    story = running()
    story.timers[0] = replace(story.timers[0], **changes)
    assert "I2" in story.verdicts()


def test_a_clock_that_was_set_back_excuses_what_it_explains() -> None:
    """A stepped clock makes times lie; fences still decide, so the checker must not accuse."""
    story = finished()
    overlap(story)
    story.faults.append(Fault("clock", at(5), step_back_s=0.5))
    assert "I2" in story.verdicts()
    story.faults.append(Fault("clock", at(6), step_back_s=0.6))
    assert "I2" not in story.verdicts()


def lease_with_an_old_ticket(story: Story) -> None:
    story.call(
        Operation.LEASE,
        10,
        10.1,
        answers={"answer": "leased", "fence": 3, "attempt": 2},
        task=TASK,
        fence=1,
        holder=WORKER,
    )


def record_a_stale_settlement(story: Story) -> None:
    story.spoil_attempt(1, outcome="completed", state="COMPLETED")


def record_what_nobody_said(story: Story) -> None:
    story.spoil_attempt(0, outcome="released", charged=0)


def forget_a_settlement(story: Story) -> None:
    del story.attempts[0]


def answer_another_state(story: Story) -> None:
    story.settle(5, 32.5, "completed", state="FAILED")


def refuse_the_holder(story: Story) -> None:
    story.settle(3, 12, "completed", answer="stale")


def extend_after_the_end(story: Story) -> None:
    story.beat(1, 5, 9)


def extend_a_foreign_lease(story: Story) -> None:
    story.beat(1, 3, 8, holder=THIEF)


def extend_after_stale(story: Story) -> None:
    story.beat(5, 30.2, 0, answer="stale")
    story.beat(5, 31, 36)


@pytest.mark.parametrize(
    "spoil",
    [
        lease_with_an_old_ticket,
        record_a_stale_settlement,
        record_what_nobody_said,
        forget_a_settlement,
        answer_another_state,
        refuse_the_holder,
        extend_after_the_end,
        extend_a_foreign_lease,
        extend_after_stale,
    ],
)
def test_a_stale_call_that_changed_something_is_reported(spoil: Callable[[Story], None]) -> None:
    """A zombie that can still write undoes the work of its successor."""
    story = finished()
    spoil(story)
    assert "I3" in story.verdicts()


def skip_a_number(story: Story) -> None:
    story.spoil_attempt(2, charged=4)


def charge_a_loss_not(story: Story) -> None:
    story.spoil_attempt(1, charged=0)


def record_twice(story: Story) -> None:
    story.attempts.append(story.attempts[1])


def record_for_another(story: Story) -> None:
    story.spoil_attempt(1, holder=THIEF)


def act_unrecorded(story: Story) -> None:
    story.effects.append(Effect(TASK, 9, WORKER, at(50)))


def act_twice(story: Story) -> None:
    story.effects.append(story.effects[0])


def try_too_often(story: Story) -> None:
    story.tasks[0] = replace(story.tasks[0], max_attempts=2)


def miscall_an_attempt(story: Story) -> None:
    story.lease(5, 30, 35, attempt=2)


@pytest.mark.parametrize(
    "spoil",
    [
        skip_a_number,
        charge_a_loss_not,
        record_twice,
        record_for_another,
        act_unrecorded,
        act_twice,
        try_too_often,
        miscall_an_attempt,
        forget_a_settlement,
    ],
)
def test_a_lease_that_is_not_one_attempt_is_reported(spoil: Callable[[Story], None]) -> None:
    """The attempts are the only record of what was done, and of what was paid for."""
    story = finished()
    spoil(story)
    assert "I5" in story.verdicts()


def test_a_timer_that_counts_otherwise_is_reported() -> None:
    """A timer that forgets an attempt retries for ever."""
    story = running()
    story.timers[0] = replace(story.timers[0], attempt=1)
    assert story.verdicts() == {"I5"}


def test_a_timer_that_counts_what_is_not_recorded_is_reported() -> None:
    """An attempt that left no record was executed, and nobody can say by whom."""
    story = failed()
    story.timers[0] = replace(story.timers[0], attempt=1)
    assert story.verdicts() == {"I5"}


def test_a_guess_refused_before_the_lease_began_accuses_nobody() -> None:
    """An intruder may name the fence that the holder gets next; that is no contradiction."""
    story = finished()
    story.beat(5, 29, 0, answer="stale")
    story.settle(5, 29, "completed", answer="stale")
    story.beat(5, 31, 36)
    assert story.violations() == []
