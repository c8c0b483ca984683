"""A door without a database on a real port, and callers that speak to it byte by byte."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec

from duly.api.asgi import AsgiApplication, Endpoint, Kind
from duly.api.http_limits import HttpLimits
from duly.api.request import Answer, Call
from duly.api.server import HttpServer, Listener, make_server
from duly.telemetry import Metrics
from tests.api.conftest import STOP_S, Reply

BODY_BYTES_MAX = 1000
PATIENCE_S = 10.0


class Echo:
    """Answers what it was sent; `seen` is every call that reached it with a whole body.

    `/held` answers only when the test sets `release`."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.release = asyncio.Event()

    async def echo(self, call: Call) -> Answer:
        body = await call.read_body(BODY_BYTES_MAX)
        self.seen.append(f"{call.method} {call.path}")
        names = sorted(name.decode() for name in call.headers)
        return Answer(200, {"path": call.path, "body": body.decode(), "headers": names})

    async def held(self, call: Call) -> Answer:
        self.seen.append(f"{call.method} {call.path}")
        await self.release.wait()
        return Answer(200, {"path": call.path})

    def door(self) -> AsgiApplication:
        endpoints = [
            Endpoint(method="POST", path="/echo", summary="", handler=self.echo, kind=Kind.OPEN),
            Endpoint(method="GET", path="/echo", summary="", handler=self.echo, kind=Kind.OPEN),
            Endpoint(method="GET", path="/held", summary="", handler=self.held, kind=Kind.OPEN),
        ]
        nobody = cast(Any, None)
        return AsgiApplication(endpoints, nobody, nobody, Metrics())


@contextlib.asynccontextmanager
async def listening(
    door: AsgiApplication, limits: HttpLimits | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[HttpServer, Listener]]:
    listener = Listener("127.0.0.1", 0, is_secure=tls is not None)
    server = make_server(door, STOP_S, limits or HttpLimits(), tls)
    serving = asyncio.ensure_future(server.serve([listener.socket]))
    while not server.started:  # noqa: ASYNC110 (uvicorn has no signal)
        await asyncio.sleep(0.005)
    try:
        yield server, listener
    finally:
        server.should_exit = True
        await serving
        listener.close()


class Caller:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def drip(self, piece: bytes) -> None:
        """Until it is cancelled."""
        while True:
            await self.send(piece)
            await asyncio.sleep(0.02)

    async def reply(self) -> Reply:
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status_line, *lines = head.strip().split("\r\n")
            pairs = [line.partition(": ") for line in lines]
            headers = {name.title(): value for name, _, value in pairs}
            body = await self.reader.readexactly(int(headers.get("Content-Length", 0)))
        return Reply(int(status_line.split()[1]), headers, body)

    async def is_closed(self) -> bool:
        """Waits for the end; anything that is still said before it is a failure."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True


@contextlib.asynccontextmanager
async def connected(port: int, address: str = "127.0.0.1") -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    try:
        yield Caller(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def call(path: str = "/echo", body: bytes = b"", method: str = "POST", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: here", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def body_of(reply: Reply) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(reply.body)
    return found
