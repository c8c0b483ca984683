"""A stand-in for a transaction-mode pooler: it passes everything on, except notifications."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit, urlunsplit

NOTIFICATION = b"A"
SSL_ANSWERS = (b"N", b"S")
HEADER_BYTES = 5


class Swallower:
    def __init__(self, url: str) -> None:
        self.parts = urlsplit(url)
        self.swallowed = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.server: asyncio.Server | None = None

    async def upstream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        query = parse_qs(self.parts.query)
        host = query.get("host", [self.parts.hostname or "localhost"])[0]
        port = int(query.get("port", [self.parts.port or 5432])[0])
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await self.upstream()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            # The first request is for TLS; the test's server has none.
            await reader.readexactly(8)
            writer.write(SSL_ANSWERS[0])
            forth = asyncio.create_task(self.pass_on(reader, up_writer))
            self.tasks.add(forth)
            await self.filter(up_reader, writer)
        writer.close()
        up_writer.close()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.close()

    async def filter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            header = await reader.readexactly(HEADER_BYTES)
            body = await reader.readexactly(int.from_bytes(header[1:], "big") - 4)
            if header[:1] == NOTIFICATION:
                self.swallowed += 1
                continue
            writer.write(header + body)
            await writer.drain()

    @property
    def url(self) -> str:
        assert self.server is not None
        port = self.server.sockets[0].getsockname()[1]
        login = self.parts.netloc.rpartition("@")[0]
        return urlunsplit(self.parts._replace(netloc=f"{login}@127.0.0.1:{port}", query=""))


@contextlib.asynccontextmanager
async def swallow_notifications(url: str) -> AsyncIterator[Swallower]:
    swallower = Swallower(url)
    swallower.server = await asyncio.start_server(swallower.serve, "127.0.0.1", 0)
    try:
        yield swallower
    finally:
        swallower.server.close()
        for task in swallower.tasks:
            task.cancel()
        await asyncio.gather(*swallower.tasks, return_exceptions=True)
