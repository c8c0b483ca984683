"""Work that may not start now lies in front of work that may; and later all of it must run."""

import asyncpg
import pytest

from duly.environment import Environment
from duly.scheduler.loader import PAGE
from duly.scheduler.ready_state import PARKED_MAX, QUEUE_ENTRIES_MAX
from duly.store.submit import Stored
from duly.store.tenants import PauseKind, clear_pause, create_tenant, set_pause
from duly.testing.engine import Engine
from tests.pressure.counting import CountingDatabase
from tests.pressure.crowd import Crowd, gather_crowd, keys_of_one_shard
from tests.pressure.watching import Watcher, fullest_queue, task, until

pytestmark = pytest.mark.slow

TENANT = 1
BLOCKED, FREE = keys_of_one_shard(TENANT)
CROWD = 20_000
KEY_LIMIT = 50
# The crowd is read page by page before what lies behind it.
BEHIND_MAX_S = 20.0
RUNG_MAX_S = 20.0
PAUSED = 10_000
LOOK_S = 5.0
STATEMENTS_PER_S_MAX = 5.0


async def test_a_blocked_key_hides_nobody_and_loses_nothing(
    pool: CountingDatabase, owner: asyncpg.Connection
) -> None:
    """One customer's receiver hangs: the next customer's tasks in the same shard go on, and when it
    answers again every one of its tasks runs, also those that were let go from memory."""
    await gather_crowd(owner, Crowd(CROWD, key=BLOCKED, key_limit=KEY_LIMIT, late_s=60.0))
    await gather_crowd(owner, Crowd(1, key=FREE, late_s=30.0), first_number=CROWD)
    watcher = Watcher()
    watcher.is_held = lambda lease: (
        not watcher.let_go.is_set() and lease.policy.concurrency_key == BLOCKED
    )
    async with Engine(pool, Environment(), watcher) as engine:
        await until(lambda: len(watcher.leases) >= KEY_LIMIT)
        assert await until(lambda: len(watcher.leases) > KEY_LIMIT) < BEHIND_MAX_S
        await until(lambda: fullest_queue(engine) <= PARKED_MAX)
        answer = await engine.group_commit.submit(task(TENANT, FREE))
        assert isinstance(answer, Stored)
        assert await until(lambda: answer.id in watcher.started) < RUNG_MAX_S
        assert len(watcher.leases) == KEY_LIMIT + 2, "the blocked key went above its limit"
        watcher.let_go.set()
        await until(lambda: len(watcher.leases) >= CROWD + 2)
        assert fullest_queue(engine) <= QUEUE_ENTRIES_MAX + PAGE
    assert len({lease.id for lease in watcher.leases}) == len(watcher.leases) == CROWD + 2


async def test_a_paused_type_with_many_tasks_keeps_nobody_busy(
    pool: CountingDatabase, owner: asyncpg.Connection
) -> None:
    """A pause may last for days; asking for the same rows all the time would be felt by all."""
    tenant = await create_tenant(pool, "paused")
    assert tenant is not None
    await set_pause(pool, tenant.id, PauseKind.TYPE, "stopped", "ann", "an incident")
    await gather_crowd(owner, Crowd(PAUSED, tenant=tenant.id, type="stopped"))
    watcher = Watcher()
    async with Engine(pool, Environment(), watcher) as engine:
        bounds = engine.scheduler.dispatcher.gatekeeper
        await until(lambda: tenant.id in bounds.bounds.tenants)
        answer = await engine.group_commit.submit(task(tenant.id, kind="going"))
        assert isinstance(answer, Stored)
        await until(lambda: answer.id in watcher.started)
        asked = await pool.statements_in(LOOK_S)
        assert asked.total() < STATEMENTS_PER_S_MAX * LOOK_S, asked
        stopped = {lease.id for lease in watcher.leases if lease.type == "stopped"}
        await clear_pause(pool, tenant.id, PauseKind.TYPE, "stopped")
        await until(lambda: len(watcher.leases) - 1 >= PAUSED)
    assert not stopped, "a paused task ran"
    assert len({lease.id for lease in watcher.leases}) == PAUSED + 1
