"""The checker reports rows and answers that cross from one tenant to another, and only those."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from duly.verify.history import KeyRow, Operation, TaskRow, TimerRow
from tests.verify.histories import OTHER, TASK, Story, at, failed, finished, running


def foreign_timer(story: Story) -> None:
    story.timers[0] = replace(story.timers[0], tenant=2)


def foreign_attempt(story: Story) -> None:
    story.spoil_attempt(0, tenant=2)


def foreign_key(story: Story) -> None:
    story.tasks.append(TaskRow(OTHER, 2, at(1), 3))
    story.timers.append(TimerRow(OTHER, 0, 0, at(1)))
    story.keys.append(KeyRow(1, "k2", OTHER))


def foreign_reader(story: Story) -> None:
    story.tasks[0] = replace(story.tasks[0], tenant=2)
    story.keys, story.entries = [], story.entries[-2:]
    story.call(Operation.READ, 40, 41, answers={"answer": "seen", "state": "RUNNING"}, task=TASK)


@pytest.mark.parametrize("spoil", [foreign_timer, foreign_attempt, foreign_key, foreign_reader])
def test_what_crosses_to_another_tenant_is_reported(spoil: Callable[[Story], None]) -> None:
    """One row of a foreign tenant is a customer's data on another customer's screen."""
    story = running()
    spoil(story)
    assert "I9" in story.verdicts()


@pytest.mark.parametrize("tenant", [2, None, 1])
def test_a_dead_letter_is_its_tenants_own(tenant: int | None) -> None:
    """A foreign letter, replayed, runs one tenant's work for another."""
    story = failed()
    story.letters[0] = replace(story.letters[0], tenant=tenant)
    assert story.verdicts() == ({"I9"} if tenant == 2 else set())


def test_a_refused_stranger_proves_the_wall() -> None:
    """Asking for another's task is no violation; getting it is."""
    story = finished()
    story.call(Operation.CANCEL, 50, 51, answers={"answer": "unknown"}, task=TASK)
    story.entries[-2:] = [replace(entry, tenant=2) for entry in story.entries[-2:]]
    assert story.violations() == []
    story.entries[-1] = replace(story.entries[-1], answer="cancelled")
    assert "I9" in story.verdicts()
