"""The store alone, in one process: submit, load, lease, call a handler that does nothing, settle.

No scheduler, no fairness, no HTTP: what the tables and the compare-and-set protocol can carry.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import asyncpg

from duly.domain.lanes import Ticket
from duly.domain.states import Outcome
from duly.domain.task import Submission
from duly.environment import Environment
from duly.store.database import Database
from duly.store.desk import SubmitDesk
from duly.store.lease import Lease, lease_tasks
from duly.store.load import Cursor, Due, Place, list_placements, load_due
from duly.store.settle import Settlement, Settler
from duly.store.submit import Submitter

PAYLOAD = '{"invoice_id": "inv_8829031", "note": "' + "x" * 159 + '"}'
BATCH = 500
PAGE = 4000
PIPELINES = 3
LEASE_S = 60.0
TENANT = 1
CALLERS = 64

Progress = Callable[[int, int], None]


class Heart:
    """One process with one pool; every scenario leaves the tables without live tasks."""

    def __init__(self, database: Database, owner_url: str, progress: Progress) -> None:
        self.database = database
        self.owner_url = owner_url
        self.progress = progress
        self.environment = Environment()
        self.submitter = Submitter(database, self.environment)
        self.settler = Settler(database, self.environment)
        self.holder = uuid4()
        self.cursors: dict[Place, Cursor] = {}
        self.settled = 0

    async def submit_bulk(self, tasks: int) -> float:
        """Rate of bulk submits over two connections."""
        batches = [make_tasks(BATCH) for _ in range(tasks // BATCH)]
        started = time.perf_counter()

        async def submit() -> None:
            while batches:
                await self.submitter.submit(batches.pop())
                self.progress(tasks - len(batches) * BATCH, tasks)

        await asyncio.gather(submit(), submit())
        return tasks / (time.perf_counter() - started)

    async def submit_single(self, tasks: int) -> dict[str, float]:
        """Rate and wait of single submits by 64 concurrent callers, each waiting for its commit."""
        desk = SubmitDesk(self.submitter)
        waits: list[float] = []

        async def caller() -> None:
            for task in make_tasks(tasks // CALLERS):
                before = time.perf_counter()
                await desk.submit(task)
                waits.append(time.perf_counter() - before)
                if len(waits) % 1000 == 0:
                    self.progress(len(waits), tasks)

        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        rate = len(waits) / (time.perf_counter() - started)
        waits.sort()
        return {
            "tasks_per_s": rate,
            "p50_ms": waits[len(waits) // 2] * 1000,
            "p99_ms": waits[len(waits) * 99 // 100] * 1000,
        }

    async def drain(self, tasks: int) -> float:
        """Rate at which a backlog is loaded, leased, handled and settled."""
        started, first = time.perf_counter(), self.settled
        queue: asyncio.Queue[list[Due] | None] = asyncio.Queue(maxsize=PIPELINES)
        async with asyncio.TaskGroup() as group:
            for _ in range(PIPELINES):
                group.create_task(self.pipeline(queue, first, tasks))
            await self.feed(queue, first + tasks)
            for _ in range(PIPELINES):
                await queue.put(None)
        return (self.settled - first) / (time.perf_counter() - started)

    async def feed(self, queue: "asyncio.Queue[list[Due] | None]", goal: int) -> None:
        """Load from cursors until `goal` tasks have been handed on."""
        handed = self.settled
        while handed < goal:
            for place in await list_placements(self.database, 0, 1023):
                self.cursors.setdefault(place, Cursor())
            due = await load_due(self.database, self.cursors, 0.0, PAGE)
            for start in range(0, len(due), BATCH):
                await queue.put(due[start : start + BATCH])
            for timer in due:
                self.cursors[timer.place] = Cursor(timer.due_at, timer.id)
            handed += len(due)
            if not due:
                await asyncio.sleep(0.002)

    async def pipeline(
        self, queue: "asyncio.Queue[list[Due] | None]", first: int, tasks: int
    ) -> None:
        while (due := await queue.get()) is not None:
            leases = await lease_tasks(
                self.database,
                self.environment,
                self.holder,
                [Ticket(timer.id, timer.fence) for timer in due],
                LEASE_S,
            )
            settlements = [
                Settlement(lease.id, lease.fence, self.holder, Outcome.COMPLETED, do_nothing(lease))
                for lease in leases
            ]
            await self.settler.settle(settlements)
            self.settled += len(settlements)
            self.progress(self.settled - first, tasks)

    async def end_to_end(self, tasks: int) -> float:
        """Rate of tasks that are submitted and settled by the same process at the same time."""
        started = time.perf_counter()
        await asyncio.gather(self.submit_bulk_quietly(tasks), self.drain(tasks))
        return tasks / (time.perf_counter() - started)

    async def submit_bulk_quietly(self, tasks: int) -> None:
        for _ in range(tasks // BATCH):
            await self.submitter.submit(make_tasks(BATCH))

    async def pinned_xmin(self, tasks: int) -> dict[str, Any]:
        """End to end while a transaction elsewhere keeps vacuum away: in tenths, to see a fall."""
        free = await self.end_to_end(tasks)
        connection = await asyncpg.connect(self.owner_url)
        try:
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await connection.fetch("SELECT 1 FROM duly.timers LIMIT 1")
            tenths = [await self.end_to_end(tasks // 10) for _ in range(10)]
        finally:
            await connection.close()
        pinned = 10 / sum(1 / rate for rate in tenths)
        return {
            "tasks_per_s": pinned,
            "free_tasks_per_s": free,
            "ratio": pinned / free,
            "tenths_tasks_per_s": [round(rate) for rate in tenths],
        }


def make_tasks(count: int) -> list[Submission]:
    return [Submission(tenant=TENANT, type="bench.noop", payload=PAYLOAD) for _ in range(count)]


def do_nothing(_lease: Lease) -> str | None:
    """The handler under test: what is left is duly's own cost."""
    return None


Scenario = Callable[[Heart, int], Awaitable[dict[str, Any]]]


async def run_submit_batch(heart: Heart, tasks: int) -> dict[str, Any]:
    rate = await heart.submit_bulk(tasks)
    await heart.drain(tasks)
    return {"tasks_per_s": rate}


async def run_submit_single(heart: Heart, tasks: int) -> dict[str, Any]:
    figures = await heart.submit_single(tasks)
    await heart.drain(tasks // CALLERS * CALLERS)
    return dict(figures)


async def run_drain(heart: Heart, tasks: int) -> dict[str, Any]:
    await heart.submit_bulk(tasks)
    return {"tasks_per_s": await heart.drain(tasks), "backlog": tasks}


async def run_end_to_end(heart: Heart, tasks: int) -> dict[str, Any]:
    return {"tasks_per_s": await heart.end_to_end(tasks)}


async def run_pinned_xmin(heart: Heart, tasks: int) -> dict[str, Any]:
    return await heart.pinned_xmin(tasks)


# name -> (scenario, tasks, tasks with --quick)
SCENARIOS: dict[str, tuple[Scenario, int, int]] = {
    "store-submit-batch": (run_submit_batch, 200_000, 50_000),
    "store-submit-single": (run_submit_single, 100_000, 20_000),
    "store-drain": (run_drain, 200_000, 100_000),
    "store-end-to-end": (run_end_to_end, 200_000, 50_000),
    "store-pinned-xmin": (run_pinned_xmin, 200_000, 50_000),
}
