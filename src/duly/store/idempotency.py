"""Idempotency keys that stand for a task: found, extended, freed, deleted when they expire.
Claiming one is part of a submit."""

from uuid import UUID

from duly.domain.ids import key_shard
from duly.store.database import Database, Session
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)


async def find_replay(database: Database, tenant: int, key: str, asked: bytes) -> UUID | None:
    """The task of an earlier request with this key and the same words."""
    rows = await database.fetch(SQL.find_key, key_shard(tenant, key), tenant, key)
    return rows[0]["task_id"] if rows and rows[0]["request_hash"] == asked else None


async def extend_key(session: Session, tenant: int, key: str, task_id: UUID, ttl_s: float) -> bool:
    asked = (key_shard(tenant, key), tenant, key, task_id, ttl_s)
    return bool(await session.fetch(SQL.extend_key, *asked))


async def free_key(session: Session, tenant: int, key: str, task_id: UUID) -> bool:
    return bool(await session.fetch(SQL.free_key, key_shard(tenant, key), tenant, key, task_id))


async def delete_expired_keys(database: Database, limit: int) -> int:
    return len(await database.fetch(SQL.delete_expired_keys, limit))
