"""Database set-up for benchmarks on a database of their own: fill it, pin xmin, measure sizes.

As the schema's owner. No server calls anything here.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from uuid import UUID

import asyncpg

from duly.domain.ids import shard_of, tenant_shard
from duly.store.database import connect
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
FILL_BATCH = 100_000
# On two cores, 1.6 times as fast as one.
FILLERS = 2
FILL_TIMEOUT_S = 600.0
SETTINGS = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "wal_compression",
    "max_wal_size",
    "checkpoint_timeout",
    "shared_buffers",
    "effective_cache_size",
    "work_mem",
    "max_connections",
    "autovacuum",
    "jit",
)


async def read_server_settings(url: str) -> dict[str, str]:
    async with connected(url) as connection:
        rows = await connection.fetch(SQL.read_server_settings, list(SETTINGS))
    return {row["name"]: row["value"] for row in rows}


async def make_wal_segments(url: str, count: int) -> None:
    """As on a server that has run for a while, which writes into its old segments again. A fresh
    one makes each in the moment it is needed, and every commit waits for that."""
    async with connected(url) as connection:
        for _ in range(count):
            await connection.execute(SQL.use_segment)
            await connection.execute(SQL.leave_segment)
        await connection.execute(SQL.write_back, timeout=FILL_TIMEOUT_S)


async def fill_waiting(
    url: str, tenant: int, payload: str, count: int, show: Callable[[int], None]
) -> None:
    """`count` more tasks of the tenant, due in a year."""
    shard = tenant_shard(tenant, spread=1, choice=0)
    starts, done = iter(range(0, count, FILL_BATCH)), 0

    async def fill() -> None:
        nonlocal done
        async with connected(url) as connection:
            for start in starts:
                size = min(FILL_BATCH, count - start)
                await connection.execute(
                    SQL.fill_waiting, tenant, shard, payload, size, timeout=FILL_TIMEOUT_S
                )
                done += size
                show(done)

    async with asyncio.TaskGroup() as group:
        for _ in range(FILLERS):
            group.create_task(fill())
    async with connected(url) as connection:
        await connection.execute(SQL.tidy_timers, timeout=FILL_TIMEOUT_S)
        await connection.execute(SQL.write_back, timeout=FILL_TIMEOUT_S)


async def copy_schedule(
    url: str,
    model: UUID,
    copies: int,
    step_s: int = 0,
    show: Callable[[int], None] = lambda _done: None,
) -> None:
    """`copies` schedules more, the first of them due `step_s` after this one, and so on."""
    async with connected(url) as connection:
        for start in range(0, copies, FILL_BATCH):
            size = min(FILL_BATCH, copies - start)
            numbers = (start + 1, start + size)
            await connection.execute(
                SQL.copy_schedule, shard_of(model), model, *numbers, step_s, timeout=FILL_TIMEOUT_S
            )
            show(start + size)


async def tidy_schedules(url: str) -> None:
    """After a fill that changed the tables by more than autovacuum leaves alone."""
    async with connected(url) as connection:
        await connection.execute(SQL.tidy_schedules, timeout=FILL_TIMEOUT_S)
        await connection.execute(SQL.write_back, timeout=FILL_TIMEOUT_S)


async def read_task_bytes(url: str) -> int:
    async with connected(url) as connection:
        return int(await connection.fetchval(SQL.read_task_bytes))


@contextlib.asynccontextmanager
async def pinned_xmin(url: str) -> AsyncIterator[None]:
    """As long as this lasts, no row that dies in this database can be removed."""
    async with connected(url) as connection, connection.transaction(isolation="repeatable_read"):
        await connection.fetch(SQL.look_at_timers)
        yield


async def count_owned_slots(connection: asyncpg.Connection) -> dict[str, int]:
    return {row["name"]: row["slots"] for row in await connection.fetch(SQL.count_owned_slots)}


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(url)
    try:
        yield connection
    finally:
        await connection.close()
