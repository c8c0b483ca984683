"""The migration runner: SQL files forward and back, one at a time, resumable.

A file `NNNN_pre_what.sql` runs before the code that needs it is deployed, `NNNN_post_what.sql`
after; old code always runs on the new schema. Each has a block `forward` and a block `reverse`.

| event | what happens |
|---|---|
| two migrators | the second waits for the advisory lock, then finds nothing to do |
| killed between or inside migrations | each is one transaction with its ledger row; run it again |
| a lock is not free for 2 s | rolled back and tried again later; traffic does not queue behind it |
| the schema is newer than the code | refused at start: DatabaseUnfit |
| the schema is from before the first release | refused at start: DatabaseUnfit (ADR 0022) |
"""

import asyncio
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import asyncpg

from duly.domain.errors import DatabaseUnfit, MigrationFailed
from duly.environment import CrashPoint, Environment
from duly.store.database import Database, address_of, connect
from duly.store.statements import parse_statements, statements_beside

SQL = statements_beside(__file__)
FOLDER = Path(__file__).parent / "migrations"
FILE_NAME = re.compile(r"(\d{4})_(pre|post)_([a-z0-9_]+)\.sql")
TRIES_MAX = 10
RETRY_S = 0.5
LOCK_WAIT_MAX_S = 300.0
LOCK_POLL_S = 0.1


@dataclass(frozen=True)
class Migration:
    number: int
    name: str
    forward: str
    reverse: str


@dataclass(frozen=True)
class AppliedMigration:
    number: int
    name: str
    applied_at: datetime


def read_migrations(folder: Path = FOLDER) -> list[Migration]:
    migrations = []
    for path in sorted(folder.glob("*.sql")):
        match = FILE_NAME.fullmatch(path.name)
        assert match is not None, f"{path.name} is not NNNN_pre_what.sql or NNNN_post_what.sql"
        blocks = parse_statements(path.read_text("utf-8"))
        migrations.append(Migration(int(match[1]), path.stem, blocks["forward"], blocks["reverse"]))
    numbers = [migration.number for migration in migrations]
    assert numbers == list(range(1, len(numbers) + 1)), "migration numbers are 1, 2, 3, ..."
    return migrations


class Migrator:
    def __init__(self, url: str, environment: Environment, folder: Path = FOLDER) -> None:
        self.url = url
        self.environment = environment
        self.migrations = read_migrations(folder)

    @property
    def latest(self) -> int:
        return self.migrations[-1].number if self.migrations else 0

    async def applied(self) -> list[AppliedMigration]:
        connection = await connect(self.url)
        try:
            known = await read_applied(connection)
            refuse_foreign(known, self.migrations, self.url)
            return known
        finally:
            await connection.close()

    async def migrate(self, to: int | None = None) -> list[str]:
        """Bring the database to version `to`, forward or back; answers the names that ran."""
        target = self.latest if to is None else to
        if not 0 <= target <= self.latest:
            problem = f"there is no version {target}; the newest is {self.latest}"
            raise MigrationFailed(migration=target, problem=problem)
        connection = await connect(self.url)
        try:
            await self.wait_for_lock(connection)
            await self.create_ledger(connection)
            return await self.run_until(connection, target)
        finally:
            await connection.close()

    async def wait_for_lock(self, connection: asyncpg.Connection) -> None:
        for _ in range(int(LOCK_WAIT_MAX_S / LOCK_POLL_S)):
            if await connection.fetchval(SQL.try_lock):
                return
            await asyncio.sleep(LOCK_POLL_S)
        raise MigrationFailed(migration="lock", problem="another migrator is still running")

    async def create_ledger(self, connection: asyncpg.Connection) -> None:
        try:
            await connection.execute(SQL.create_ledger)
        except asyncpg.InsufficientPrivilegeError as error:
            raise MigrationFailed(migration="ledger", problem=str(error)) from None

    async def run_until(self, connection: asyncpg.Connection, target: int) -> list[str]:
        known = await read_applied(connection)
        refuse_foreign(known, self.migrations, self.url)
        refuse_newer(known, self.latest, self.url)
        current = known[-1].number if known else 0
        ran = []
        for migration in self.migrations[current:target]:
            await self.run_one(connection, migration, forward=True)
            ran.append(migration.name)
            await self.environment.crash_point(CrashPoint.MIGRATION_BETWEEN)
        for migration in reversed(self.migrations[target:current]):
            await self.run_one(connection, migration, forward=False)
            ran.append(f"reverse of {migration.name}")
        return ran

    async def run_one(
        self, connection: asyncpg.Connection, migration: Migration, *, forward: bool
    ) -> None:
        for attempt in range(1, TRIES_MAX + 1):
            try:
                async with connection.transaction():
                    await connection.execute(SQL.set_lock_timeout)
                    await connection.execute(migration.forward if forward else migration.reverse)
                    if forward:
                        await connection.execute(SQL.record, migration.number, migration.name)
                    else:
                        await connection.execute(SQL.forget, migration.number)
                return
            except asyncpg.LockNotAvailableError as error:
                if attempt == TRIES_MAX:
                    raise MigrationFailed(migration=migration.name, problem=str(error)) from None
                spread = self.environment.random.uniform(0.5, 1.5)
                await asyncio.sleep(RETRY_S * attempt * spread)
            except asyncpg.PostgresError as error:
                raise MigrationFailed(migration=migration.name, problem=str(error)) from error


async def schema_version(database: Database) -> int:
    """What the database has now; newer than we know is fine, for old code runs on new schema."""
    (row,) = await database.fetch(SQL.schema_version)
    return int(row["number"])


async def read_applied(connection: asyncpg.Connection) -> list[AppliedMigration]:
    if not await connection.fetchval(SQL.has_ledger):
        return []
    return [AppliedMigration(**dict(row)) for row in await connection.fetch(SQL.applied)]


def refuse_foreign(known: list[AppliedMigration], migrations: list[Migration], url: str) -> None:
    """A ledger row under another name is another schema: nothing can run forward or back on it."""
    names = {migration.number: migration.name for migration in migrations}
    for entry in known:
        if entry.name != names.get(entry.number, entry.name):
            problem = (
                f"its schema was made by a version before 0.1 ({entry.name}), which cannot be "
                "upgraded; start with a new data directory (DULY_DATA_DIR) or an empty database"
            )
            raise DatabaseUnfit(address=address_of(url), problem=problem)


def refuse_newer(known: list[AppliedMigration], latest: int, url: str) -> None:
    if known and known[-1].number > latest:
        problem = (
            f"its schema is at version {known[-1].number}, and this duly knows {latest}; "
            "upgrade duly, or migrate back with the newer one"
        )
        raise DatabaseUnfit(address=address_of(url), problem=problem)
