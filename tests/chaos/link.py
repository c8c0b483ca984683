"""A TCP proxy between two processes, which can delay, cut, fall silent, or pass one way only.

A stream loses no bytes in its middle, whatever the network does: what is held back is delivered
late (one-way) or its connection is cut when the fault ends (half-open).
"""

import asyncio
import contextlib
from enum import StrEnum

CHUNK = 65536
CONNECT_S = 5.0


class LinkFault(StrEnum):
    DELAY = "delay"
    CUT = "cut"
    HALF_OPEN = "half-open"
    LOSE_REQUESTS = "one-way-there"
    LOSE_ANSWERS = "one-way-back"


HOLDS_REQUESTS = frozenset({LinkFault.HALF_OPEN, LinkFault.LOSE_REQUESTS})
HOLDS_ANSWERS = frozenset({LinkFault.HALF_OPEN, LinkFault.LOSE_ANSWERS})
DELAY_S = 0.15


class Link:
    """`port` is where callers connect; whoever listens at `target_port` may come and go."""

    def __init__(self, name: str, target_port: int) -> None:
        self.name = name
        self.target_port = target_port
        self.port = 0
        self.fault: LinkFault | None = None
        self.has_healed = asyncio.Event()
        self.connections: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self.server = await asyncio.start_server(self.meet, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self.server.close()
        await self.cut()

    async def cut(self) -> None:
        cutting = list(self.connections)
        for connection in cutting:
            connection.cancel()
        await asyncio.gather(*cutting, return_exceptions=True)

    async def suffer(self, fault: LinkFault, for_s: float) -> None:
        """One fault at a time; a second one meanwhile finds the link broken already."""
        if self.fault is not None:
            return
        self.fault = fault
        self.has_healed.clear()
        try:
            if fault is LinkFault.CUT:
                await self.cut()
            await asyncio.sleep(for_s)
            if fault is LinkFault.HALF_OPEN:
                await self.cut()
        finally:
            self.fault = None
            self.has_healed.set()

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            if self.fault is not LinkFault.CUT:
                with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):
                    await self.join(reader, writer)
        finally:
            self.connections.discard(task)
            writer.transport.abort()

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Both directions, until either end is done with the other."""
        async with asyncio.timeout(CONNECT_S):
            theirs, ours = await asyncio.open_connection("127.0.0.1", self.target_port)
        ways = [
            asyncio.ensure_future(self.carry(reader, ours, HOLDS_REQUESTS)),
            asyncio.ensure_future(self.carry(theirs, writer, HOLDS_ANSWERS)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            ours.transport.abort()

    async def carry(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        held_by: frozenset[LinkFault],
    ) -> None:
        while chunk := await source.read(CHUNK):
            if self.fault is LinkFault.DELAY:
                await asyncio.sleep(DELAY_S)
            while self.fault in held_by:
                await self.has_healed.wait()
            sink.write(chunk)
            await sink.drain()
