"""`duly.transactional` over every driver: the caller's transaction decides, and errors are ours."""

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import asyncpg
import msgspec
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from duly import transactional
from duly.client.errors import IdempotencyMismatch, Invalid, NotFound
from duly.store.database import Database
from duly.store.task_types import put_task_type
from duly.store.tenants import Tenant, create_tenant
from tests.client.producers import as_producer, count, rows_of
from tests.loop_watch import loop_watched

pytestmark = pytest.mark.slow

TENANT = "acme"
SCHEMA = {"type": "object", "properties": {"to": {"type": "integer"}}, "required": ["to"]}


@pytest.fixture
async def tenant(database: Database) -> Tenant:
    made = await create_tenant(database, TENANT)
    assert made is not None
    return made


class Trade(NamedTuple):
    """One driver's open transaction: how to submit in it, and how it ends."""

    submit: Callable[..., Awaitable[UUID]]
    commit: Callable[[], Awaitable[None]]
    rollback: Callable[[], Awaitable[None]]


def awaited(work: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def call(*arguments: Any, **named: Any) -> Any:
        return work(*arguments, **named)

    return call


def submitting(connection: Any) -> Callable[..., Awaitable[UUID]]:
    return awaited(lambda *a, **k: transactional.submit(connection, TENANT, *a, **k))


def asubmitting(connection: Any) -> Callable[..., Awaitable[UUID]]:
    return lambda *a, **k: transactional.asubmit(connection, TENANT, *a, **k)


@contextlib.contextmanager
def disposed(engine: sqlalchemy.Engine) -> Iterator[None]:
    try:
        yield
    finally:
        engine.dispose()


@contextlib.asynccontextmanager
async def over_psycopg(url: str) -> AsyncIterator[Trade]:
    with psycopg.connect(url) as connection:
        yield Trade(
            submitting(connection), awaited(connection.commit), awaited(connection.rollback)
        )


@contextlib.asynccontextmanager
async def over_psycopg_rows_as_dicts(url: str) -> AsyncIterator[Trade]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        yield Trade(
            submitting(connection), awaited(connection.commit), awaited(connection.rollback)
        )


@contextlib.asynccontextmanager
async def over_async_psycopg(url: str) -> AsyncIterator[Trade]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield Trade(asubmitting(connection), connection.commit, connection.rollback)


@contextlib.asynccontextmanager
async def over_asyncpg(url: str) -> AsyncIterator[Trade]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield Trade(asubmitting(connection), transaction.commit, transaction.rollback)
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def over_asyncpg_pool(url: str) -> AsyncIterator[Trade]:
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
    ):
        transaction = connection.transaction()
        await transaction.start()
        yield Trade(asubmitting(connection), transaction.commit, transaction.rollback)


@contextlib.asynccontextmanager
async def over_sqlalchemy(url: str) -> AsyncIterator[Trade]:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    with disposed(engine), engine.connect() as connection:
        yield Trade(
            submitting(connection), awaited(connection.commit), awaited(connection.rollback)
        )


@contextlib.asynccontextmanager
async def over_sqlalchemy_session(url: str) -> AsyncIterator[Trade]:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    with disposed(engine), Session(engine) as session:
        yield Trade(submitting(session), awaited(session.commit), awaited(session.rollback))


@contextlib.asynccontextmanager
async def over_async_sqlalchemy(url: str) -> AsyncIterator[Trade]:
    pytest.importorskip("greenlet", reason="SQLAlchemy's asyncio needs greenlet")
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(url)
    )
    try:
        async with engine.connect() as connection:
            yield Trade(asubmitting(connection), connection.commit, connection.rollback)
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
            yield Trade(asubmitting(session), session.commit, session.rollback)
    finally:
        await engine.dispose()


TRADES = [
    over_psycopg,
    over_psycopg_rows_as_dicts,
    over_async_psycopg,
    over_asyncpg,
    over_asyncpg_pool,
    over_sqlalchemy,
    over_sqlalchemy_session,
    over_async_sqlalchemy,
    over_async_sqlalchemy_session,
]
Over = Callable[[str], contextlib.AbstractAsyncContextManager[Trade]]
each_driver = pytest.mark.parametrize("over", TRADES, ids=lambda over: over.__name__)


@each_driver
async def test_the_callers_commit_makes_the_task_visible(
    owner_url: str, owner: asyncpg.Connection, tenant: Tenant, over: Over
) -> None:
    """Committed by us, it would be there although the order was never placed."""
    run_at = datetime.now(UTC) + timedelta(hours=1)
    async with over(as_producer(owner_url)) as trade:
        plain = await trade.submit("email.send", {"to": [1, "ü:%s $1"]}, priority=7)
        full = await trade.submit(
            "email.send",
            run_at=run_at,
            start_by=run_at + timedelta(hours=1),
            pool="mail",
            retry={"max_attempts": 2},
            idempotency_key="k",
            tags={"a": "b"},
        )
        late = await trade.submit("email.send", delay_s=90, notify=False, check_schema=False)
        assert await count(owner, "tasks") == 0
        await trade.commit()
    assert {type(each) for each in (plain, full, late)} == {UUID}
    stored = (await rows_of(owner, plain))["tasks"]
    assert msgspec.json.decode(stored["payload"]) == {"to": [1, "ü:%s $1"]}
    assert stored["priority"] == 7
    row = await owner.fetchrow("SELECT * FROM duly.tasks WHERE id = $1", full)
    assert (row["run_at"], row["execution_key"]) == (run_at, "k")
    assert (await rows_of(owner, late))["later_by"]["task"] == timedelta(seconds=90)


@each_driver
async def test_the_callers_rollback_leaves_nothing(
    owner_url: str, owner: asyncpg.Connection, tenant: Tenant, over: Over
) -> None:
    """A mail for an order that was never placed."""
    async with over(as_producer(owner_url)) as trade:
        await trade.submit("email.send", {"to": 1}, idempotency_key="k")
        await trade.rollback()
    for table in ("tasks", "timers", "idempotency_keys", "placements"):
        assert await count(owner, table) == 0


@each_driver
async def test_a_refusal_is_one_of_the_clients_own_errors(
    owner_url: str, tenant: Tenant, over: Over
) -> None:
    """Nine drivers say it in nine ways; a program must be able to catch one."""
    async with over(as_producer(owner_url)) as trade:
        with pytest.raises(Invalid) as refused:
            await trade.submit("email.send", priority=10, tags={"": "x"})
        assert [error["pointer"] for error in refused.value.errors] == ["/priority", "/tags"]
        assert refused.value.code == "invalid"
        assert "/priority is not from 0 to 9" in str(refused.value)
        await trade.rollback()


@each_driver
async def test_a_known_key_with_another_request_is_a_mismatch(
    owner_url: str, tenant: Tenant, over: Over
) -> None:
    """The retry that is no retry must be told, in words that a program can act on."""
    first = await submit_and_commit(over, as_producer(owner_url), 1)
    assert await submit_and_commit(over, as_producer(owner_url), 1) == first
    with pytest.raises(IdempotencyMismatch):
        await submit_and_commit(over, as_producer(owner_url), 2)


async def submit_and_commit(over: Over, url: str, payload: int) -> UUID:
    async with over(url) as trade:
        task_id = await trade.submit("email.send", payload, idempotency_key="k")
        await trade.commit()
    return task_id


@each_driver
async def test_a_payload_is_held_against_the_schema_of_its_type(
    owner_url: str, owner: asyncpg.Connection, database: Database, tenant: Tenant, over: Over
) -> None:
    """The function cannot; a worker that meets such a payload fails for ever."""
    text = msgspec.json.encode(SCHEMA).decode()
    await put_task_type(database, tenant.id, "email.send", text, None, None)
    async with over(as_producer(owner_url)) as trade:
        with pytest.raises(Invalid) as refused:
            await trade.submit("email.send", {"to": "me"})
        assert [error["pointer"] for error in refused.value.errors] == ["/payload/to"]
        # Nothing was sent that could have failed: the transaction is as good as before.
        await trade.submit("email.send", {"to": 1})
        await trade.submit("other.type", {"to": "me"})
        await trade.submit("email.send", {"to": "me"}, check_schema=False)
        await trade.commit()
    assert await count(owner, "tasks") == 3


async def test_a_costly_schema_does_not_hold_up_the_program_that_submits(
    owner_url: str, database: Database, tenant: Tenant
) -> None:
    """A schema that one program set would stop the event loop of every other for minutes."""
    text = msgspec.json.encode({"pattern": "((a{0,40}){0,40}){0,40}x"}).decode()
    await put_task_type(database, tenant.id, "email.send", text, None, None)
    connection = await asyncpg.connect(as_producer(owner_url))
    try:
        async with loop_watched():
            with pytest.raises(Invalid, match="takes too long"):
                await transactional.asubmit(connection, TENANT, "email.send", "a" * 60_000)
        await transactional.asubmit(connection, TENANT, "email.send", "x")
    finally:
        await connection.close()


async def test_a_schema_is_shown_to_its_own_tenant_alone(
    owner_url: str, database: Database, tenant: Tenant
) -> None:
    """Named after another's type, a task must meet neither its rules nor its secrets."""
    text = msgspec.json.encode(SCHEMA).decode()
    await put_task_type(database, tenant.id, "email.send", text, None, None)
    await create_tenant(database, "other")
    connection = await asyncpg.connect(as_producer(owner_url))
    try:
        await transactional.asubmit(connection, "other", "email.send", {"to": "me"})
        with pytest.raises(NotFound):
            await transactional.asubmit(connection, "nobody", "email.send")
    finally:
        await connection.close()


async def test_an_instant_without_an_offset_is_refused() -> None:
    """Read in the server's zone, it fires hours off."""

    class Connection:
        __module__ = "asyncpg.connection"

    with pytest.raises(Invalid, match="/run_at has no offset"):
        await transactional.asubmit(Connection(), TENANT, "e", run_at=datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_connection_of_another_kind_is_named(owner_url: str) -> None:
    """`submit` with an asyncpg connection would otherwise fail deep inside the driver."""
    with pytest.raises(TypeError, match=r"builtins.str; known here: .*psycopg, sqlalchemy"):
        transactional.submit(owner_url, TENANT, "e")


def test_no_driver_is_imported_before_it_is_used() -> None:
    """A producer has the driver it uses, and no other."""
    program = (
        "import sys, duly; duly.transactional.submit;"
        "print(sorted({'asyncpg', 'psycopg', 'sqlalchemy'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stdout.strip() == "[]", ended.stderr


def test_the_urls_of_these_tests_reduce_the_login(owner_url: str) -> None:
    """Submitted as the owner, every test above would pass without any grant."""
    assert "role=duly_producer" in parse_qs(urlsplit(as_producer(owner_url)).query)["options"][0]
