"""A receiver of webhooks on a real socket: keeps what it got, answers as it is told, byte by byte.

It speaks HTTP by hand, so that it can also do what no HTTP server would.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

LOOPBACK = "127.0.0.1"
PATIENCE_S = 10.0


@dataclass
class Request:
    """`headers` in lower case; `reader` ends when whoever sent it hangs up."""

    path: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader


Behave = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


def answer(status: int, body: bytes = b"", **headers: str) -> Behave:
    """A plain answer; `Retry_After="5"` is the header Retry-After."""

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await writer.drain()

    return behave


def raw(*pieces: bytes) -> Behave:
    """These bytes, whatever they are, and then the end of the connection."""

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
        await writer.drain()
        writer.close()

    return behave


async def hang(request: Request, writer: asyncio.StreamWriter) -> None:
    """Not a word, until the other end has had enough."""
    await request.reader.read()


@dataclass
class Receiver:
    """`connections` counts everybody who knocked, also those who said nothing."""

    host: str = LOOPBACK
    port: int = 0
    scheme: str = "http"
    behave: Behave = field(default_factory=lambda: answer(200, b"ok"))
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    present: int = 0
    present_most: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}/hook"

    async def until_present(self, count: int) -> None:
        while self.present < count:
            self.arrived.clear()
            await asyncio.wait_for(self.arrived.wait(), PATIENCE_S)

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while request := await read_request(reader):
                self.requests.append(request)
                self.present += 1
                self.present_most = max(self.present, self.present_most)
                self.arrived.set()
                try:
                    await self.behave(request, writer)
                finally:
                    self.present -= 1
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            self.left.set()
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return Request(first.split(" ")[1], headers, body, reader)


@contextlib.asynccontextmanager
async def receiving(
    host: str = LOOPBACK, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    receiver = Receiver(host, scheme="http" if tls is None else "https")
    meetings: set[asyncio.Task[None]] = set()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        meetings.add(task)
        # Ended here, not by the stream's own callback, which would log the cancellation of a test.
        with contextlib.suppress(asyncio.CancelledError):
            await receiver.meet(reader, writer)
        meetings.discard(task)

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = await asyncio.start_server(meet, host, port, family=family, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in list(meetings):
            task.cancel()
        await asyncio.gather(*meetings, return_exceptions=True)
        await server.wait_closed()
