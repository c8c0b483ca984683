"""Breakers over HTTP: which receivers are left alone and why, and closing one by hand."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from duly.api.call import Answer, Call
from duly.api.cursors import Cursor
from duly.api.door import Endpoint, Kind
from duly.api.problems import Code, not_found
from duly.api.wire import Limit, Page, page
from duly.domain.access import OPERATORS, PRODUCERS
from duly.domain.breaker import Phase, phase_of
from duly.store.breakers import BreakerRow, close_breaker, list_breakers

Host = Annotated[str, Meta(min_length=1, max_length=300, pattern=r"^[\x21-\x7e]+$")]


class BreakerQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Cursor | None = None


class BreakerItem(msgspec.Struct, frozen=True):
    """`open_until` is also the instant of the next probe."""

    host: str
    phase: Phase
    reason: str
    open_until: datetime
    ramp_at: datetime | None


class CloseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    host: Host


class ClosedBreaker(msgspec.Struct, frozen=True):
    host: str
    phase: Phase


@dataclass(frozen=True)
class BreakerDoor:
    def endpoints(self) -> list[Endpoint]:
        route = partial(Endpoint, tag="Breakers")
        return [
            route(
                "GET",
                "/v1/breakers",
                "List receivers that are left alone for now",
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
        host = asked.host.lower()
        if not await close_breaker(call.session, call.tenant, host):
            raise not_found("open breaker for host", host)
        call.note("breaker.close", host)
        return Answer(200, ClosedBreaker(host, Phase.CLOSED))


def item_of(row: BreakerRow) -> BreakerItem:
    phase = phase_of(row.now, row.open_until, row.ramp_at)
    return BreakerItem(row.host, phase, row.reason, row.open_until, row.ramp_at)
