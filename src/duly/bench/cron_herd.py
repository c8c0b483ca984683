"""Cron herd scenario: many schedules that are due at one instant, among far more that are not, and
a neighbour's tasks that must not wait for them."""

import asyncio
from datetime import datetime, timedelta
from uuid import UUID

from duly.bench.drive import Driver, at_pace, make_task
from duly.bench.figures import Figures, percentiles
from duly.bench.stage import TENANT, ScenarioContext
from duly.domain.occurrence_plan import Policies
from duly.domain.recurrence import Recurrence
from duly.domain.recurrence_fields import RecurrenceFields, read_recurrence
from duly.store.measure import copy_schedule, tidy_schedules
from duly.store.schedules import Definition, create_schedule, make_schedule_id
from duly.store.templates import template_of

# For each schedule of the herd, so many that are not due.
OTHERS = 49
# Those are due one after the other, from a month from now on.
FAR, FAR_STEP_S = timedelta(days=30), 20
# To write the herd, and to see how the neighbour fares without it.
LEAD_S, LEAD_SCHEDULES_PER_S = 4.0, 2000
NEIGHBOUR = 11
NEIGHBOUR_TASKS_PER_S = 50
YEARLY_S = 365 * 86400


async def run_cron_herd(stage: ScenarioContext) -> Figures:
    herd, others = stage.tasks, stage.tasks * OTHERS
    fill_s = await fill(stage, others)
    driver = Driver(stage)
    submit_waits: list[float] = []
    async with driver.running(), asyncio.TaskGroup() as group:
        lead_s = LEAD_S + herd / LEAD_SCHEDULES_PER_S
        fires_at = stage.environment.clock.now() + timedelta(seconds=lead_s)
        local_tickets = await make(stage, "near", fires_at)
        await copy_schedule(stage.target.owner_url, local_tickets, herd - 1)
        neighbour = group.create_task(keep_submitting(driver, submit_waits))
        await asyncio.sleep((fires_at - stage.environment.clock.now()).total_seconds())
        alone = percentiles(driver.lags.pop(NEIGHBOUR, []))
        submitted_alone = len(submit_waits)
        await until_started(driver, TENANT, herd)
        neighbour.cancel()
        # Those that still wait have waited longest.
        await until_started(driver, NEIGHBOUR, len(submit_waits))
    lags, beside = driver.lags[TENANT], percentiles(driver.lags.get(NEIGHBOUR, []))
    return {
        "tasks_per_s": herd / max(lags),
        **percentiles(lags),
        "all_fired_s": max(lags),
        "neighbour_p50_ms": beside.get("p50_ms"),
        "neighbour_p99_ms": beside.get("p99_ms"),
        "neighbour_alone_p99_ms": alone.get("p99_ms"),
        "neighbour_submit_p99_ms": percentiles(submit_waits[submitted_alone:]).get("p99_ms"),
        "schedules": herd + others,
        "fill_s": fill_s,
    }


async def fill(stage: ScenarioContext, others: int) -> float:
    """How many seconds it took."""
    began_s = stage.now_s
    far = await make(stage, "far", stage.environment.clock.now() + FAR)
    await copy_schedule(
        stage.target.owner_url, far, others - 1, FAR_STEP_S, lambda done: stage.show(done, others)
    )
    await tidy_schedules(stage.target.owner_url)
    return stage.now_s - began_s


async def make(stage: ScenarioContext, name: str, first_at: datetime) -> UUID:
    """A yearly schedule that fires first at that instant."""
    now = stage.environment.clock.now()
    definition = Definition(
        name=name,
        fields=RecurrenceFields(every_s=YEARLY_S, start_at=first_at),
        policies=Policies(),
        jitter_s=0.0,
        task="{}",
        template=template_of(make_task()),
    )
    recurrence = read_recurrence(definition.fields, now)
    assert isinstance(recurrence, Recurrence)
    schedule_id = make_schedule_id(stage.environment, TENANT, now)
    await create_schedule(stage.database, TENANT, schedule_id, definition, recurrence, now)
    return schedule_id


async def keep_submitting(driver: Driver, waits: list[float]) -> None:
    async for _ in at_pace(driver.stage, NEIGHBOUR_TASKS_PER_S):
        before_s = driver.stage.now_s
        await driver.engine.group_commit.submit(make_task(NEIGHBOUR))
        waits.append(driver.stage.now_s - before_s)


async def until_started(driver: Driver, tenant: int, goal: int) -> None:
    """The meter counts both tenants together, so the starts of one decide."""
    patience = driver.stage.patience("firing")
    while driver.started[tenant] < goal:
        driver.stage.show(driver.started[tenant], goal)
        patience.look(driver.started[tenant], goal)
        await asyncio.sleep(0.05)
