"""HTTP connection limits that uvicorn lacks: sizes, timeouts, and connections at once.

A request over a limit is answered with a problem document, and the connection is closed.

| what a caller does | what happens |
|---|---|
| too many connections | the longest silent one is closed; none is silent: 503 with Retry-After |
| too many of one address | the same, among those of the address |
| too many, for a probe or an operator | answered, over a few connections more |
| sends nothing, or its headers or body too slowly | 408 |
| a long URL; many or large headers | 414; 431 |
| what is not HTTP, or two readers would read differently | 400 |
| hides a header behind its body (a trailer) | the header is dropped |
| sends on after it was refused | read and dropped for a while, so that it sees the refusal |
| was refused before a long body | that is not read, and the connection ends a second later |
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NoReturn

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from duly.api.admission import ConnectionSlot, ConnectionTable
from duly.api.asgi import PROVEN, RESERVED
from duly.api.problems import PROBLEM_CONTENT_TYPE, ApiProblem, Code, later

# uvicorn internals that this module relies on; a version without them must not start silently.
OVERRIDDEN = (
    "connection_made",
    "connection_lost",
    "data_received",
    "send_400_response",
    "on_message_begin",
    "on_url",
    "on_header",
    "on_headers_complete",
    "on_body",
    "on_message_complete",
    "on_response_complete",
    "_unsupported_upgrade_warning",
)
MISSING = [name for name in OVERRIDDEN if not hasattr(HttpToolsProtocol, name)]
assert not MISSING, f"this uvicorn has no {MISSING}; the limits of the HTTP server would not hold"

VERSIONS = frozenset({"1.0", "1.1"})


@dataclass(frozen=True)
class HttpLimits:
    connections_max: int = 1000
    connections_per_address_max: int = 800
    # Beyond those, for probes and operators alone.
    connections_reserve: int = 16
    header_bytes_max: int = 32 * 1024
    headers_max: int = 100
    url_bytes_max: int = 8 * 1024
    # From the connection, or the end of the call before, to the end of the headers.
    headers_s: float = 10.0
    body_s: float = 30.0
    keep_alive_s: float = 75.0
    pipelined_max: int = 64
    # Of what a caller sends on after it was refused, and for how long.
    dropped_bytes_max: int = 1024 * 1024
    linger_s: float = 1.0


# The status line of an answer, and not of a 100 Continue before it.
FINAL_ANSWER = (b"HTTP/1.1 2", b"HTTP/1.1 3", b"HTTP/1.1 4", b"HTTP/1.1 5")


class Stage(Enum):
    """Where the reading of this connection stands."""

    BETWEEN = auto()
    HEADERS = auto()
    BODY = auto()


class OneWrite:
    """A transport for one answer: its headers go out with its body, in one system call. Two took a
    quarter of the process's time."""

    __slots__ = ("end", "held", "transport")

    def __init__(self, transport: asyncio.Transport, end: Callable[[], None]) -> None:
        self.transport = transport
        self.end = end
        self.held = b""

    def write(self, data: bytes) -> None:
        if self.held:
            self.transport.write(self.held + data)
            self.held = b""
        elif data.startswith(FINAL_ANSWER):
            self.held = data
        else:
            self.transport.write(data)

    def flush(self) -> None:
        """An answer without a body has no second write."""
        if self.held:
            self.transport.write(self.held)
            self.held = b""

    def close(self) -> None:
        self.flush()
        self.end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


class BoundedProtocol(HttpToolsProtocol):
    """One connection. `limits` is set by `bounded_protocol`, because uvicorn makes these itself."""

    limits = HttpLimits()
    table: ConnectionTable

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.stage = Stage.BETWEEN
        self.deadline: asyncio.TimerHandle | None = None
        self.deadline_stage = Stage.BETWEEN
        self.refusal: ApiProblem | None = None
        self.is_ended = False
        self.place = ConnectionSlot.NONE
        self.address = ""
        self.url = b""
        self.header_bytes = 0
        self.header_count = 0
        self.dropped_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self.place = self.table.enter(self)
        if self.place is ConnectionSlot.NONE:
            transport.write(encoded(crowded()))
            transport.close()
        else:
            self.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self.cancel_deadline()
        self.table.leave(self)
        super().connection_lost(exc)
        # A timer or a cycle of references would keep it, and what it has read, for a minute.
        self._unset_keepalive_if_required()
        if self.cycle is not None:
            self.cycle.body = bytearray()
            self.cycle.transport = self.transport

    def close_silent(self) -> None:
        self.cancel_deadline()
        self.is_ended = True
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self.is_ended:
            self.drop(data)
            return
        was_reading_headers = self.stage is Stage.HEADERS
        super().data_received(data)
        if self.is_ended or self.transport.is_closing():
            return
        if was_reading_headers and self.stage is Stage.HEADERS:
            # The parser keeps an unfinished header to itself; only what it was fed can be counted.
            self.header_bytes += len(data)
            if self.header_bytes > self.limits.header_bytes_max:
                self.refuse(headers_too_large(self.limits))
                return
        if self.stage is Stage.BODY and self.cycle.more_body and not self.cycle.response_complete:
            # Not one byte more before it is asked for: that comes after the caller is known.
            self.flow.pause_reading()
        self.watch()

    def watch(self) -> None:
        """Start the one deadline for what the client still has to send; a complete request starts
        none."""
        stage = self.stage
        if stage is Stage.BETWEEN and not self.is_quiet():
            self.cancel_deadline()
            return
        if self.deadline is not None:
            if self.deadline_stage is stage or stage is not Stage.BODY:
                return
            self.deadline.cancel()
        allowed_s = self.limits.body_s if stage is Stage.BODY else self.limits.headers_s
        self.deadline_stage = stage
        self.deadline = self.loop.call_later(allowed_s, self.time_is_up)

    def is_quiet(self) -> bool:
        """Nothing is being read or answered, and the keep-alive clock does not run either."""
        is_idle = self.cycle is None or self.cycle.response_complete
        return is_idle and self.timeout_keep_alive_task is None

    def cancel_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def time_is_up(self) -> None:
        self.deadline = None
        if self.transport.is_closing():
            return
        if self.stage is Stage.BODY and self.cycle.response_complete:
            self.transport.close()
            return
        part = "body" if self.stage is Stage.BODY else "headers"
        self.refuse(ApiProblem(Code.REQUEST_TIMEOUT, f"the {part} took too long to arrive"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.stage = Stage.HEADERS
        self.header_bytes = self.header_count = self.dropped_bytes = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self.limits.url_bytes_max:
            most = self.limits.url_bytes_max
            self.stop(ApiProblem(Code.URL_TOO_LONG, f"the URL may have {most} bytes at most"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.header_count += 1
        self.header_bytes += len(name) + len(value) + 4
        limits = self.limits
        if self.header_count > limits.headers_max or self.header_bytes > limits.header_bytes_max:
            self.stop(headers_too_large(limits))
        if self.stage is Stage.BODY:
            return
        if name.lower() == b"transfer-encoding" and value.lower() != b"chunked":
            self.stop(malformed("the only supported transfer encoding is chunked"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version() not in VERSIONS:
            self.stop(malformed("only HTTP/1.1 and HTTP/1.0 are supported"))
        if self.parser.should_upgrade() and self.parser.get_method() != b"GET":
            # The parser would not read its body, and the call would run without it.
            self.stop(malformed("no upgrade to another protocol is supported; leave out Upgrade"))
        if len(self.pipeline) >= self.limits.pipelined_max:
            self.stop(malformed("too many calls at once on one connection"))
        self.stage = Stage.BODY
        # Trailers are counted on their own.
        self.header_bytes = self.header_count = 0
        self.table.busy(self)
        if self.place is ConnectionSlot.RESERVED:
            self.scope[RESERVED] = True  # type: ignore[literal-required]
        super().on_headers_complete()
        if self.place is ConnectionSlot.RESERVED:
            self.cycle.keep_alive = False
        answer = OneWrite(self.transport, self.end_answered)
        cycle = self.cycle
        cycle.transport = answer  # type: ignore[assignment]
        cycle.on_response = lambda: self.answered(cycle, answer)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self.cycle.response_complete:
            self.drop(body)

    def drop(self, data: bytes) -> None:
        self.dropped_bytes += len(data)
        if self.dropped_bytes > self.limits.dropped_bytes_max:
            self.transport.close()

    def on_message_complete(self) -> None:
        self.stage = Stage.BETWEEN
        self.cancel_deadline()
        super().on_message_complete()

    def answered(self, cycle: RequestResponseCycle, answer: OneWrite) -> None:
        answer.flush()
        cycle.transport = self.transport
        self.on_response_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self.table.silent(self, is_known=PROVEN in self.cycle.scope)
            if self.stage is Stage.BODY and self.is_body_long():
                if not self.is_ended:
                    self.end()
                self.flow.pause_reading()
        # It asked whether to send its body and was told no: it may send another call instead,
        # which must not be read as that body.
        if self.stage is Stage.BODY and self.expect_100_continue and self.cycle.response_complete:
            self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """The parser reads nothing after such a call, so the connection ends with its answer."""
        self.cycle.keep_alive = False

    def stop(self, refused: ApiProblem) -> NoReturn:
        """From inside the parser: it hands our refusal to `send_400_response`."""
        self.refusal = refused
        raise ValueError(refused.detail)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 (uvicorn's words, not ours)
        self.refuse(self.refusal or malformed("the request is not valid HTTP"))

    def refuse(self, refused: ApiProblem) -> None:
        """Answer with a problem and close the connection. A complete request before it is answered
        first."""
        self.cancel_deadline()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:
                cycle.keep_alive = False
                self.flow.pause_reading()
                return
            # Its own answer is this refusal; the handler's may not follow it.
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(encoded(refused))
        self.end()

    def end_answered(self) -> None:
        """After the last answer on this connection, which may be a refusal to read the body."""
        if self.stage is Stage.BODY and not self.is_ended:
            self.end()
        else:
            self.transport.close()

    def is_body_long(self) -> bool:
        """Too long to read and drop: the client gets a while to see the answer."""
        lengths = [int(value) for name, value in self.headers if name == b"content-length"]
        return sum(lengths) > self.limits.dropped_bytes_max

    def end(self) -> None:
        """Closed at once, a client that still sends would lose the answer to a TCP reset."""
        self.cancel_deadline()
        self.is_ended = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.deadline = self.loop.call_later(self.limits.linger_s, self.transport.close)


def bounded_protocol(limits: HttpLimits) -> type[BoundedProtocol]:
    table = ConnectionTable(
        limits.connections_max, limits.connections_per_address_max, limits.connections_reserve
    )
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits, "table": table})


def crowded() -> ApiProblem:
    return later(Code.OVERLOADED, "too many connections are open; try again")


def malformed(detail: str) -> ApiProblem:
    return ApiProblem(Code.MALFORMED_REQUEST, detail)


def headers_too_large(limits: HttpLimits) -> ApiProblem:
    detail = f"{limits.headers_max} headers of {limits.header_bytes_max} bytes together at most"
    return ApiProblem(Code.HEADERS_TOO_LARGE, detail)


def encoded(refused: ApiProblem) -> bytes:
    """The whole response, for where there is no call to answer."""
    body = refused.body()
    headers = {
        "content-length": str(len(body)),
        "content-type": PROBLEM_CONTENT_TYPE.decode(),
        "connection": "close",
        **refused.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    status_line: bytes = STATUS_LINE[refused.status]
    return status_line + lines.encode("latin-1") + b"\r\n" + body
