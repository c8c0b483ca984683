"""kill -9 of a `duly serve` at every point of a firing: the next one goes on, and each occurrence
has one verdict and one task."""

from datetime import timedelta
from typing import Any

import pytest

from duly.environment import CrashPoint
from tests.processes import child, doomed, eventually
from tests.story.duly_up import RunningDuly
from tests.story.hooks import call
from tests.story.installation import Installation

pytestmark = pytest.mark.slow
SERVE = ("-m", "duly", "serve", "--json", "--port", "0")
FIRES = 3
EVERY_S = 2
# Its first firing comes after the answer; and nothing that a killed process delays is skipped.
SCHEDULE = {
    "name": "report",
    "every_s": EVERY_S,
    "max_fires": FIRES,
    "misfire": "fire_all",
    "misfire_window_s": 3600,
    "task": {"type": "report.write", "target": {"pool": "nobody"}},
}
LEDGER = "SELECT nominal_at, verdict, task FROM duly.occurrences ORDER BY nominal_at, task"
TASKS = "SELECT id FROM duly.tasks"
# What is stored when a process dies at each point of its first firing.
STORED = {
    CrashPoint.FIRE_BEFORE: 0,
    CrashPoint.FIRE_BETWEEN: 0,
    CrashPoint.FIRE_AFTER_COMMIT: 1,
}


def tasks_of(ledger: list[Any]) -> set[Any]:
    return {entry["task"] for entry in ledger}


@pytest.mark.parametrize("point", STORED)
def test_a_schedule_outlives_the_process_that_fires_it(
    installation: Installation, point: CrashPoint
) -> None:
    """A report that is written twice, or not at all, because a server was replaced at its hour."""
    key = installation.make_key()
    with doomed(point, *SERVE, environ=installation.environ) as dying:
        status, made = call(RunningDuly(dying), key, "POST", "/v1/schedules", SCHEDULE)
        assert status == 201, made
    ledger, tasks = installation.fetch(LEDGER), installation.fetch(TASKS)
    assert len(ledger) == len(tasks) == STORED[point]
    installation.let_leases_run_out()
    with child(*SERVE, environ=installation.environ) as next_one:
        duly = RunningDuly(next_one)
        eventually(lambda: len(installation.fetch(LEDGER)) >= FIRES, "the schedule has ended")
        path = f"/v1/schedules/{made['id']}"
        eventually(lambda: call(duly, key, "GET", path)[1]["next_at"] is None, "nothing follows")
    ledger = installation.fetch(LEDGER)
    first_at = ledger[0]["nominal_at"]
    assert [entry["nominal_at"] - first_at for entry in ledger] == [
        timedelta(seconds=EVERY_S * number) for number in range(FIRES)
    ]
    assert {entry["verdict"] for entry in ledger} <= {"FIRED", "LATE"}
    assert tasks_of(ledger) == {row["id"] for row in installation.fetch(TASKS)}
    assert len(tasks_of(ledger)) == FIRES
