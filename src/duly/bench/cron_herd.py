"""Many schedules that are due at one instant, among far more that are not, and a neighbour's tasks
that must not wait for them."""

import asyncio
import contextlib
from datetime import datetime, timedelta
from uuid import UUID

from duly.bench.drive import Driver, make_task
from duly.bench.figures import Figures, percentiles
from duly.bench.stage import TENANT, Stage
from duly.domain.firing import Policies
from duly.domain.recurrence import Recurrence
from duly.domain.recurrence_fields import RecurrenceFields, read_recurrence
from duly.store.measure import copy_schedule
from duly.store.schedules import Definition, create_schedule, make_schedule_id, template_of

# For each schedule of the herd, so many that are not due.
OTHERS = 49
LEAD_S = 5.0
NEIGHBOUR = 11
NEIGHBOUR_TASKS_PER_S = 50
YEARLY_S = 365 * 86400


async def run_cron_herd(stage: Stage) -> Figures:
    herd, others = stage.tasks, stage.tasks * OTHERS
    far = await make(stage, "far", stage.environment.clock.now() + timedelta(days=300))
    await copy_schedule(
        stage.place.owner_url, far, others - 1, lambda done: stage.show(done, others)
    )
    # Far enough away to be written before, and the engine to be there.
    fires_at = stage.environment.clock.now() + timedelta(seconds=LEAD_S + herd / 5000)
    near = await make(stage, "near", fires_at)
    await copy_schedule(stage.place.owner_url, near, herd - 1)
    driver = Driver(stage)
    async with driver.running():
        driver.restart_meter(herd)
        neighbour = asyncio.create_task(keep_submitting(driver))
        await until_fired(driver, herd)
        neighbour.cancel()
        # If it died before, its error is the result.
        with contextlib.suppress(asyncio.CancelledError):
            await neighbour
    lags = driver.lags[TENANT]
    beside = percentiles(driver.lags.get(NEIGHBOUR, []))
    return {
        "tasks_per_s": herd / max(lags),
        **percentiles(lags),
        "all_fired_s": max(lags),
        "neighbour_p50_ms": beside.get("p50_ms"),
        "neighbour_p99_ms": beside.get("p99_ms"),
        "schedules": herd + others,
    }


async def make(stage: Stage, name: str, first_at: datetime) -> UUID:
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


async def keep_submitting(driver: Driver) -> None:
    while True:
        await driver.engine.desk.submit(make_task(NEIGHBOUR))
        await asyncio.sleep(1 / NEIGHBOUR_TASKS_PER_S)


async def until_fired(driver: Driver, herd: int) -> None:
    """The neighbour's tasks are counted by the meter as well, so the starts decide."""
    patience = driver.stage.patience("firing")
    while driver.started[TENANT] < herd:
        driver.stage.show(driver.started[TENANT], herd)
        patience.look(driver.started[TENANT], herd)
        await asyncio.sleep(0.05)
