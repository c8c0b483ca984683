"""Reclaim scenario: kill -9 of a worker that holds tasks: how long until each of them starts
elsewhere.

`python -m duly.bench.reclaim URL` is the worker that is killed; its lease is the default one.
"""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from typing import Any

from duly.bench.children import Running, clean_environ, duly_up
from duly.bench.figures import Figures, percentiles
from duly.bench.over_http import POOL, make_worker, serving
from duly.bench.stage import ScenarioContext
from duly.client.asynchronous import AsyncClient
from duly.client.request import TaskSpec
from duly.client.worker import LEASE_S, Worker

TYPE = "bench.reclaim"
START_S = 60.0
# Far beyond the lease: a task that is not back by then is lost.
WAIT_MAX_S = LEASE_S + 60.0


async def run_reclaim(stage: ScenarioContext) -> Figures:
    """Killed at once after its leases were granted, so that all of each lease is still to pass."""
    waits: list[float] = []
    done = asyncio.Event()
    async with duly_up(stage) as running:
        began = await lose_worker(stage, running)
        worker = make_worker(running, concurrency=stage.tasks)

        @worker.task(TYPE)
        async def run_again(_ctx: Any) -> None:
            waits.append(stage.now_s - began)
            stage.show(len(waits), stage.tasks)
            if len(waits) == stage.tasks:
                done.set()

        async with serving(worker), asyncio.timeout(WAIT_MAX_S):
            await done.wait()
    return {"tasks": stage.tasks, "lease_s": LEASE_S, **percentiles(waits)}


async def lose_worker(stage: ScenarioContext, running: Running) -> float:
    """The instant at which a worker was killed that had begun every task."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "duly.bench.reclaim", running.url, str(stage.tasks)),
        env={**clean_environ(stage), "DULY_API_KEY": running.api_key},
        stdout=PIPE,
        stderr=DEVNULL,
        start_new_session=True,
    )
    try:
        async with AsyncClient(running.url, running.api_key) as client:
            # No pause before the second attempt: it would be the retry policy's, not ours.
            task: TaskSpec = {"type": TYPE, "pool": POOL, "retry": {"initial_s": 0}}
            await client.submit_many([task] * stage.tasks)
        async with asyncio.timeout(START_S):
            await begun(process, stage.tasks)
    finally:
        process.kill()
        killed_at = stage.now_s
        await process.wait()
    return killed_at


async def begun(process: Process, count: int) -> None:
    assert process.stdout is not None
    for _ in range(count):
        assert await process.stdout.readline(), "the worker ended by itself"


def main() -> None:
    url, concurrency = sys.argv[1:]
    worker = Worker(url, pools=[POOL], concurrency=int(concurrency))

    @worker.task(TYPE)
    async def hold(_ctx: Any) -> None:
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        await asyncio.Event().wait()

    worker.run()


if __name__ == "__main__":
    main()
