"""Attempt logs: what handlers logged, chunks of lines of an attempt, bounded in size and number.

| event | what happens |
|---|---|
| a chunk is sent twice | stored once: its key is (task, fence, sequence number) |
| a worker sends lines of an attempt that it never held | dropped, and not counted as stored |
| the attempt ended before its last lines came | its record names the holder: they are taken |
"""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from duly.domain.ids import shard_of
from duly.store.database import Database
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
RETENTION_S = 7 * 86400.0
# Of one attempt; with the size of a chunk this bounds what a handler can store.
CHUNKS_MAX = 64
CHUNK_BYTES_MAX = 32 * 1024


class LogChunk(NamedTuple):
    """`lines` is a JSON array."""

    id: UUID
    fence: int
    seq: int
    lines: str


class StoredChunk(NamedTuple):
    fence: int
    seq: int
    lines: str


async def append_logs(
    database: Database, tenant: int, holder: UUID, chunks: Sequence[LogChunk]
) -> int:
    """How many were stored now."""
    stored = await database.fetch(
        SQL.append_logs,
        [shard_of(chunk.id) for chunk in chunks],
        [chunk.id for chunk in chunks],
        [chunk.fence for chunk in chunks],
        [chunk.seq for chunk in chunks],
        [chunk.lines for chunk in chunks],
        tenant,
        holder,
    )
    return len(stored)


async def read_logs(
    database: Database, tenant: int, task_id: UUID, after: tuple[int, int], limit: int
) -> list[StoredChunk]:
    rows = await database.fetch(SQL.read_logs, shard_of(task_id), task_id, tenant, *after, limit)
    return [StoredChunk(*row) for row in rows]


async def delete_old_logs(database: Database, limit: int, retention_s: float = RETENTION_S) -> int:
    return len(await database.fetch(SQL.delete_old_logs, retention_s, limit))
