"""The client's own HTTP, against servers that answer exactly what a test says."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import duly.client.http_pool as http_pool
from duly.client.http_pool import IDLE_S_MAX, HttpFault, HttpPool

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BAD = (
    b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    b"HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n",
    b"HTTP/1.1 200 OK\r\nx: " + b"y" * (http_pool.HEAD_BYTES_MAX + 1) + b"\r\n\r\n",
)


class ScriptedServer:
    """Answers each request with the next text; after `None` it closes the connection."""

    def __init__(self, answers: list[bytes | None]) -> None:
        self.answers = answers
        self.requests: list[bytes] = []
        self.connections = 0
        self.closed = asyncio.Event()
        self.serving: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.ensure_future(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                self.requests.append(head + await reader.readexactly(int(length or 0)))
                answer = self.answers.pop(0)
                if answer is None:
                    break
                writer.write(answer)
                if self.answers and self.answers[0] is None:
                    self.answers.pop(0)
                    break
            else:
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.closed.set()


@asynccontextmanager
async def scripted(*answers: bytes | None) -> AsyncIterator[tuple[ScriptedServer, HttpPool]]:
    script = ScriptedServer(list(answers))
    server = await asyncio.start_server(script.accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = HttpPool(f"http://127.0.0.1:{port}/base", {"Authorization": "Bearer k"})
    try:
        yield script, pool
    finally:
        await pool.close()
        server.close()
        await asyncio.wait_for(asyncio.gather(*script.serving), 5.0)


async def get(pool: HttpPool, path: str = "/x", timeout_s: float = 5.0) -> bytes:
    return (await pool.request("GET", path, None, {}, timeout_s)).content


async def test_calls_share_a_connection_and_carry_what_was_asked() -> None:
    """A connection for each call costs a handshake each, and ports until none is left."""
    async with scripted(
        OK, b"HTTP/1.1 201 Created\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"
    ) as (
        script,
        pool,
    ):
        assert await get(pool) == b"{}"
        answer = await pool.request("POST", "/v1/tasks", b"{}", {"Idempotency-Key": "a"}, 5.0)
        assert (answer.status, answer.headers["retry-after"]) == (201, "7")
        assert script.connections == 1
        assert script.requests[0].startswith(b"GET /base/x HTTP/1.1\r\nHost: 127.0.0.1:")
        assert b"Authorization: Bearer k\r\n" in script.requests[1]
        assert script.requests[1].endswith(b"Idempotency-Key: a\r\nContent-Length: 2\r\n\r\n{}")


async def test_each_way_to_end_an_answer_is_understood() -> None:
    """A proxy in between chooses how the answer is sent, whatever the server chose."""
    chunked = CHUNKED + b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nt: 1\r\n\r\n"
    until_closed = b"HTTP/1.0 200 OK\r\n\r\nto the end"
    early = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK
    empty = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with scripted(chunked, early, empty, until_closed, None, OK) as (script, pool):
        answers = [await get(pool) for _ in range(5)]
        assert answers == [b"abcde", b"{}", b"", b"to the end", b"{}"]
        assert script.connections == 2


async def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    """A server closes what was silent for a while: the next call must not find that out."""
    async with scripted(OK, None, OK) as (script, pool):
        await get(pool)
        await asyncio.wait_for(script.closed.wait(), 5.0)
        assert await pool.kept[0].reader.read() == b"", "the end has arrived here, too"
        await get(pool)
        assert script.connections == 2


async def test_a_connection_that_was_silent_for_long_is_not_used_again() -> None:
    """Something in between may have forgotten it, and would swallow the request."""
    async with scripted(OK, OK) as (script, pool):
        await get(pool)
        (kept,) = pool.kept
        pool.kept[0] = kept._replace(since=kept.since - IDLE_S_MAX)
        script.answers.append(OK)
        await get(pool)
        assert script.connections == 2


async def test_a_call_whose_time_is_up_leaves_no_half_answer_behind() -> None:
    """The next call would read the rest of this answer as its own."""
    async with scripted(OK[:-1], OK) as (script, pool):
        with pytest.raises(TimeoutError):
            await get(pool, timeout_s=0.05)
        assert pool.kept == []
        assert await get(pool) == b"{}"
        assert script.connections == 2


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: repr(bad[:40]))
async def test_what_is_no_answer_is_a_fault_and_ends_the_connection(bad: bytes) -> None:
    """A port of another program, or a broken proxy, must not look like an answer of duly."""
    async with scripted(bad, None) as (_, pool):
        with pytest.raises(HttpFault):
            await get(pool)
        assert pool.kept == []


async def test_an_answer_that_breaks_off_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a document decoded as a whole one is worse than no answer."""
    async with scripted(OK[:-1], None) as (_, pool):
        with pytest.raises(HttpFault):
            await get(pool)
    monkeypatch.setattr(http_pool, "ANSWER_BYTES_MAX", 3)
    for long in (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n2\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nlong",
    ):
        async with scripted(long, None) as (_, pool):
            with pytest.raises(HttpFault, match="larger"):
                await get(pool)


async def test_more_calls_than_connections_wait_for_one_another() -> None:
    """A burst of calls must not open a connection for each."""
    async with scripted(*[OK] * 20) as (script, pool):
        pool.room = asyncio.Semaphore(2)
        await asyncio.gather(*(get(pool) for _ in range(10)))
        assert script.connections <= 2


@pytest.mark.parametrize(
    "path", ["/x\r\nX-Evil: 1", "/x HTTP/1.1\r\n\r\n", "/é", "/a#b"], ids=lambda path: repr(path)
)
async def test_a_path_cannot_become_another_request(path: str) -> None:
    """An id comes from a user; a line break in it would be a header, or a request, of theirs."""
    async with scripted(OK) as (script, pool):
        await get(pool, path)
        (request,) = script.requests
        assert request.count(b"\r\n") == 4
        assert request.split(b"\r\n")[0].count(b" ") == 2
        assert b"#" not in request


@pytest.mark.parametrize(
    "make",
    [lambda: HttpPool("http://h", {"A": "b\r\nc"}), lambda: HttpPool("http://h", {"A": "é"})],
)
def test_a_header_cannot_become_another_header(make: Callable[[], HttpPool]) -> None:
    """A key that was read from a file with a line break must be refused, and not repeated."""
    with pytest.raises(ValueError, match="the header A"):
        make()
