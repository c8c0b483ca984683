"""Circuit breaker endpoints: list open breakers of hosts, task types and pools; close one
manually."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.cursors import Cursor
from duly.api.problems import Code, invalid, not_found
from duly.api.request import Answer, Call
from duly.api.wire import Limit, Page, PoolName, TypeName, page
from duly.domain.access import OPERATORS, PRODUCERS
from duly.domain.breaker import BreakerKind, BreakerPhase, phase_of
from duly.domain.limits import Problem
from duly.store.breakers import BreakerRow, close_breaker, list_breakers

Host = Annotated[str, Meta(min_length=1, max_length=300, pattern=r"^[\x21-\x7e]+$")]


class BreakerQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Cursor | None = None


class BreakerItem(msgspec.Struct, frozen=True):
    """`name` is that of a host, of a type of workers' tasks, or of a pool; `host` the same if it is
    one. `open_until` is also the instant of the next probe."""

    kind: BreakerKind
    name: str
    host: str | None
    phase: BreakerPhase
    reason: str
    open_until: datetime
    ramp_at: datetime | None


class CloseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of them."""

    host: Host | None = None
    type: TypeName | None = None
    pool: PoolName | None = None


class ClosedBreaker(msgspec.Struct, frozen=True):
    kind: BreakerKind
    name: str
    host: str | None
    phase: BreakerPhase


@dataclass(frozen=True)
class BreakerRoutes:
    def endpoints(self) -> list[Endpoint]:
        route = partial(Endpoint, tag="Breakers")
        return [
            route(
                "GET",
                "/v1/breakers",
                "List hosts, types and pools that get no work for now",
                self.list_page,
                Kind.READ,
                access=PRODUCERS,
                query=BreakerQuery,
                answers={200: Page[BreakerItem]},
            ),
            route(
                "POST",
                "/v1/breakers/close",
                "Close a breaker by hand",
                self.close,
                Kind.CONTROL,
                access=OPERATORS,
                body=CloseRequest,
                answers={200: ClosedBreaker},
                refusals=(Code.NOT_FOUND,),
            ),
        ]

    async def list_page(self, call: Call, query: BreakerQuery) -> Answer:
        found, following = await list_breakers(call.session, call.tenant, query.cursor, query.limit)
        return Answer(200, page([item_of(row) for row in found], following))

    async def close(self, call: Call, asked: CloseRequest) -> Answer:
        kind, name = subject_of(asked)
        if not await close_breaker(call.session, call.tenant, kind, name):
            raise not_found(f"open breaker for {kind}", name)
        call.note("breaker.close", name if kind is BreakerKind.HOST else f"{kind} {name}")
        host = name if kind is BreakerKind.HOST else None
        return Answer(200, ClosedBreaker(kind, name, host, BreakerPhase.CLOSED))


def item_of(row: BreakerRow) -> BreakerItem:
    phase = phase_of(row.now, row.open_until, row.ramp_at)
    host = row.name if row.kind is BreakerKind.HOST else None
    return BreakerItem(row.kind, row.name, host, phase, row.reason, row.open_until, row.ramp_at)


def subject_of(asked: CloseRequest) -> tuple[BreakerKind, str]:
    named = [
        (kind, name)
        for kind, name in (
            (BreakerKind.HOST, asked.host and asked.host.lower()),
            (BreakerKind.TYPE, asked.type),
            (BreakerKind.POOL, asked.pool),
        )
        if name is not None
    ]
    if len(named) != 1:
        raise invalid([Problem("", "must name one of host, type and pool")])
    return named[0]
