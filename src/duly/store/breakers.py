"""Circuit breakers as rows: opened where attempts end, read by every scheduler, closed by time or
by an operator. A row's `host` is its subject: a host, or `type/NAME` or `pool/NUMBER` of workers'
tasks.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from duly.domain.breaker import RAMP_S, BreakerKind, kind_of, type_subject
from duly.domain.ids import shard_of
from duly.store.database import Session
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
BREAKERS_PER_TENANT_MAX = 1000
WATCHED_MAX = 10_000


class BreakerRow(NamedTuple):
    """`name` is a host, or that of a type or pool."""

    kind: BreakerKind
    name: str
    reason: str
    open_until: datetime
    ramp_at: datetime | None
    now: datetime


async def open_breaker(
    session: Session, tenant: int, host: str, open_s: float, reason: str
) -> datetime | None:
    """Until when it is open now; None if the tenant is unknown or has too many open ones."""
    rows = await session.fetch(
        SQL.open_breaker, tenant, host, open_s, reason, BREAKERS_PER_TENANT_MAX
    )
    open_until: datetime | None = rows[0]["open_until"] if rows else None
    return open_until


async def reopen_breaker(session: Session, tenant: int, host: str, open_s: float) -> bool:
    """False: it was open already, is in its ramp, or is gone."""
    return bool(await session.fetch(SQL.reopen_breaker, tenant, host, open_s))


async def ramp_breaker(session: Session, tenant: int, host: str) -> bool:
    """False: another process began the ramp, or it is still open."""
    return bool(await session.fetch(SQL.ramp_breaker, tenant, host))


async def read_watched(session: Session) -> dict[tuple[int, str], datetime | None]:
    rows = await session.fetch(SQL.read_watched, RAMP_S, WATCHED_MAX)
    return {(row["tenant"], row["host"]): row["ramp_at"] for row in rows}


async def list_breakers(
    session: Session, tenant: int, cursor: str | None, limit: int
) -> tuple[list[BreakerRow], str | None]:
    rows = await session.fetch(SQL.list_breakers, tenant, cursor or "", RAMP_S, limit)
    found = [
        BreakerRow(
            *named(row["host"], row["pool_name"]),
            row["reason"],
            row["open_until"],
            row["ramp_at"],
            row["now"],
        )
        for row in rows
    ]
    return found, rows[-1]["host"] if len(found) == limit else None


def named(subject: str, pool_name: str | None) -> tuple[BreakerKind, str]:
    """The name of a row's subject, as users know it."""
    kind, name = kind_of(subject)
    return kind, pool_name or name if kind is BreakerKind.POOL else name


async def close_breaker(session: Session, tenant: int, kind: BreakerKind, name: str) -> bool:
    if kind is BreakerKind.POOL:
        return bool(await session.fetch(SQL.close_pool_breaker, tenant, name))
    subject = type_subject(name) if kind is BreakerKind.TYPE else name
    return bool(await session.fetch(SQL.close_breaker, tenant, subject))


async def read_worker_tasks(session: Session, ids: Sequence[UUID]) -> dict[UUID, tuple[str, int]]:
    """Type and pool of tasks that ended a moment ago."""
    rows = await session.fetch(SQL.read_worker_tasks, [shard_of(each) for each in ids], list(ids))
    return {row["id"]: (row["type"], row["pool"]) for row in rows}
