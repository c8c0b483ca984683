"""Measures that only the database knows: how much waits and runs, and for how long.

Read for metrics and never for a decision.
"""

from typing import NamedTuple

from duly.store.database import Database
from duly.store.load import BEFORE_ALL, TimerQueue
from duly.store.statements import statements_beside
from duly.store.tenants import count_in_flight

SQL = statements_beside(__file__)
PLACES_PAGE = 1000
TENANTS_PAGE = 50
BEFORE_TENANTS = 0
COUNT_MAX = 10_000


class OldestReady(NamedTuple):
    tenant: str
    band: int
    age_s: float


class TenantBacklog(NamedTuple):
    """Counts of what is ready and scheduled stop at COUNT_MAX."""

    id: int
    name: str
    ready: int
    scheduled: int
    running: int


class ReadyPage(NamedTuple):
    """`last` is None when the page was the last one. A pair may come again in another page."""

    oldest: list[OldestReady]
    last: TimerQueue | None


async def scan_oldest_ready(
    database: Database, after: TimerQueue = BEFORE_ALL, limit: int = PLACES_PAGE
) -> ReadyPage:
    """The oldest ready timer of each tenant and band, over at most `limit` places."""
    rows = await database.fetch(SQL.scan_oldest_ready, *after, limit)
    if not rows:
        return ReadyPage([], None)
    first = rows[0]
    last = TimerQueue(first["last_tenant"], first["last_shard"], first["last_queue"])
    oldest = [
        OldestReady(row["tenant"], row["band"], row["age_s"])
        for row in rows
        if row["age_s"] is not None
    ]
    return ReadyPage(oldest, last if first["places"] >= limit else None)


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
