"""Retention: delete finished rows of a pinned month, and closed breakers, in bounded batches.

Months as a whole, keys, statistics and nodes are deleted by their own modules.
"""

from datetime import date
from typing import NamedTuple
from uuid import UUID

from duly.store.database import Database
from duly.store.partitions import RETENTION_S
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
BREAKER_SILENCE_S = 3600.0


class MonthCursor(NamedTuple):
    """How far a month has been examined: the key of the last task that was looked at."""

    shard: int = -1
    id: UUID = UUID(int=0)


class DeletedBatch(NamedTuple):
    """Fewer examined than asked for: the end of the month was reached."""

    examined: int
    deleted: int
    cursor: MonthCursor


async def delete_finished(
    database: Database,
    month: date,
    cursor: MonthCursor,
    examine_max: int,
    retention_s: float = RETENTION_S,
) -> DeletedBatch:
    """Of the next tasks of a past month, delete those that ended longer ago than the retention."""
    (row,) = await database.fetch(SQL.delete_finished, month, retention_s, *cursor, examine_max)
    return DeletedBatch(
        row["examined"], row["deleted"], MonthCursor(row["last_shard"], row["last_id"])
    )


async def delete_closed_breakers(
    database: Database, limit: int, silence_s: float = BREAKER_SILENCE_S
) -> int:
    return len(await database.fetch(SQL.delete_closed_breakers, silence_s, limit))
