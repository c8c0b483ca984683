"""The ground under every other test: its database is real, fresh and its own."""

from datetime import timedelta

import asyncpg
import pytest

from duly.environment import Environment
from duly.store.database import Database
from duly.store.migrate import read_migrations, schema_version
from duly.testing.clock import ManualClock


async def test_the_cloned_database_is_migrated_and_the_engine_sees_it(database: Database) -> None:
    """A template that missed a migration would fail every later test in obscure ways."""
    assert await schema_version(database) == len(read_migrations())


async def test_the_engine_login_plans_without_statistics(database: Database) -> None:
    """A clone does not inherit per-database settings of a login; tests would run on other plans."""
    (row,) = await database.fetch(
        "SELECT current_user AS login, current_setting('enable_hashjoin') AS hashjoin,"
        " current_setting('enable_seqscan') AS seqscan, rolsuper AS is_superuser"
        " FROM pg_roles WHERE rolname = current_user"
    )
    assert dict(row) == {
        "login": "duly_app",
        "hashjoin": "off",
        "seqscan": "off",
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
