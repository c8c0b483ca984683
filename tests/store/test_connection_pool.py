"""Lending connections: nobody gets a broken one, nobody waits for ever, and no more are open than
was said."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from duly.store import connection_pool as module
from duly.store.connection_pool import Connections, OpenTransaction
from duly.store.database import open_session
from duly.store.hosts import Hosts

MOST = 2
SOON_S = 10.0


@pytest.fixture
async def connections(engine_url: str) -> AsyncIterator[Connections]:
    lent_out = Connections(lambda: open_session(Hosts(engine_url), is_pooled=False), MOST)
    yield lent_out
    lent_out.terminate()


async def pid_of(connection: asyncpg.Connection) -> int:
    pid: int = await connection.fetchval("SELECT pg_backend_pid()")
    return pid


async def test_no_more_are_opened_than_may_be(connections: Connections) -> None:
    """A server has few; one process that takes them all starves the others."""
    pids: list[int] = []

    async def ask() -> None:
        async with connections.acquire() as connection:
            pids.append(await pid_of(connection))

    async with asyncio.timeout(SOON_S):
        await asyncio.gather(*(ask() for _ in range(20)))
    assert len(pids) == 20
    assert len(set(pids)) == MOST


async def test_who_has_waited_longest_is_next(connections: Connections) -> None:
    """Otherwise one caller may wait for as long as others keep asking."""
    order: list[int] = []

    async def ask(number: int) -> None:
        async with connections.acquire():
            order.append(number)

    async with connections.acquire(), connections.acquire():
        waiting = [asyncio.create_task(ask(number)) for number in range(5)]
        await asyncio.sleep(0)
        assert order == []
    async with asyncio.timeout(SOON_S):
        await asyncio.gather(*waiting)
    assert order == list(range(5))


async def test_the_last_one_given_back_is_lent_first(connections: Connections) -> None:
    """It has its plans, and the server's caches are warm for it."""
    async with connections.acquire() as first, connections.acquire():
        pass
    async with connections.acquire() as again:
        assert again is first


async def test_one_that_broke_while_nobody_used_it_is_not_lent(
    connections: Connections, owner: asyncpg.Connection
) -> None:
    """After a restart of the server the first statements must not fail for it."""
    async with connections.acquire() as broken:
        pid = await pid_of(broken)
    await owner.execute("SELECT pg_terminate_backend($1)", pid)
    async with asyncio.timeout(SOON_S):
        while not broken.is_closed():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    async with connections.acquire() as other:
        assert await other.fetchval("SELECT 1") == 1
        assert len(connections.lent) == 1


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (asyncio.CancelledError(), True),
        (GeneratorExit(), True),
        (TimeoutError(), True),
        (asyncpg.InternalClientError("another operation is in progress"), True),
        (asyncpg.UniqueViolationError("answered"), False),
        (KeyError("our own"), False),
    ],
)
async def test_an_interrupted_connection_is_ended_and_an_answered_one_kept(
    connections: Connections, error: BaseException, ends: bool
) -> None:
    """Nothing is reset: one that was cut off in mid-answer would fail the next caller."""
    with pytest.raises(type(error)):
        async with connections.acquire() as connection:
            raise error
    assert connection.is_closed() is ends
    async with connections.acquire() as other:
        assert (other is connection) is not ends


async def test_a_statement_cancelled_in_flight_takes_its_connection_along(
    connections: Connections,
) -> None:
    """What it would still answer would be taken for the answer to the next statement."""

    async def ask() -> None:
        async with connections.acquire() as connection:
            is_asking.set_result(connection)
            await connection.execute("SELECT pg_sleep(60)")

    is_asking: asyncio.Future[asyncpg.Connection] = asyncio.get_running_loop().create_future()
    asking = asyncio.create_task(ask())
    interrupted = await is_asking
    await asyncio.sleep(0.05)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert interrupted.is_closed()
    async with asyncio.timeout(SOON_S), connections.acquire() as one, connections.acquire():
        assert await one.fetchval("SELECT 1") == 1


async def test_one_whose_transaction_could_not_be_begun_is_ended(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver would take every later one for a part of it, and fail for ever."""

    async def refuse(_connection: asyncpg.Connection, _statement: str, **_facts: object) -> None:
        raise asyncpg.QueryCanceledError("canceling statement due to user request")

    async with connections.acquire() as connection:
        with monkeypatch.context() as patch:
            patch.setattr(asyncpg.Connection, "execute", refuse)
            with pytest.raises(asyncpg.QueryCanceledError):
                await OpenTransaction(connection).__aenter__()
    assert connection.is_closed()
    async with connections.acquire() as other, OpenTransaction(other):
        assert await other.fetchval("SELECT 1") == 1


async def test_one_that_comes_back_inside_a_transaction_is_ended(connections: Connections) -> None:
    """The next statement would wait for a commit that nobody sends."""
    async with connections.acquire() as connection:
        await connection.execute("BEGIN")
    assert connection.is_closed()
    async with connections.acquire() as other:
        assert not other.is_in_transaction()


async def test_who_waits_tries_itself_when_opening_failed(engine_url: str) -> None:
    """While a server starts, one refusal must not be everybody's, nor use up the room."""
    failures = [ConnectionRefusedError("not yet")]

    async def open_one() -> asyncpg.Connection:
        await asyncio.sleep(0)
        if failures:
            raise failures.pop()
        return await open_session(Hosts(engine_url), is_pooled=False)

    lent_out = Connections(open_one, 1)

    async def ask() -> int:
        async with lent_out.acquire() as connection:
            return await pid_of(connection)

    async with asyncio.timeout(SOON_S):
        first, second = await asyncio.gather(ask(), ask(), return_exceptions=True)
    assert isinstance(first, ConnectionRefusedError)
    assert isinstance(second, int)
    await lent_out.close()


async def test_who_gives_up_waiting_leaves_the_room_to_others(connections: Connections) -> None:
    async with connections.acquire(), connections.acquire():
        waiting = asyncio.create_task(connections.take())
        await asyncio.sleep(0)
        waiting.cancel()
    async with asyncio.timeout(SOON_S), connections.acquire(), connections.acquire():
        assert len(connections.lent) == MOST
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_what_was_not_needed_for_a_while_is_ended(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst should not hold a server's connections for ever."""
    async with connections.acquire() as last, connections.acquire() as oldest:
        pass
    async with connections.acquire() as again:
        assert again is last
        monkeypatch.setattr(module, "IDLE_MAX_S", 0.0)
    assert oldest.is_closed()
    assert not last.is_closed()


async def test_one_that_grew_old_while_nobody_asked_is_not_lent(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something on the way may have forgotten it, and its statement would wait for an answer."""
    async with connections.acquire() as old:
        pass
    monkeypatch.setattr(module, "IDLE_MAX_S", -1.0)
    async with connections.acquire() as other:
        assert other is not old
    assert old.is_closed()


async def test_closing_waits_for_what_is_lent_and_then_lends_nothing(
    connections: Connections,
) -> None:
    """A statement under way is answered; one that comes later is told at once."""
    async with connections.acquire() as lent:
        closing = asyncio.create_task(connections.close())
        await asyncio.sleep(0)
        with pytest.raises(asyncpg.InterfaceError):
            await connections.take()
        assert await lent.fetchval("SELECT 1") == 1
        assert not closing.done()
    async with asyncio.timeout(SOON_S):
        await closing
        with pytest.raises(asyncpg.InterfaceError):
            await connections.take()
        await connections.close()
    assert lent.is_closed()


async def test_ending_all_tells_those_who_wait(connections: Connections) -> None:
    """A stop is bounded, also for those who never got a connection."""
    async with connections.acquire(), connections.acquire() as lent:
        waiting = asyncio.create_task(connections.take())
        await asyncio.sleep(0)
        connections.terminate()
        assert lent.is_closed()
    async with asyncio.timeout(SOON_S):
        with pytest.raises(asyncpg.InterfaceError):
            await waiting


async def test_closing_that_is_interrupted_ends_all(connections: Connections) -> None:
    """A fast stop leaves no session behind on the server."""
    async with connections.acquire() as idle:
        pass
    async with connections.acquire() as lent, connections.acquire():
        closing = asyncio.create_task(connections.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert lent.is_closed()
    assert idle.is_closed()


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["ended", "cancelled"])
async def test_one_that_is_being_opened_is_not_forgotten(
    engine_url: str, is_cancelled: bool
) -> None:
    """Opened after the end, nobody would close it; given up half-way, its room would be lost."""
    opened: list[asyncpg.Connection] = []
    may_go_on = asyncio.Event()

    async def open_slowly() -> asyncpg.Connection:
        await may_go_on.wait()
        opened.append(await open_session(Hosts(engine_url), is_pooled=False))
        return opened[-1]

    lent_out = Connections(open_slowly, 1)
    taking = asyncio.create_task(lent_out.take())
    await asyncio.sleep(0)
    if is_cancelled:
        taking.cancel()
    else:
        lent_out.terminate()
    may_go_on.set()
    async with asyncio.timeout(SOON_S):
        with pytest.raises(asyncio.CancelledError if is_cancelled else asyncpg.InterfaceError):
            await taking
        if is_cancelled:
            async with lent_out.acquire() as other:
                assert await other.fetchval("SELECT 1") == 1
        await lent_out.close()
    assert all(connection.is_closed() for connection in opened)
    assert len(opened) == 1
