"""Server-Sent Events: that something of the caller's tenant changed, at most once a second.

An event carries no data beyond its number: what changed is read from the other routes, so that a
lost event costs a moment and never a wrong picture.

| event | what happens |
|---|---|
| stream opened with `Last-Event-ID` | one `changed` at once: something may have been missed |
| nothing changes | a comment every 15 s, so that proxies keep the connection |
| caller disconnects | the subscription ends within those 15 s |
| stream is 5 minutes old | it ends; the browser opens another, and its credential is asked again |
| too many streams of one tenant | 503; the page polls |
| process stops | every stream ends at once |
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Literal

import msgspec

from duly.api.asgi import Endpoint, Kind
from duly.api.problems import Code, later
from duly.api.request import Answer, Call
from duly.domain.access import PRODUCERS
from duly.tenant_changes import TenantChanges

TAG = "Live events"
KEEPALIVE_S = 15.0
STREAM_S_MAX = 300.0
STREAMS_PER_TENANT_MAX = 200
EVENT_STREAM = "text/event-stream"
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
RETRY_MS = 2000


class ServerSentEvent(msgspec.Struct, frozen=True):
    """One event of the stream: something of the tenant changed. `data` is empty, `{}`."""

    id: str
    event: Literal["changed"]
    data: str


class LiveEventRoutes:
    def __init__(self, changes: TenantChanges) -> None:
        self.changes = changes
        self.open: Counter[int] = Counter()

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/events",
                summary="A stream that says when something of the tenant changed",
                handler=self.stream,
                kind=Kind.HOT,
                access=PRODUCERS,
                answers={200: ServerSentEvent},
                refusals=(Code.OVERLOADED,),
                answer_media_type=EVENT_STREAM,
                tag=TAG,
            )
        ]

    async def stream(self, call: Call) -> Answer:
        if self.open[call.tenant] >= STREAMS_PER_TENANT_MAX:
            detail = f"{STREAMS_PER_TENANT_MAX} streams of this tenant are open; poll instead"
            raise later(Code.OVERLOADED, detail)
        return Answer(
            200,
            headers=HEADERS,
            content_type=EVENT_STREAM.encode(),
            stream=self.events(call, call.header(b"last-event-id")),
        )

    async def events(self, call: Call, last_id: str | None) -> AsyncGenerator[bytes, None]:
        number = int(last_id) if last_id and last_id.isascii() and last_id.isdigit() else 0
        number %= 2**53
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + STREAM_S_MAX
        gone = loop.create_task(call.gone())
        self.open[call.tenant] += 1
        try:
            with self.changes.subscribe(call.tenant) as subscription:
                yield f"retry: {RETRY_MS}\n\n".encode()
                if last_id is not None:
                    number += 1
                    yield event_of(number)
                while not gone.done() and not self.changes.is_closed and loop.time() < ends_at:
                    if not await subscription.wait(KEEPALIVE_S):
                        yield b": still here\n\n"
                    elif not self.changes.is_closed:
                        number += 1
                        yield event_of(number)
        finally:
            gone.cancel()
            self.open[call.tenant] -= 1
            if not self.open[call.tenant]:
                del self.open[call.tenant]


def event_of(number: int) -> bytes:
    return f"id: {number}\nevent: changed\ndata: {{}}\n\n".encode()
