"""API keys and the nonces of signed requests. What a key may do is decided in `api/`.

A secret is generated here and returned once, in the answer that created the key; of a bearer key
only a hash stays.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from duly.domain.api_keys import draw_key
from duly.environment import Environment
from duly.store.database import Database, Session
from duly.store.statements import statements_beside
from duly.store.tenants import create_tenant, find_tenant

SQL = statements_beside(__file__)
KEYS_PER_TENANT_MAX = 1000
FIRST_TENANT = "default"


class Key(NamedTuple):
    """What authentication needs of a key; `is_live` as of the query."""

    id: str
    tenant: int
    tenant_name: str
    name: str
    role: str
    reach: str
    types: list[str] | None
    secret_hash: bytes | None
    signing_secret: bytes | None
    is_live: bool
    expires_at: datetime | None
    # Its tenant is.
    is_suspended: bool = False
    request_rate: float | None = None


class KeyFacts(NamedTuple):
    """A key as its tenant's admins see it."""

    id: str
    tenant: int
    name: str
    role: str
    reach: str
    types: list[str] | None
    is_signing: bool
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    rotated_from: str | None
    request_rate: float | None


class NewKey(NamedTuple):
    name: str
    role: str
    reach: str = "tenant"
    types: list[str] | None = None
    is_signing: bool = False
    expires_in_s: float | None = None
    rotated_from: str | None = None
    request_rate: float | None = None


class RotateRefusal(StrEnum):
    DEAD = "dead"
    ROTATED = "rotated"
    TOO_MANY = "too_many"


def hash_secret(secret: str) -> bytes:
    """Secrets are 200 random bits, so a plain hash keeps them."""
    return hashlib.sha256(secret.encode()).digest()


async def read_key(session: Session, key_id: str) -> Key | None:
    rows = await session.fetch(SQL.read_key, key_id)
    return Key(*rows[0]) if rows else None


async def create_key(
    session: Session, environment: Environment, tenant: int, asked: NewKey, actor: str
) -> tuple[KeyFacts, str] | None:
    """The new key and its text, which cannot be read again; None: the tenant has too many."""
    (counted,) = await session.fetch(SQL.count_keys, tenant)
    has_room = counted["keys"] < KEYS_PER_TENANT_MAX
    if not has_room and not await session.fetch(SQL.delete_dead_keys, tenant):
        return None
    text = draw_key(environment.entropy)
    (row,) = await session.fetch(
        SQL.create_key,
        text.id,
        tenant,
        asked.name,
        asked.role,
        asked.reach,
        asked.types,
        None if asked.is_signing else hash_secret(text.secret),
        text.secret.encode() if asked.is_signing else None,
        actor,
        asked.expires_in_s,
        asked.rotated_from,
        asked.request_rate,
    )
    return KeyFacts(*row), str(text)


async def list_keys(
    session: Session, tenant: int, cursor: str | None, limit: int
) -> tuple[list[KeyFacts], str | None]:
    rows = await session.fetch(SQL.list_keys, tenant, cursor or "", limit)
    found = [KeyFacts(*row) for row in rows]
    return found, found[-1].id if len(found) == limit else None


async def find_key(session: Session, tenant: int, key_id: str) -> KeyFacts | None:
    rows = await session.fetch(SQL.find_key, tenant, key_id)
    return KeyFacts(*rows[0]) if rows else None


async def lock_key(session: Session, tenant: int, key_id: str) -> KeyFacts | None:
    """Lock the row until the caller's transaction ends."""
    rows = await session.fetch(SQL.lock_key, tenant, key_id)
    return KeyFacts(*rows[0]) if rows else None


async def read_known_ids(session: Session, tenant: int, ids: Sequence[str]) -> set[str]:
    """Those that are keys of this tenant."""
    return {row["id"] for row in await session.fetch(SQL.read_known_ids, tenant, list(ids))}


async def revoke_key(session: Session, tenant: int, key_id: str) -> KeyFacts | None:
    rows = await session.fetch(SQL.revoke_key, tenant, key_id)
    return KeyFacts(*rows[0]) if rows else None


async def rotate_key(
    session: Session, environment: Environment, old: KeyFacts, grace_s: float, actor: str
) -> tuple[KeyFacts, str] | RotateRefusal:
    """A second key like the first, which lives on for `grace_s`. `old` is locked by the caller.

    Once only, so that a life that a rotation cut short is never taken for the life of the key.
    """
    (judged,) = await session.fetch(SQL.judge_rotation, old.tenant, old.id)
    if not judged["is_live"]:
        return RotateRefusal.DEAD
    if judged["successor"] is not None:
        return RotateRefusal.ROTATED
    life_s = None if old.expires_at is None else (old.expires_at - old.created_at).total_seconds()
    asked = NewKey(
        old.name, old.role, old.reach, old.types, old.is_signing, life_s, old.id, old.request_rate
    )
    made = await create_key(session, environment, old.tenant, asked, actor)
    if made is None:
        return RotateRefusal.TOO_MANY
    await session.fetch(SQL.expire_key, old.tenant, old.id, grace_s)
    return made


async def limit_key(session: Session, key: KeyFacts, request_rate: float | None) -> KeyFacts:
    """In the transaction that locked it."""
    (row,) = await session.fetch(SQL.limit_key, key.tenant, key.id, request_rate)
    return KeyFacts(*row)


async def is_any_key(session: Session) -> bool:
    (row,) = await session.fetch(SQL.exists_any_key)
    return bool(row["is_any"])


async def is_admin_key(session: Session) -> bool:
    """Whether a live key administers the installation."""
    (row,) = await session.fetch(SQL.exists_admin_key)
    return bool(row["is_any"])


async def make_first_key(database: Database, environment: Environment) -> str | None:
    """A first tenant, and an admin's key for it; None if there is a key already."""
    return await make_admin_key(database, environment, is_any_key, "duly up")


async def make_missing_admin_key(
    database: Database, environment: Environment, actor: str
) -> str | None:
    """The same where every admin's key was revoked or has expired; None if one is live."""
    return await make_admin_key(database, environment, is_admin_key, actor)


async def make_admin_key(
    database: Database,
    environment: Environment,
    is_refused: Callable[[Session], Awaitable[bool]],
    actor: str,
) -> str | None:
    async with database.transaction() as session:
        await session.fetch(SQL.lock_first_key)
        if await is_refused(session):
            return None
        tenant = await find_tenant(session, FIRST_TENANT)
        if tenant is None:
            tenant = await create_tenant(session, FIRST_TENANT)
        assert tenant is not None
        asked = NewKey("first key", role="admin", reach="installation")
        made = await create_key(session, environment, tenant.id, asked, actor)
        assert made is not None
        return made[1]


async def claim_nonce(database: Database, key_id: str, nonce: str, keep_s: float) -> bool:
    """False: this nonce was used before."""
    return bool(await database.fetch(SQL.claim_nonce, key_id, nonce, keep_s))


async def delete_expired_nonces(database: Database, limit: int) -> int:
    return len(await database.fetch(SQL.delete_expired_nonces, limit))
