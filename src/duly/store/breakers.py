"""Breakers as rows: opened by executors, read by every scheduler, closed by time or by a person."""

from datetime import datetime
from typing import NamedTuple

from duly.domain.breaker import RAMP_S
from duly.store.database import Session
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
BREAKERS_PER_TENANT_MAX = 1000
WATCHED_MAX = 10_000


class BreakerRow(NamedTuple):
    tenant: int
    host: str
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
    """False: somebody else began the ramp, or it is still open."""
    return bool(await session.fetch(SQL.ramp_breaker, tenant, host))


async def read_watched(session: Session) -> dict[tuple[int, str], datetime | None]:
    rows = await session.fetch(SQL.read_watched, RAMP_S, WATCHED_MAX)
    return {(row["tenant"], row["host"]): row["ramp_at"] for row in rows}


async def list_breakers(
    session: Session, tenant: int, cursor: str | None, limit: int
) -> tuple[list[BreakerRow], str | None]:
    rows = await session.fetch(SQL.list_breakers, tenant, cursor or "", RAMP_S, limit)
    found = [BreakerRow(*row) for row in rows]
    return found, found[-1].host if len(found) == limit else None


async def close_breaker(session: Session, tenant: int, host: str) -> bool:
    return bool(await session.fetch(SQL.close_breaker, tenant, host))
