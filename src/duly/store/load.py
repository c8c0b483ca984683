"""Load due timers, queue by queue: future work, retries and bursts alike."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from duly.domain.ids import shard_of
from duly.store.database import Database
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_ID = UUID(int=0)
PLACEMENTS_PAGE = 1000


class TimerQueue(NamedTuple):
    tenant: int
    shard: int
    queue: int


# The instant at which the queue's next timer is due.
Hint = tuple[TimerQueue, datetime]
BEFORE_ALL = TimerQueue(-1, -1, -1)


class Cursor(NamedTuple):
    """How far a timer queue has been read; the beginning means a full sweep."""

    due_at: datetime = BEGINNING
    id: UUID = FIRST_ID


class DueTimer(msgspec.Struct, frozen=True, gc=False):
    """A timer that fires soon, as far as dispatch needs it."""

    tenant: int
    shard: int
    queue: int
    id: UUID
    fence: int
    due_at: datetime
    priority: int
    start_by: datetime | None
    type: str
    concurrency_key: str | None
    concurrency_limit: int | None
    host: str | None

    @property
    def timer_queue(self) -> TimerQueue:
        return TimerQueue(self.tenant, self.shard, self.queue)


def hints_of(timers: Iterable[DueTimer]) -> list[Hint]:
    """One for each queue, with its earliest instant."""
    earliest: dict[TimerQueue, datetime] = {}
    for timer in timers:
        earliest[timer.timer_queue] = min(
            timer.due_at, earliest.get(timer.timer_queue, timer.due_at)
        )
    return list(earliest.items())


class Frontier(NamedTuple):
    """How far a load can be trusted: nothing of ours that began before is still uncommitted."""

    now: datetime
    oldest_writer_at: datetime


async def read_frontier(database: Database) -> Frontier:
    """Read before a load: later commits are seen by the next load."""
    (row,) = await database.fetch(SQL.read_frontier)
    return Frontier(*row)


async def load_due(
    database: Database, cursors: dict[TimerQueue, Cursor], horizon_s: float, limit: int
) -> list[DueTimer]:
    """At most `limit` timers of each queue, after its cursor, due within the horizon."""
    timer_queues = sorted(cursors)
    rows = await database.fetch(
        SQL.load_due,
        [timer_queue.tenant for timer_queue in timer_queues],
        [timer_queue.shard for timer_queue in timer_queues],
        [timer_queue.queue for timer_queue in timer_queues],
        [cursors[timer_queue].due_at for timer_queue in timer_queues],
        [cursors[timer_queue].id for timer_queue in timer_queues],
        horizon_s,
        limit,
    )
    return [DueTimer(*row) for row in rows]


class CappedLease(NamedTuple):
    id: UUID
    fence: int
    tenant: int
    concurrency_key: str | None


async def list_capped_leases(
    database: Database, shards: list[tuple[int, int, bool]], limit: int
) -> list[CappedLease]:
    """Leases of (tenant, shard, tenant is capped); at most `limit` of each."""
    rows = await database.fetch(
        SQL.list_capped_leases,
        [tenant for tenant, _, _ in shards],
        [shard for _, shard, _ in shards],
        [is_capped for _, _, is_capped in shards],
        limit,
    )
    return [CappedLease(*row) for row in rows]


async def find_outstanding(database: Database, tickets: list[tuple[UUID, int]]) -> set[UUID]:
    """Those of the tickets, as (id, fence), that are not over: unleased still, or leased."""
    ids = [task_id for task_id, _ in tickets]
    rows = await database.fetch(
        SQL.find_outstanding, [shard_of(i) for i in ids], ids, [fence for _, fence in tickets]
    )
    return {row["id"] for row in rows}


async def list_placements(
    database: Database, first_shard: int, last_shard: int, after: TimerQueue = BEFORE_ALL
) -> list[TimerQueue]:
    """One page of the timer queues in use of a range of shards, after `after`."""
    rows = await database.fetch(
        SQL.list_placements, *after, first_shard, last_shard, PLACEMENTS_PAGE
    )
    return [TimerQueue(*row) for row in rows]


async def list_placements_of(
    database: Database, tenants: list[int], after: TimerQueue = BEFORE_ALL
) -> list[TimerQueue]:
    """One page of the timer queues in use of some tenants, in any shard, after `after`."""
    rows = await database.fetch(SQL.list_placements_of, tenants, *after, PLACEMENTS_PAGE)
    return [TimerQueue(*row) for row in rows]
