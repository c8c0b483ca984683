"""The proxy of a chaos run: a network fault that breaks nothing would prove nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.chaos.link import DELAY_S, Link, LinkFault

LONG_S = 60.0
# A bound for what must come; and long enough to see that something does not.
PATIENCE_S = 20.0
SILENCE_S = 0.3


class Ends:
    """A caller at one end of a link, and at the other an echo that counts what it heard."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.heard = b""
        self.has_heard = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(100):
                self.heard += chunk
                self.has_heard.set()
                writer.write(chunk)

    async def call(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.link.port)
        self.writers.append(self.writer)

    async def says(self, words: bytes) -> bytes:
        self.writer.write(words)
        return await self.answer(len(words))

    async def answer(self, size: int) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readexactly(size)

    async def hears_nothing(self) -> bool:
        try:
            async with asyncio.timeout(SILENCE_S):
                return not await self.reader.read(1)
        except TimeoutError:
            return True


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    link = Link("test", 0)
    ends = Ends(link)
    server = await asyncio.start_server(ends.echo, "127.0.0.1", 0)
    link.target_port = server.sockets[0].getsockname()[1]
    await link.open()
    await ends.call()
    assert await ends.says(b"well") == b"well"
    ends.has_heard.clear()
    yield ends
    for writer in ends.writers:
        writer.transport.abort()
    await link.close()
    server.close()
    await server.wait_closed()


@contextlib.asynccontextmanager
async def suffering(link: Link, fault: LinkFault) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(link.suffer(fault, LONG_S))
    await asyncio.sleep(0)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_cut_ends_what_is_open_and_refuses_what_comes(ends: Ends) -> None:
    """A cut that only stops new calls leaves every pooled connection untouched."""
    async with suffering(ends.link, LinkFault.CUT):
        with contextlib.suppress(ConnectionError):
            assert await ends.reader.read(1) == b""
        await ends.call()
        with contextlib.suppress(ConnectionError):
            assert await ends.reader.read(1) == b""
    await ends.call()
    assert await ends.says(b"again") == b"again"


async def test_a_half_open_link_accepts_and_says_nothing(ends: Ends) -> None:
    """The fault that no error tells of: only a timeout does."""
    async with suffering(ends.link, LinkFault.HALF_OPEN):
        await ends.call()
        ends.writer.write(b"hello?")
        assert await ends.hears_nothing()
    assert ends.heard == b"well"


async def test_a_request_that_is_held_back_arrives_late(ends: Ends) -> None:
    """A settlement from before a partition reaches the server after somebody else's lease."""
    async with suffering(ends.link, LinkFault.LOSE_REQUESTS):
        ends.writer.write(b"late")
        assert await ends.hears_nothing()
        assert ends.heard == b"well"
    assert await ends.answer(4) == b"late"


async def test_an_answer_that_is_held_back_was_worked_for(ends: Ends) -> None:
    """The caller cannot know that it was done: it asks again."""
    async with suffering(ends.link, LinkFault.LOSE_ANSWERS):
        ends.writer.write(b"done")
        async with asyncio.timeout(PATIENCE_S):
            await ends.has_heard.wait()
        assert await ends.hears_nothing()
    assert await ends.answer(4) == b"done"


async def test_a_delay_keeps_every_byte(ends: Ends) -> None:
    """A slow network is no excuse for another order."""
    async with suffering(ends.link, LinkFault.DELAY):
        began = asyncio.get_running_loop().time()
        assert await ends.says(b"slow") == b"slow"
        assert asyncio.get_running_loop().time() - began >= DELAY_S
