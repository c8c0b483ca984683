"""The checker reports every broken promise, and only those: hand-made histories, good and bad."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from duly.verify.check import check, find_overdue
from duly.verify.history import (
    AttemptRow,
    CallPhase,
    KeyRow,
    Logs,
    Operation,
    Tables,
    TaskRow,
    TimerRow,
)
from tests.verify.histories import (
    OTHER,
    TASK,
    WORKER,
    Story,
    at,
    cancelled,
    failed,
    finished,
    running,
)

GOOD = [finished, running, cancelled, failed]


@pytest.mark.parametrize("make", GOOD, ids=lambda make: make.__name__)
def test_a_clean_history_is_not_accused(make: Callable[[], Story]) -> None:
    """A checker that cries wolf is switched off within a week."""
    assert make().violations() == []


@pytest.mark.parametrize("make", GOOD, ids=lambda make: make.__name__)
def test_tables_alone_are_judged_without_a_log(make: Callable[[], Story]) -> None:
    """An operator has no client log; the checker must neither accuse nor skip for want of it."""
    story = make()
    story.entries, story.effects = [], []
    assert story.violations() == []
    story.timers, story.attempts = [], []
    assert "I1" in story.verdicts()


def lose_the_task(story: Story) -> None:
    story.tasks, story.attempts, story.keys, story.effects = [], [], [], []
    story.entries = story.entries[:2]


def revive(story: Story) -> None:
    story.timers.append(TimerRow(TASK, 6, 3, at(50)))


def end_unheard(story: Story) -> None:
    story.attempts.pop()
    story.entries = [entry for entry in story.entries if entry.at < at(30)]
    story.effects.pop()


def store_unasked(story: Story) -> None:
    story.tasks.append(TaskRow(OTHER, 1, at(1), 3, request="r2"))
    story.timers.append(TimerRow(OTHER, 0, 0, at(1)))


def store_twice(story: Story) -> None:
    story.tasks.append(TaskRow(OTHER, 1, at(1), 3, request="r1"))
    story.timers.append(TimerRow(OTHER, 0, 0, at(1)))


def orphan_a_timer(story: Story) -> None:
    story.timers.append(TimerRow(OTHER, 0, 0, at(1)))


@pytest.mark.parametrize(
    "spoil",
    [lose_the_task, revive, end_unheard, store_unasked, store_twice, orphan_a_timer],
)
def test_a_task_in_no_place_or_in_two_is_reported(spoil: Callable[[Story], None]) -> None:
    """An acknowledged task that is nowhere is the one thing that must never happen."""
    story = finished()
    spoil(story)
    assert "I1" in story.verdicts()


def test_a_submit_of_unknown_outcome_explains_one_task() -> None:
    """A timeout is not a refusal: what it stored is no ghost; but one timeout stores one."""
    story = finished()
    story.call(Operation.SUBMIT, 1, 2, CallPhase.UNKNOWN, request="r2")
    store_unasked(story)
    assert story.violations() == []
    third = UUID(int=3)
    story.tasks.append(TaskRow(third, 1, at(1), 3, request="r2"))
    story.timers.append(TimerRow(third, 0, 0, at(1)))
    assert story.verdicts() == {"I1"}


def test_an_erased_task_of_a_submit_of_unknown_outcome_is_no_ghost() -> None:
    """Erased, it no longer says what was asked for, and seemed to be nobody's."""
    story = finished()
    story.call(Operation.SUBMIT, 1, 2, CallPhase.UNKNOWN, request="r2")
    store_unasked(story)
    story.tasks[-1] = replace(story.tasks[-1], request="nothing")
    ghost = "is stored, but was never submitted"
    assert ghost in [each.problem for each in story.violations()]
    story.tombstones.add(OTHER)
    assert ghost not in [each.problem for each in story.violations()]


def test_a_purged_task_is_neither_lost_nor_live() -> None:
    """Erasing on request must not look like loss, and must not leave the task running."""
    story = finished()
    lose_the_task(story)
    story.tombstones.add(TASK)
    assert story.violations() == []
    story = running()
    story.tombstones.add(TASK)
    assert "I1" in story.verdicts()


def test_a_failed_task_without_its_dead_letter_is_reported() -> None:
    """A failure that nobody can find cannot be replayed."""
    story = failed()
    story.letters, story.tasks, story.timers = [], story.tasks[:1], []
    story.entries = [e for e in story.entries if e.operation is not Operation.REPLAY]
    assert story.verdicts() == {"I1"}
    story.call(Operation.PURGE_LETTER, 9, 9.1, answers={"answer": "purged"}, task=TASK)
    assert story.violations() == []


def test_a_purged_dead_letter_is_told_from_a_lost_one_without_a_log() -> None:
    """An operator may purge a letter; duly may not forget to write one."""
    story = failed()
    tables = Tables((story.tasks[0],), (), tuple(story.attempts), letters_purged=frozenset())
    assert [found.invariant for found in check(Logs(), tables)] == ["I1"]
    assert check(Logs(), replace(tables, letters_purged=frozenset({TASK}))) == []
    assert check(Logs(), replace(tables, letters_purged=None)) == []


def test_a_replay_that_is_nowhere_is_reported() -> None:
    """Who replayed a letter was told that the work goes on."""
    story = failed()
    del story.tasks[1], story.timers[0]
    story.entries = [e for e in story.entries if e.operation is not Operation.REPLAY]
    assert story.verdicts() == {"I1"}


def test_a_timer_that_no_scheduler_looks_for_is_reported() -> None:
    """It is stored, it is due, and it will never run."""
    story = running()
    story.timers[0] = replace(story.timers[0], is_placed=False)
    assert story.verdicts() == {"I11"}


def test_a_dead_letter_replayed_twice_is_reported() -> None:
    """Two replays of one letter run the same work twice."""
    story = failed()
    third = UUID(int=3)
    story.tasks.append(TaskRow(third, 1, at(6), 3, str(TASK), TASK, "r1"))
    story.timers.append(TimerRow(third, 0, 0, at(6)))
    assert story.verdicts() == {"I1"}


def test_a_replay_with_another_execution_key_is_reported() -> None:
    """The receiver tells repetitions apart by that key alone."""
    story = failed()
    story.tasks[1] = replace(story.tasks[1], execution_key="another")
    assert story.verdicts() == {"I1"}


def end_twice(story: Story) -> None:
    story.spoil_attempt(0, state="FAILED")


def go_on_after_the_end(story: Story) -> None:
    story.attempts.append(AttemptRow(TASK, 7, 0, WORKER, at(40), at(41), "released"))
    story.settle(7, 41, "released")


def see_another_end(story: Story) -> None:
    story.read(41, "CANCELLED")


def see_it_live_again(story: Story) -> None:
    story.read(41, "READY")


def cancel_what_completed(story: Story) -> None:
    story.cancel(41, "already_cancelled")


@pytest.mark.parametrize(
    "spoil",
    [
        end_twice,
        go_on_after_the_end,
        see_another_end,
        see_it_live_again,
        cancel_what_completed,
        revive,
    ],
)
def test_an_end_that_is_not_the_end_is_reported(spoil: Callable[[Story], None]) -> None:
    """A reader of COMPLETED has acted on it."""
    story = finished()
    spoil(story)
    assert "I4" in story.verdicts()


def test_what_is_read_while_its_end_commits_is_live() -> None:
    """An end has the instant at which its transaction began: a read beside it is no violation."""
    story = finished()
    story.entries = [each for each in story.entries if each.operation is not Operation.READ]
    story.entries = [each for each in story.entries if each.operation is not Operation.SETTLE]
    story.read(33, "READY")
    assert "I4" in story.verdicts()
    story.commit_s = 2.0
    assert "I4" not in story.verdicts()
    story.read(34.5, "READY")
    assert "I4" in story.verdicts()


def test_an_end_that_a_client_saw_has_committed() -> None:
    """However long transactions may take, what was answered cannot be taken back."""
    story = finished()
    story.commit_s = 1000.0
    assert "I4" not in story.verdicts()
    story.read(41, "READY")
    assert "I4" in story.verdicts()


def another_task_for_the_key(story: Story) -> None:
    story.submit(OTHER, "replayed", key="k")


def accept_another_request(story: Story) -> None:
    story.submit(TASK, "replayed", key="k", request="r2")


def refuse_the_same_request(story: Story) -> None:
    story.submit(TASK, "mismatch", key="k")


def store_it_again(story: Story) -> None:
    story.submit(TASK, "stored", key="k")


def point_nowhere(story: Story) -> None:
    story.keys.append(KeyRow(1, "k2", OTHER))


def hide_the_key(story: Story) -> None:
    story.keys[0] = replace(story.keys[0], is_at_home=False)


@pytest.mark.parametrize(
    "spoil",
    [
        another_task_for_the_key,
        accept_another_request,
        refuse_the_same_request,
        store_it_again,
        point_nowhere,
        hide_the_key,
    ],
)
def test_a_key_that_stands_for_two_things_is_reported(spoil: Callable[[Story], None]) -> None:
    """A client that retries with its key must not pay twice, nor get another's task."""
    story = finished()
    spoil(story)
    assert "I8" in story.verdicts()


def test_a_key_that_is_used_rightly_is_not_reported() -> None:
    """Replays and mismatches are what keys are for."""
    story = finished()
    story.submit(TASK, "replayed", key="k")
    story.submit(TASK, "mismatch", key="k", request="r2")
    assert story.violations() == []


def start_too_early(story: Story) -> None:
    story.tasks[0] = replace(story.tasks[0], run_at=at(1.5))


def retry_too_early(story: Story) -> None:
    story.spoil_attempt(1, started_at=at(9.9))


def raise_fences_after_the_first(story: Story) -> None:
    """Make room for the fence of a move between the first and the second attempt."""
    story.attempts = [replace(row, fence=row.fence + (row.fence > 1)) for row in story.attempts]
    story.effects = [replace(one, fence=one.fence + (one.fence > 1)) for one in story.effects]
    story.entries = [
        replace(entry, fence=entry.fence + 1)
        if entry.fence is not None and entry.at > at(5)
        else entry
        for entry in story.entries
    ]


def start_before_the_move(story: Story) -> None:
    raise_fences_after_the_first(story)
    story.move(5, 20)


@pytest.mark.parametrize("spoil", [start_too_early, retry_too_early, start_before_the_move])
def test_an_early_start_is_reported(spoil: Callable[[Story], None]) -> None:
    """Money sent a minute before midnight is sent on the wrong day."""
    story = finished()
    spoil(story)
    assert story.verdicts() == {"I12"}


def test_a_task_that_was_brought_forward_may_start_early() -> None:
    """Run-now is a promise as well; a move in doubtful order counts in the task's favour."""
    story = finished()
    retry_too_early(story)
    raise_fences_after_the_first(story)
    story.move(5, 5)
    assert story.violations() == []
    story = finished()
    story.tasks[0] = replace(story.tasks[0], run_at=at(20))
    story.call(Operation.MOVE, 0.5, task=TASK, due_at=at(0.5))
    assert story.violations() == []


def test_a_moved_task_is_not_called_early_without_a_log() -> None:
    """Run-now leaves only a higher fence in the tables, and must not look like an early start."""
    story = finished()
    start_too_early(story)
    story.entries, story.effects = [], []
    assert story.verdicts() == {"I12"}
    story.attempts = [replace(row, fence=row.fence + 1) for row in story.attempts]
    assert story.violations() == []


def test_a_moved_task_that_starts_before_its_new_instant_is_reported_without_a_log() -> None:
    """The record of an attempt says where its task was moved to: an operator has no client log."""
    story = finished()
    story.entries, story.effects = [], []
    story.attempts = [replace(row, fence=row.fence + 1) for row in story.attempts]
    started_at = story.attempts[0].started_at
    assert started_at is not None
    story.spoil_attempt(0, moved_to=started_at - timedelta(seconds=1))
    assert story.violations() == []
    story.spoil_attempt(0, moved_to=started_at + timedelta(seconds=1))
    assert story.verdicts() == {"I12"}


def lease_after_cancel(story: Story) -> None:
    story.attempts.insert(0, AttemptRow(TASK, 1, 1, WORKER, at(5), at(5.5), "completed"))


def live_after_cancel(story: Story) -> None:
    story.attempts = []
    story.timers.append(TimerRow(TASK, 2, 0, at(9)))


@pytest.mark.parametrize("spoil", [lease_after_cancel, live_after_cancel])
def test_a_cancelled_task_that_runs_is_reported(spoil: Callable[[Story], None]) -> None:
    """Who was told CANCELLED has told others."""
    story = cancelled()
    spoil(story)
    assert "I13" in story.verdicts()


def test_a_retry_after_a_requested_cancel_is_reported() -> None:
    """Asked to stop, a task may finish what it does; it may not begin again, nor just forget."""
    story = running()
    story.timers[0] = replace(story.timers[0], started_at=at(33))
    assert story.verdicts() == {"I13"}
    story = running()
    story.timers[0] = replace(story.timers[0], cancel_requested=False)
    assert story.verdicts() == {"I13"}


def test_a_failure_after_a_requested_cancel_is_reported() -> None:
    """It was to end CANCELLED: as a dead letter somebody would replay it."""
    story = failed()
    story.cancel(1.5, "cancel_requested")
    assert story.verdicts() == {"I13"}


def test_a_task_that_nobody_looks_at_is_overdue() -> None:
    """Safe and stuck is the failure that no error reports."""
    tables = Tables(timers=(TimerRow(TASK, 0, 0, at(10)), TimerRow(OTHER, 0, 0, None)))
    assert find_overdue(tables, at(12), timedelta(seconds=3)) == []
    assert [v.task for v in find_overdue(tables, at(14), timedelta(seconds=3))] == [TASK]
