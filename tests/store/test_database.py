"""Unfit servers are refused in one line, and faults of the world are one kind of error."""

import asyncio
import contextlib
import re
import socket
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from duly.domain.errors import ConfigurationError, DatabaseUnavailable, DatabaseUnfit
from duly.store.database import (
    SEND_BUFFER_BYTES,
    Database,
    address_of,
    check_server,
    connect,
    prepare_login,
    server_problem,
)

GOOD = {
    "version": 140000,
    "version_text": "14.0",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "test_now": "",
}
POOL_CONNECTIONS_MAX = 3
BUFFER_BYTES_MAX = int(Path("/proc/sys/net/core/wmem_max").read_text())


def problem_with(facts: dict[str, Any], *, allow_unsafe: bool = False) -> str | None:
    return server_problem(GOOD | facts, allow_unsafe=allow_unsafe)


def test_the_oldest_supported_server_is_fit() -> None:
    """A bound that is off by one would turn users of 14 away."""
    assert problem_with({}) is None


def test_a_server_older_than_14_is_refused() -> None:
    """It lacks SQL-standard function bodies; the first migration would fail half-way."""
    problem = problem_with({"version": 139999, "version_text": "13.22"})
    assert problem == "it is PostgreSQL 13.22, and duly needs 14 or later"


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes", "synchronous_commit"])
def test_a_server_that_may_lose_commits_is_refused_unless_allowed(setting: str) -> None:
    """An acknowledged task would be lost with the power."""
    problem = problem_with({setting: "off"})
    assert problem is not None
    assert setting in problem
    assert "allow_unsafe_durability" in problem
    assert problem_with({setting: "off"}, allow_unsafe=True) is None


def test_an_overridden_clock_is_refused_even_when_unsafe_durability_is_allowed() -> None:
    """Nothing would ever become due, or everything at once."""
    problem = problem_with({"test_now": "2020-01-01"}, allow_unsafe=True)
    assert problem is not None
    assert "clock is overridden" in problem


async def test_a_clock_overridden_for_the_database_is_seen(
    owner: asyncpg.Connection, owner_url: str, database_name: str
) -> None:
    """A setting left behind by a test run must not reach production unnoticed."""
    await check_server(owner, owner_url, allow_unsafe=True)
    await owner.execute(f"ALTER DATABASE {database_name} SET duly.test_now = '2020-01-01'")
    later = await connect(owner_url)
    try:
        with pytest.raises(DatabaseUnfit, match="clock is overridden"):
            await check_server(later, owner_url, allow_unsafe=True)
    finally:
        await later.close()


async def test_an_unreachable_server_is_named_without_its_password() -> None:
    """The line goes to logs; the address helps and the secret must not be in it."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(DatabaseUnavailable, match=f"127.0.0.1:{port}/duly") as caught:
            await connect(f"postgresql://someone:hunter2@127.0.0.1:{port}/duly")
    assert "hunter2" not in str(caught.value)


async def test_a_wrong_password_is_unfit_not_unavailable(engine_url: str) -> None:
    """Retrying would never help: the server answered, and will answer the same."""
    wrong = re.sub(r"//([^:]+):[^@]*@", r"//\1:wrong@", engine_url)
    with pytest.raises(DatabaseUnfit, match="password"):
        await connect(wrong)
    with pytest.raises(DatabaseUnfit, match="password"):
        await Database.open(wrong, POOL_CONNECTIONS_MAX)


async def test_a_missing_database_is_unfit(owner_url: str, database_name: str) -> None:
    """The commonest typing error in a URL must be said plainly."""
    with pytest.raises(DatabaseUnfit, match="does not exist"):
        await connect(owner_url.replace(database_name, "duly_no_such"))


@pytest.mark.parametrize(
    "url", ["mysql://x@y/z", "postgresql://h:notaport/x", "postgresql://[::1/x"]
)
async def test_a_url_that_is_none_is_a_configuration_error(url: str) -> None:
    """It is the user's typing, not the network: no retry, one line."""
    with pytest.raises((ConfigurationError, DatabaseUnavailable)) as caught:
        await connect(url)
    assert isinstance(caught.value, ConfigurationError)
    assert "\n" not in str(caught.value)


def test_an_address_never_shows_a_secret() -> None:
    """Every error about a database prints it."""
    assert address_of("postgresql://u:secret@db.example:6543/tasks?password=secret") == (
        "db.example:6543/tasks"
    )
    assert "secret" not in address_of("postgresql://u:secret@[broken/tasks")


async def test_a_terminated_backend_is_unavailable_once_and_the_pool_recovers(
    database: Database, owner: asyncpg.Connection
) -> None:
    """A restarted server must not need a restarted duly, nor leak the driver's own errors."""
    (row,) = await database.fetch("SELECT pg_backend_pid() AS pid")
    asking = asyncio.create_task(database.fetch("SELECT pg_sleep(60)"))
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND pid = $1"
    async with asyncio.timeout(10):
        while not await owner.fetchval(sleeping, row["pid"]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await owner.execute("SELECT pg_terminate_backend($1)", row["pid"])
    with pytest.raises(DatabaseUnavailable):
        await asking
    assert [dict(row) for row in await database.fetch("SELECT 1 AS one")] == [{"one": 1}]


async def test_a_transaction_is_one_commit_or_none(
    database: Database, owner: asyncpg.Connection
) -> None:
    """Half of a move is worse than none of it."""
    await owner.execute(
        "CREATE TABLE duly.things (n integer); GRANT ALL ON duly.things TO duly_app"
    )
    insert = "INSERT INTO duly.things VALUES ($1)"
    with contextlib.suppress(KeyError):
        async with database.transaction() as connection:
            await connection.fetch(insert, 1)
            raise KeyError("half-way")
    async with database.transaction() as connection:
        await connection.fetch(insert, 2)
    assert await owner.fetchval("SELECT array_agg(n) FROM duly.things") == [2]


async def test_closing_does_not_wait_for_a_statement_that_never_ends(engine_url: str) -> None:
    """A stop must be bounded, also when PostgreSQL hangs."""
    database = await Database.open(engine_url, POOL_CONNECTIONS_MAX)
    asking = asyncio.create_task(database.fetch("SELECT pg_sleep(60)"))
    async with asyncio.timeout(10):
        while not database.connections.lent:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await database.close(timeout_s=0.1)
    with pytest.raises(DatabaseUnavailable):
        await asking


async def test_a_batch_has_room_on_its_way(database: Database) -> None:
    """The rest of one that does not fit waits behind whatever Python prepares next: a fifth of the
    rate of bulk submits. The system doubles what is asked for, up to a bound of its own."""
    async with database.connections.acquire() as connection:
        wire = connection._transport.get_extra_info("socket")
        granted = wire.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert granted == 2 * min(SEND_BUFFER_BYTES, BUFFER_BYTES_MAX)


async def test_a_login_without_its_roles_is_told_what_to_run(
    owner: asyncpg.Connection, owner_url: str, database_name: str
) -> None:
    """Under row-level security it would see nothing, and look as if every task were lost."""
    login = f"stranger_{database_name}"
    await owner.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'only-for-tests'")
    url = re.sub(r"//[^@]*@", f"//{login}:only-for-tests@", owner_url)
    try:
        stranger = await connect(url)
        try:
            with pytest.raises(DatabaseUnfit, match=f"GRANT duly_engine, duly_tenant TO {login}"):
                await prepare_login(stranger, url)
        finally:
            await stranger.close()
    finally:
        await owner.execute(f"DROP OWNED BY {login}; DROP ROLE {login}")
