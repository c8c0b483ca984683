"""Verbs for one schedule in a store test: make it, let its time come, fire it, read its ledger."""

from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from duly.domain.occurrence_plan import Policies
from duly.domain.recurrence import Recurrence
from duly.domain.recurrence_fields import RecurrenceFields, read_recurrence
from duly.domain.task import Submission
from duly.store.fire_schedules import ScheduleFirer, look_ahead
from duly.store.occurrences import RecordedOccurrence, list_occurrences
from duly.store.schedules import (
    Definition,
    Schedule,
    create_schedule,
    make_schedule_id,
    read_schedules,
)
from duly.store.templates import template_of
from tests.store.world import TENANT, World

FAR = datetime.fromisoformat("2400-01-01T00:00:00+00:00")
ALL_SHARDS = range(1024)
POLICY_NAMES = {"misfire", "misfire_window_s", "overlap", "max_running", "max_fires"}


def definition(name: str = "report", jitter_s: float = 0.0, **fields: Any) -> Definition:
    """`every_s=60`, unless a cron expression or another interval is given."""
    policies = {key: fields.pop(key) for key in list(fields) if key in POLICY_NAMES}
    if "cron" not in fields:
        fields.setdefault("every_s", 60)
    task = Submission(tenant=TENANT, type="report.send", url="https://example.com/report")
    return Definition(
        name=name,
        fields=RecurrenceFields(**fields),
        policies=replace(Policies(), **policies),
        jitter_s=jitter_s,
        task="{}",
        template=template_of(task),
    )


def reckoned(wanted: Definition, anchor_at: datetime) -> Recurrence:
    recurrence = read_recurrence(wanted.fields, anchor_at)
    assert isinstance(recurrence, Recurrence)
    return recurrence


async def schedule(world: World, tenant: int = TENANT, **fields: Any) -> UUID:
    wanted, now = definition(**fields), world.now()
    schedule_id = make_schedule_id(world.environment, tenant, now)
    made = await create_schedule(
        world.database, tenant, schedule_id, wanted, reckoned(wanted, now), now
    )
    assert made
    return schedule_id


async def read(world: World, schedule_id: UUID) -> Schedule:
    (found,) = await read_schedules(world.database, [schedule_id])
    return found


async def due_ids(world: World) -> list[UUID]:
    soon = await look_ahead(world.database, ALL_SHARDS, 0.0, 60.0, 1000, 1000)
    return [each.id for each in soon]


async def fire_due(world: World, schedule_firer: ScheduleFirer | None = None) -> int:
    """Everything that is due, until nothing is; how many firings it took."""
    schedule_firer = schedule_firer or ScheduleFirer(world.submitter, world.environment)
    rounds = 0
    while ids := await due_ids(world):
        schedules = await read_schedules(world.database, ids)
        readable = [(each, reckoned(each.definition, each.anchor_at)) for each in schedules]
        await schedule_firer.fire(world.database, await schedule_firer.plan(readable))
        rounds += 1
        assert rounds < 10_000, "a schedule stays due for ever"
    return rounds


async def ledger(world: World, schedule_id: UUID, tenant: int = TENANT) -> list[RecordedOccurrence]:
    """Oldest first."""
    found = await list_occurrences(world.database, tenant, schedule_id, before=FAR, limit=1_000_000)
    return found[::-1]


async def verdicts(world: World, schedule_id: UUID) -> list[str]:
    return [entry.verdict for entry in await ledger(world, schedule_id)]
