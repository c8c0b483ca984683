"""Task types of a tenant: schema, defaults, permitted keys. Text in, text out."""

from datetime import datetime
from typing import NamedTuple

from duly.store.database import Session
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
TYPES_PER_TENANT_MAX = 1000


class TaskType(NamedTuple):
    """`schema` and `defaults` are JSON text; `keys` are the ids of keys that may submit it."""

    name: str
    schema: str | None
    defaults: str | None
    keys: list[str] | None
    created_at: datetime
    updated_at: datetime


async def put_task_type(
    session: Session,
    tenant: int,
    name: str,
    schema: str | None,
    defaults: str | None,
    keys: list[str] | None,
) -> TaskType | None:
    """None: the tenant has too many."""
    rows = await session.fetch(
        SQL.put_task_type, tenant, name, schema, defaults, keys, TYPES_PER_TENANT_MAX
    )
    return TaskType(*rows[0]) if rows else None


async def find_task_type(session: Session, tenant: int, name: str) -> TaskType | None:
    rows = await session.fetch(SQL.find_task_type, tenant, name)
    return TaskType(*rows[0]) if rows else None


async def list_task_types(
    session: Session, tenant: int, cursor: str | None, limit: int
) -> tuple[list[TaskType], str | None]:
    rows = await session.fetch(SQL.list_task_types, tenant, cursor or "", limit)
    types = [TaskType(*row) for row in rows]
    return types, types[-1].name if len(types) == limit else None


async def pass_on_types(session: Session, tenant: int, old_key: str, new_key: str) -> list[str]:
    """After a rotation: the types that named the old key name both; which those are."""
    rows = await session.fetch(SQL.pass_on_types, tenant, old_key, new_key)
    return [row["name"] for row in rows]


async def delete_task_type(session: Session, tenant: int, name: str) -> bool:
    return bool(await session.fetch(SQL.delete_task_type, tenant, name))
