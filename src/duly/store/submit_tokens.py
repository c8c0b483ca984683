"""Slices of a tenant's submit rate, and of a key's request rate: processes that serve the API lease
them from one bucket."""

from typing import NamedTuple

from duly.store.database import Session
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)


class LeasedTokens(NamedTuple):
    """What was granted, and what is left in the bucket for all processes."""

    granted: float
    left: float


async def lease_submit_tokens(
    session: Session, tenant: int, need: float, wanted: float, slice_s: float
) -> LeasedTokens | None:
    """At least `need` or nothing, and up to `wanted`; from a bucket that is more than half full, as
    much as its rate gives in `slice_s`. None: the tenant has no submit rate any more."""
    rows = await session.fetch(SQL.lease_submit_tokens, tenant, need, wanted, slice_s)
    return LeasedTokens(*rows[0]) if rows else None


async def lease_request_tokens(
    session: Session, key_id: str, need: float, wanted: float, slice_s: float
) -> LeasedTokens | None:
    """The same of a key. None: it has no request rate any more."""
    rows = await session.fetch(SQL.lease_request_tokens, key_id, need, wanted, slice_s)
    return LeasedTokens(*rows[0]) if rows else None
