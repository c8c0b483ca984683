"""Firing schedules: the timer moves, occurrences are recorded, and admitted ones become tasks.

| event | what happens |
|---|---|
| two schedulers, or a zombie | the timer's fence decides: the second writes nothing |
| killed between two statements | nothing happened: it is still due |
| outcome unknown | read again: the fence tells whether it happened |
| the definition is edited meanwhile | the edit raised the fence: this firing writes nothing |
| not due by the database's clock | left alone, whatever this node's clock says |
| the clock is set back | the cursor stays: a decided occurrence is never decided again |
| an occurrence is recorded already | no second verdict, no second task |
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, TypeAlias
from uuid import UUID

from duly.domain.ids import address_of, is_node, shard_of
from duly.domain.occurrence_plan import (
    FIRES_MAX,
    DecidedOccurrence,
    FiringPlan,
    OccurrenceDecision,
    next_at,
    plan_firing,
    watches,
)
from duly.domain.recurrence import Recurrence
from duly.domain.workflow import WorkflowStop
from duly.environment import CrashPoint, Environment
from duly.store.control import cancel_tasks, cancelled_tasks, ended_by_cancel
from duly.store.database import Database, Session
from duly.store.finish import Released
from duly.store.insert import InsertRow
from duly.store.partitions import RETENTION_S
from duly.store.schedules import (
    Schedule,
    read_schedules,
    submission_of,
    workflow_of_occurrence,
)
from duly.store.statements import statements_beside
from duly.store.submit import SubmitAnswer, Submitter
from duly.store.templates import ScheduledWorkflow, Template
from duly.store.unnest import columns
from duly.store.workflow_control import stop_workflow
from duly.store.workflow_pauses import queue_behind
from duly.store.workflow_starts import traced
from duly.store.workflow_types import PinnedTemplate, read_templates
from duly.store.workflows import PlacedStart, WorkflowStart, WorkflowStarter

SQL = statements_beside(__file__)
START = UUID(int=0)
# Batches of overdue occurrences that a change of the definition waits for.
BATCHES_MAX = 20
# Of one firing, so that neither the process nor the transaction stands still for long.
RULINGS_PER_BATCH = 1000
FIRES_PER_BATCH = 400
NODES_PER_BATCH = 10_000


class UpcomingSchedule(NamedTuple):
    """A schedule that is due, or will be within the horizon."""

    due_at: datetime
    id: UUID
    is_late: bool


class SweptSchedule(NamedTuple):
    """One definition as the sweep sees it; broken is one that has lost its timer."""

    id: UUID
    is_broken: bool


Batch = tuple[list[InsertRow], dict[int, SubmitAnswer]]
# What an occurrence makes.
Entry = InsertRow | PlacedStart
# Tasks of a tenant that `cancel_previous` ended before they were leased, and what that set free.
Cancelled = tuple[int, list[UUID], Released]
# Workflows that were stored, and when.
StartedBatch = tuple[list[PlacedStart], datetime]


@dataclass(frozen=True, slots=True)
class FiredSchedules:
    """The schedules that moved on, what was stored for them, and what ended. `held`: workflows
    that wait for the end of another one of their schedule."""

    moved: set[UUID] = field(default_factory=set)
    batches: list[Batch] = field(default_factory=list)
    cancelled: list[Cancelled] = field(default_factory=list)
    started: list[StartedBatch] = field(default_factory=list)
    held: set[UUID] = field(default_factory=set)

    def __add__(self, other: "FiredSchedules") -> "FiredSchedules":
        return FiredSchedules(
            self.moved | other.moved,
            self.batches + other.batches,
            self.cancelled + other.cancelled,
            self.started + other.started,
            self.held | other.held,
        )

    @property
    def made(self) -> list[UUID]:
        """Tasks and workflows."""
        tasks = [entry.id for stored, _ in self.batches for entry in stored]
        return tasks + [placed.id for started, _ in self.started for placed in started]


@dataclass(frozen=True, slots=True)
class Firing:
    """A schedule, its decided occurrences, and the tasks or workflows that follow."""

    schedule: Schedule
    plan: FiringPlan
    entries: dict[datetime, Entry]

    @property
    def fired(self) -> list[UUID]:
        return [entry.id for entry in self.entries.values()]

    @property
    def running(self) -> list[UUID]:
        """Running tasks that the overlap policy will check next time."""
        policies = self.schedule.definition.policies
        if not watches(policies):
            return []
        if policies.overlap == "cancel_previous" and self.fired:
            return self.fired[-1:]
        return self.schedule.live + self.fired

    @property
    def cancelled(self) -> list[UUID]:
        if self.schedule.definition.policies.overlap != "cancel_previous" or not self.fired:
            return []
        return self.schedule.live + self.fired[:-1]

    @property
    def queued(self) -> list[tuple[UUID, PlacedStart]]:
        """Workflows that start when the one before them ends. Tasks wait by a key instead."""
        if self.schedule.definition.policies.overlap != "queue_one":
            return []
        placed = [entry for entry in self.entries.values() if isinstance(entry, PlacedStart)]
        chain = [*self.schedule.live[-1:], *(entry.id for entry in placed)]
        behind = placed if self.schedule.live else placed[1:]
        return list(zip(chain, behind, strict=False))

    @property
    def due_at(self) -> datetime | None:
        following = self.plan.next_at
        return None if following is None else following + self.schedule.offset


# Of a schedule: the trace context that its occurrence carries; None if it is not sampled.
BeginTrace: TypeAlias = Callable[[UUID], str | None]


def no_trace(_schedule: UUID) -> str | None:
    """Nothing is traced."""
    return None


class ScheduleFirer:
    """Shares the submitter's knowledge of pools, placements and partitions."""

    def __init__(
        self,
        submitter: Submitter,
        environment: Environment,
        begin_trace: BeginTrace = no_trace,
    ) -> None:
        self.begin_trace = begin_trace
        self.submitter = submitter
        self.starter = WorkflowStarter(submitter.database, submitter)
        self.environment = environment

    async def plan(
        self,
        readable: Sequence[tuple[Schedule, Recurrence]],
        session: Session | None = None,
        *,
        with_held: bool = False,
    ) -> list[Firing]:
        """Decide the due occurrences of each, as of the instant at which it was read. A batch is
        bounded: those at the end may be left out, and stay due."""
        planned: list[tuple[Schedule, FiringPlan]] = []
        decisions = fires = nodes = 0
        for schedule, recurrence in readable:
            is_full = decisions >= RULINGS_PER_BATCH or fires >= FIRES_PER_BATCH
            if is_full or nodes >= NODES_PER_BATCH:
                break
            plan = plan_firing(
                recurrence,
                schedule.definition.policies,
                schedule.progress,
                schedule.offset_s,
                schedule.now,
                with_held=with_held,
            )
            planned.append((schedule, plan))
            decisions += len(plan.decisions)
            fires += (firing := sum(ruling.fires for ruling in plan.decisions))
            nodes += firing * schedule.definition.nodes
        made = await self.assign_ids(planned, session)
        firings = [
            Firing(schedule, plan, entries)
            for (schedule, plan), entries in zip(planned, made, strict=True)
        ]
        return sorted(firings, key=lambda firing: firing.schedule.id.int)

    async def assign_ids(
        self, planned: list[tuple[Schedule, FiringPlan]], session: Session | None
    ) -> list[dict[datetime, Entry]]:
        """What each plan makes, by the nominal time of its occurrence."""
        wanted = [
            (index, ruling.nominal_at)
            for index, (_, plan) in enumerate(planned)
            for ruling in plan.decisions
            if ruling.fires
        ]
        made: list[dict[datetime, Entry]] = [{} for _ in planned]
        times = [(planned[index][0], at, at + planned[index][0].offset) for index, at in wanted]
        for (index, at), entry in zip(wanted, await self.entries(times, session), strict=True):
            made[index][at] = entry
        return made

    async def entries(
        self, times: Sequence[tuple[Schedule, datetime, datetime]], session: Session | None
    ) -> list[Entry]:
        """For each (schedule, nominal time, fire time) its task or workflow, with its address."""
        is_task = [isinstance(each.definition.template, Template) for each, _, _ in times]
        tasks = [time for time, is_one in zip(times, is_task, strict=True) if is_one]
        others = [time for time, is_one in zip(times, is_task, strict=True) if not is_one]
        placed_tasks: list[InsertRow] = []
        if tasks:
            asked = [
                submission_of(*each)._replace(traceparent=self.begin_trace(each[0].id))
                for each in tasks
            ]
            placed_tasks = await self.submitter.assign_ids(asked, session)
            placed_tasks.sort(key=lambda entry: entry.ordinal)
        placed: list[PlacedStart] = []
        if others:
            starts = await self.starts_of(others, session)
            placed = await self.starter.place(starts, session)
            placed.sort(key=lambda each: each.ordinal)
        tasks_in_turn: Iterator[Entry] = iter(placed_tasks)
        others_in_turn: Iterator[Entry] = iter(placed)
        return [next(tasks_in_turn if is_one else others_in_turn) for is_one in is_task]

    async def starts_of(
        self, times: Sequence[tuple[Schedule, datetime, datetime]], session: Session | None
    ) -> list[WorkflowStart]:
        """Of a type, the version that is its latest now, unless the schedule names one."""
        references = {}
        for schedule, _, _ in times:
            scheduled = schedule.definition.template
            assert isinstance(scheduled, ScheduledWorkflow)
            if scheduled.template is None:
                references[schedule.id] = (schedule.tenant, scheduled.reference)
        asked = session or self.submitter.database
        found = await read_templates(asked, list(references.values()))
        pinned = dict(zip(references, found, strict=True))
        starts = []
        for schedule, nominal_at, run_at in times:
            scheduled = schedule.definition.template
            assert isinstance(scheduled, ScheduledWorkflow)
            own = scheduled.template
            template = pinned[schedule.id] if own is None else PinnedTemplate(own.name, 0, own)
            assert template is not None, "versions of types are never deleted"
            start = workflow_of_occurrence(schedule, template, nominal_at, run_at)
            starts.append(traced(start, self.begin_trace(schedule.id)))
        return starts

    async def fire(self, database: Database, firings: list[Firing]) -> set[UUID]:
        """All of it in one commit; the ids of the schedules that moved on."""
        await self.environment.crash_point(CrashPoint.FIRE_BEFORE)
        async with database.transaction() as session:
            written = await self.write(session, firings)
        await self.publish(written)
        return written.moved

    async def publish(self, written: FiredSchedules) -> None:
        """What follows the commit."""
        await self.environment.crash_point(CrashPoint.FIRE_AFTER_COMMIT)
        for stored, answers in written.batches:
            await self.submitter.publish_stored(stored, answers)
        for started, now in written.started:
            free = [each for each in started if each.id not in written.held]
            await self.starter.publish_stored(free, now)
        for tenant, ids, released in written.cancelled:
            self.submitter.events.publish(cancelled_tasks(tenant, ids, released))

    async def write(
        self, session: Session, firings: list[Firing], *, is_locked: bool = False
    ) -> FiredSchedules:
        """Within the caller's transaction; the caller publishes it once that has committed."""
        rows = await session.fetch(SQL.move_schedules, *firing_columns(firings), is_locked)
        moved = {row["id"] for row in rows}
        won = [firing for firing in firings if firing.schedule.id in moved]
        await self.environment.crash_point(CrashPoint.FIRE_BETWEEN)
        decisions = [
            (firing.schedule, ruling, firing.entries.get(ruling.nominal_at))
            for firing in won
            for ruling in firing.plan.decisions
        ]
        admitted = await record(session, SQL.record_occurrences, decisions)
        entries = [entry for _, _, entry in decisions if entry is not None and entry.id in admitted]
        written = await self.store(session, entries)
        for firing in won:
            for ahead, placed in firing.queued:
                if placed.id in admitted and await queue_behind(
                    session, firing.schedule.tenant, ahead, placed.id
                ):
                    written.held.add(placed.id)
            if firing.cancelled:
                written.cancelled.append(await self.cancel(session, firing))
        written.moved.update(moved)
        return written

    async def cancel(self, session: Session, firing: Firing) -> Cancelled:
        """What the policy `cancel_previous` ends: tasks, or workflows."""
        tenant, released = firing.schedule.tenant, Released()
        tasks = [each for each in firing.cancelled if not is_node(each)]
        answers = await cancel_tasks(session, tenant, tasks, released)
        for workflow in sorted(
            (each for each in firing.cancelled if is_node(each)), key=address_of
        ):
            await stop_workflow(session, tenant, workflow, WorkflowStop.CANCELLED, released)
        return tenant, ended_by_cancel(answers) + released.cancelled, released

    async def decide_due(
        self, session: Session, schedule: Schedule
    ) -> tuple[Schedule, FiredSchedules] | None:
        """Before a change: decide everything up to now under the current definition, also what only
        its jitter holds back. The caller holds the lock. None: too much is due, and is being caught
        up with."""
        written = FiredSchedules()
        for _ in range(BATCHES_MAX):
            recurrence = schedule.recurrence()
            if not isinstance(recurrence, Recurrence):
                return schedule, written
            following = next_at(
                recurrence, schedule.definition.policies, schedule.cursor_at, schedule.fires
            )
            if following is None or following > schedule.now:
                return schedule, written
            if len(written.made) >= FIRES_MAX:
                return None
            firings = await self.plan([(schedule, recurrence)], session, with_held=True)
            written += await self.write(session, firings, is_locked=True)
            (schedule,) = await read_schedules(session, [schedule.id])
        return None

    async def store(self, session: Session, entries: Sequence[Entry]) -> FiredSchedules:
        written = FiredSchedules()
        tasks = [entry for entry in entries if isinstance(entry, InsertRow)]
        placed = [entry for entry in entries if isinstance(entry, PlacedStart)]
        if tasks:
            tasks.sort(key=lambda entry: entry.id.int)
            written.batches.append((tasks, await self.submitter.store(session, tasks)))
        if placed:
            placed.sort(key=lambda each: address_of(each.id))
            _, now = await self.starter.store(session, placed)
            written.started.append((placed, now))
        return written

    async def fire_manually(
        self,
        session: Session,
        schedule: Schedule,
        verdict: OccurrenceDecision,
        times: Sequence[tuple[datetime, datetime]],
    ) -> FiredSchedules:
        """Tasks or workflows for these (nominal time, fire time), where the ledger has none yet.
        The caller holds the lock on the schedule, and tells of them once it has committed."""
        made = await self.entries([(schedule, *each) for each in times], session)
        decisions = [
            (schedule, manual(nominal_at, verdict, schedule.now), entry)
            for (nominal_at, _), entry in zip(times, made, strict=True)
        ]
        admitted = await record(session, SQL.record_manual, decisions)
        written = await self.store(session, [entry for entry in made if entry.id in admitted])
        written.moved.add(schedule.id)
        running = written.made
        if (
            running
            and verdict is OccurrenceDecision.TRIGGERED
            and watches(schedule.definition.policies)
        ):
            # Backfilled tasks are spread over time and need no doorbell.
            await session.fetch(
                SQL.note_running, schedule.shard, schedule.tenant, schedule.id, running
            )
        return written


def manual(nominal_at: datetime, verdict: OccurrenceDecision, now: datetime) -> DecidedOccurrence:
    return DecidedOccurrence(nominal_at, verdict, max((now - nominal_at).total_seconds(), 0.0))


async def record(
    session: Session,
    statement: str,
    decisions: Sequence[tuple[Schedule, DecidedOccurrence, Entry | None]],
) -> set[UUID]:
    """The ids of the tasks that the ledger admits."""
    if not decisions:
        return set()
    rows = [
        (
            schedule.shard,
            schedule.tenant,
            schedule.id,
            ruling.nominal_at,
            ruling.late_s,
            ruling.verdict.value,
            None if entry is None else entry.id,
        )
        for schedule, ruling, entry in decisions
    ]
    admitted = await session.fetch(statement, *columns(rows, 7))
    return {row["task"] for row in admitted if row["task"] is not None}


async def look_ahead(
    database: Database,
    shards: Sequence[int],
    horizon_s: float,
    grace_s: float,
    limit: int,
    late_limit: int,
    resting: Collection[UUID] = (),
) -> list[UpcomingSchedule]:
    rows = await database.fetch(
        SQL.look_ahead, list(shards), horizon_s, grace_s, limit, late_limit, list(resting)
    )
    return [UpcomingSchedule(row["due_at"], row["id"], row["is_late"]) for row in rows]


async def sweep(
    database: Database, shards: Sequence[int], after: tuple[int, UUID], limit: int
) -> list[SweptSchedule]:
    rows = await database.fetch(SQL.sweep_schedules, list(shards), *after, limit)
    return [SweptSchedule(row["id"], row["is_broken"]) for row in rows]


async def rebuild_timers(database: Database, lost: Sequence[UUID]) -> list[UUID]:
    shards = [shard_of(each) for each in lost]
    rows = await database.fetch(SQL.rebuild_timers, shards, list(lost), RETENTION_S)
    return [row["id"] for row in rows]


async def rearm_schedules(
    session: Session, wanted: Sequence[tuple[Schedule, datetime | None]]
) -> list[UUID]:
    """Each with its next nominal time."""
    rows = [
        (
            schedule.shard,
            schedule.id,
            schedule.fence,
            at,
            None if at is None else at + schedule.offset,
        )
        for schedule, at in wanted
    ]
    changed = await session.fetch(SQL.rearm_schedules, *columns(rows, 5))
    return [row["id"] for row in changed]


async def pause_unreadable(session: Session, schedule: Schedule, reason: str) -> bool:
    rows = await session.fetch(
        SQL.pause_unreadable, schedule.shard, schedule.id, schedule.fence, reason
    )
    return bool(rows)


async def delete_old_occurrences(
    database: Database, limit: int, retention_s: float = RETENTION_S
) -> int:
    return len(await database.fetch(SQL.delete_old_occurrences, retention_s, limit))


def firing_columns(firings: list[Firing]) -> list[list[object]]:
    rows = [
        (
            firing.schedule.shard,
            firing.schedule.id,
            firing.schedule.fence,
            firing.schedule.fires + len(firing.entries),
            firing.plan.cursor_at,
            firing.plan.next_at,
            firing.due_at,
            "{" + ",".join(str(task_id) for task_id in firing.running) + "}",
            firing.schedule.tenant,
        )
        for firing in firings
    ]
    return columns(rows, 9)
