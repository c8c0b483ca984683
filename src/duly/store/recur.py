"""Firing schedules: the timer moves, the ledger is written, and what it admits becomes tasks.

| event | what happens |
|---|---|
| two schedulers, or a zombie | the timer's fence decides: the second writes nothing |
| killed between two statements | nothing happened: it is still due |
| outcome unknown | read again: the fence tells whether it happened |
| the definition is edited meanwhile | the edit raised the fence: this firing writes nothing |
| not due by the database's clock | left alone, whatever this node's clock says |
| the clock is set back | the cursor stays: what has its verdict is never ruled on again |
| an occurrence is in the ledger already | no second verdict, no second task |
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from duly.domain.firing import Plan, Ruling, Verdict, next_at, plan_firing
from duly.domain.ids import shard_of
from duly.domain.recurrence import Recurrence
from duly.environment import CrashPoint, Environment
from duly.store.control import cancel_tasks
from duly.store.database import Database, Session
from duly.store.entries import Entry, columns
from duly.store.partitions import RETENTION_S
from duly.store.schedules import Schedule, read_schedules, submission_of
from duly.store.statements import statements_beside
from duly.store.submit import SubmitAnswer, Submitter

SQL = statements_beside(__file__)
START = UUID(int=0)
# How many bites of overdue occurrences a change of the definition waits for.
BITES_MAX = 20


class Soon(NamedTuple):
    """A schedule that is due, or will be within the horizon."""

    due_at: datetime
    id: UUID
    is_late: bool


class Swept(NamedTuple):
    """One definition as the sweep sees it; `last_at` only of one that has lost its timer."""

    id: UUID
    is_broken: bool
    last_at: datetime | None


Batch = tuple[list[Entry], dict[int, SubmitAnswer]]


@dataclass(frozen=True, slots=True)
class Written:
    """The schedules that moved on, and the tasks that were stored for them."""

    moved: set[UUID] = field(default_factory=set)
    batches: list[Batch] = field(default_factory=list)

    def __add__(self, other: "Written") -> "Written":
        return Written(self.moved | other.moved, self.batches + other.batches)

    @property
    def tasks(self) -> list[UUID]:
        return [entry.id for stored, _ in self.batches for entry in stored]


@dataclass(frozen=True, slots=True)
class Firing:
    """A schedule, what was ruled on it, and the tasks that follow."""

    schedule: Schedule
    plan: Plan
    entries: dict[datetime, Entry]

    @property
    def fired(self) -> list[UUID]:
        return [entry.id for entry in self.entries.values()]

    @property
    def running(self) -> list[UUID]:
        """What the overlap policy will ask about next time."""
        policies = self.schedule.definition.policies
        if not watches(self.schedule):
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
    def due_at(self) -> datetime | None:
        following = self.plan.next_at
        return None if following is None else following + self.offset

    @property
    def offset(self) -> timedelta:
        return timedelta(seconds=self.schedule.offset_s)


def watches(schedule: Schedule) -> bool:
    """Whether it matters which of the schedule's tasks live."""
    policies = schedule.definition.policies
    return policies.overlap != "allow" or policies.max_running is not None


class Firer:
    """Shares the submitter's knowledge of pools, placements and partitions."""

    def __init__(self, submitter: Submitter, environment: Environment) -> None:
        self.submitter = submitter
        self.environment = environment

    async def plan(self, readable: Sequence[tuple[Schedule, Recurrence]]) -> list[Firing]:
        """Rule on what is due of each, as of the instant at which it was read."""
        plans = [
            plan_firing(
                recurrence,
                schedule.definition.policies,
                schedule.progress,
                schedule.offset_s,
                schedule.now,
            )
            for schedule, recurrence in readable
        ]
        wanted = [
            (index, ruling)
            for index, plan in enumerate(plans)
            for ruling in plan.rulings
            if ruling.fires
        ]
        entries = await self.submitter.address(
            [
                submission_of(
                    readable[index][0],
                    ruling.nominal_at,
                    ruling.nominal_at + timedelta(seconds=readable[index][0].offset_s),
                )
                for index, ruling in wanted
            ]
        )
        made: list[dict[datetime, Entry]] = [{} for _ in plans]
        for entry in sorted(entries, key=lambda entry: entry.ordinal):
            index, ruling = wanted[entry.ordinal]
            made[index][ruling.nominal_at] = entry
        firings = [
            Firing(schedule, plan, entries_of)
            for (schedule, _), plan, entries_of in zip(readable, plans, made, strict=True)
        ]
        return sorted(firings, key=lambda firing: firing.schedule.id.int)

    async def fire(self, database: Database, firings: list[Firing]) -> set[UUID]:
        """All of it in one commit; the ids of the schedules that moved on."""
        await self.environment.crash_point(CrashPoint.FIRE_BEFORE)
        async with database.transaction() as session:
            written = await self.write(session, firings)
        await self.tell(written)
        return written.moved

    async def tell(self, written: Written) -> None:
        """What follows the commit."""
        await self.environment.crash_point(CrashPoint.FIRE_AFTER_COMMIT)
        for stored, answers in written.batches:
            await self.submitter.tell_stored(stored, answers)

    async def write(self, session: Session, firings: list[Firing]) -> Written:
        """Within the caller's transaction, who tells of it once that has committed."""
        rows = await session.fetch(SQL.move_schedules, *firing_columns(firings))
        moved = {row["id"] for row in rows}
        won = [firing for firing in firings if firing.schedule.id in moved]
        await self.environment.crash_point(CrashPoint.FIRE_BETWEEN)
        rulings = [
            (firing.schedule, ruling, firing.entries.get(ruling.nominal_at))
            for firing in won
            for ruling in firing.plan.rulings
        ]
        admitted = await record(session, SQL.record_occurrences, rulings)
        entries = [entry for _, _, entry in rulings if entry is not None and entry.id in admitted]
        batch = await self.store(session, entries)
        for firing in won:
            if firing.cancelled:
                await cancel_tasks(session, firing.schedule.tenant, firing.cancelled)
        return Written(moved, [batch])

    async def rule_on_due(
        self, session: Session, schedule: Schedule
    ) -> tuple[Schedule, Written] | None:
        """Before a change: what is due is ruled on under the definition as it stands. The caller
        holds the lock. None: too much is due, and is being caught up with."""
        written = Written()
        for _ in range(BITES_MAX):
            recurrence = schedule.recurrence()
            if not isinstance(recurrence, Recurrence):
                return schedule, written
            if schedule.due_at is None:
                # Its zone was unknown for a while, or it has ended.
                at = next_at(
                    recurrence, schedule.definition.policies, schedule.cursor_at, schedule.fires
                )
                if at is None or at > schedule.now:
                    return schedule, written
                await rearm_schedules(session, [(schedule, at)])
            elif schedule.due_at > schedule.now:
                return schedule, written
            else:
                written += await self.write(session, await self.plan([(schedule, recurrence)]))
            (schedule,) = await read_schedules(session, [schedule.id])
        return None

    async def store(self, session: Session, entries: list[Entry]) -> Batch:
        if not entries:
            return [], {}
        ordered = sorted(entries, key=lambda entry: entry.id.int)
        return ordered, await self.submitter.store(session, ordered)

    async def fire_by_hand(
        self,
        session: Session,
        schedule: Schedule,
        verdict: Verdict,
        times: Sequence[tuple[datetime, datetime]],
    ) -> Written:
        """Tasks for these (nominal time, fire time), where the ledger has none yet. The caller
        holds the lock on the schedule, and tells of the tasks once it has committed."""
        made = await self.submitter.address(
            [submission_of(schedule, nominal_at, run_at) for nominal_at, run_at in times]
        )
        rulings = [
            (schedule, by_hand(times[entry.ordinal][0], verdict, schedule.now), entry)
            for entry in made
        ]
        admitted = await record(session, SQL.record_by_hand, rulings)
        entries = [entry for entry in made if entry.id in admitted]
        stored, answers = await self.store(session, entries)
        if stored:
            running = [entry.id for entry in stored] if watches(schedule) else []
            await session.fetch(SQL.note_running, schedule.shard, schedule.id, running)
        return Written({schedule.id}, [(stored, answers)])


def by_hand(nominal_at: datetime, verdict: Verdict, now: datetime) -> Ruling:
    return Ruling(nominal_at, verdict, max((now - nominal_at).total_seconds(), 0.0))


async def record(
    session: Session, statement: str, rulings: Sequence[tuple[Schedule, Ruling, Entry | None]]
) -> set[UUID]:
    """The ids of the tasks that the ledger admits."""
    if not rulings:
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
        for schedule, ruling, entry in rulings
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
) -> list[Soon]:
    rows = await database.fetch(SQL.look_ahead, list(shards), horizon_s, grace_s, limit, late_limit)
    return [Soon(row["due_at"], row["id"], row["is_late"]) for row in rows]


async def sweep(
    database: Database, after: tuple[int, UUID], last_shard: int, limit: int
) -> list[Swept]:
    rows = await database.fetch(SQL.sweep_schedules, *after, last_shard, limit)
    return [Swept(row["id"], row["is_broken"], row["last_at"]) for row in rows]


async def rebuild_timers(database: Database, lost: Sequence[Swept]) -> list[UUID]:
    ids = [each.id for each in lost]
    shards = [shard_of(each) for each in ids]
    rows = await database.fetch(SQL.rebuild_timers, shards, ids, [each.last_at for each in lost])
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
            None if at is None else at + timedelta(seconds=schedule.offset_s),
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
        )
        for firing in firings
    ]
    return columns(rows, 8)
