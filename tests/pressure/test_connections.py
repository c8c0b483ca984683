"""A server that others use too, and hints that never arrive: slower at worst, never stuck."""

import asyncio
import contextlib

import asyncpg
import pytest

from duly.environment import Environment
from duly.scheduler.loader import RELOAD_S
from duly.store.submit import Stored
from duly.testing.engine import Engine
from tests.pressure.counting import CountingDatabase
from tests.pressure.watching import Watcher, task, until

pytestmark = pytest.mark.slow

IDLE = 300
TASKS = 500
ALL_RUN_MAX_S = 40.0
TENANTS = 40
# A load of what a lost ring would have told at once, and a poll of the lanes, on a busy machine.
FOUND_MAX_S = 10 * RELOAD_S


async def test_three_hundred_idle_connections_do_not_matter(
    pool: CountingDatabase, owner_url: str
) -> None:
    """Every look at pg_stat_activity, and every snapshot, sees them all."""
    watcher = Watcher()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(IDLE // 50):
            opened = await asyncio.gather(*(asyncpg.connect(owner_url) for _ in range(50)))
            for connection in opened:
                stack.push_async_callback(connection.close)
        async with Engine(pool, Environment(), watcher) as engine:
            for _ in range(TASKS):
                await engine.group_commit.submit(task())
            assert await until(lambda: len(watcher.leases) == TASKS) < ALL_RUN_MAX_S
            answer = await engine.group_commit.submit(task())
            assert isinstance(answer, Stored)
            assert await until(lambda: answer.id in watcher.started) < ALL_RUN_MAX_S


async def test_without_doorbells_and_notifications_nothing_is_stuck(
    pool: CountingDatabase,
) -> None:
    """Two processes that cannot hear each other: each finds by itself what the other stored."""
    watcher = Watcher()
    environment = Environment()
    async with contextlib.AsyncExitStack() as stack:
        engines = [Engine(pool, environment, watcher, is_alone=False) for _ in range(2)]
        for engine in engines:
            deafen(engine)
            await stack.enter_async_context(engine)
        coordinators = [engine.scheduler.coordinator for engine in engines]
        await until(lambda: all(len(each.owned) == 32 for each in coordinators))
        for tenant in range(1, TENANTS + 1):
            await engines[0].group_commit.submit(task(tenant))
        assert await until(lambda: len(watcher.leases) == TENANTS) < FOUND_MAX_S
    assert len({lease.id for lease in watcher.leases}) == TENANTS


def deafen(engine: Engine) -> None:
    """No ring goes out, none comes in, and no LISTEN is even tried."""
    engine.parts.events.listeners.clear()
    engine.scheduler.doorbell.send = None
    engine.parts.roles[:] = [role for role in engine.parts.roles if role.name != "channel"]
