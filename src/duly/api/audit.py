"""Audit endpoints: control-plane actions on a tenant with actor and time, newest first. Read
only."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.cursors import Cursor
from duly.api.request import Answer, Call
from duly.api.wire import Limit, Page, page
from duly.domain.access import OPERATORS
from duly.store.audit import AuditEntry, list_audit

TAG = "Audit"
PRINTABLE = r"^[^\x00-\x1f\x7f]+$"


class AuditQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    action: Annotated[str, Meta(pattern="^[a-z_.]+$", max_length=64)] | None = None
    actor: Annotated[str, Meta(pattern=PRINTABLE, max_length=200)] | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    detail: msgspec.Raw


@dataclass(frozen=True)
class AuditRoutes:
    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/audit",
                summary="List audit entries, newest first",
                handler=self.list_page,
                kind=Kind.READ,
                access=OPERATORS,
                query=AuditQuery,
                answers={200: Page[AuditView]},
                tag=TAG,
            )
        ]

    async def list_page(self, call: Call, query: AuditQuery) -> Answer:
        found, following = await list_audit(
            call.session,
            call.tenant,
            action=query.action,
            actor=query.actor,
            cursor=None if query.cursor is None else int(query.cursor),
            limit=query.limit,
        )
        views = [audit_view(entry) for entry in found]
        return Answer(200, page(views, None if following is None else str(following)))


def audit_view(entry: AuditEntry) -> AuditView:
    return AuditView(
        id=entry.id,
        at=entry.at,
        actor=entry.actor,
        action=entry.action,
        subject=entry.subject,
        detail=msgspec.Raw(entry.detail.encode()),
    )
