"""Latency scenarios: how long tasks wait in a whole scheduler in one process: alone, at random, in
a herd, and beside a neighbour that makes noise."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from duly.bench.drive import Driver, at_pace, make_task
from duly.bench.figures import Figures, percentiles
from duly.bench.stage import BATCH, STALLED_S, TENANT, ScenarioContext
from duly.execution.attempt import DONE, AttemptResult
from duly.store.lease import Lease

LONE_PAUSE_S = 0.003
PACED_PER_S = 50
HERD_LEAD_S = 1.5
WARM_UP_TASKS = 1000
SKEW_LEAD_S = 1.0
SKEW_TASKS_PER_S = 500
QUIET, NOISY = 11, 12
QUIET_TASKS_PER_S = 100
NOISE = 50
POLL_S = 0.02


async def run_lone(stage: ScenarioContext) -> Figures:
    """One after the other, and then at a pace at which the machine rests in between: its cores, and
    whatever they remember, take a while to come back."""
    waits, paced = [], []
    lone = LoneTask(stage)
    async with lone.driver.running():
        for number in range(stage.tasks):
            waits.append(await lone.wait_s())
            stage.show(number + 1, stage.tasks * 2)
            # Long enough for the one before to be settled and forgotten.
            await asyncio.sleep(LONE_PAUSE_S)
        async for number in at_pace(stage, PACED_PER_S):
            if number == stage.tasks:
                break
            paced.append(await lone.wait_s())
            stage.show(stage.tasks + number + 1, stage.tasks * 2)
    slow = percentiles(paced)
    return {
        **percentiles(waits),
        "paced_per_s": PACED_PER_S,
        "paced_p50_ms": slow["p50_ms"],
        "paced_p99_ms": slow["p99_ms"],
    }


class LoneTask:
    """One task at a time. Its handler records when it starts; the waiter is notified later."""

    def __init__(self, stage: ScenarioContext) -> None:
        self.stage = stage
        self.driver = Driver(stage, self.handle)
        self.started_s = 0.0
        self.has_started = asyncio.Event()

    def handle(self, _lease: Lease) -> AttemptResult:
        self.started_s = self.stage.now_s
        self.has_started.set()
        return DONE

    async def wait_s(self) -> float:
        self.has_started.clear()
        before_s = self.stage.now_s
        await self.driver.engine.group_commit.submit(make_task())
        async with asyncio.timeout(STALLED_S):
            await self.has_started.wait()
        return self.started_s - before_s


async def run_skew(stage: ScenarioContext) -> Figures:
    lags = await skew_of(stage, stage.tasks)
    return {**percentiles(lags), "asked_per_s": SKEW_TASKS_PER_S, "earliest_ms": min(lags) * 1000}


async def skew_of(
    stage: ScenarioContext, tasks: int, tenants: Sequence[int] = (TENANT,)
) -> list[float]:
    """Start minus fire time; the fire times lie at random over the seconds that they need."""
    random, span_s = stage.environment.random, tasks / SKEW_TASKS_PER_S
    driver = Driver(stage)
    async with driver.running():
        driver.restart_meter(tasks)
        first = stage.environment.clock.now() + timedelta(seconds=SKEW_LEAD_S)
        instants = [first + timedelta(seconds=random.random() * span_s) for _ in range(tasks)]
        await submit_at(driver, instants, tenants)
        await driver.all_settled()
    return [lag for lags in driver.lags.values() for lag in lags]


async def run_herd(stage: ScenarioContext) -> Figures:
    """After a smaller herd: connections and plans of a process that has just started are not what
    is asked about."""
    driver = Driver(stage)
    async with driver.running():
        driver.restart_meter(WARM_UP_TASKS)
        await driver.submit(WARM_UP_TASKS)
        await driver.all_settled()
        driver.lags.clear()
        driver.restart_meter(stage.tasks)
        run_at = stage.environment.clock.now() + timedelta(seconds=HERD_LEAD_S)
        await submit_at(driver, [run_at] * stage.tasks)
        await driver.all_settled()
    lags = driver.lags[TENANT]
    return {"tasks_per_s": stage.tasks / max(lags), **percentiles(lags)}


async def submit_at(
    driver: Driver, instants: list[datetime], tenants: Sequence[int] = (TENANT,)
) -> None:
    for start in range(0, len(instants), BATCH):
        batch = [
            make_task(tenants[(start + offset) % len(tenants)], run_at=run_at)
            for offset, run_at in enumerate(instants[start : start + BATCH])
        ]
        await driver.engine.submitter.submit(batch)


async def run_noisy(stage: ScenarioContext) -> Figures:
    """Alone, beside, beside, alone: so that neither has the warmer machine."""
    alone: list[float] = []
    beside: list[float] = []
    half = max(stage.tasks // 2, 1)
    for turn, (lags, noise) in enumerate(
        ((alone, 0), (beside, NOISE), (beside, NOISE), (alone, 0))
    ):
        stage.show(turn, 4)
        lags += await waits_beside(stage, half, noise)
    solo = percentiles(alone)
    return {
        **percentiles(beside),
        "alone_p50_ms": solo["p50_ms"],
        "alone_p99_ms": solo["p99_ms"],
        "p99_ratio": percentiles(beside)["p99_ms"] / solo["p99_ms"],
        "quiet_tasks_per_s": QUIET_TASKS_PER_S,
        "noisy_tasks_per_s": QUIET_TASKS_PER_S * NOISE,
    }


async def waits_beside(stage: ScenarioContext, tasks: int, noise: int) -> list[float]:
    driver = Driver(stage)
    async with driver.running():
        async with asyncio.TaskGroup() as group:
            if noise:
                group.create_task(keep_pace(driver, NOISY, tasks, noise))
            group.create_task(keep_pace(driver, QUIET, tasks, 1))
        # Also of the neighbour: what it left behind would be in the way of the next turn.
        patience, goal = stage.patience("settling"), tasks * (1 + noise)
        while driver.meter.count < goal:
            patience.look(driver.meter.count, goal)
            await asyncio.sleep(POLL_S)
    return driver.lags[QUIET]


async def keep_pace(driver: Driver, tenant: int, rounds: int, size: int) -> None:
    async for number in at_pace(driver.stage, QUIET_TASKS_PER_S):
        if number == rounds:
            return
        await driver.engine.submitter.submit([make_task(tenant) for _ in range(size)])
