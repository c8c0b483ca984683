"""Database bootstrap: an external PostgreSQL or the embedded one, checked and migrated.

Everything a command needs before it opens a connection pool.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from duly.domain.errors import ConfigurationError
from duly.environment import Environment
from duly.settings import Settings
from duly.store.database import SQL, check_server, connect, prepare_login, translated_faults
from duly.store.embedded import DATABASE, EmbeddedPostgres, Server
from duly.store.migrate import Migrator
from duly.store.partitions import create_partitions

# The embedded server's application login: neither owner nor superuser, as in production.
EMBEDDED_LOGIN = "duly_app"
MAINTENANCE_DATABASE = "postgres"


@dataclass(frozen=True)
class DatabaseTarget:
    """The owner's login for the schema, the engine's for everything else."""

    owner_url: str = field(repr=False)
    engine_url: str = field(repr=False)
    description: str
    embedded: Server | None = None
    embedded_postgres: EmbeddedPostgres | None = None


@contextlib.asynccontextmanager
async def open_target(
    settings: Settings, environment: Environment
) -> AsyncIterator[DatabaseTarget]:
    """Open the configured database, or the embedded server for the length of the block."""
    if settings.database_url:
        if settings.database_pooler and not settings.migration_database_url:
            problem = "database_pooler needs migration_database_url, past the pooler: a migration"
            raise ConfigurationError(problem=f"{problem} holds a lock of its session")
        owner_url = settings.migration_database_url or settings.database_url
        yield DatabaseTarget(owner_url, settings.database_url, "external PostgreSQL")
        return
    embedded = EmbeddedPostgres(Path(settings.data_dir), environment, settings.pg_bin)
    server = await asyncio.to_thread(embedded.attach)
    try:
        await create_database(server)
        yield DatabaseTarget(
            server.url(),
            server.url(login=EMBEDDED_LOGIN),
            f"embedded PostgreSQL in {server.data_dir}",
            server,
            embedded,
        )
    finally:
        await asyncio.to_thread(embedded.leave)


async def prepare_target(
    target: DatabaseTarget, settings: Settings, environment: Environment
) -> Migrator:
    """Check the server, migrate, and prepare the engine's login with its planner settings."""
    with translated_faults(target.owner_url):
        migrator = await prepare_schema(target, settings, environment)
    with translated_faults(target.engine_url):
        await prepare_engine(target, settings)
    return migrator


async def prepare_schema(
    target: DatabaseTarget, settings: Settings, environment: Environment
) -> Migrator:
    owner = await connect(target.owner_url)
    try:
        await check_server(owner, target.owner_url, allow_unsafe=settings.allow_unsafe_durability)
        migrator = Migrator(target.owner_url, environment)
        await migrator.migrate()
        if target.embedded is not None:
            await create_login(owner, target.embedded)
    finally:
        await owner.close()
    return migrator


async def prepare_engine(target: DatabaseTarget, settings: Settings) -> None:
    engine = await connect(target.engine_url, is_pooled=settings.database_pooler)
    try:
        # In one transaction, which a pooler keeps in one session.
        async with engine.transaction():
            await check_server(
                engine, target.engine_url, allow_unsafe=settings.allow_unsafe_durability
            )
            await prepare_login(engine, target.engine_url)
            await create_partitions(engine)
    finally:
        await engine.close()


async def create_database(server: Server, name: str = DATABASE) -> None:
    connection = await connect(server.url(MAINTENANCE_DATABASE))
    try:
        await run_if_needed(connection, SQL.create_database, name)
    finally:
        await connection.close()


async def create_login(owner: asyncpg.Connection, server: Server) -> None:
    await run_if_needed(owner, SQL.create_login, EMBEDDED_LOGIN, server.password)


async def run_if_needed(connection: asyncpg.Connection, statement: str, *facts: str) -> None:
    """Run what a generating statement answers; another process may have been quicker."""
    for row in await connection.fetch(statement, *facts):
        with contextlib.suppress(
            asyncpg.DuplicateDatabaseError,
            asyncpg.DuplicateObjectError,
            asyncpg.UniqueViolationError,
        ):
            await connection.execute(row["statement"])
