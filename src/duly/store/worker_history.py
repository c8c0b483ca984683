"""What each worker process did: gathered in memory per holder, added to the table by `flush`.

| event | what happens |
|---|---|
| a process is killed | what it had not flushed is missing: these numbers decide nothing |
| a flush fails, or its outcome is unknown | kept for the next one; part may be counted twice |
| a worker's calls go to several processes | each adds its part to one row |
| a worker settles here and leases elsewhere | the counts of both are added to its row |
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from duly.domain.states import Outcome
from duly.environment import Environment
from duly.events import TasksFinished, TasksRescheduled
from duly.store.database import Database, Session
from duly.store.lease import ACCEPTED_ASYNC
from duly.store.partitions import RETENTION_S
from duly.store.statements import statements_beside
from duly.store.stats import Ending
from duly.store.unnest import columns

SQL = statements_beside(__file__)
# Of each, between two flushes; more are left out.
WORKERS_MAX = 20_000
FLUSH_ROWS_MAX = 2000
# Of one tenant, the last seen ones.
WORKERS_KEPT_MAX = 10_000

Key = tuple[int, UUID]


class WorkerSeen(NamedTuple):
    """What a call said of its worker. Empty, and 0 slots: it did not say."""

    id: str
    sdk: str = ""
    version: str = ""
    pools: tuple[str, ...] = ()
    slots: int = 0


class Sighting(NamedTuple):
    worker: WorkerSeen
    first: float
    last: float


@dataclass(slots=True)
class Work:
    """Of one worker: attempts by their end, and seconds that they ran."""

    completed: int = 0
    failed: int = 0
    lost: int = 0
    other: int = 0
    busy_s: float = 0.0


class WorkerHistoryRow(NamedTuple):
    """`failed` are attempts that failed, tried again or not; `lost` leases that ran out; `other`
    attempts that were released, snoozed or cancelled."""

    id: str
    holder: UUID
    sdk: str
    version: str
    pools: list[str]
    slots: int
    first_seen_at: datetime
    last_seen_at: datetime
    is_live: bool
    completed: int
    failed: int
    lost: int
    other: int
    busy_s: float


class WorkerBook:
    """One for each process."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.seen: dict[Key, Sighting] = {}
        self.work: dict[Key, Work] = {}

    def note_seen(self, tenant: int, holder: UUID, worker: WorkerSeen) -> None:
        now = self.environment.clock.monotonic()
        known = self.seen.get((tenant, holder))
        if known is None:
            if len(self.seen) < WORKERS_MAX:
                self.seen[tenant, holder] = Sighting(worker, now, now)
            return
        # A heartbeat names neither pools nor versions.
        told = worker if worker.pools else known.worker
        self.seen[tenant, holder] = Sighting(told, known.first, now)

    def note_settled(self, tenant: int, holder: UUID, ends: Iterable[tuple[Ending, float]]) -> None:
        """Attempts of one worker: how each ended, and how long it ran."""
        work = None if holder == ACCEPTED_ASYNC else self.work_of(tenant, holder)
        if work is None:
            return
        for ending, run_s in ends:
            work.busy_s += run_s
            if ending is Ending.COMPLETED:
                work.completed += 1
            elif ending is Ending.OTHER:
                work.other += 1
            else:
                work.failed += 1

    def on_ended(self, event: TasksFinished | TasksRescheduled) -> None:
        """Leases that ran out: the reaper ended them, in whatever process that is."""
        if not event.is_reaped:
            return
        for settlement, answer in zip(event.ended, event.answers, strict=True):
            if settlement.outcome is Outcome.LEASE_LOST and answer.tenant is not None:
                work = self.work_of(answer.tenant, settlement.holder)
                if work is not None:
                    work.lost += 1

    def work_of(self, tenant: int, holder: UUID) -> Work | None:
        work = self.work.get((tenant, holder))
        if work is None and len(self.work) < WORKERS_MAX:
            work = self.work[tenant, holder] = Work()
        return work

    async def flush(self, database: Database) -> None:
        await self.flush_seen(database)
        await self.flush_work(database)

    async def flush_seen(self, database: Database) -> None:
        taken, self.seen = self.seen, {}
        # By key, so that two processes lock the rows in one order.
        remaining = sorted(taken.items(), key=lambda item: item[0])
        try:
            while remaining:
                now = self.environment.clock.monotonic()
                rows = [
                    (
                        *key,
                        *worker[:3],
                        " ".join(worker.pools),
                        worker.slots,
                        now - first,
                        now - last,
                    )
                    for key, (worker, first, last) in remaining[:FLUSH_ROWS_MAX]
                ]
                await database.fetch(SQL.see_workers, *columns(rows, 9))
                del remaining[:FLUSH_ROWS_MAX]
        except BaseException:
            for key, sighting in remaining:
                newer = self.seen.get(key, sighting)
                self.seen[key] = newer._replace(first=sighting.first)
            raise

    async def flush_work(self, database: Database) -> None:
        taken, self.work = self.work, {}
        remaining = sorted(taken.items(), key=lambda item: item[0])
        try:
            while remaining:
                rows = [
                    (*key, work.completed, work.failed, work.lost, work.other, work.busy_s)
                    for key, work in remaining[:FLUSH_ROWS_MAX]
                ]
                await database.fetch(SQL.add_worker_counts, *columns(rows, 7))
                del remaining[:FLUSH_ROWS_MAX]
        except BaseException:
            self.take_back(remaining)
            raise

    def take_back(self, remaining: list[tuple[Key, Work]]) -> None:
        for (tenant, holder), work in remaining:
            newer = self.work_of(tenant, holder)
            if newer is not None:
                newer.completed += work.completed
                newer.failed += work.failed
                newer.lost += work.lost
                newer.other += work.other
                newer.busy_s += work.busy_s


async def list_worker_history(
    session: Session, tenant: int, after: tuple[datetime, UUID] | None = None, limit: int = 50
) -> list[WorkerHistoryRow]:
    rows = await session.fetch(SQL.list_worker_history, tenant, *(after or (None, None)), limit)
    return [WorkerHistoryRow(*row) for row in rows]


async def delete_old_worker_history(
    database: Database,
    limit: int,
    retention_s: float = RETENTION_S,
    kept_max: int = WORKERS_KEPT_MAX,
) -> int:
    found = await database.fetch(SQL.delete_old_worker_history, retention_s, kept_max, limit)
    return len(found)
