"""`ctx.once` over every driver: the effect and its record stand or fall together, and once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from duly.client import inbox
from duly.client.context import Context
from duly.client.drivers import is_awaited
from duly.client.inbox import FirstNotAsked, NoTransaction, StaleFence
from duly.client.leased_tasks import LeasedTask
from duly.domain.errors import ConfigurationError
from tests.store.test_idempotency import wait_until_blocked

pytestmark = pytest.mark.slow

EFFECT = "INSERT INTO effects VALUES ('charged')"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def attempt(key: str = "order-7", *, task_id: str = "t-1", fence: int = 1) -> Context:
    task = LeasedTask(
        id=task_id,
        fence=fence,
        attempt=1,
        max_attempts=5,
        type="order.charge",
        scheduled_for=NOW,
        started_at=NOW,
        lease_until=NOW,
        timeout_s=60.0,
        execution_key=key,
    )
    return Context(task, lambda _: None)


class Trade(NamedTuple):
    """One driver's open transaction."""

    connection: Any
    execute: Callable[[str], Awaitable[Any]]
    commit: Callable[[], Awaitable[Any]]
    rollback: Callable[[], Awaitable[Any]]

    @contextlib.asynccontextmanager
    async def once(self, context: Context, **more: Any) -> AsyncIterator[Any]:
        made = context.once(self.connection, **more)
        if is_awaited(self.connection):
            async with made as first:
                yield first
        else:
            with made as first:
                yield first

    async def charge(self, context: Context, step: str = "charge", **more: Any) -> bool:
        """What a handler does; whether it acted."""
        async with self.once(context, step=step, **more) as first:
            if first:
                await self.execute(EFFECT)
                return True
            return False


def in_thread(work: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    return lambda *arguments: asyncio.to_thread(work, *arguments)


@contextlib.asynccontextmanager
async def over_psycopg(url: str) -> AsyncIterator[Trade]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        works = [in_thread(each) for each in (connection.commit, connection.rollback)]
        yield Trade(connection, in_thread(connection.execute), *works)


@contextlib.asynccontextmanager
async def over_async_psycopg(url: str) -> AsyncIterator[Trade]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield Trade(connection, connection.execute, connection.commit, connection.rollback)


@contextlib.asynccontextmanager
async def over_asyncpg(url: str) -> AsyncIterator[Trade]:
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
    ):
        transaction = connection.transaction()
        await transaction.start()
        yield Trade(connection, connection.execute, transaction.commit, transaction.rollback)


def text_of(execute: Callable[..., Any]) -> Callable[[str], Any]:
    return lambda statement: execute(sqlalchemy.text(statement))


@contextlib.asynccontextmanager
async def over_sqlalchemy(url: str) -> AsyncIterator[Trade]:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    with contextlib.closing(engine.connect()) as connection:
        works = [in_thread(each) for each in (connection.commit, connection.rollback)]
        yield Trade(connection, in_thread(text_of(connection.execute)), *works)
    engine.dispose()


@contextlib.asynccontextmanager
async def over_sqlalchemy_session(url: str) -> AsyncIterator[Trade]:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    with Session(engine) as session:
        works = [in_thread(each) for each in (session.commit, session.rollback)]
        yield Trade(session, in_thread(text_of(session.execute)), *works)
    engine.dispose()


@contextlib.asynccontextmanager
async def over_async_sqlalchemy(url: str) -> AsyncIterator[Trade]:
    pytest.importorskip("greenlet", reason="SQLAlchemy's asyncio needs greenlet")
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(url)
    )
    try:
        async with engine.connect() as connection:
            execute = text_of(connection.execute)
            yield Trade(connection, execute, connection.commit, connection.rollback)
    finally:
        await engine.dispose()


@contextlib.asynccontextmanager
async def over_async_sqlalchemy_session(url: str) -> AsyncIterator[Trade]:
    pytest.importorskip("greenlet", reason="SQLAlchemy's asyncio needs greenlet")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(
        "postgresql+psycopg://", async_creator=lambda: psycopg.AsyncConnection.connect(url)
    )
    try:
        async with AsyncSession(engine) as session:
            yield Trade(session, text_of(session.execute), session.commit, session.rollback)
    finally:
        await engine.dispose()


TRADES = [
    over_psycopg,
    over_async_psycopg,
    over_asyncpg,
    over_sqlalchemy,
    over_sqlalchemy_session,
    over_async_sqlalchemy,
    over_async_sqlalchemy_session,
]
Over = Callable[[str], contextlib.AbstractAsyncContextManager[Trade]]
each_driver = pytest.mark.parametrize("over", TRADES, ids=lambda over: over.__name__)


@pytest.fixture
async def user(empty_url: str) -> AsyncIterator[asyncpg.Connection]:
    """The user's own database, which duly never touched."""
    connection = await asyncpg.connect(empty_url)
    await connection.execute("CREATE TABLE effects (name text NOT NULL)")
    yield connection
    await connection.close()


async def effects(user: asyncpg.Connection) -> int:
    count: int = await user.fetchval("SELECT count(*) FROM effects")
    return count


@each_driver
async def test_a_second_delivery_skips_the_effect(
    over: Over, empty_url: str, user: asyncpg.Connection
) -> None:
    """A customer who is charged twice does not care which of the two was the retry."""
    async with over(empty_url) as trade:
        assert await trade.charge(attempt(fence=1))
        await trade.commit()
    async with over(empty_url) as trade:
        assert not await trade.charge(attempt(fence=3))
        assert await trade.charge(attempt(fence=3), step="mail"), "another step is another effect"
        assert await trade.charge(attempt("order-8")), "and so is another execution"
        await trade.commit()
    assert await effects(user) == 3


@each_driver
async def test_what_is_rolled_back_was_not_done(
    over: Over, empty_url: str, user: asyncpg.Connection
) -> None:
    """A record without its effect would make every later attempt skip what never happened."""
    async with over(empty_url) as trade:
        assert await trade.charge(attempt())
        await trade.rollback()
    assert await effects(user) == 0
    async with over(empty_url) as trade:
        assert await trade.charge(attempt(fence=3))
        await trade.commit()
    assert await effects(user) == 1


@each_driver
async def test_an_effect_that_raises_takes_its_record_along(
    over: Over, empty_url: str, user: asyncpg.Connection
) -> None:
    """The handler catches, goes on and commits: the record must not outlive the effect."""
    async with over(empty_url) as trade:
        await trade.execute("INSERT INTO effects VALUES ('before')")
        for fault in ("SELECT 1 / 0", "INSERT INTO effects VALUES (NULL)"):
            with pytest.raises(Exception, match=r"zero|null"):
                await fail(trade, fault)
        await trade.commit()
    assert await effects(user) == 1, "what was done before the block is kept"
    async with over(empty_url) as trade:
        assert await trade.charge(attempt(fence=3))


async def fail(trade: Trade, fault: str) -> None:
    async with trade.once(attempt(), step="charge") as first:
        assert first
        await trade.execute(EFFECT)
        await trade.execute(fault)


@each_driver
async def test_two_deliveries_at_once_act_once(
    over: Over, empty_url: str, user: asyncpg.Connection
) -> None:
    """A paused worker wakes up while its successor is in the middle of the same step."""
    await inbox.acreate_table(user)
    for end in ("rollback", "commit"):
        key = f"order-{end}"
        transaction = user.transaction()
        await transaction.start()
        async with attempt(key).once(user, step="charge") as first:
            assert first
        watcher = await asyncpg.connect(empty_url)
        try:
            charging = asyncio.create_task(charge_in_thread(over, empty_url, key))
            await wait_until_blocked(watcher)
        finally:
            await watcher.close()
        await getattr(transaction, end)()
        async with asyncio.timeout(10):
            assert await charging == (end == "rollback")


async def charge_in_thread(over: Over, url: str, key: str) -> bool:
    """In a loop of its own: a plain driver blocks it while it waits."""

    async def charge() -> bool:
        async with over(url) as trade:
            acted = await trade.charge(attempt(key, fence=3))
            await trade.commit()
            return acted

    return await asyncio.to_thread(asyncio.run, charge())


async def test_a_hundred_deliveries_at_once_act_once_and_make_one_table(
    empty_url: str, user: asyncpg.Connection
) -> None:
    """The first use of all, by everybody together: they must not trip over the new table."""

    async def deliver(pool: asyncpg.Pool, fence: int) -> bool:
        async with (
            pool.acquire() as connection,
            connection.transaction(),
            attempt(fence=fence).once(connection, step="charge") as first,
        ):
            if first:
                await connection.execute(EFFECT)
                return True
            return False

    async with asyncpg.create_pool(empty_url, min_size=8, max_size=8) as pool:
        acted = await asyncio.gather(*(deliver(pool, fence) for fence in range(100)))
    assert acted.count(True) == await effects(user) == 1


@each_driver
async def test_an_old_attempt_is_refused_once_a_newer_one_was_here(
    over: Over, empty_url: str, user: asyncpg.Connection
) -> None:
    """A zombie must not do the steps that its successor has not come to yet."""
    async with over(empty_url) as trade:
        assert await trade.charge(attempt(fence=5), fenced=True)
        await trade.commit()
    async with over(empty_url) as trade:
        with pytest.raises(StaleFence):
            await trade.charge(attempt(fence=3), step="mail", fenced=True)
        assert await trade.charge(attempt(fence=5), step="mail", fenced=True)
        # A replay of a dead letter is another task with the same key; its fences begin anew.
        assert not await trade.charge(attempt(task_id="t-2", fence=1), fenced=True)
        assert await trade.charge(attempt(task_id="t-2", fence=1), step="post", fenced=True)
        await trade.commit()
    assert await effects(user) == 3


@each_driver
async def test_a_block_that_never_asks_is_noticed_at_its_first_run(
    over: Over, empty_url: str, user: asyncpg.Connection
) -> None:
    """Without `if first:` the effect happens in every delivery, and only production finds out."""
    async with over(empty_url) as trade:
        with pytest.raises(FirstNotAsked):
            async with trade.once(attempt(), step="charge"):
                await trade.execute(EFFECT)
        await trade.commit()
    assert await effects(user) == 0


async def test_without_a_transaction_nothing_is_done(
    empty_url: str, user: asyncpg.Connection
) -> None:
    """Each statement its own commit: a crash between record and effect loses the effect."""
    with pytest.raises(NoTransaction):
        await attempt().once(user, step="charge").__aenter__()
    with (
        psycopg.connect(empty_url, autocommit=True) as connection,
        pytest.raises(NoTransaction),
        attempt().once(connection),
    ):
        pytest.fail("it was let in")
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(empty_url),
        isolation_level="AUTOCOMMIT",
    )
    with engine.connect() as mapped, pytest.raises(NoTransaction), attempt().once(mapped):
        pytest.fail("it was let in")
    engine.dispose()


async def test_the_wrong_kind_of_with_is_named(empty_url: str, user: asyncpg.Connection) -> None:
    """Deep inside a driver the mistake reads like one of ours."""
    with pytest.raises(TypeError, match="async with"):
        attempt().once(user).__enter__()
    with psycopg.connect(empty_url) as connection, pytest.raises(TypeError, match="`with`"):
        await attempt().once(connection).__aenter__()
    with pytest.raises(TypeError, match=r"builtins\.str"):
        attempt().once("a url").__enter__()


async def test_steps_are_bounded(user: asyncpg.Connection) -> None:
    """A key that an index cannot hold fails in the middle of somebody's transaction."""
    for step in ("x" * 201, "a\nb", inbox.FENCE_STEP):
        with pytest.raises(ConfigurationError):
            attempt().once(user, step)
    async with user.transaction(), attempt().once(user, "x" * 200) as first:
        assert first


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
async def test_records_are_forgotten_after_thirty_days_in_bites(
    user: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    """A table that only grows ends in somebody's disk alarm."""
    monkeypatch.setattr(inbox, "FORGET_SHARE", 1.0)
    await inbox.acreate_table(user)
    await user.execute(
        "INSERT INTO duly_inbox SELECT 'old-' || n, '', '', 0, now() - interval '31 days'"
        "  FROM generate_series(1, 1500) n"
    )
    young = datetime.now(UTC) - timedelta(days=29)
    await user.execute("INSERT INTO duly_inbox VALUES ('young', '', '', 0, $1)", young)
    left = []
    for number in range(3):
        async with (
            user.transaction(isolation=isolation),
            attempt(f"new-{number}").once(user) as first,
        ):
            assert first
        left.append(await user.fetchval("SELECT count(*) FROM duly_inbox"))
    # One that sees a snapshot leaves it to others: rows that they deleted would break it.
    assert left == ([502, 3, 4] if isolation == "read_committed" else [1502, 1503, 1504])


def test_the_table_can_be_made_by_a_plain_connection(empty_url: str) -> None:
    """Who may not create tables at run time does it in a migration."""
    with psycopg.connect(empty_url) as connection:
        for _ in range(2):
            inbox.create_table(connection)
        assert connection.execute("SELECT count(*) FROM duly_inbox").fetchone() == (0,)
