"""Pause endpoints: stop and resume a tenant, a type or a pool, with actor and reason. The gates
apply a pause within seconds."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.cursors import Cursor
from duly.api.problems import ApiProblem, Code, invalid, not_found
from duly.api.request import Answer, Call
from duly.api.task_rules import permit_type
from duly.api.wire import Limit, Page, page
from duly.domain import limits
from duly.domain.access import OPERATORS
from duly.domain.limits import Problem, pattern_reason, text_reason
from duly.store.tenants import (
    PAUSES_PER_TENANT_MAX,
    Pause,
    PauseAnswer,
    PauseKind,
    clear_pause,
    find_pause,
    list_pauses,
    set_pause,
)

TAG = "Pauses"
WHOLE_TENANT = ""
NAME_PATTERNS = {PauseKind.TYPE: limits.TYPE_PATTERN, PauseKind.POOL: limits.POOL_PATTERN}

Name = Annotated[str, Meta(max_length=128, description="Of the type or pool.")]


class PauseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    kind: PauseKind
    name: Name | None = None
    reason: Annotated[str, Meta(min_length=1, max_length=limits.PAUSE_REASON_CHARACTERS_MAX)]


class ResumeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    kind: PauseKind
    name: Name | None = None


class PauseView(msgspec.Struct, frozen=True, kw_only=True):
    """`name` is null for a whole tenant."""

    kind: PauseKind
    name: str | None
    actor: str
    reason: str
    paused_at: datetime


class PausesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Cursor | None = None


@dataclass(frozen=True)
class PauseRoutes:
    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/pauses",
                summary="List pauses",
                handler=self.list_page,
                kind=Kind.READ,
                access=OPERATORS,
                query=PausesQuery,
                answers={200: Page[PauseView]},
                tag=TAG,
            ),
            Endpoint(
                method="POST",
                path="/v1/pauses",
                summary="Pause a tenant, a type or a pool; again replaces the reason",
                handler=self.pause,
                checks_types=True,
                kind=Kind.CONTROL,
                access=OPERATORS,
                body=PauseRequest,
                answers={200: PauseView},
                refusals=(Code.MALFORMED_BODY, Code.INVALID, Code.TOO_MANY, Code.NOT_FOUND),
                tag=TAG,
            ),
            Endpoint(
                method="POST",
                path="/v1/pauses/resume",
                summary="End a pause",
                handler=self.resume,
                checks_types=True,
                kind=Kind.CONTROL,
                access=OPERATORS,
                body=ResumeRequest,
                answers={200: PauseView},
                refusals=(Code.MALFORMED_BODY, Code.INVALID, Code.NOT_FOUND),
                tag=TAG,
            ),
        ]

    async def list_page(self, call: Call, query: PausesQuery) -> Answer:
        kind, _, name = (query.cursor or "").partition(":")
        found = await list_pauses(call.session, call.tenant, (kind, name), query.limit)
        last = found[-1] if len(found) == query.limit else None
        following = None if last is None else f"{last.kind}:{last.name}"
        return Answer(200, page([pause_view(pause) for pause in found], following))

    async def pause(self, call: Call, asked: PauseRequest) -> Answer:
        reason = text_reason(asked.reason, limits.PAUSE_REASON_CHARACTERS_MAX)
        problems = name_problems(asked.kind, asked.name)
        problems += [Problem("/reason", reason)] if reason else []
        if problems:
            raise invalid(problems)
        permit_pause(call, asked.kind, asked.name)
        name, actor = asked.name or WHOLE_TENANT, call.credential.actor
        answer = await set_pause(call.session, call.tenant, asked.kind, name, actor, asked.reason)
        if answer is PauseAnswer.TOO_MANY:
            detail = f"a tenant may have {PAUSES_PER_TENANT_MAX} pauses; resume some"
            raise ApiProblem(Code.TOO_MANY, detail)
        found = await find_pause(call.session, call.tenant, asked.kind, name)
        if found is None:
            raise not_found("pool", name)
        call.note("pause.set", subject_of(found), reason=asked.reason)
        return Answer(200, pause_view(found))

    async def resume(self, call: Call, asked: ResumeRequest) -> Answer:
        if problems := name_problems(asked.kind, asked.name):
            raise invalid(problems)
        permit_pause(call, asked.kind, asked.name)
        name = asked.name or WHOLE_TENANT
        found = await find_pause(call.session, call.tenant, asked.kind, name)
        # Of two that resume at once, one deletes the row; the other finds nothing left to do.
        if found is None or not await clear_pause(call.session, call.tenant, asked.kind, name):
            raise not_found("pause of", f"{asked.kind} {name}".rstrip())
        call.note("pause.clear", subject_of(found))
        return Answer(200, pause_view(found))


def name_problems(kind: PauseKind, name: str | None) -> list[Problem]:
    pattern = NAME_PATTERNS.get(kind)
    if pattern is None:
        return [] if name is None else [Problem("/name", "is for a type or a pool")]
    if name is None:
        return [Problem("/name", f"is required for a {kind}")]
    reason = pattern_reason(name, pattern)
    return [Problem("/name", reason)] if reason else []


def permit_pause(call: Call, kind: PauseKind, name: str | None) -> None:
    """A pause of the tenant or of a pool stops every type."""
    if kind is PauseKind.TYPE:
        assert name is not None, "its problems were looked for"
        permit_type(call.credential, name)
    elif call.credential.types is not None:
        detail = f"a credential that is limited to task types may not pause or resume a {kind}"
        raise ApiProblem(Code.FORBIDDEN, detail)


def subject_of(pause: Pause) -> str:
    return f"{pause.kind}:{pause.name}" if pause.name else str(pause.kind)


def pause_view(pause: Pause) -> PauseView:
    return PauseView(
        kind=pause.kind,
        name=pause.name or None,
        actor=pause.actor,
        reason=pause.reason,
        paused_at=pause.paused_at,
    )
