"""kill -9 of the process that executes, at every registered point of a task's way: the lease runs
out, the attempt is on record as lost, and the next one has the same key and a higher fence."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from duly.environment import CrashPoint
from tests.processes import PROJECT
from tests.servers import ServerOfTheRun
from tests.story.duly_up import duly_up
from tests.story.hooks import Hooks, call, hooks

pytestmark = pytest.mark.slow
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
# The other points, and which file loses a real process at each of them.
ELSEWHERE = {
    CrashPoint.MIGRATION_BETWEEN: "tests/store/test_migrate.py",
    CrashPoint.SUBMIT_BEFORE: "tests/story/test_killed_server.py",
    CrashPoint.SUBMIT_AFTER_COMMIT: "tests/story/test_killed_server.py",
    CrashPoint.REAP_BEFORE: "tests/story/test_killed_execution.py",
    CrashPoint.RELAY_BEFORE_SUBMIT: "tests/story/test_relay.py",
    CrashPoint.RELAY_AFTER_SUBMIT: "tests/story/test_relay.py",
    CrashPoint.RELAY_AFTER_DELETE: "tests/story/test_relay.py",
    CrashPoint.RELAY_AFTER_COMMIT: "tests/story/test_relay.py",
}
# As if the lease of 15 s and the ownership of 10 s had passed.
RUN_OUT = """
UPDATE duly.timers SET lease_until = duly.now(), due_at = duly.now() WHERE holder IS NOT NULL;
UPDATE duly.ownership SET expires_at = duly.now() WHERE holder IS NOT NULL;
"""


class Installation:
    def __init__(self, server: ServerOfTheRun, owner_url: str, engine_url: str) -> None:
        self.server = server
        self.owner_url = owner_url
        self.environ = {"DULY_DATABASE_URL": engine_url, "DULY_MIGRATION_DATABASE_URL": owner_url}

    def let_leases_run_out(self) -> None:
        self.server.run(self.run_statement(RUN_OUT))

    async def run_statement(self, statement: str) -> None:
        owner = await asyncpg.connect(self.owner_url)
        try:
            await owner.execute(statement)
        finally:
            await owner.close()


@pytest.fixture
def installation(server: ServerOfTheRun, owner_url: str, engine_url: str) -> Installation:
    return Installation(server, owner_url, engine_url)


@pytest.fixture
def receiver() -> Iterator[Hooks]:
    with hooks() as opened:
        yield opened


def lose_a_process(
    point: CrashPoint, installation: Installation, receiver: Hooks
) -> tuple[str, str]:
    """Submit a task to a duly that dies on its way; answers the API key and the task's id."""
    environ = {**installation.environ, "DULY_CRASH_AT": point.value}
    with duly_up(environ=environ) as doomed:
        key = doomed.ready["api_key"]
        task = {
            "type": "invoice.charge",
            "target": {"url": receiver.url},
            "idempotency_key": KEY,
            "retry": {"initial_s": 0},
            # Time to be answered before it fires.
            "delay_s": 0.5,
        }
        status, made = call(doomed, key, "POST", "/v1/tasks", task)
        assert status == 201, made
        assert doomed.process.process.wait(timeout=60) == -9
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


def test_a_task_outlives_the_process_that_was_reaping(
    installation: Installation, receiver: Hooks
) -> None:
    """It had found what was lost, and told nobody yet."""
    key, task_id = lose_a_process(CrashPoint.REAP_BEFORE, installation, receiver)
    attempts = finish(installation, key, task_id)
    assert attempts[-1]["outcome"] == "completed"
    assert [item["attempt"] for item in attempts] == list(range(1, len(attempts) + 1))


def test_every_crash_point_loses_a_real_process_somewhere() -> None:
    """A point that only simulations pass says nothing about sockets, files and other processes."""
    assert EXECUTION.keys() | ELSEWHERE.keys() == set(CrashPoint)
    for point, path in ELSEWHERE.items():
        text = Path(PROJECT / path).read_text()
        group = f"{point.value.partition('.')[0]}."
        assert f"CrashPoint.{point.name}" in text or group in text or "CRASH_AT" in text, point
