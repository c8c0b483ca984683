"""The ground under every other test: its database is real, fresh and its own."""

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from duly.environment import Environment
from duly.store.database import Database
from duly.store.migrate import read_migrations, schema_version
from duly.testing.clock import ManualClock
from tests.servers import ServerOfTheRun


async def test_the_cloned_database_is_migrated_and_the_engine_sees_it(database: Database) -> None:
    """A template that missed a migration would fail every later test in obscure ways."""
    assert await schema_version(database) == len(read_migrations())


async def test_the_engine_login_plans_without_statistics(database: Database) -> None:
    """A clone does not inherit per-database settings of a login; tests would run on other plans."""
    (row,) = await database.fetch(
        "SELECT current_user AS login, current_setting('enable_hashjoin') AS hashjoin,"
        " current_setting('enable_seqscan') AS seqscan,"
        " current_setting('plan_cache_mode') AS plans, rolsuper AS is_superuser"
        " FROM pg_roles WHERE rolname = current_user"
    )
    assert dict(row) == {
        "login": "duly_app",
        "hashjoin": "off",
        "seqscan": "off",
        "plans": "force_generic_plan",
        "is_superuser": False,
    }


@pytest.mark.parametrize("turn", [1, 2])
async def test_no_test_sees_the_tables_of_another(owner: asyncpg.Connection, turn: int) -> None:
    """Leftovers would make tests depend on their order."""
    await owner.execute("CREATE TABLE duly.leftover (turn integer)")


def test_the_clock_moves_only_when_told(environment: Environment, clock: ManualClock) -> None:
    """A clock that moved by itself would make time-dependent tests flicker."""
    before, started = environment.clock.now(), environment.clock.monotonic()
    assert environment.clock.now() == before
    clock.advance(90)
    assert environment.clock.now() - before == timedelta(seconds=90)
    assert environment.clock.monotonic() - started == 90


def run(server: ServerOfTheRun, name: str, statement: str) -> Any:
    async def ask() -> Any:
        connection = await asyncpg.connect(server.url(name))
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return server.run(ask())


def test_a_database_that_is_used_again_is_as_it_was(server: ServerOfTheRun) -> None:
    """What an earlier test left would be found by a later one."""
    with server.used_database("of this test") as first:
        before = run(server, first, "SELECT count(*) FROM duly.tenants")
        made = "INSERT INTO duly.tenants (name) VALUES ('left over') RETURNING id"
        first_id = run(server, first, made)
        run(
            server,
            first,
            "INSERT INTO duly.audit (tenant, at, actor, action, subject, detail)"
            " VALUES (1, now(), 'a', 'b', 'c', '{}')",
        )
        run(server, first, "UPDATE duly.ownership SET epoch = 7")
    with server.used_database("of this test") as second:
        assert second == first
        assert run(server, second, "SELECT count(*) FROM duly.tenants") == before
        assert run(server, second, "SELECT count(*) FROM duly.audit") == 0
        assert run(server, second, "SELECT max(epoch) FROM duly.ownership") == 0
        assert run(server, second, made) == first_id


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE duly.left_over (id integer)",
        "ALTER TABLE duly.audit DISABLE TRIGGER USER",
        "DROP INDEX duly.timers_due",
        (
            "CREATE OR REPLACE FUNCTION duly.refuse_change() RETURNS trigger LANGUAGE plpgsql"
            " AS $$ BEGIN RETURN NULL; END $$"
        ),
    ],
)
def test_a_database_with_another_schema_is_not_used_again(
    server: ServerOfTheRun, change: str
) -> None:
    """One test's experiment would be the next one's ground."""
    with server.used_database("to be changed") as changed:
        run(server, changed, change)
    with server.used_database("to be changed") as other:
        assert other != changed
