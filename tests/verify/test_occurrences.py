"""The checker reports occurrences that fired twice, never, or without a word in the ledger."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from duly.verify.check import check
from duly.verify.history import Logs, OccurrenceRow, Tables, TaskRow
from tests.verify.histories import OTHER, TASK, at

SCHEDULE = UUID(int=77)
NOON = at(0)
ONE = timedelta(days=1)
FIRED = OccurrenceRow(SCHEDULE, NOON, "FIRED", TASK)
SKIPPED = OccurrenceRow(SCHEDULE, NOON + ONE, "SKIPPED_OVERLAP")
MADE = TaskRow(TASK, 1, NOON, 3, occurrence=(SCHEDULE, NOON))
AGAIN = TaskRow(OTHER, 1, NOON, 3, occurrence=(SCHEDULE, NOON))
EXPECTED = frozenset({(SCHEDULE, NOON), (SCHEDULE, NOON + ONE)})


def problems(tables: Tables) -> list[str]:
    return [found.problem for found in check(Logs(), tables, ["I6"])]


def test_a_ledger_that_agrees_with_tasks_and_model_is_not_accused() -> None:
    """A checker that cries wolf is switched off within a week."""
    tables = Tables(tasks=(MADE,), occurrences=(FIRED, SKIPPED), expected=EXPECTED)
    assert problems(tables) == []


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        (Tables((MADE,), occurrences=(FIRED, FIRED)), "2 verdicts"),
        (Tables((MADE, AGAIN), occurrences=(FIRED,)), "became 2 tasks"),
        (Tables((MADE,)), "ledger does not say"),
        (Tables((replace(MADE, occurrence=None),), occurrences=(FIRED,)), "something else"),
        (Tables(occurrences=(FIRED,)), "its task is not stored"),
        (Tables(occurrences=(OccurrenceRow(SCHEDULE, NOON, "FIRED"),)), "with task None"),
        (
            Tables((MADE,), occurrences=(OccurrenceRow(SCHEDULE, NOON, "EXCLUDED", TASK),)),
            "is EXCLUDED",
        ),
        (Tables((MADE,), occurrences=(FIRED,), expected=EXPECTED), "has no verdict"),
        (
            Tables((MADE,), occurrences=(FIRED, SKIPPED), expected=frozenset({(SCHEDULE, NOON)})),
            "not to be expected",
        ),
    ],
)
def test_an_occurrence_that_is_not_one_is_reported(tables: Tables, says: str) -> None:
    """Salaries paid twice, or not at all, at the end of one month."""
    assert any(says in problem for problem in problems(tables))


def test_what_was_triggered_by_hand_need_not_be_expected() -> None:
    """A person may fire a schedule whenever they like."""
    manual = OccurrenceRow(SCHEDULE, NOON, "TRIGGERED", TASK)
    assert problems(Tables((MADE,), occurrences=(manual,), expected=frozenset())) == []


def test_a_task_past_its_retention_is_not_missed() -> None:
    """The ledger outlives the tasks; what was forgotten on purpose is not lost."""
    tables = Tables(occurrences=(FIRED,), kept_from=OTHER)
    assert problems(tables) == []
