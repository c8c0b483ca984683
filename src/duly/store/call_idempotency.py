"""Idempotency of control-plane requests: a request with a key runs once and is answered the same
afterwards.

Claim, action, audit and answer are one transaction. Submits have their own keys, in `submit.py`.
"""

from typing import NamedTuple

from duly.store.database import Database, Session
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
CALL_TTL_S = 7 * 86400.0


class CallKey(NamedTuple):
    """The idempotency key of a whole call, and what it asked for as a digest."""

    key: str
    digest: bytes


class Remembered(NamedTuple):
    """`answer` is the body that the first caller got, without its secrets."""

    request_hash: bytes
    status: int
    answer: str


async def claim_call(
    session: Session, tenant: int, key: str, request_hash: bytes
) -> Remembered | None:
    """None: this is the first call with the key, and it may run."""
    await session.fetch(SQL.bound_call_wait)
    if await session.fetch(SQL.claim_call, tenant, key, request_hash, CALL_TTL_S):
        return None
    (row,) = await session.fetch(SQL.read_call, tenant, key)
    return Remembered(*row)


async def find_call(session: Session, tenant: int, key: str) -> Remembered | None:
    """How an earlier call with this key was answered."""
    rows = await session.fetch(SQL.read_call, tenant, key)
    return Remembered(*rows[0]) if rows else None


async def keep_answer(session: Session, tenant: int, key: str, status: int, answer: str) -> None:
    await session.fetch(SQL.keep_answer, tenant, key, status, answer)


async def delete_expired_calls(database: Database, limit: int) -> int:
    return len(await database.fetch(SQL.delete_expired_calls, limit))
