"""`duly.WebhookReceiver`: the ASGI middleware in front of an application that duly's webhooks call.

| event | what happens |
|---|---|
| the body is longer than allowed | 413, before all of it is read |
| without the headers of a webhook | 400 |
| not signed by one of the secrets, or too long ago | 401 |
| the very same request again | 425: if it was duly after all, it tries again with a new one |
| a later attempt of the task was here | 409: this attempt is over |
| all is well | the application is called; `scope["duly"]` is the Delivery |
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import datetime
from typing import Any, Protocol, TypeAlias

import msgspec

from duly.client.clock import monotonic, utc_now
from duly.client.receiver import (
    TOLERANCE_S,
    Delivery,
    Secrets,
    WebhookRefused,
    read_secrets,
    verify,
)

# A payload has 64 KiB at most.
BODY_BYTES_MAX = 128 * 1024
REMEMBERED_MAX = 100_000
# Longer than an attempt may last; later than this, its lease is gone.
FENCES_KEPT_S = 24 * 3600.0
RETRY_AFTER_S = 2

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class BodyTooLong(WebhookRefused):
    """the body is longer than {most} bytes"""

    status = 413
    code = "body_too_long"


class MethodRefused(WebhookRefused):
    """webhooks are POSTed"""

    status = 405
    code = "method_refused"


class Replayed(WebhookRefused):
    """this very request was here before"""

    status = 425
    code = "replayed"


class AttemptOver(WebhookRefused):
    """a later attempt of task {task_id} was here already"""

    status = 409
    code = "attempt_over"


class Memory(Protocol):
    """What was here before. One for all processes of a receiver is the user's to supply."""

    async def admit(self, delivery: Delivery) -> None:
        """Remember it; Replayed if its `digest` is known, AttemptOver if a higher `fence` is known
        for its `task_id`. Two copies at once: one is admitted."""
        ...


class LocalMemory:
    """The memory of one process, bounded; what is oldest is forgotten first."""

    def __init__(
        self,
        tolerance_s: float = TOLERANCE_S,
        most: int = REMEMBERED_MAX,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        # Signed ahead of our clock by as much as is allowed, it is good for twice that.
        self.digests = Kept(2 * tolerance_s, most, clock)
        self.fences = Kept(FENCES_KEPT_S, most, clock)

    async def admit(self, delivery: Delivery) -> None:
        if self.digests.get(delivery.digest) is not None:
            raise Replayed
        known = self.fences.get(delivery.task_id)
        if known is not None and delivery.fence < known:
            raise AttemptOver(task_id=delivery.task_id)
        self.digests.put(delivery.digest, delivery.fence)
        self.fences.put(delivery.task_id, delivery.fence)


class Kept:
    def __init__(self, keep_s: float, most: int, clock: Callable[[], float]) -> None:
        self.keep_s = keep_s
        self.most = most
        self.clock = clock
        self.entries: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def get(self, key: str) -> int | None:
        entry = self.entries.get(key)
        return None if entry is None or entry[0] < self.clock() else entry[1]

    def put(self, key: str, value: int) -> None:
        now = self.clock()
        self.entries[key] = (now + self.keep_s, value)
        self.entries.move_to_end(key)
        while len(self.entries) > self.most or next(iter(self.entries.values()))[0] < now:
            self.entries.popitem(last=False)


class WebhookReceiver:
    """`application = WebhookReceiver(application, secrets="whsec_...")`.

    Requests to other paths than those under `path` pass unseen, and without `scope["duly"]`.
    """

    def __init__(
        self,
        app: Application,
        secrets: Secrets,
        *,
        path: str = "/",
        body_bytes_max: int = BODY_BYTES_MAX,
        tolerance_s: float = TOLERANCE_S,
        memory: Memory | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.app = app
        self.secrets = read_secrets(secrets)
        self.path = path
        self.body_bytes_max = body_bytes_max
        self.tolerance_s = tolerance_s
        self.now = now
        self.memory: Memory = LocalMemory(tolerance_s) if memory is None else memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Only this middleware may set it.
        scope.pop("duly", None)
        if scope["type"] != "http" or not scope["path"].startswith(self.path):
            await self.app(scope, receive, send)
            return
        try:
            body = await self.read(scope, receive)
            if body is None:
                return
            delivery = verify(
                scope["headers"], body, self.secrets, now=self.now(), tolerance_s=self.tolerance_s
            )
            await self.memory.admit(delivery)
        except WebhookRefused as refusal:
            await refuse(send, refusal)
            return
        scope["duly"] = delivery
        await self.app(scope, replaying(body, receive), send)

    async def read(self, scope: Scope, receive: Receive) -> bytes | None:
        """None if the caller hung up."""
        if scope["method"] != "POST":
            raise MethodRefused
        too_long = BodyTooLong(most=self.body_bytes_max)
        for name, value in scope["headers"]:
            if name.lower() == b"content-length" and not self.fits(value):
                raise too_long
        body = bytearray()
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                return None
            body += event.get("body", b"")
            if len(body) > self.body_bytes_max:
                raise too_long
            if not event.get("more_body", False):
                return bytes(body)

    def fits(self, length: bytes) -> bool:
        return length.isdigit() and len(length) < 16 and int(length) <= self.body_bytes_max


def replaying(body: bytes, receive: Receive) -> Receive:
    """The body once more, then whatever the server has to say."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> MutableMapping[str, Any]:
        return waiting.pop() if waiting else await receive()

    return again


async def refuse(send: Send, refusal: WebhookRefused) -> None:
    content = msgspec.json.encode(
        {"type": "about:blank", "code": refusal.code, "detail": str(refusal)}
    )
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(content)).encode()),
    ]
    if isinstance(refusal, Replayed):
        headers.append((b"retry-after", str(RETRY_AFTER_S).encode()))
    if isinstance(refusal, MethodRefused):
        headers.append((b"allow", b"POST"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
