"""kill -9 of the process that executes, at every registered point of a task's way: the lease runs
out, the attempt is on record as lost, and the next one has the same key and a higher fence."""

from collections.abc import Iterator
from typing import Any

import pytest

from duly.environment import CrashPoint
from tests.processes import doomed
from tests.story.duly_up import RunningDuly, duly_up
from tests.story.hooks import Hooks, call, hooks
from tests.story.installation import Installation

pytestmark = pytest.mark.slow
UP = ("-m", "duly", "up", "--json", "--port", "0")
KEY = "invoice-7"
WAIT = "wait?timeout_s=30"
# What the database holds when a process dies at each point, and so what its successor does.
LOST = ["lease_lost", "completed"]
KEPT = ["completed"]
EXECUTION = {
    CrashPoint.LEASE_AFTER_COMMIT: (LOST, 1),
    CrashPoint.EXECUTION_AFTER_EFFECT: (LOST, 2),
    CrashPoint.SETTLE_BEFORE: (LOST, 2),
    CrashPoint.SETTLE_AFTER_COMMIT: (KEPT, 1),
}


@pytest.fixture
def receiver() -> Iterator[Hooks]:
    with hooks() as opened:
        yield opened


def lose_a_process(
    point: CrashPoint, installation: Installation, receiver: Hooks
) -> tuple[str, str]:
    """Submit a task to a duly that dies on its way; answers the API key and the task's id."""
    with doomed(point, *UP, environ=installation.environ) as dying:
        duly = RunningDuly(dying)
        key = duly.ready["api_key"]
        task = {
            "type": "invoice.charge",
            "target": {"url": receiver.url},
            "idempotency_key": KEY,
            "retry": {"initial_s": 0},
            # Time to be answered before it fires.
            "delay_s": 2,
        }
        status, made = call(duly, key, "POST", "/v1/tasks", task)
        assert status == 201, made
    installation.let_leases_run_out()
    return key, made["id"]


def finish(installation: Installation, key: str, task_id: str) -> list[dict[str, Any]]:
    """The attempts that are on record once the next process is done with the task."""
    with duly_up(environ=installation.environ) as duly:
        _, task = call(duly, key, "GET", f"/v1/tasks/{task_id}/{WAIT}")
        assert task["state"] == "COMPLETED"
        _, found = call(duly, key, "GET", f"/v1/tasks/{task_id}/attempts")
    items: list[dict[str, Any]] = found["items"]
    return sorted(items, key=lambda item: item["fence"])


@pytest.mark.parametrize("point", EXECUTION)
def test_a_task_outlives_the_process_that_executes_it(
    installation: Installation, receiver: Hooks, point: CrashPoint
) -> None:
    """Its receiver may or may not have acted: the same key and a higher fence tell it so."""
    outcomes, deliveries = EXECUTION[point]
    key, task_id = lose_a_process(point, installation, receiver)
    attempts = finish(installation, key, task_id)
    assert [item["outcome"] for item in attempts] == outcomes
    assert [item["attempt"] for item in attempts] == list(range(1, len(outcomes) + 1))
    assert {request["webhook-id"] for request in receiver.requests} == {KEY}
    fences = [int(request["duly-fence"]) for request in receiver.requests]
    assert len(fences) == deliveries
    assert fences == sorted(set(fences))
    assert fences[-1] == attempts[-1]["fence"]


@pytest.mark.parametrize("point", [CrashPoint.REAP_BEFORE])
def test_a_task_outlives_the_process_that_was_reaping(
    installation: Installation, receiver: Hooks, point: CrashPoint
) -> None:
    """It had found what was lost, and told nobody yet."""
    key, task_id = lose_a_process(point, installation, receiver)
    attempts = finish(installation, key, task_id)
    assert attempts[-1]["outcome"] == "completed"
    assert [item["attempt"] for item in attempts] == list(range(1, len(attempts) + 1))
