"""Queries for metrics: how much waits and runs, and for how long.

Read for metrics and never for a decision.
"""

from collections import Counter
from datetime import UTC, datetime
from typing import NamedTuple

from duly.domain.breaker import kind_of
from duly.store.database import Database
from duly.store.load import BEFORE_ALL, TimerQueue
from duly.store.statements import statements_beside
from duly.store.tenants import count_in_flight

SQL = statements_beside(__file__)
PLACES_PAGE = 1000
TENANTS_PAGE = 50
BEFORE_TENANTS = 0
COUNT_MAX = 10_000
QUEUE_COUNT_MAX = 1000
WORKERS_MAX = 100_000
BREAKERS_MAX = 10_000
# Workflows that started or ended between two looks.
MOVES_MAX = 200_000
# A transaction commits at most so long after its instant, or is not counted.
MARGIN_S = 10.0


class ReadyQueue(NamedTuple):
    """Of one page: a tenant's ready tasks of a band and pool, None for webhooks. Counting stops at
    QUEUE_COUNT_MAX in each shard."""

    tenant: str
    pool: str | None
    band: int
    age_s: float
    tasks: int


class TenantBacklog(NamedTuple):
    """Counts of what is ready and scheduled stop at COUNT_MAX."""

    id: int
    name: str
    ready: int
    scheduled: int
    running: int


class ReadyPage(NamedTuple):
    """`last` is None when the page was the last one. A queue may come again in another page."""

    queues: list[ReadyQueue]
    last: TimerQueue | None


async def scan_ready(
    database: Database, after: TimerQueue = BEFORE_ALL, limit: int = PLACES_PAGE
) -> ReadyPage:
    """What is ready of each tenant, pool and band, over at most `limit` timer queues."""
    rows = await database.fetch(SQL.scan_ready, *after, limit, QUEUE_COUNT_MAX)
    if not rows:
        return ReadyPage([], None)
    first = rows[0]
    last = TimerQueue(first["last_tenant"], first["last_shard"], first["last_queue"])
    queues = [
        ReadyQueue(row["tenant"], row["pool"], row["band"], row["age_s"], row["tasks"])
        for row in rows
        if row["age_s"] is not None
    ]
    return ReadyPage(queues, last if first["places"] >= limit else None)


async def count_backlog(
    database: Database, after: int = BEFORE_TENANTS, limit: int = TENANTS_PAGE
) -> list[TenantBacklog]:
    """The next page of tenants; fewer than `limit` are the last."""
    rows = await database.fetch(SQL.count_backlog, after, limit, COUNT_MAX)
    running = await count_in_flight(database, [row["id"] for row in rows])
    return [
        TenantBacklog(row["id"], row["name"], row["ready"], row["scheduled"], running[row["id"]])
        for row in rows
    ]


class ScheduleCounts(NamedTuple):
    active: int
    paused: int
    # Of the occurrence that is due longest; 0 if none is.
    overdue_s: float


async def count_workers(database: Database) -> dict[tuple[str, str], float]:
    """By (tenant, pool)."""
    rows = await database.fetch(SQL.count_workers, WORKERS_MAX)
    return {(row["tenant"], row["pool"]): float(row["workers"]) for row in rows}


async def count_breakers(database: Database) -> dict[str, int]:
    """By what they are of: host, type or pool."""
    rows = await database.fetch(SQL.count_breakers, BREAKERS_MAX)
    return Counter(kind_of(row["host"])[0].value for row in rows)


async def count_schedules(database: Database) -> ScheduleCounts:
    (row,) = await database.fetch(SQL.count_schedules)
    return ScheduleCounts(row["active"], row["paused"], max(row["overdue_s"], 0.0))


class WorkflowCounts(NamedTuple):
    """Workflows that started and ended up to an instant; those that live, and their live nodes;
    what they wait for or have to do, how many of that was tried in vain, and how long what is due
    longest has waited. Counts stop at COUNT_MAX."""

    until: datetime
    started: int
    completed: int
    failed: int
    cancelled: int
    running: int
    paused: int
    compensating: int
    nodes: int
    kinds: list[str]
    timers: list[int]
    failing: int
    overdue_s: float


async def count_workflows(
    database: Database, since: datetime | None, margin_s: float = MARGIN_S
) -> WorkflowCounts:
    """Without `since` nothing is known to have started or ended; `until` is where to go on from."""
    after = since or datetime.max.replace(tzinfo=UTC)
    (row,) = await database.fetch(SQL.count_workflows, after, margin_s, MOVES_MAX, COUNT_MAX)
    return WorkflowCounts(*row)
