"""The PostgreSQL of a test run: one server, one template, one cloned database per test.

All pytest-xdist workers share it. Whoever comes first makes the template; whoever leaves last
takes it away. Tests see URLs only.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg

from duly.environment import Environment
from duly.store.bootstrap import EMBEDDED_LOGIN, MAINTENANCE_DATABASE, run_if_needed
from duly.store.database import SQL, prepare_login
from duly.store.embedded import EmbeddedPostgres
from duly.store.migrate import Migrator
from duly.store.partitions import create_partitions

Answer = TypeVar("Answer")
# Of the application's login on the test server, which DULY_TEST_DATABASE_URL may have named.
PASSWORD = "only-for-tests"

# Empties a database that a test has used, as far as it wrote to it. Triggers that keep a table
# append-only are for duly, not for us. What a migration put into a table is put back.
REMEMBER_SEED = """
DO $$
DECLARE
    name text;
    is_filled boolean;
BEGIN
    CREATE SCHEMA seed;
    FOR name IN SELECT relname FROM pg_class
                 WHERE relnamespace = 'duly'::regnamespace AND relkind IN ('r', 'p')
                   AND NOT relispartition LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM duly.%I)', name) INTO is_filled;
        IF is_filled THEN
            EXECUTE format('CREATE TABLE seed.%I AS SELECT * FROM duly.%I', name, name);
        END IF;
    END LOOP;
END
$$
"""
EMPTY = """
DO $$
DECLARE
    name text;
    is_filled boolean;
BEGIN
    SET LOCAL session_replication_role = replica;
    FOR name IN SELECT relname FROM pg_class
                 WHERE relnamespace = 'duly'::regnamespace AND relkind IN ('r', 'p')
                   AND NOT relispartition LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM duly.%I)', name) INTO is_filled;
        IF is_filled THEN
            EXECUTE format('DELETE FROM duly.%I', name);
        END IF;
    END LOOP;
    FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'seed'::regnamespace LOOP
        EXECUTE format('INSERT INTO duly.%I OVERRIDING SYSTEM VALUE SELECT * FROM seed.%I',
                       name, name);
    END LOOP;
    FOR name IN SELECT relname FROM pg_class
                 WHERE relnamespace = 'duly'::regnamespace AND relkind = 'S' LOOP
        EXECUTE format('ALTER SEQUENCE duly.%I RESTART', name);
    END LOOP;
    -- The tenant that every database has drew the first number.
    PERFORM setval('duly.tenants_id_seq', (SELECT max(id) FROM duly.tenants));
END
$$
"""

END_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1
"""

# What a test may have changed of the schema, by names and definitions: such a database is not used
# again.
FINGERPRINT = """
SELECT md5(string_agg(fact, ',' ORDER BY fact))
  FROM (SELECT concat_ws(' ', relname, relkind, relpersistence, relrowsecurity, attname, atttypid,
                         attnotnull) AS fact
          FROM pg_class
          LEFT JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0
         WHERE relnamespace = 'duly'::regnamespace
         UNION ALL
        SELECT concat_ws(' ', proname, md5(prosrc), proacl) FROM pg_proc
         WHERE pronamespace = 'duly'::regnamespace
         UNION ALL
        SELECT concat_ws(' ', tgrelid::regclass, tgname, tgenabled) FROM pg_trigger
         WHERE NOT tgisinternal
         UNION ALL
        SELECT concat_ws(' ', polrelid::regclass, polname) FROM pg_policy
         UNION ALL
        SELECT concat_ws(' ', conrelid::regclass, conname) FROM pg_constraint
         WHERE connamespace = 'duly'::regnamespace) AS facts
"""

# What the template taught the login is kept per database; a clone has another name.
READ_LOGIN_SETTINGS = """
SELECT unnest(setconfig) AS setting
  FROM pg_db_role_setting
 WHERE setrole = $1::text::regrole
   AND setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@dataclass(frozen=True)
class RunState:
    """What the workers of one run tell each other, in a file, under a lock."""

    template: str
    users: int


class ServerOfTheRun:
    """This worker's access to the run's server. Its few statements run on a loop of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = asyncio.new_event_loop()
        self.embedded: EmbeddedPostgres | None = None
        self.superuser_url = os.environ.get("DULY_TEST_DATABASE_URL", "")
        self.template = ""
        self.admin: asyncpg.Connection = None
        # Databases of this worker that are empty again, by their kind, and how each kind looks.
        self.idle: dict[str, list[str]] = {}
        self.looks: dict[str, str] = {}

    def open(self) -> None:
        if not self.superuser_url:
            self.embedded = EmbeddedPostgres(self.folder / "server", Environment())
            self.superuser_url = self.embedded.attach().url(MAINTENANCE_DATABASE)
        self.admin = self.run(asyncpg.connect(self.superuser_url))
        with self.state_file() as path:
            state = read_state(path)
            if state.users == 0:
                self.run(self.make_template(state.template))
            self.template = state.template
            write_state(path, RunState(state.template, state.users + 1))

    def close(self) -> None:
        for name in [name for names in self.idle.values() for name in names]:
            self.drop(name)
        with self.state_file() as path:
            state = read_state(path)
            write_state(path, RunState(state.template, state.users - 1))
            if state.users == 1:
                self.run(self.admin.execute(f"DROP DATABASE {state.template}"))
                path.unlink()
        self.run(self.admin.close())
        if self.embedded is not None:
            self.embedded.leave()
        self.loop.close()

    def run(self, work: Awaitable[Answer]) -> Answer:
        return self.loop.run_until_complete(work)

    @contextlib.contextmanager
    def state_file(self) -> Iterator[Path]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "template.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.folder / "template.json"

    def url(self, database: str) -> str:
        """As the owner, who is a superuser here."""
        parts = urlsplit(self.superuser_url)
        return urlunsplit(parts._replace(path=f"/{database}"))

    def engine_url(self, database: str) -> str:
        parts = urlsplit(self.url(database))
        host = parts.netloc.rpartition("@")[2]
        login = f"{quote(EMBEDDED_LOGIN)}:{quote(PASSWORD)}"
        return urlunsplit(parts._replace(netloc=f"{login}@{host}"))

    async def make_template(self, name: str) -> None:
        await self.admin.execute(f"CREATE DATABASE {name}")
        await Migrator(self.url(name), Environment()).migrate()
        await run_if_needed(self.admin, SQL.create_login, EMBEDDED_LOGIN, PASSWORD)
        await self.admin.execute(f"ALTER ROLE {EMBEDDED_LOGIN} PASSWORD '{PASSWORD}'")
        engine = await asyncpg.connect(self.engine_url(name))
        try:
            await prepare_login(engine, self.engine_url(name))
            await create_partitions(engine)
            settings = await engine.fetch(READ_LOGIN_SETTINGS, EMBEDDED_LOGIN)
        finally:
            await engine.close()
        owner = await asyncpg.connect(self.url(name))
        try:
            await owner.execute(REMEMBER_SEED)
        finally:
            await owner.close()
        for row in settings:
            option, _, value = row["setting"].partition("=")
            await self.admin.execute(f"ALTER ROLE {EMBEDDED_LOGIN} SET {option} = {value}")

    @contextlib.contextmanager
    def database(self, template: str | None = None) -> Iterator[str]:
        """A database of one's own, by name; `template0` gives one that duly never touched."""
        name = self.create(template or self.template)
        try:
            yield name
        finally:
            self.drop(name)

    @contextlib.contextmanager
    def used_database(
        self, kind: str = "plain", prepare: Callable[[str], Awaitable[None]] | None = None
    ) -> Iterator[str]:
        """One that another test of this worker may have filled, and that is empty again: making one
        takes longer than most tests. A new one of a kind is prepared, given its owner's URL."""
        idle = self.idle.setdefault(kind, [])
        if idle:
            name = idle.pop()
        else:
            name = self.create(self.template)
            if prepare is not None:
                self.run(prepare(self.url(name)))
            self.looks[kind] = self.run(self.look(name))
        try:
            yield name
        finally:
            self.run(self.admin.execute(END_SESSIONS, name))
            if self.run(self.look(name)) == self.looks[kind]:
                self.run(self.empty(name))
                idle.append(name)
            else:
                self.drop(name)

    async def look(self, name: str) -> str:
        connection = await asyncpg.connect(self.url(name))
        try:
            return str(await connection.fetchval(FINGERPRINT))
        finally:
            await connection.close()

    def create(self, template: str) -> str:
        name = f"duly_test_{uuid.uuid4().hex[:16]}"
        self.run(self.admin.execute(f"CREATE DATABASE {name} TEMPLATE {template}"))
        return name

    def drop(self, name: str) -> None:
        self.run(self.admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))

    async def empty(self, name: str) -> None:
        connection = await asyncpg.connect(self.url(name))
        try:
            await connection.execute(EMPTY)
        finally:
            await connection.close()


def read_state(path: Path) -> RunState:
    if not path.exists():
        return RunState(template=f"duly_template_{uuid.uuid4().hex[:16]}", users=0)
    content: dict[str, Any] = json.loads(path.read_text())
    return RunState(**content)


def write_state(path: Path, state: RunState) -> None:
    path.write_text(json.dumps({"template": state.template, "users": state.users}))
