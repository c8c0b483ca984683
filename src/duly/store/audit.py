"""Audit entries of control-plane actions: appended in the action's transaction, never changed."""

from datetime import datetime
from typing import NamedTuple

from duly.store.database import Session
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
NEWEST = 2**63 - 1


class AuditEntry(NamedTuple):
    """`detail` is JSON text."""

    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    detail: str


async def append_audit(
    session: Session, tenant: int, actor: str, action: str, subject: str, detail: str
) -> None:
    await session.fetch(SQL.append_audit, tenant, actor, action, subject, detail)


async def list_audit(
    session: Session,
    tenant: int,
    *,
    action: str | None = None,
    actor: str | None = None,
    cursor: int | None = None,
    limit: int = 50,
) -> tuple[list[AuditEntry], int | None]:
    before = cursor if cursor is not None else NEWEST
    rows = await session.fetch(SQL.list_audit, tenant, before, action, actor, limit)
    entries = [AuditEntry(*row) for row in rows]
    return entries, entries[-1].id if len(entries) == limit else None
