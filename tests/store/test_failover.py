"""A database URL with several hosts: one that hangs hides no other, and none is waited for."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from duly.domain.errors import DatabaseUnavailable
from duly.store import failover, hosts
from duly.store.bootstrap import EMBEDDED_LOGIN
from duly.store.database import Database, address_of, connect
from duly.store.failover import FailoverWatch
from duly.store.hosts import Hosts, urls_by_host
from tests.chaos.link import Link, LinkFault
from tests.servers import PASSWORD

SOON_S = 10.0
LONG_S = 3600.0


class TwoHosts:
    """Two ways to one server, as if they were two; each can fall silent."""

    def __init__(self, links: list[Link], name: str) -> None:
        self.links = links
        ports = ",".join(f"127.0.0.1:{link.port}" for link in links)
        self.url = f"postgresql://{EMBEDDED_LOGIN}:{PASSWORD}@{ports}/{name}?sslmode=disable"
        self.faults: list[asyncio.Task[None]] = []

    async def silence(self, number: int) -> None:
        link = self.links[number]
        self.faults.append(asyncio.create_task(link.suffer(LinkFault.HALF_OPEN, LONG_S)))
        await asyncio.sleep(0)


@pytest.fixture
async def two(
    owner: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[TwoHosts]:
    monkeypatch.setattr(hosts, "HOST_TIMEOUT_S", 0.5)
    monkeypatch.setattr(failover, "ANSWER_MAX_S", 0.2)
    port = int(await owner.fetchval("SELECT current_setting('port')"))
    links = [Link("one", port), Link("two", port)]
    for link in links:
        await link.open()
    made = TwoHosts(links, str(await owner.fetchval("SELECT current_database()")))
    yield made
    for fault in made.faults:
        fault.cancel()
    await asyncio.gather(*made.faults, return_exceptions=True)
    # What was held back learns that its other end has gone.
    async with asyncio.timeout(SOON_S):
        while any(link.connections for link in links):  # noqa: ASYNC110 (it has no signal)
            await asyncio.sleep(0.01)
    for link in links:
        await link.close()


async def test_a_first_host_that_hangs_hides_no_other(two: TwoHosts) -> None:
    """The driver gives all hosts one timeout: a machine without power used it up, for ever."""
    await two.silence(0)
    async with asyncio.timeout(SOON_S):
        connection = await connect(two.url)
        await connection.close()


async def test_the_host_that_answered_last_is_asked_first(two: TwoHosts) -> None:
    """Every connection would wait for the dead one again."""
    known = Hosts(two.url)
    await two.silence(0)
    for _ in range(2):
        connection = await known.connect()
        connection.terminate()
    assert (known.chosen, known.changes) == (1, 1)


async def test_statements_on_a_silent_host_end_when_another_answers(two: TwoHosts) -> None:
    """Half-open connections kept every pool busy for the whole statement timeout of 30 s."""
    known = Hosts(two.url)
    pools = [await Database.open(two.url, 2, hosts=known) for _ in range(2)]
    watch = FailoverWatch(pools)
    try:
        await watch.tick()
        stuck = [
            asyncio.create_task(pool.fetch("SELECT pg_sleep(3600)"))
            for pool in pools
            for _ in range(2)
        ]
        await asyncio.sleep(0.1)
        await two.silence(0)
        async with asyncio.timeout(SOON_S):
            await watch.tick()
            ended = await asyncio.gather(*stuck, return_exceptions=True)
            assert [type(each) for each in ended] == [DatabaseUnavailable] * 4
            for pool in pools:
                assert await pool.fetch("SELECT 1")
    finally:
        await watch.close()
        for pool in pools:
            await pool.close()


async def test_connections_are_left_alone_while_no_host_answers(two: TwoHosts) -> None:
    """A stalled disk of the only primary is no fail-over: what waits for it may be answered."""
    pool = await Database.open(two.url, 2)
    watch = FailoverWatch([pool])
    try:
        await watch.tick()
        await two.silence(0)
        await two.silence(1)
        with pytest.raises(DatabaseUnavailable):
            await watch.tick()
        assert [connection.is_closed() for connection, _ in pool.connections.idle] == [False]
    finally:
        await watch.close()
        pool.connections.terminate()


def test_hosts_before_the_path_are_taken_apart() -> None:
    """Login, database and options belong to each of them."""
    assert urls_by_host("postgresql://u:p@one:1,two/db?target_session_attrs=read-write") == [
        "postgresql://u:p@one:1/db?target_session_attrs=read-write",
        "postgresql://u:p@two/db?target_session_attrs=read-write",
    ]
    for alone in ("postgresql://u@/db?host=%2Ftmp", "postgresql://u@[broken/x", "nonsense"):
        assert urls_by_host(alone) == [alone]
    assert address_of("postgresql://u:secret@one:1,two:2/db?x=1") == "one:1,two:2/db"
