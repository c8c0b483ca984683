"""Schedules: definitions with their timers; create, read, change, delete.

Firing is in `fire_schedules.py`, what a definition means in `domain/recurrence.py`. Every change
holds the lock on the schedule's timer and raises its fence, so nothing planned from the old
definition can be written after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any, cast
from uuid import UUID

from duly.domain.ids import make_task_id, milliseconds, shard_of, tenant_shard
from duly.domain.limits import TAGS_MAX, Problem
from duly.domain.occurrence_plan import (
    Misfire,
    Overlap,
    Policies,
    ScheduleProgress,
    next_at,
    watches,
)
from duly.domain.recurrence import Recurrence, stable_jitter_s
from duly.domain.recurrence_fields import RecurrenceFields, read_recurrence
from duly.domain.task import Submission
from duly.environment import Environment
from duly.store.database import Session
from duly.store.policies import decode_policy
from duly.store.statements import statements_beside
from duly.store.templates import (
    ScheduledWorkflow,
    Template,
    decode_scheduled,
    encode_scheduled,
    start_from,
)
from duly.store.workflow_types import PinnedTemplate
from duly.store.workflows import WorkflowStart

SQL = statements_beside(__file__)
NEWEST = UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A schedule as requested. `task` is the template as it was written."""

    name: str
    fields: RecurrenceFields
    policies: Policies
    jitter_s: float
    task: str
    template: Template | ScheduledWorkflow

    @property
    def is_task(self) -> bool:
        return isinstance(self.template, Template)

    @property
    def type(self) -> str:
        """Of its tasks, or the name of its workflows."""
        template = self.template
        return template.type if isinstance(template, Template) else template.name

    @property
    def nodes(self) -> int:
        """Of a workflow, as far as its own graph says."""
        own = None if isinstance(self.template, Template) else self.template.template
        return 1 if own is None else len(own.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A definition, and how far it has come."""

    id: UUID
    tenant: int
    definition: Definition
    created_at: datetime
    updated_at: datetime
    anchor_at: datetime
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    fence: int
    fires: int
    cursor_at: datetime
    nominal_at: datetime | None
    due_at: datetime | None
    live: list[UUID]
    # By the database's clock, when this was read.
    now: datetime

    @property
    def shard(self) -> int:
        return shard_of(self.id)

    @property
    def offset_s(self) -> float:
        return stable_jitter_s(self.id, self.definition.jitter_s)

    @property
    def offset(self) -> timedelta:
        return timedelta(seconds=self.offset_s)

    @property
    def progress(self) -> ScheduleProgress:
        is_paused = self.paused_at is not None
        return ScheduleProgress(self.cursor_at, self.fires, len(self.live), is_paused)

    def recurrence(self) -> Recurrence | list[Problem]:
        return read_recurrence(self.definition.fields, self.anchor_at)


@dataclass(frozen=True, slots=True)
class ScheduleFilter:
    name_prefix: str | None = None
    type: str | None = None
    is_paused: bool | None = None


def submission_of(schedule: Schedule, nominal_at: datetime, run_at: datetime) -> Submission:
    """What an occurrence submits; `queue_one` makes its tasks wait for each other."""
    template = schedule.definition.template
    assert isinstance(template, Template)
    policy = decode_policy(template.policy)
    if schedule.definition.policies.overlap == "queue_one":
        policy = replace(policy, concurrency_key=queue_key(schedule.id), concurrency_limit=1)
    return Submission(
        tenant=schedule.tenant,
        type=template.type,
        payload=template.payload,
        run_at=run_at,
        url=template.url,
        pool=template.pool,
        priority=template.priority,
        policy=policy,
        execution_key=execution_key(schedule.id, nominal_at),
        tags=template.tags,
    )


def workflow_of_occurrence(
    schedule: Schedule, pinned: PinnedTemplate, nominal_at: datetime, run_at: datetime
) -> WorkflowStart:
    """What an occurrence starts; its roots are due when a task would be."""
    scheduled = schedule.definition.template
    assert isinstance(scheduled, ScheduledWorkflow)
    start = start_from(pinned.template, schedule.tenant, scheduled.payload)
    wait_s = max((run_at - schedule.now).total_seconds(), 0.0)
    nodes = [
        node if node.parents else replace(node, task=delayed(node.task, wait_s))
        for node in start.nodes
    ]
    is_typed = scheduled.template is None
    given = scheduled.tags if is_typed else start.tags
    own = {"schedule": schedule.definition.name, "nominal_at": utc_text(nominal_at)}
    tags = own | (given or {})
    return replace(
        start,
        nodes=nodes,
        tags=tags if len(tags) <= TAGS_MAX else given,
        deadline_s=scheduled.deadline_s if is_typed else start.deadline_s,
        callback=scheduled.callback if is_typed else start.callback,
        type=pinned.name if is_typed else None,
        type_version=pinned.version if is_typed else None,
    )


def delayed(task: Submission, wait_s: float) -> Submission:
    return task._replace(delay_s=task.delay_s + wait_s) if wait_s else task


def queue_key(schedule: UUID) -> str:
    return f"schedule:{schedule}"


def execution_key(schedule: UUID, nominal_at: datetime) -> str:
    return f"{schedule}:{utc_text(nominal_at)}"


def utc_text(instant: datetime) -> str:
    return instant.isoformat().replace("+00:00", "Z")


def make_schedule_id(environment: Environment, tenant: int, now: datetime) -> UUID:
    """In the tenant's home shard, whatever its spread: a name is then unique in one shard."""
    home = tenant_shard(tenant, spread=1, choice=0)
    return make_task_id(milliseconds(now), home, environment.random)


def first_instants(
    schedule_id: UUID,
    definition: Definition,
    recurrence: Recurrence,
    after: datetime,
    fires: int = 0,
) -> tuple[datetime | None, datetime | None]:
    """The next nominal time and when it is due, or none at all."""
    following = next_at(recurrence, definition.policies, after, fires)
    if following is None:
        return None, None
    return following, following + timedelta(
        seconds=stable_jitter_s(schedule_id, definition.jitter_s)
    )


async def create_schedule(
    session: Session,
    tenant: int,
    schedule_id: UUID,
    definition: Definition,
    recurrence: Recurrence,
    now: datetime,
) -> bool:
    """False: the tenant has one of this name."""
    first = first_instants(schedule_id, definition, recurrence, now)
    rows = await session.fetch(
        SQL.create_schedules,
        shard_of(schedule_id),
        tenant,
        schedule_id,
        *definition_columns(definition),
        now,
        *first,
    )
    return bool(rows)


async def read_schedules(session: Session, ids: Sequence[UUID]) -> list[Schedule]:
    """Those that exist, in the order asked for. The caller has bound them to a tenant."""
    rows = await session.fetch(SQL.read_schedules, [shard_of(each) for each in ids], list(ids))
    found = {row["id"]: schedule_from(row) for row in rows}
    return [found[each] for each in ids if each in found]


async def find_schedule(session: Session, tenant: int, schedule_id: UUID) -> Schedule | None:
    found = await read_schedules(session, [schedule_id])
    return found[0] if found and found[0].tenant == tenant else None


async def lock_schedule(session: Session, tenant: int, schedule_id: UUID) -> Schedule | None:
    """Lock it against firing and changes until this transaction ends."""
    if not await session.fetch(SQL.lock_schedule, shard_of(schedule_id), schedule_id, tenant):
        return None
    return await find_schedule(session, tenant, schedule_id)


async def find_schedule_ids(session: Session, tenant: int, names: Sequence[str]) -> dict[str, UUID]:
    home = tenant_shard(tenant, spread=1, choice=0)
    rows = await session.fetch(SQL.find_schedule_names, home, tenant, list(names))
    return {row["name"]: row["id"] for row in rows}


async def list_schedules(
    session: Session, tenant: int, asked: ScheduleFilter, cursor: UUID | None, limit: int
) -> tuple[list[Schedule], UUID | None]:
    rows = await session.fetch(
        SQL.list_schedules,
        tenant,
        cursor or NEWEST,
        asked.name_prefix,
        asked.type,
        asked.is_paused,
        limit,
    )
    ids = [row["id"] for row in rows]
    return await read_schedules(session, ids), ids[-1] if len(ids) == limit else None


async def edit_schedule(
    session: Session, schedule: Schedule, definition: Definition, recurrence: Recurrence
) -> datetime | None:
    """When it is due next. The caller holds the lock and has ruled on everything up to now."""
    cursor_at = max(schedule.cursor_at, schedule.now)
    following = first_instants(schedule.id, definition, recurrence, cursor_at, schedule.fires)
    await session.fetch(
        SQL.edit_schedule,
        schedule.shard,
        schedule.tenant,
        schedule.id,
        *definition_columns(definition),
        cursor_at,
        *following,
        watches(schedule.definition.policies),
        watches(definition.policies),
    )
    return following[1]


async def pause_schedule(session: Session, schedule: Schedule, actor: str, reason: str) -> bool:
    rows = await session.fetch(
        SQL.pause_schedule, schedule.shard, schedule.tenant, schedule.id, actor, reason
    )
    return bool(rows)


async def resume_schedule(
    session: Session, schedule: Schedule, recurrence: Recurrence
) -> datetime | None:
    """When it is due next. The caller has ruled on what came due during the pause."""
    cursor_at = max(schedule.cursor_at, schedule.now)
    following = first_instants(
        schedule.id, schedule.definition, recurrence, cursor_at, schedule.fires
    )
    await session.fetch(
        SQL.resume_schedule, schedule.shard, schedule.tenant, schedule.id, cursor_at, *following
    )
    return following[1]


async def delete_schedule(session: Session, tenant: int, schedule_id: UUID) -> str | None:
    """Its name, or None: there was none."""
    rows = await session.fetch(SQL.delete_schedule, shard_of(schedule_id), tenant, schedule_id)
    return rows[0]["name"] if rows else None


def definition_columns(definition: Definition) -> list[Any]:
    fields, policies = definition.fields, definition.policies
    return [
        definition.name,
        fields.cron,
        None if fields.every_s is None else int(fields.every_s),
        fields.timezone,
        fields.dst_gap,
        fields.dst_repeat,
        policies.misfire,
        policies.misfire_window_s,
        policies.overlap,
        policies.max_running,
        definition.jitter_s,
        fields.start_at,
        fields.end_at,
        policies.max_fires,
        list[date](fields.exclude_dates),
        definition.type,
        definition.task,
        encode_scheduled(definition.template),
    ]


def schedule_from(row: Any) -> Schedule:
    return Schedule(
        id=row["id"],
        tenant=row["tenant"],
        definition=definition_from(row),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        anchor_at=row["anchor_at"],
        paused_at=row["paused_at"],
        paused_by=row["paused_by"],
        pause_reason=row["pause_reason"],
        fence=row["fence"],
        fires=row["fires"],
        cursor_at=row["cursor_at"],
        nominal_at=row["nominal_at"],
        due_at=row["due_at"],
        live=row["live"],
        now=row["now"],
    )


def fields_from(row: Any) -> RecurrenceFields:
    return RecurrenceFields(
        cron=row["cron"],
        every_s=row["every_s"],
        timezone=row["timezone"],
        dst_gap=row["dst_gap"],
        dst_repeat=row["dst_repeat"],
        start_at=row["start_at"],
        end_at=row["end_at"],
        exclude_dates=tuple(row["exclude_dates"]),
    )


def definition_from(row: Any) -> Definition:
    policies = Policies(
        # The table's own checks admit no other words.
        cast(Misfire, row["misfire"]),
        row["misfire_window_s"],
        cast(Overlap, row["overlap"]),
        row["max_running"],
        row["max_fires"],
    )
    return Definition(
        name=row["name"],
        fields=fields_from(row),
        policies=policies,
        jitter_s=row["jitter_s"],
        task=row["task"],
        template=decode_scheduled(row["template"]),
    )
