"""The whole scheduler in this process, with a handler that does nothing: doorbell, wheel, gates,
fair order, ready queue, executor. What is measured is when it is called, and what was settled."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

from duly.bench.figures import Meter
from duly.bench.stage import BATCH, PAYLOAD, STALLED_S, TENANT, URL, ScenarioContext
from duly.domain.task import Submission
from duly.events import TasksFinished, TasksRescheduled
from duly.execution.attempt import DONE, AttemptResult, Handler
from duly.store.lease import Lease
from duly.store.submit import Submitter
from duly.testing.engine import Engine

SHOW_S = 0.2
QUIET_S = 0.5
READY_POLL_S = 0.01


class Driver:
    """An engine on a stage; it counts, and can be awaited for a number of settled tasks."""

    def __init__(self, stage: ScenarioContext, handler: Handler | None = None) -> None:
        self.stage = stage
        self.engine = Engine(stage.database, stage.environment, handler or self.handle)
        events = self.engine.parts.events
        events.subscribe(TasksFinished, self.on_ended)
        events.subscribe(TasksRescheduled, self.on_ended)
        self.meter = Meter(stage.environment.clock)
        # Of each tenant: seconds from the fire time to the start of the handler.
        self.lags: dict[int, list[float]] = {}
        self.started: Counter[int] = Counter()
        self.reached = asyncio.Event()
        self.goal = 0

    def handle(self, lease: Lease) -> AttemptResult:
        lag = self.stage.environment.clock.now() - lease.run_at
        self.lags.setdefault(lease.tenant, []).append(lag.total_seconds())
        self.started[lease.tenant] += 1
        return DONE

    def on_ended(self, event: TasksFinished | TasksRescheduled) -> None:
        self.meter.add(len(event.ended))
        if self.meter.count >= self.goal:
            self.reached.set()

    def restart_meter(self, goal: int) -> None:
        """Everything before was warm-up."""
        self.meter = Meter(self.stage.environment.clock, self.stage.costs())
        self.goal = goal
        self.reached.clear()

    @contextlib.asynccontextmanager
    async def running(self, *, is_settled_down: bool = True) -> AsyncIterator[None]:
        """Until the engine owns its slots and has looked once."""
        async with self.engine:
            if is_settled_down:
                await self.settle_down()
            yield

    async def settle_down(self) -> None:
        loader, time = self.engine.scheduler.loader, self.engine.scheduler.dispatcher.time
        async with asyncio.timeout(STALLED_S):
            while not loader.slots or not time.is_known:
                await asyncio.sleep(READY_POLL_S)
        await asyncio.sleep(QUIET_S)

    async def all_settled(self) -> None:
        patience = self.stage.patience("settling")
        while not self.reached.is_set():
            self.stage.show(self.meter.count, self.goal)
            patience.look(self.meter.count, self.goal)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.reached.wait(), SHOW_S)

    async def submit(
        self,
        count: int,
        tenants: Sequence[int] = (TENANT,),
        submitter: Submitter | None = None,
    ) -> Meter:
        """In batches, the tenants in turn; the rate at which they were stored. By a `submitter` of
        its own: without an event here, and found by loading, as after a restart."""
        submitter = submitter or self.engine.submitter
        meter = Meter(self.stage.environment.clock)
        for start in range(0, count, BATCH):
            size = min(BATCH, count - start)
            batch = [make_task(tenants[n % len(tenants)]) for n in range(start, start + size)]
            await submitter.submit(batch)
            meter.add(size)
        return meter


def make_task(tenant: int = TENANT, **facts: Any) -> Submission:
    return Submission(tenant=tenant, type="bench.noop", payload=PAYLOAD, url=URL, **facts)


async def at_pace(stage: ScenarioContext, rounds_per_s: float) -> AsyncIterator[int]:
    """The number of each round, as it is due; after one that took long, the next follow at once."""
    began_s = stage.now_s
    for number in itertools.count():
        await asyncio.sleep(max(0.0, began_s + number / rounds_per_s - stage.now_s))
        yield number


async def submit_then_drain(
    stage: ScenarioContext, tasks: int, tenants: Sequence[int] = (TENANT,)
) -> tuple[Meter, Meter]:
    """A backlog stored by a process whose scheduler sleeps, then worked off."""
    driver = Driver(stage)
    silent = Submitter(stage.database, stage.environment)
    submitted = await driver.submit(tasks, tenants, silent)
    driver.restart_meter(tasks)
    async with driver.running(is_settled_down=False):
        await driver.all_settled()
    return submitted, driver.meter


async def submit_and_settle(stage: ScenarioContext, tasks: int) -> Meter:
    """Submitted and settled at the same time, in the same process."""
    driver = Driver(stage)
    async with driver.running():
        driver.restart_meter(tasks)
        await driver.submit(tasks)
        await driver.all_settled()
    return driver.meter
