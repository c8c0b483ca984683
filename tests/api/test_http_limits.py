"""What a connection may cost us: bytes, headers, time, other connections, other readings."""

import asyncio
import contextlib
import gc
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import pytest

from duly.api.http_limits import HttpLimits
from duly.api.server import HttpServer
from tests.api.conftest import Front
from tests.api.sockets import Caller, Echo, body_of, call, connected, listening

SMALL = HttpLimits(
    connections_max=3,
    connections_per_address_max=100,
    connections_reserve=2,
    header_bytes_max=1000,
    headers_max=10,
    url_bytes_max=200,
    headers_s=0.2,
    body_s=0.2,
    keep_alive_s=1.0,
    pipelined_max=4,
    dropped_bytes_max=5000,
)
PATIENT = replace(SMALL, headers_s=60.0, body_s=60.0, keep_alive_s=60.0)


@dataclass
class Scene:
    echo: Echo
    server: HttpServer
    port: int

    async def caller_count(self, expected: int) -> None:
        async with asyncio.timeout(5):
            while len(self.server.server_state.connections) != expected:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@pytest.fixture
async def hasty() -> AsyncIterator[Scene]:
    """Times so short that a test can wait for them."""
    echo = Echo()
    async with listening(echo.door(), SMALL) as (server, listener):
        yield Scene(echo, server, listener.port)


@pytest.fixture
async def patient() -> AsyncIterator[Scene]:
    """Time never ends anything, so that what ends is ended by a size."""
    echo = Echo()
    async with listening(echo.door(), PATIENT) as (server, listener):
        yield Scene(echo, server, listener.port)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def refused(caller: Caller, status: int, code: str) -> None:
    """A problem in our form, and then nothing more on this connection."""
    reply = await caller.reply()
    assert (reply.status, reply.code) == (status, code), reply.body
    assert reply.headers["Connection"] == "close"
    assert await caller.is_closed()


async def test_a_sound_call_is_answered_and_the_connection_kept(patient: Scene) -> None:
    """Limits that cut honest callers are an outage of our own making."""
    async with connected(patient.port) as caller:
        for text in (b"one", b"two"):
            await caller.send(call(body=text))
            assert body_of(await caller.reply())["body"] == text.decode()


async def test_a_caller_that_says_nothing_is_let_go(hasty: Scene) -> None:
    """Open connections that never speak are the cheapest way to use up a server."""
    async with connected(hasty.port) as caller:
        await refused(caller, 408, "request_timeout")


@pytest.mark.parametrize("start", [b"POST /ec", b"POST /echo HTTP/1.1\r\nHost: he", b"\r\n\r\n"])
async def test_headers_that_drip_end_in_time(hasty: Scene, start: bytes) -> None:
    """One byte now and then would hold a connection for ever if each byte wound the clock."""
    async with connected(hasty.port) as caller:
        await caller.send(start)
        dripping = asyncio.ensure_future(caller.drip(b"\r\n" if start == b"\r\n\r\n" else b"x"))
        await refused(caller, 408, "request_timeout")
        dripping.cancel()


async def test_a_body_that_drips_ends_in_time(hasty: Scene) -> None:
    """The handler waits for the body, and the connection with it."""
    async with connected(hasty.port) as caller:
        await caller.send(call(body=b"x" * 500)[:-400])
        dripping = asyncio.ensure_future(caller.drip(b"x"))
        await refused(caller, 408, "request_timeout")
        dripping.cancel()
    assert hasty.echo.seen == []


async def test_a_second_call_on_a_kept_connection_has_the_same_time(hasty: Scene) -> None:
    """Slow from the second call on is as slow as from the first."""
    async with connected(hasty.port) as caller:
        await caller.send(call())
        assert (await caller.reply()).status == 200
        await caller.send(b"POST /echo HT")
        await refused(caller, 408, "request_timeout")


async def test_a_call_that_takes_long_to_answer_is_not_hurried(hasty: Scene) -> None:
    """The clocks are for what the caller owes us, never for what we owe it."""
    async with connected(hasty.port) as caller:
        await caller.send(call("/held", method="GET"))
        await asyncio.sleep(2 * SMALL.headers_s)
        hasty.echo.release.set()
        assert (await caller.reply()).status == 200


async def test_an_idle_connection_ends_after_its_keep_alive(hasty: Scene) -> None:
    """Kept for ever, connections of callers that are long gone add up."""
    async with connected(hasty.port) as caller:
        await caller.send(call())
        assert (await caller.reply()).status == 200
        assert await caller.is_closed()


async def test_one_connection_too_many_closes_the_longest_silent_one(patient: Scene) -> None:
    """A thousand connections that say nothing would be everybody's outage."""
    async with connected(patient.port) as first, connected(patient.port), connected(patient.port):
        await patient.caller_count(3)
        async with connected(patient.port) as late:
            await late.send(call())
            assert (await late.reply()).status == 200
            assert await first.is_closed()
            await patient.caller_count(3)


async def test_headers_that_drip_are_as_good_as_silence(patient: Scene) -> None:
    """A byte now and then would keep a place for ever."""
    async with connected(patient.port) as first, connected(patient.port), connected(patient.port):
        await patient.caller_count(3)
        await first.send(b"GET /echo HT")
        async with connected(patient.port) as late:
            await late.send(call())
            assert (await late.reply()).status == 200
            assert await first.is_closed()


async def test_with_every_connection_in_use_a_few_more_are_kept_for_probes(
    patient: Scene,
) -> None:
    """A probe that is refused has the process restarted, by those who watch it."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(SMALL.connections_max):
            busy = await stack.enter_async_context(connected(patient.port))
            await busy.send(call("/held", method="GET"))
        await patient.caller_count(3)
        await until(lambda: len(patient.echo.seen) == SMALL.connections_max)
        async with connected(patient.port) as probe:
            await probe.send(call())
            reply = await probe.reply()
            assert (reply.status, reply.headers["Connection"]) == (200, "close")
        for _ in range(SMALL.connections_reserve):
            busy = await stack.enter_async_context(connected(patient.port))
            await busy.send(call("/held", method="GET"))
        await until(lambda: len(patient.echo.seen) == 3 + 1 + SMALL.connections_reserve)
        async with connected(patient.port) as late:
            reply = await late.reply()
            assert (reply.status, reply.code) == (503, "overloaded")
            assert reply.headers["Retry-After"] == "1"
            assert await late.is_closed()
        patient.echo.release.set()
    await patient.caller_count(0)


async def test_one_address_may_not_have_every_connection() -> None:
    """One machine's leak would be everybody's outage."""
    echo = Echo()
    limits = replace(PATIENT, connections_per_address_max=2)
    async with listening(echo.door(), limits) as (server, listener):
        scene = Scene(echo, server, listener.port)
        async with connected(scene.port) as first, connected(scene.port) as second:
            await scene.caller_count(2)
            async with connected(scene.port, "127.0.0.2") as other:
                await other.send(call())
                assert (await other.reply()).status == 200
                await second.send(call())
                assert (await second.reply()).status == 200
                await scene.caller_count(3)
                async with connected(scene.port) as third:
                    await third.send(call())
                    assert (await third.reply()).status == 200
                    assert await first.is_closed()
                await other.send(call())
                assert (await other.reply()).status == 200


async def test_a_refused_body_is_answered_before_the_connection_ends(patient: Scene) -> None:
    """Closed with bytes unread, the refusal is lost to a reset."""
    async with connected(patient.port) as caller:
        await caller.send(
            b"POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: 4000\r\n\r\n"
        )
        for _ in range(4):
            await caller.send(b"x" * 1000)
        assert (await caller.reply()).status == 413
        assert await caller.is_closed()


@pytest.mark.parametrize("sent", [call(), call(body=b"x" * 900)[:-500]], ids=["whole", "half"])
async def test_nothing_is_kept_of_a_connection_that_was_reset(patient: Scene, sent: bytes) -> None:
    """What it had read stayed until a timer or the collector came by: memory for a minute."""
    gc.disable()
    try:
        async with connected(patient.port) as caller:
            await caller.send(sent)
            if sent == call():
                await caller.reply()
            await patient.caller_count(1)
            kept = [weakref.ref(each) for each in patient.server.server_state.connections]
            opened = caller.writer.get_extra_info("socket")
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await until(lambda: kept[0]() is None)
    finally:
        gc.enable()


async def test_a_free_connection_is_taken_at_once(patient: Scene) -> None:
    """Those that went leave their places."""
    async with connected(patient.port):
        await patient.caller_count(1)
    await patient.caller_count(0)
    async with connected(patient.port) as again:
        await again.send(call())
        assert (await again.reply()).status == 200


def headers(count: int, size: int) -> bytes:
    lines = "".join(f"X-{number}: {'v' * size}\r\n" for number in range(count))
    return f"POST /echo HTTP/1.1\r\n{lines}\r\n".encode()


@pytest.mark.parametrize(
    "sent",
    [
        headers(11, 1),
        headers(5, 300),
        b"POST /echo HTTP/1.1\r\nX: " + b"v" * 1100 + b"\r\n\r\n",
    ],
    ids=["too many", "too large together", "one too large"],
)
async def test_too_many_or_too_large_headers_are_refused(patient: Scene, sent: bytes) -> None:
    """Headers are kept in memory until they end, before anybody is asked who calls."""
    async with connected(patient.port) as caller:
        await caller.send(call(method="GET"))
        assert (await caller.reply()).status == 200
        await caller.send(sent)
        await refused(caller, 431, "headers_too_large")
    assert patient.echo.seen == ["GET /echo"]


async def test_headers_at_the_bound_are_taken(patient: Scene) -> None:
    """One less than too many."""
    async with connected(patient.port) as caller:
        await caller.send(headers(10, 80))
        assert (await caller.reply()).status == 200


@pytest.mark.parametrize("start", [b"GET /echo HTTP/1.1\r\nX: ", b"GET /echo HTTP/1.1\r\nX"])
async def test_a_header_without_an_end_is_cut(patient: Scene, start: bytes) -> None:
    """The parser says nothing of a header before its end, and keeps all of it."""
    async with connected(patient.port) as caller:
        await caller.send(start)
        for _ in range(30):
            await caller.send(b"v" * 100)
            await asyncio.sleep(0.001)
        await refused(caller, 431, "headers_too_large")


async def test_a_long_url_is_refused(patient: Scene) -> None:
    """A URL has no end of its own either."""
    async with connected(patient.port) as caller:
        await caller.send(call("/echo?" + "x" * 200))
        await refused(caller, 414, "url_too_long")
    async with connected(patient.port) as caller:
        await caller.send(call("/echo?" + "x" * 194, method="GET"))
        assert (await caller.reply()).status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello there\r\n\r\n",
        b"GET /echo\r\n\r\n",
        b"GET /echo HTTP/3.0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /echo HTTP/1.1\nHost: a\n\n",
        b"GET /echo HTTP/1.1\r\nA b: c\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nA: b\x00c\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
        b"CONNECT other:443 HTTP/1.1\r\nHost: other\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nContent-Length: 1e2\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_told_so_in_our_form(patient: Scene, sent: bytes) -> None:
    """A line of plain text from a library is nothing that a client's error handling expects."""
    async with connected(patient.port) as caller:
        await caller.send(sent)
        await refused(caller, 400, "malformed_request")
    assert patient.echo.seen == []


INNER = b"GET /echo HTTP/1.1\r\nHost: inner\r\n\r\n"


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 6\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 6",
        b"Content-Length: 3\r\nContent-Length: 4",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: \x0bchunked",
        b"Transfer-Encoding : chunked",
        b"Content-Length: 3\r\nTransfer_Encoding: x\r\nTransfer-Encoding: chunked",
    ],
)
async def test_a_call_that_two_readers_would_cut_differently_is_refused(
    patient: Scene, framing: bytes
) -> None:
    """A proxy before us takes the hidden call for a body; we would run it with its trust."""
    async with connected(patient.port) as caller:
        await caller.send(
            b"POST /echo HTTP/1.1\r\nHost: a\r\n" + framing + b"\r\n\r\n0\r\n\r\n" + INNER
        )
        await refused(caller, 400, "malformed_request")
    assert patient.echo.seen == []


@pytest.mark.parametrize("size", [b"-1", b"0x10", b"ffffffffffffffffff", b"g"])
async def test_a_chunk_of_impossible_size_is_refused(patient: Scene, size: bytes) -> None:
    """Sizes that wrap around are how a body becomes the next call."""
    async with connected(patient.port) as caller:
        await caller.send(b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + size)
        await caller.send(b"\r\nxxxx\r\n")
        await refused(caller, 400, "malformed_request")
    assert patient.echo.seen == []


async def test_a_header_behind_the_body_is_dropped(patient: Scene) -> None:
    """A proxy that removes `X-Duly-Key` or `Authorization` looks at the headers, not behind."""
    async with connected(patient.port) as caller:
        await caller.send(
            b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\nhi\r\n0\r\nAuthorization: Bearer x\r\n\r\n"
        )
        found = body_of(await caller.reply())
    assert found["body"] == "hi"
    assert found["headers"] == ["host", "transfer-encoding"]


@pytest.mark.parametrize("name", ["Authorization", "X-Duly-Key", "Host", "Idempotency-Key"])
async def test_a_header_that_must_be_one_is_refused_twice(patient: Scene, name: str) -> None:
    """A proxy checks the first, we would use the last."""
    async with connected(patient.port) as caller:
        await caller.send(call("/echo", b"", "POST", f"{name}: a", f"{name}: b"))
        reply = await caller.reply()
    assert (reply.status, reply.code) == (400, "malformed_request")
    assert patient.echo.seen == []


async def test_a_chunked_body_over_the_limit_is_refused_before_its_end(patient: Scene) -> None:
    """Without an announced length only counting protects the memory."""
    async with connected(patient.port) as caller:
        await caller.send(b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        await caller.send(b"3e9\r\n" + b"x" * 1001 + b"\r\n")
        reply = await caller.reply()
        assert (reply.status, reply.code) == (413, "body_too_large")
        await caller.send(b"0\r\n\r\n" + call(body=b"next"))
        assert body_of(await caller.reply())["body"] == "next"
    assert patient.echo.seen == ["POST /echo"]


async def test_a_refused_body_is_not_read_without_end(patient: Scene) -> None:
    """Dropping what is sent costs a server less than it costs the caller, but not nothing."""
    async with connected(patient.port) as caller:
        await caller.send(b"POST /echo HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n")
        assert (await caller.reply()).status == 413
        for _ in range(100):
            await caller.send(b"x" * 1000)
        assert await caller.is_closed()


async def test_who_asks_before_sending_is_told_to_send(patient: Scene) -> None:
    """`Expect: 100-continue` without an answer makes a client wait for nothing."""
    sent = call("/echo", b"hello", "POST", "Expect: 100-continue")
    async with connected(patient.port) as caller:
        await caller.send(sent[:-5])
        assert (await caller.reply()).status == 100
        await caller.send(b"hello")
        assert body_of(await caller.reply())["body"] == "hello"


async def test_who_asks_before_sending_too_much_is_refused_and_not_read_on(
    patient: Scene,
) -> None:
    """The next call on that connection would be taken for the body that was never sent."""
    async with connected(patient.port) as caller:
        await caller.send(
            b"POST /echo HTTP/1.1\r\nContent-Length: 2000\r\nExpect: 100-continue\r\n\r\n"
        )
        assert (await caller.reply()).status == 413
        assert await caller.is_closed()


async def test_half_a_call_is_no_call(patient: Scene) -> None:
    """A client that dies in the middle has not asked for anything."""
    async with connected(patient.port) as caller:
        await caller.send(call(body=b"x" * 100)[:-50])
        await patient.caller_count(1)
    await patient.caller_count(0)
    assert patient.echo.seen == []


async def test_what_came_whole_is_answered_before_the_rest_is_refused(patient: Scene) -> None:
    """The refusal of a second call, read as the answer to the first, says that nothing was done."""
    async with connected(patient.port) as caller:
        await caller.send(call("/held", method="GET") + b"\x00garbage\r\n\r\n")
        async with asyncio.timeout(5):
            while not patient.echo.seen:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        patient.echo.release.set()
        assert body_of(await caller.reply())["path"] == "/held"
        assert await caller.is_closed()


async def test_calls_may_follow_each_other_up_to_a_bound(patient: Scene) -> None:
    """A packet holds thousands of tiny calls, and each costs a task and its memory."""
    async with connected(patient.port) as caller:
        await caller.send(call(method="GET") * 3)
        for _ in range(3):
            assert (await caller.reply()).status == 200
    async with connected(patient.port) as caller:
        await caller.send(call("/held", method="GET") + call(method="GET") * 50)
        patient.echo.release.set()
        answered = 0
        while not caller.reader.at_eof() and answered <= 50:
            try:
                assert (await caller.reply()).status == 200
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            answered += 1
    assert 1 <= answered <= 1 + SMALL.pipelined_max


async def test_an_upgrade_that_we_do_not_know_is_ignored_and_the_connection_ends(
    patient: Scene,
) -> None:
    """The parser goes deaf after it; a connection kept open would hang."""
    upgrade = ("Connection: Upgrade", "Upgrade: h2c")
    async with connected(patient.port) as caller:
        await caller.send(call("/echo", b"", "GET", *upgrade) + INNER)
        assert (await caller.reply()).status == 200
        assert await caller.is_closed()
    assert patient.echo.seen == ["GET /echo"]
    async with connected(patient.port) as caller:
        await caller.send(call("/echo", b"a body that would be lost", "POST", *upgrade))
        await refused(caller, 400, "malformed_request")
    assert patient.echo.seen == ["GET /echo"]


CHUNKED = b"POST /v1/tasks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n40001\r\n"


@pytest.mark.parametrize(
    "sent",
    [call("/v1/tasks", b"x" * 300_000)[:400], CHUNKED + b"x" * 0x40001],
    ids=["announced", "chunked"],
)
async def test_the_front_door_refuses_a_large_body_before_it_ends(
    front: Front, sent: bytes
) -> None:
    """Read to its end, each such body costs its size in memory before we know who calls."""
    async with connected(int(front.url.rpartition(":")[2])) as caller:
        await caller.send(sent)
        reply = await caller.reply()
        assert (reply.status, reply.code) == (401, "unauthenticated")
        known = f"Authorization: Bearer {front.producer}\r\n".encode()
    async with connected(int(front.url.rpartition(":")[2])) as caller:
        await caller.send(sent.replace(b"\r\n", b"\r\n" + known, 1))
        reply = await caller.reply()
        assert (reply.status, reply.code) == (413, "body_too_large")
