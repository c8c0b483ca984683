"""One API request: what was sent, the credential that sent it, and its answer."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from duly.api.admission import FairLimiter
from duly.api.problems import ApiProblem, Code, invalid_query
from duly.domain.access import Credential
from duly.domain.limits import Problem
from duly.store.database import Session

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON_CONTENT_TYPE: Final = b"application/json"
QUERY_PARAMETERS_MAX = 32
# In a path or a query: no name, id or filter has one, and PostgreSQL takes no NUL.
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Given twice, two readers could each believe another one.
SINGLE_HEADERS = frozenset(
    {
        b"authorization",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"x-duly-key",
        b"x-duly-timestamp",
        b"x-duly-nonce",
        b"x-duly-signature",
        b"content-digest",
    }
)


@dataclass(slots=True)
class Answer:
    """`kept` is the body stored for idempotent repetitions, where `body` holds a secret."""

    status: int = 200
    body: object = None
    headers: dict[str, str] = field(default_factory=dict)
    content_type: bytes = JSON_CONTENT_TYPE
    kept: object = None
    # Sent piece by piece instead of `body`, for as long as it lasts.
    stream: AsyncGenerator[bytes, None] | None = None

    def encoded(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else msgspec.json.encode(self.body)


@dataclass(slots=True)
class AuditNote:
    action: str
    subject: str
    detail: dict[str, object]


class Call:
    """One request. `tenant` is the credential's, or one that an operator named."""

    __slots__ = (
        "admitted",
        "after",
        "check_body",
        "credential",
        "headers",
        "is_read",
        "method",
        "notes",
        "open_session",
        "optional_credential",
        "params",
        "path",
        "prepared",
        "query",
        "raw_body",
        "receive",
        "scope",
        "tenant",
        "tenant_name",
    )

    credential: Credential
    tenant: int
    tenant_name: str

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.receive = receive
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        if len(self.headers) != len(scope["headers"]):
            refuse_repeated(scope["headers"])
        self.params: dict[str, str] = {}
        self.query = query_of(scope["query_string"]) if scope["query_string"] else {}
        self.raw_body, self.is_read = b"", False
        self.open_session: Session | None = None
        # Of a call that needs none, and brought one.
        self.optional_credential: Credential | None = None
        self.notes: list[AuditNote] = []
        # Refuses a body that is not the one that was signed, once it is read.
        self.check_body: Callable[[bytes], None] | None = None
        # What the endpoint's `prepare` found out for its handler.
        self.prepared: object = None
        # Units of limiters that this call has in use, given back at its end.
        self.admitted: list[tuple[FairLimiter, Hashable, int]] = []
        # Once it has committed; what answers with something to wait for is waited for.
        self.after: list[Callable[[], Awaitable[None] | None]] = []

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def session(self) -> Session:
        """The transaction that `asgi.py` opened for this request."""
        assert self.open_session is not None
        return self.open_session

    def note(self, action: str, subject: str, **detail: object) -> None:
        """For the audit, written in the transaction of the call."""
        self.notes.append(AuditNote(action, subject, detail))

    async def admit(self, limiter: FairLimiter, caller: Hashable, units: int = 1) -> None:
        """Wait for admission; ApiProblem if it takes too long."""
        await limiter.acquire(caller, units)
        self.admitted.append((limiter, caller, units))

    def release(self) -> None:
        for limiter, caller, units in self.admitted:
            limiter.release(caller, units)
        self.admitted.clear()

    def body_size(self, bytes_max: int) -> int:
        """As announced, else the most it may have; more than that is refused before it is read."""
        announced = self.headers.get(b"content-length")
        if announced is None:
            return bytes_max if b"transfer-encoding" in self.headers else 0
        if int(announced) > bytes_max:
            raise too_large(bytes_max)
        return int(announced)

    async def read_body(self, bytes_max: int) -> bytes:
        """At most that many bytes; more is refused before it is read, or as soon as it is known."""
        if self.is_read:
            return self.raw_body
        self.body_size(bytes_max)
        # Grown in place, and copied once: many bodies are read at a time, and one is copied.
        body, has_more = bytearray(), True
        while has_more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                # The client hung up before the body was complete: no answer is possible.
                raise ApiProblem(
                    Code.MALFORMED_REQUEST, "the connection closed before the whole body arrived"
                )
            piece: bytes = message.get("body", b"")
            if len(body) + len(piece) > bytes_max:
                raise too_large(bytes_max)
            has_more = message.get("more_body", False)
            if not has_more and not body:
                self.raw_body = piece
            else:
                body += piece
        self.raw_body, self.is_read = self.raw_body or bytes(body), True
        if self.check_body is not None:
            self.check_body(self.raw_body)
        return self.raw_body

    async def gone(self) -> None:
        """Returns when the client hung up; for long polls."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


def refuse_repeated(headers: Iterable[tuple[bytes, bytes]]) -> None:
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in seen and name in SINGLE_HEADERS:
            raise ApiProblem(Code.MALFORMED_REQUEST, f"the header {name.decode()} is given twice")
        seen.add(name)


def too_large(bytes_max: int) -> ApiProblem:
    return ApiProblem(Code.BODY_TOO_LARGE, f"the body may have {bytes_max} bytes at most")


def query_of(text: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            text.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=QUERY_PARAMETERS_MAX,
        )
    except ValueError:
        raise ApiProblem(Code.INVALID_QUERY, "the query string cannot be read") from None
    given = dict(pairs)
    if len(given) != len(pairs):
        raise ApiProblem(Code.INVALID_QUERY, "a query parameter is given twice")
    for name, value in pairs:
        if CONTROL_CHARACTER.search(name):
            raise ApiProblem(
                Code.INVALID_QUERY, "the name of a query parameter has a control character"
            )
        if CONTROL_CHARACTER.search(value):
            raise invalid_query(Problem(f"/{name[:64]}", "contains a control character"))
    return given
