"""Rows that benchmarks write by themselves are those that the front door would have made."""

from datetime import timedelta
from typing import Any

import asyncpg
import msgspec

from duly.store.measure import copy_schedule, tidy_schedules
from duly.store.schedules import ScheduleFilter, first_instants, list_schedules
from tests.store.recurring import fire_due, reckoned, schedule, verdicts
from tests.store.world import START, TENANT, World

COPIES, STEP_S = 3, 7
# Columns that tell one schedule from another.
OWN_COLUMNS = {"id", "name", "start_at"}
READ_WHOLE = "SELECT to_jsonb(schedules)::text AS row FROM duly.schedules"
EVERY_FIELD: dict[str, Any] = {
    "every_s": 86400,
    "timezone": "Europe/Berlin",
    "dst_gap": "skip",
    "dst_repeat": "second",
    "misfire": "fire_all",
    "misfire_window_s": 120.0,
    "overlap": "allow",
    "max_running": 5,
    "max_fires": 9,
    "start_at": START + timedelta(days=3, milliseconds=250),
    "end_at": START + timedelta(days=300),
    "exclude_dates": (START.date(),),
}


async def test_a_copied_schedule_is_due_when_its_own_definition_says(
    world: World, owner_url: str
) -> None:
    """A timer that its definition contradicts would be reckoned anew in the middle of a figure."""
    model = await schedule(world, **EVERY_FIELD)
    await copy_schedule(owner_url, model, COPIES, STEP_S)
    found, _ = await list_schedules(world.database, TENANT, ScheduleFilter(), None, 100)
    assert len({each.definition.name for each in found}) == COPIES + 1
    assert len({each.due_at for each in found}) == COPIES + 1
    for each in found:
        recurrence = reckoned(each.definition, each.anchor_at)
        wanted = first_instants(each.id, each.definition, recurrence, each.created_at)
        assert (each.nominal_at, each.due_at) == wanted


async def test_a_copied_schedule_keeps_every_column(
    world: World, owner_url: str, owner: asyncpg.Connection
) -> None:
    """A column that a later migration adds would be empty in a million rows, and nobody told."""
    model = await schedule(world, **EVERY_FIELD)
    await copy_schedule(owner_url, model, COPIES, STEP_S)
    rows = [msgspec.json.decode(each["row"]) for each in await owner.fetch(READ_WHOLE)]
    kept = [{key: row[key] for key in row.keys() - OWN_COLUMNS} for row in rows]
    assert kept == kept[:1] * (COPIES + 1)


async def test_copied_schedules_fire(world: World, owner_url: str) -> None:
    """A herd of which only the model fires would look fast."""
    model = await schedule(world, every_s=60)
    await copy_schedule(owner_url, model, COPIES)
    await tidy_schedules(owner_url)
    world.advance(60.0)
    await fire_due(world)
    found, _ = await list_schedules(world.database, TENANT, ScheduleFilter(), None, 100)
    fired = [await verdicts(world, each.id) for each in found]
    assert fired == [["FIRED"]] * (COPIES + 1)
