"""A transaction-mode pooler between duly and its database: slower, never stuck, never wrong."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from duly.environment import Environment
from duly.store.database import Database
from duly.testing.engine import Engine
from tests.pressure.pooler import pgbouncer
from tests.pressure.watching import Watcher, task, until
from tests.processes import child
from tests.story.duly_up import RunningDuly

pytestmark = pytest.mark.slow

TASKS = 300
CONNECTIONS_MAX = 10
ENDED = "SELECT count(*) FROM duly.attempts WHERE state = 'COMPLETED'"


@pytest.fixture
def pooler_url(engine_url: str, tmp_path: Path) -> Iterator[str]:
    with pgbouncer(engine_url, tmp_path) as url:
        yield url


async def test_tasks_are_submitted_and_run_through_a_transaction_mode_pooler(
    pooler_url: str, owner: asyncpg.Connection
) -> None:
    """Each statement may meet another session: nothing prepared, nothing set, nothing listened for
    is still there."""
    database = await Database.open(pooler_url, CONNECTIONS_MAX, is_pooled=True)
    watcher = Watcher()
    try:
        async with contextlib.AsyncExitStack() as stack:
            engines = [Engine(database, Environment(), watcher, is_alone=False) for _ in range(2)]
            for engine in engines:
                await stack.enter_async_context(engine)
            coordinators = [engine.scheduler.coordinator for engine in engines]
            await until(lambda: all(len(each.owned) == 32 for each in coordinators))
            await asyncio.gather(
                *(engines[n % 2].group_commit.submit(task(n)) for n in range(1, TASKS))
            )
            keyed = task(TASKS, idempotency_key="once")
            await asyncio.gather(*(engine.group_commit.submit(keyed) for engine in engines))
            await until(lambda: len(watcher.leases) >= TASKS)
            failures = [loop.failures.in_a_row for engine in engines for loop in engine.loops]
    finally:
        await database.close()
    assert not any(failures)
    assert await owner.fetchval(ENDED) == len(watcher.leases) == TASKS


def test_duly_serve_is_ready_behind_a_pooler(pooler_url: str, owner_url: str) -> None:
    """Told of the pooler, it expects no notifications and waits for none."""
    environ = {
        "DULY_DATABASE_URL": pooler_url,
        "DULY_MIGRATION_DATABASE_URL": owner_url,
        "DULY_DATABASE_POOLER": "true",
    }
    with child("-m", "duly", "serve", "--json", "--port", "0", environ=environ) as process:
        running = RunningDuly(process)
        assert running.is_ready()
        assert "role:channel" not in running.checks()
        assert "role:loader" in running.checks()


def test_a_pooler_without_a_way_past_it_is_refused(engine_url: str) -> None:
    """Two migrators whose lock is in nobody's session would run at once."""
    environ = {"DULY_DATABASE_URL": engine_url, "DULY_DATABASE_POOLER": "true"}
    with child("-m", "duly", "serve", "--port", "0", environ=environ) as process:
        assert process.wait() == 2
        assert "migration_database_url" in process.said_on_errors
        assert process.said_on_errors.count("\n") == 1
