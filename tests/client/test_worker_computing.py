"""Handlers in processes of their own: used again, killed alone, gone with their worker."""

from pathlib import Path

from duly import AsyncClient
from tests.client import computing
from tests.client.conftest import WAIT_S, MakeWorker, at_work, true_within
from tests.client.test_worker import FAST, outcomes
from tests.processes import is_alive


async def test_functions_that_compute_run_in_processes_of_their_own(
    client: AsyncClient, make_worker: MakeWorker, pool: str
) -> None:
    """In a thread they would stop every other handler of the worker."""
    worker = make_worker(processes=1)
    worker.task("add", run="process")(computing.add)
    worker.task("fail", run="process")(computing.fail)
    async with at_work(worker):
        one = await client.submit("add", {"numbers": [1, 2]}, pool=pool)
        two = await client.submit("add", {"numbers": [3]}, pool=pool)
        bad = await client.submit("add", {"numbers": "x"}, pool=pool)
        failing = await client.submit("fail", pool=pool, retry={"max_attempts": 1})
        first = (await client.wait(one.id, WAIT_S)).output
        second = (await client.wait(two.id, WAIT_S)).output
        assert (first["sum"], second["sum"]) == (3, 3)
        assert first["key"] == (await client.get(one.id)).execution_key
        assert first["pid"] == second["pid"]
        refused = await client.wait(bad.id, WAIT_S)
        assert refused.error == "payload/numbers: expected `array`, got `str`"
        failed = await client.wait(failing.id, WAIT_S)
        assert failed.error is not None
        assert failed.error.startswith("ValueError: not today")
    assert not is_alive(first["pid"])


async def test_a_handler_that_kills_its_process_fails_alone(
    client: AsyncClient, make_worker: MakeWorker, pool: str
) -> None:
    """One bad image must not take its neighbours and the whole pool with it."""
    worker = make_worker(processes=2)
    worker.task("die", run="process")(computing.die)
    worker.task("add", run="process")(computing.add)
    async with at_work(worker):
        task = await client.submit("die", {"always": False}, pool=pool, retry=FAST)
        others = await client.submit_many(
            [{"type": "add", "payload": {"numbers": [1]}, "pool": pool} for _ in range(4)]
        )
        assert (await client.wait(task.id, WAIT_S)).state == "COMPLETED"
        for other in others:
            assert await outcomes(client, (await client.wait(other.id, WAIT_S)).id) == ["completed"]
    first, second = sorted(await client.attempts(task.id), key=lambda attempt: attempt.fence)
    assert (first.outcome, second.outcome) == ("failed", "completed")
    assert first.error == "the handler's process ended with exit code 7"


async def test_a_cancelled_task_in_a_process_is_killed(
    client: AsyncClient, make_worker: MakeWorker, pool: str, tmp_path: Path
) -> None:
    """Nothing else stops a computation."""
    worker = make_worker(processes=1)
    worker.task("spin", run="process")(computing.spin)
    path = tmp_path / "pid"
    async with at_work(worker):
        task = await client.submit("spin", {"path": str(path)}, pool=pool)
        await true_within(lambda: path.exists() and path.read_text())
        await client.cancel(task.id)
        assert (await client.wait(task.id, WAIT_S)).state == "CANCELLED"
        assert not is_alive(int(path.read_text()))
