"""Database sessions and server checks. No statement of a feature is here.

Store modules get a Database and call `fetch` (one statement, one commit) or `transaction`. Driver
errors are translated here, once, into DulyErrors such as DatabaseUnavailable.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

import asyncpg

from duly.domain.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    DatabaseUnfit,
    StatementRefused,
)
from duly.metric_families import CALL_BOUNDS_S, Buckets
from duly.store.connection_pool import CONNECTION_FAULTS, Connections, OpenTransaction
from duly.store.hosts import Hosts
from duly.store.statements import statements_beside
from duly.store.timestamp_codec import use_instants

SQL = statements_beside(__file__)
VERSION_MIN = 140000
STATEMENT_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 0.5
SEND_BUFFER_BYTES = 2**20

# The server understood the statement and rolled it back: one bad row, or one conflict.
REFUSALS = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.exceptions.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
    asyncpg.exceptions.ProgramLimitExceededError,
    asyncpg.QueryCanceledError,
)
SERIALIZATION_FAILURE = "40001"
DEADLOCK = "40P01"
LOCK_NOT_AVAILABLE = "55P03"
# Rolled back for the sake of another statement; it may pass next time.
CONFLICT_CODES = frozenset({SERIALIZATION_FAILURE, DEADLOCK})
# The server answered, and will give the same answer next time.
LOGIN_FAULTS = (
    asyncpg.exceptions.InvalidAuthorizationSpecificationError,
    asyncpg.exceptions.InvalidPasswordError,
    asyncpg.exceptions.InvalidCatalogNameError,
)


def address_of(url: str) -> str:
    """Where a URL leads, without its secrets."""
    try:
        parts = urlsplit(url)
        asked = dict(parse_qsl(parts.query))
        hosts = parts.netloc.rpartition("@")[2]
        if "," in hosts:
            return f"{unquote(hosts)}{parts.path}"
        host = asked.get("host") or unquote(parts.hostname or "localhost")
        return f"{host}:{asked.get('port') or parts.port or 5432}{parts.path}"
    except ValueError:
        return "an address that is not a URL"


class translated_faults:  # noqa: N801 (reads as a word: `with translated_faults(url)`)
    """Translates driver errors inside the block into DulyErrors. A class and no generator: every
    statement passes here."""

    __slots__ = ("url",)

    def __init__(self, url: str) -> None:
        self.url = url

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object
    ) -> None:
        if isinstance(error, LOGIN_FAULTS):
            raise DatabaseUnfit(address=address_of(self.url), problem=str(error)) from error
        if isinstance(error, REFUSALS):
            raise StatementRefused(problem=str(error), code=error.sqlstate) from error
        if isinstance(error, CONNECTION_FAULTS):
            problem = str(error) or type(error).__name__
            raise DatabaseUnavailable(address=address_of(self.url), problem=problem) from error


async def connect(url: str, *, is_pooled: bool = False) -> asyncpg.Connection:
    """One connection outside any pool, for migrations and checks."""
    with translated_faults(url):
        try:
            return await Hosts(url).connect(**statement_options(is_pooled))
        except (ValueError, asyncpg.exceptions.ClientConfigurationError) as error:
            raise ConfigurationError(problem=f"the database URL is not valid: {error}") from None


async def open_session(hosts: Hosts, is_pooled: bool) -> asyncpg.Connection:
    """One of many, for statements of any kind."""
    connection = await hosts.connect(
        command_timeout=STATEMENT_TIMEOUT_S,
        **statement_options(is_pooled),
    )
    try:
        widen(connection)
        await use_instants(connection)
    except BaseException:
        connection.terminate()
        raise
    return connection


def widen(connection: asyncpg.Connection) -> None:
    """Enlarge the socket's send buffer to a whole batch: the rest of one that does not fit waits
    behind whatever this process prepares next. The system may grant less. Uses a private attribute
    of the driver; without it batches are only slower."""
    transport = getattr(connection, "_transport", None)
    wire = None if transport is None else transport.get_extra_info("socket")
    if wire is not None:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


def statement_options(is_pooled: bool) -> dict[str, int]:
    """Behind a transaction-mode pooler a prepared statement may be looked for in another session
    than the one that knows it."""
    return {"statement_cache_size": 0} if is_pooled else {}


class Session(Protocol):
    """Where a statement runs: a Database (its own commit) or an open transaction."""

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]: ...


class Database:
    """Connections of one process to one database, under one login."""

    # A transaction-mode pooler stands between: no session state, no LISTEN.
    is_pooled = False
    # How often the host changed: a new connection may lead to another server.
    sessions_opened = 0
    # Where it may lead, and as of which change of that our connections were made.
    hosts: Hosts
    host_changes = 0
    # Statement timeout of queries for one tenant.
    tenant_statement_s = STATEMENT_TIMEOUT_S

    # In seconds, of statements in transactions of their own; for the metrics.
    statement_times: Buckets

    def __init__(self, url: str, connections: Connections) -> None:
        self.url = url
        self.connections = connections
        self.statement_times = Buckets(CALL_BOUNDS_S)

    @classmethod
    async def open(
        cls,
        url: str,
        connections_max: int,
        *,
        is_pooled: bool = False,
        hosts: Hosts | None = None,
        statement_times: Buckets | None = None,
    ) -> "Database":
        """Pools of one process share `hosts`, so that one learns from another where to go."""

        chosen = hosts or Hosts(url)

        async def open_one() -> asyncpg.Connection:
            connection = await open_session(chosen, is_pooled)
            database.sessions_opened += 1
            database.follow_host()
            return connection

        connections = Connections(open_one, connections_max)
        database = cls(url, connections)
        database.hosts, database.host_changes = chosen, chosen.changes
        database.is_pooled = is_pooled
        database.statement_times = statement_times or database.statement_times
        with translated_faults(url):
            # The first connection is made now, so that a wrong URL is known at once.
            async with connections.acquire():
                return database

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        """One statement in its own transaction: when this returns, it is committed."""
        if self.is_pooled:
            # The driver parses and executes in two steps; only an open transaction keeps a pooler
            # from sending them to two sessions.
            async with self.transaction() as session:
                return await session.fetch(statement, *arguments)
        clock = asyncio.get_running_loop()
        began = clock.time()
        with translated_faults(self.url):
            async with self.connections.acquire() as connection:
                rows: list[asyncpg.Record] = await connection.fetch(statement, *arguments)
        self.statement_times.observe(clock.time() - began)
        return rows

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        with translated_faults(self.url):
            async with self.connections.acquire() as connection, OpenTransaction(connection):
                yield connection

    @contextlib.asynccontextmanager
    async def tenant(self, tenant: int) -> AsyncIterator[Session]:
        """A transaction that sees and writes one tenant's rows, whatever its statements say."""
        async with self.transaction() as session:
            limit_ms = str(round(self.tenant_statement_s * 1000))
            await session.fetch(SQL.become_tenant, str(tenant), limit_ms)
            yield session

    def follow_host(self) -> None:
        """The database moved to another host: existing connections lead to a server that is gone or
        takes no writes. Statements on them fail at once instead of at their timeout."""
        if self.host_changes != self.hosts.changes:
            self.host_changes = self.hosts.changes
            self.connections.end_all()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        # Whatever keeps it from ending them in order, they have ended.
        with contextlib.suppress(*CONNECTION_FAULTS):
            async with asyncio.timeout(timeout_s):
                await self.connections.close()


async def check_server(connection: asyncpg.Connection, url: str, *, allow_unsafe: bool) -> None:
    """Refuse a server that is too old, may lose commits, or has its clock overridden."""
    facts = await connection.fetchrow(SQL.server_facts)
    problem = server_problem(dict(facts), allow_unsafe=allow_unsafe)
    if problem is not None:
        raise DatabaseUnfit(address=address_of(url), problem=problem)


def server_problem(facts: dict[str, Any], *, allow_unsafe: bool) -> str | None:
    if facts["version"] < VERSION_MIN:
        return f"it is PostgreSQL {facts['version_text']}, and duly needs 14 or later"
    if facts["test_now"]:
        return "its clock is overridden (duly.test_now), which only tests may do"
    unsafe = [
        name for name in ("fsync", "full_page_writes", "synchronous_commit") if facts[name] == "off"
    ]
    if unsafe and not allow_unsafe:
        return (
            f"a crash may lose acknowledged tasks ({' and '.join(unsafe)} off); turn it on, "
            "or set allow_unsafe_durability"
        )
    return None


async def prepare_login(connection: asyncpg.Connection, url: str) -> None:
    """Give the engine's login its planner settings, and refuse one that lacks its roles."""
    facts = await connection.fetchrow(SQL.server_facts)
    if not facts["is_login_ready"]:
        await connection.fetch(SQL.one_at_a_time)
        for row in await connection.fetch(SQL.planner_settings):
            await connection.execute(row["statement"])
    roles = await connection.fetchrow(SQL.login_is_engine)
    if not (roles["is_engine"] and roles["may_be_tenant"]):
        login = facts["login"]
        problem = f"its owner must first run: GRANT duly_engine, duly_tenant TO {login}"
        raise DatabaseUnfit(address=address_of(url), problem=problem)
