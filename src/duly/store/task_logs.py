"""Attempt logs: what handlers logged, chunks of lines of an attempt, bounded in size and number.

| event | what happens |
|---|---|
| a chunk is sent twice | stored once: its key is (task, fence, sequence number) |
| a worker sends lines of an attempt that it never held | dropped, and not counted as stored |
| the attempt ended before its last lines came | its record names the holder: they are taken |
| a tenant is past its quota of the day | dropped; each process may take a mebibyte beyond it |
| a process is killed | the next ones do not count the last mebibyte that it took |
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from duly.domain.ids import shard_of
from duly.environment import Environment
from duly.store.database import Database
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
RETENTION_S = 7 * 86400.0
# Of one attempt; with the size of a chunk this bounds what a handler can store.
CHUNKS_MAX = 64
CHUNK_BYTES_MAX = 32 * 1024
# Of one tenant and day, unless configured otherwise.
QUOTA_BYTES = 1024**3
# What a process takes between two looks at what the others took; and how old a look may be.
LOOK_BYTES = 1024**2
LOOK_S = 15.0
TENANTS_MAX = 100_000


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


@dataclass(slots=True)
class Usage:
    """Of one tenant: what all processes have taken today, and what this one has not told yet."""

    known: int
    untold: int
    looked_at: float


class LogQuota:
    """How much a tenant may log in a day, over all processes."""

    def __init__(
        self, database: Database, environment: Environment, quota: int = QUOTA_BYTES
    ) -> None:
        self.database = database
        self.environment = environment
        self.quota = quota
        self.usages: OrderedDict[int, Usage] = OrderedDict()

    async def has_room(self, tenant: int, size: int) -> bool:
        """Whether so many bytes may be stored; they count if they may."""
        usage = self.usages.get(tenant)
        now = self.environment.clock.monotonic()
        if usage is None or usage.untold >= LOOK_BYTES or now - usage.looked_at >= LOOK_S:
            usage = await self.look(tenant, now)
        if usage.known + usage.untold + size > self.quota:
            return False
        usage.untold += size
        return True

    async def look(self, tenant: int, now: float) -> Usage:
        usage = self.usages.setdefault(tenant, Usage(0, 0, now))
        self.usages.move_to_end(tenant)
        if len(self.usages) > TENANTS_MAX:
            self.usages.popitem(last=False)
        # Calls that come meanwhile count anew, and do not look as well.
        told, usage.untold, usage.looked_at = usage.untold, 0, now
        try:
            (row,) = await self.database.fetch(SQL.add_log_usage, tenant, told)
        except BaseException:
            usage.untold += told
            raise
        usage.known = row["bytes"]
        return usage


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
    deleted = len(await database.fetch(SQL.delete_old_logs, retention_s, limit))
    await database.fetch(SQL.delete_old_log_usage, limit)
    return deleted
