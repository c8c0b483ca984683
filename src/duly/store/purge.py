"""Erasing personal data: payload, result and error of ended tasks, everywhere, leaving a tombstone.

The one place where recorded rows change, under a database role that can do nothing else.
"""

from collections.abc import Sequence
from uuid import UUID

from duly.domain.ids import shard_of
from duly.store.database import Database
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)


async def purge_tasks(
    database: Database, tenant: int, ids: Sequence[UUID], actor: str
) -> list[UUID]:
    """The tasks that were erased now; live, foreign and already purged ones are left out."""
    ordered = sorted(set(ids), key=lambda task_id: task_id.int)
    async with database.transaction() as session:
        await session.fetch(SQL.become_purger)
        rows = await session.fetch(
            SQL.choose_ended, tenant, [shard_of(task_id) for task_id in ordered], ordered, actor
        )
        erased = [row["id"] for row in rows]
        shards = [shard_of(task_id) for task_id in erased]
        for statement in (SQL.erase_tasks, SQL.erase_attempts, SQL.erase_dead_letters):
            await session.fetch(statement, shards, erased)
    return erased
