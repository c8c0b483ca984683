"""Who keeps schedules: creates, edits, pauses, resumes, triggers and deletes them as the front door
does. Each change stands in the audit of its own transaction, so that nobody guesses what became of
a call without an answer; `schedule_model.py` reads it there."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import NamedTuple
from uuid import UUID

import msgspec

from duly.api.schedule_control import moment_of
from duly.domain.occurrence_plan import OccurrenceDecision, Policies
from duly.domain.recurrence import Recurrence, stable_jitter_s
from duly.domain.recurrence_fields import RecurrenceFields, read_recurrence
from duly.domain.retry import RetryPolicy
from duly.domain.task import Policy, Submission
from duly.store.audit import append_audit
from duly.store.database import Session
from duly.store.fire_schedules import FiredSchedules, ScheduleFirer
from duly.store.occurrences import list_occurrences
from duly.store.schedules import (
    Definition,
    Schedule,
    create_schedule,
    delete_schedule,
    edit_schedule,
    find_schedule,
    lock_schedule,
    make_schedule_id,
    pause_schedule,
    resume_schedule,
    submission_of,
)
from duly.store.templates import template_of
from duly.store.tenants import read_schedule_bound
from tests.simulation.clients import WEBHOOK
from tests.simulation.cluster import Cluster, Node
from tests.simulation.fleet import FleetNode
from tests.simulation.plan import Actor
from tests.simulation.workers import hear

SCHEDULES_MAX = 4
# All of them end, so that the run does: this long after the faults, at most.
AFTERMATH_S = 12.0
# The last one fires once, at the change of the month in which every other seed begins.
CRONS = ("*/4 * * * * *", "3,17,18,40 * * * * *", "*/20 * * * * *", "0 0 9 * * *")
ZONES = ("UTC", "Asia/Tokyo")
ACTOR = "keeper"


class CatchingUp(Exception):
    """Too much is due: the front door refuses, and rolls back."""


class Asked(NamedTuple):
    """One change under way: the schedule is locked, and nothing of it is due any more, except
    where that is no matter."""

    cluster: Cluster
    random: Random
    session: Session
    schedule_firer: ScheduleFirer
    schedule: Schedule


Change = Callable[[Asked], Awaitable[FiredSchedules]]


async def keep_schedules(cluster: Cluster, node: Node) -> None:
    assert isinstance(node, FleetNode)
    while not cluster.is_healed:
        await asyncio.sleep(cluster.plan.tick_s * node.random.uniform(0.3, 1.5))
        if len(cluster.schedules) < SCHEDULES_MAX and node.random.random() < 0.5:
            await hear(cluster, [], create(cluster, node))
        elif cluster.schedules:
            tenant, schedule_id = node.random.choice(cluster.schedules)
            (change,) = node.random.choices(CHANGES, CHANGE_WEIGHTS)
            await hear(cluster, [], change_one(cluster, node, tenant, schedule_id, change))


async def create(cluster: Cluster, node: FleetNode) -> None:
    tenant = node.random.choice(cluster.plan.tenants)
    async with node.database.transaction() as session:
        _, now = await read_schedule_bound(session, tenant)
        schedule_id = make_schedule_id(node.environment, tenant, now)
        cluster.schedules.append((tenant, schedule_id))
        name = f"schedule-{len(cluster.schedules)}"
        wanted = define(cluster, node.random, tenant, name)
        recurrence = reckoned(wanted, now)
        assert await create_schedule(session, tenant, schedule_id, wanted, recurrence, now)
        await note(session, tenant, "create", schedule_id, now, wanted)
        made = await find_schedule(session, tenant, schedule_id)
        assert made is not None, "this transaction stored it"
    node.scheduler.cron_role.expect(schedule_id, made.due_at, made.now)


async def change_one(
    cluster: Cluster, node: FleetNode, tenant: int, schedule_id: UUID, change: Change
) -> None:
    """What firing must know is known before a connection is held; what follows the commit follows
    it."""
    schedule_firer = ScheduleFirer(node.submitter, node.environment)
    found = await find_schedule(node.database, tenant, schedule_id)
    if found is None:
        return
    await node.submitter.assign_ids([submission_of(found, found.now, found.now)])
    try:
        async with node.database.transaction() as session:
            locked = await lock_schedule(session, tenant, schedule_id)
            if locked is None:
                return
            schedule, written = locked, FiredSchedules()
            if change not in BRAKES:
                ruled = await schedule_firer.decide_due(session, locked)
                if ruled is None:
                    raise CatchingUp
                schedule, written = ruled
            written += await change(Asked(cluster, node.random, session, schedule_firer, schedule))
            after = await find_schedule(session, tenant, schedule_id)
    except CatchingUp:
        return
    await schedule_firer.publish(written)
    if after is not None:
        node.scheduler.cron_role.expect(schedule_id, after.due_at, after.now)


async def edit(asked: Asked) -> FiredSchedules:
    """Another rule and another jitter; the policies stay, so that they can be judged."""
    schedule, known = asked.schedule, asked.schedule.definition
    fresh = define(asked.cluster, asked.random, schedule.tenant, known.name)
    wanted = replace(fresh, policies=known.policies)
    await edit_schedule(asked.session, schedule, wanted, reckoned(wanted, schedule.anchor_at))
    await note(asked.session, schedule.tenant, "edit", schedule.id, schedule.now, wanted)
    return FiredSchedules()


async def pause(asked: Asked) -> FiredSchedules:
    """From where its rulings have come to: what is due and was not fired yet is skipped as well."""
    schedule = asked.schedule
    if await pause_schedule(asked.session, schedule, ACTOR, "because"):
        at, known = schedule.cursor_at, schedule.definition
        await note(asked.session, schedule.tenant, "pause", schedule.id, at, known)
    return FiredSchedules()


async def resume(asked: Asked) -> FiredSchedules:
    schedule = asked.schedule
    if schedule.paused_at is not None:
        recurrence = reckoned(schedule.definition, schedule.anchor_at)
        await resume_schedule(asked.session, schedule, recurrence)
        await note_as_it_is(asked, "resume")
    return FiredSchedules()


async def trigger(asked: Asked) -> FiredSchedules:
    schedule = asked.schedule
    times = [(moment_of(schedule.now), schedule.now)]
    written = await asked.schedule_firer.fire_manually(
        asked.session, schedule, OccurrenceDecision.TRIGGERED, times
    )
    assert len(written.made) == 1, "two triggers at one instant"
    return written


async def look(asked: Asked) -> FiredSchedules:
    """Clients that cancel and move tasks learn of those that schedules made."""
    schedule = asked.schedule
    # Of what was purged nobody could tell any more where it came from.
    if Actor.PURGER not in asked.cluster.plan.actors:
        seen = await list_occurrences(
            asked.session, schedule.tenant, schedule.id, before=schedule.now, limit=3
        )
        fired = [row.task for row in seen if row.task is not None]
        asked.cluster.known.extend((schedule.tenant, task) for task in fired)
    return FiredSchedules()


async def delete(asked: Asked) -> FiredSchedules:
    schedule = asked.schedule
    await delete_schedule(asked.session, schedule.tenant, schedule.id)
    await note_as_it_is(asked, "delete")
    return FiredSchedules()


def define(cluster: Cluster, random: Random, tenant: int, name: str) -> Definition:
    plan = cluster.plan
    is_cron = random.random() < 0.4
    fields = RecurrenceFields(
        cron=random.choice(CRONS) if is_cron else None,
        every_s=None if is_cron else random.randint(1, 6),
        timezone=random.choice(ZONES),
        end_at=plan.start + timedelta(seconds=plan.safety_s + AFTERMATH_S * random.random()),
    )
    policies = Policies(
        random.choice(["fire_all", "coalesce", "skip"]),
        random.choice([3.0, 3600.0]),
        random.choice(["allow", "allow", "skip", "queue_one", "cancel_previous"]),
        random.choice([None, 2]),
    )
    retry = RetryPolicy(max_attempts=plan.max_attempts, initial_s=plan.backoff_s, max_s=10.0)
    is_webhook = plan.has_webhooks and random.random() < 0.6
    task = Submission(
        tenant=tenant,
        type=name,
        url=WEBHOOK if is_webhook else None,
        pool=random.choice(["default", "other"]),
        priority=random.randint(0, 9),
        policy=Policy(retry=retry, timeout_s=plan.timeout_s),
    )
    return Definition(
        name=name,
        fields=fields,
        policies=policies,
        jitter_s=random.choice([0.0, 0.0, 3.0]),
        task="{}",
        template=template_of(task),
    )


def reckoned(wanted: Definition, anchor_at: datetime) -> Recurrence:
    recurrence = read_recurrence(wanted.fields, anchor_at)
    assert isinstance(recurrence, Recurrence)
    return recurrence


async def note_as_it_is(asked: Asked, action: str) -> None:
    schedule = asked.schedule
    await note(
        asked.session, schedule.tenant, action, schedule.id, schedule.now, schedule.definition
    )


async def note(
    session: Session, tenant: int, action: str, schedule: UUID, at: datetime, wanted: Definition
) -> None:
    """`at`: nominal times up to here were ruled on under what was before, the others were not."""
    facts = {
        "at": at,
        "cron": wanted.fields.cron,
        "every_s": wanted.fields.every_s,
        "timezone": wanted.fields.timezone,
        "end_at": wanted.fields.end_at,
        "offset_s": stable_jitter_s(schedule, wanted.jitter_s),
        "overlap": wanted.policies.overlap,
        "max_running": wanted.policies.max_running,
    }
    detail = msgspec.json.encode(facts).decode()
    await append_audit(session, tenant, ACTOR, f"schedule.{action}", str(schedule), detail)


# They work at once, also on one that has much to catch up with.
BRAKES: tuple[Change, ...] = (pause, trigger)
CHANGES: tuple[Change, ...] = (edit, pause, resume, trigger, look, delete)
CHANGE_WEIGHTS = (6, 4, 6, 4, 2, 1)
