"""The store alone, in one process: submit, load, lease, call a handler that does nothing, settle.

No scheduler, no fairness, no HTTP: what the tables and the compare-and-set protocol can carry.
"""

import asyncio
from uuid import UUID

from duly.bench.figures import Figures, Meter, percentiles
from duly.bench.stage import BATCH, PAYLOAD, TENANT, ScenarioContext, Show
from duly.domain.ids import SHARDS
from duly.domain.lanes import Ticket
from duly.domain.states import Outcome
from duly.domain.task import Submission
from duly.environment import Environment
from duly.store.database import Database
from duly.store.finish import Settlement
from duly.store.lease import lease_tasks
from duly.store.load import Cursor, DueTimer, TimerQueue, list_placements, load_due
from duly.store.settle import Settler
from duly.store.submit import GroupCommit, Submitter

PAGE = 4000
PIPELINES = 3
LEASE_S = 60.0
CALLERS = 64
EMPTY_PAUSE_S = 0.002

Queue = asyncio.Queue[list[DueTimer] | None]


class StorePipeline:
    """The store alone: one process with one pool, without API and roles."""

    def __init__(self, database: Database, environment: Environment, show: Show) -> None:
        self.database = database
        self.environment = environment
        self.show = show
        self.submitter = Submitter(database, environment)
        self.settler = Settler(database, environment)
        self.holder = UUID(int=environment.random.getrandbits(128))
        self.cursors: dict[TimerQueue, Cursor] = {}

    def make_meter(self) -> Meter:
        return Meter(self.environment.clock)

    async def submit_bulk(self, tasks: int, connections: int = 2) -> Meter:
        """Batches over several connections."""
        sizes = [min(BATCH, tasks - start) for start in range(0, tasks, BATCH)]
        meter = self.make_meter()

        async def submit() -> None:
            while sizes:
                size = sizes.pop()
                await self.submitter.submit(make_tasks(size))
                meter.add(size)
                self.show(meter.count, tasks)

        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(submit())
        return meter

    async def drain(self, tasks: int) -> Meter:
        """A backlog, or tasks submitted meanwhile: loaded, leased, handled, settled."""
        meter = self.make_meter()
        queue: Queue = asyncio.Queue(maxsize=PIPELINES)
        async with asyncio.TaskGroup() as group:
            for _ in range(PIPELINES):
                group.create_task(self.pipeline(queue, meter, tasks))
            await self.feed(queue, tasks)
            for _ in range(PIPELINES):
                await queue.put(None)
        return meter

    async def feed(self, queue: Queue, tasks: int) -> None:
        """Load from cursors until that many were handed on."""
        handed = 0
        while handed < tasks:
            for timer_queue in await list_placements(self.database, 0, SHARDS - 1):
                self.cursors.setdefault(timer_queue, Cursor())
            due = await load_due(self.database, self.cursors, 0.0, PAGE)
            for start in range(0, len(due), BATCH):
                await queue.put(due[start : start + BATCH])
            for timer in due:
                self.cursors[timer.timer_queue] = Cursor(timer.due_at, timer.id)
            handed += len(due)
            if not due:
                await asyncio.sleep(EMPTY_PAUSE_S)

    async def pipeline(self, queue: Queue, meter: Meter, tasks: int) -> None:
        while (due := await queue.get()) is not None:
            tickets = [Ticket(timer.id, timer.fence) for timer in due]
            leases = await lease_tasks(
                self.database, self.environment, self.holder, tickets, LEASE_S
            )
            settlements = [
                Settlement(lease.id, lease.fence, self.holder, Outcome.COMPLETED, None)
                for lease in leases
            ]
            await self.settler.settle(settlements)
            meter.add(len(settlements))
            self.show(meter.count, tasks)


def make_tasks(count: int) -> list[Submission]:
    return [Submission(tenant=TENANT, type="bench.noop", payload=PAYLOAD) for _ in range(count)]


def pipeline_of(stage: ScenarioContext) -> StorePipeline:
    return StorePipeline(stage.database, stage.environment, stage.show)


async def run_store_submit_batch(stage: ScenarioContext) -> Figures:
    meter = await pipeline_of(stage).submit_bulk(stage.tasks)
    return meter.figures()


async def run_store_submit_single(stage: ScenarioContext) -> Figures:
    """64 callers at once, each of whom waits for its own commit."""
    pipeline = pipeline_of(stage)
    group_commit, meter, waits = (
        GroupCommit(pipeline.submitter),
        pipeline.make_meter(),
        list[float](),
    )
    left = iter(range(stage.tasks))

    async def call() -> None:
        for number in left:
            (task,) = make_tasks(1)
            before = stage.now_s
            await group_commit.submit(task)
            waits.append(stage.now_s - before)
            meter.add()
            if number % 1000 == 0:
                stage.show(number, stage.tasks)

    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(call())
    return {**meter.figures(), **percentiles(waits)}


async def run_store_drain(stage: ScenarioContext) -> Figures:
    pipeline = pipeline_of(stage)
    await pipeline.submit_bulk(stage.tasks)
    meter = await pipeline.drain(stage.tasks)
    return {**meter.figures(), "backlog": stage.tasks}


async def run_store_end_to_end(stage: ScenarioContext) -> Figures:
    pipeline = pipeline_of(stage)
    async with asyncio.TaskGroup() as group:
        draining = group.create_task(pipeline.drain(stage.tasks))
        group.create_task(pipeline.submit_bulk(stage.tasks, connections=1))
    return draining.result().figures()
