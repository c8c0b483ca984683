"""Erasing personal data: payload, result and error of ended tasks, everywhere, leaving a tombstone.

The one place where recorded rows change, under a database role that can do nothing else.

| event | what happens |
|---|---|
| the task is live | left as it is: it still needs its payload |
| it was erased before | nothing, and it is not among the answers |
| its month is gone, its dead letter is not | the letter is erased |
| another tenant's task | nothing |
| two erase it at once | the tombstone's key lets one of them |
"""

from collections.abc import Sequence
from uuid import UUID

from duly.domain.ids import shard_of
from duly.store.database import Database, Session
from duly.store.dead_letters import find_dead_letters
from duly.store.read import Filter
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)


async def erase_tasks(session: Session, tenant: int, ids: Sequence[UUID], actor: str) -> list[UUID]:
    """The tasks that were erased now, in a transaction of this tenant (`Database.tenant`)."""
    ordered = sorted(set(ids), key=lambda task_id: task_id.int)
    await session.fetch(SQL.become_purger)
    rows = await session.fetch(
        SQL.choose_ended, tenant, [shard_of(task_id) for task_id in ordered], ordered, actor
    )
    erased = [row["id"] for row in rows]
    if erased:
        await erase_rows(session, erased)
    await session.fetch(SQL.become_tenant_again)
    return erased


async def erase_rows(session: Session, ids: Sequence[UUID]) -> None:
    shards = [shard_of(task_id) for task_id in ids]
    for statement in (
        *(SQL.erase_tasks, SQL.erase_attempts, SQL.erase_logs),
        *(SQL.erase_signals, SQL.erase_dead_letters),
    ):
        await session.fetch(statement, shards, ids)


async def purge_letters(
    session: Session, tenant: int, ids: Sequence[UUID], actor: str
) -> list[UUID]:
    """Dead letters with all data of their tasks, which stay FAILED; other ids are left out."""
    found = await find_dead_letters(session, tenant, ids)
    return await erase_tasks(session, tenant, found, actor) if found else []


async def purge_tasks(
    database: Database, tenant: int, ids: Sequence[UUID], actor: str
) -> list[UUID]:
    """The same in a transaction of its own."""
    async with database.tenant(tenant) as session:
        return await erase_tasks(session, tenant, ids, actor)


async def find_outliving_letters(
    session: Session, tenant: int, wanted: Filter, limit: int
) -> list[UUID]:
    """Dead letters that match and whose tasks are gone."""
    rows = await session.fetch(
        SQL.find_outliving_letters,
        tenant,
        wanted.type,
        *(wanted.tag or (None, None)),
        wanted.created_after,
        wanted.run_before,
        limit,
    )
    return [row["id"] for row in rows]


async def is_erased(session: Session, tenant: int, task_id: UUID) -> bool:
    return bool(await session.fetch(SQL.read_tombstone, tenant, shard_of(task_id), task_id))
