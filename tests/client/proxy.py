"""A TCP proxy before a server, which can fall silent, cut its connections, or lose answers."""

import asyncio
import contextlib
from types import TracebackType
from urllib.parse import urlsplit

CHUNK = 65536


class Proxy:
    """`is_silent`: nothing is passed on, either way. `loses`: answers to such a request are cut
    after the server has worked on it; how often is counted in `lost`."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        self.target = (address.hostname, address.port)
        self.is_silent = False
        self.loses = b""
        self.loses_max = 1
        self.lost = 0
        self.has_changed = asyncio.Event()
        self.connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Proxy":
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.server.close()
        self.cut()
        await asyncio.gather(*self.connections, return_exceptions=True)

    def fall_silent(self) -> None:
        self.is_silent = True

    def speak(self) -> None:
        self.is_silent = False
        self.has_changed.set()

    def cut(self) -> None:
        for connection in self.connections:
            connection.cancel()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self.pass_on(reader, writer)
        finally:
            self.connections.discard(task)
            writer.transport.abort()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(*self.target)
        asked = bytearray()
        try:
            async with asyncio.TaskGroup() as group:
                there = group.create_task(self.copy(reader, ours, asked))
                await self.copy(theirs, writer, asked, is_answer=True)
                there.cancel()
        finally:
            ours.transport.abort()

    async def copy(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        asked: bytearray,
        *,
        is_answer: bool = False,
    ) -> None:
        while chunk := await source.read(CHUNK):
            while self.is_silent:
                self.has_changed.clear()
                await self.has_changed.wait()
            if is_answer:
                if self.loses and self.loses in asked and self.lost < self.loses_max:
                    self.lost += 1
                    return
                asked.clear()
            else:
                asked += chunk
            sink.write(chunk)
            await sink.drain()
