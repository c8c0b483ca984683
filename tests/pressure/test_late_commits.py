"""Timers that become visible behind the place up to which everything was read."""

import asyncio

import asyncpg
import pytest

from duly.environment import Environment
from duly.scheduler.loader import RELOAD_S, SWEEP_S
from duly.testing.engine import Engine
from tests.pressure.counting import CountingDatabase
from tests.pressure.crowd import Crowd, gather_crowd, keys_of_one_shard
from tests.pressure.watching import Watcher, until

pytestmark = pytest.mark.slow

TENANT = 1
BLOCKED, FREE = keys_of_one_shard(TENANT)
CROWD = 8000
LOADS = 3
# A round of sweeping, the pages of the crowd, and a busy machine.
FOUND_MAX_S = 8 * SWEEP_S


@pytest.mark.parametrize("crowd", [1, CROWD])
async def test_a_transaction_that_commits_late_is_found_by_the_sweep(
    pool: CountingDatabase, owner: asyncpg.Connection, owner_url: str, crowd: int
) -> None:
    """A user's own transaction stored a task and took its time to commit; the scheduler has read on
    meanwhile, and cannot see whose transactions are open. Blocked work may lie in front."""
    await gather_crowd(owner, Crowd(crowd, key=BLOCKED))
    watcher = Watcher()
    watcher.is_held = lambda lease: lease.policy.concurrency_key == BLOCKED
    slow = await asyncpg.connect(owner_url)
    try:
        async with Engine(pool, Environment(), watcher):
            async with slow.transaction():
                # The place is known already: two writers of one new place wait for each other.
                await gather_crowd(slow, Crowd(1, key=FREE, late_s=0.0), first_number=crowd)
                for number in range(LOADS):
                    # What is read after it moves the cursor past it.
                    await asyncio.sleep(RELOAD_S)
                    one = Crowd(1, key=FREE, late_s=0.0)
                    await gather_crowd(owner, one, first_number=crowd + 1 + number)
                await until(lambda: seen(watcher) == LOADS)
            assert await until(lambda: seen(watcher) == LOADS + 1) < FOUND_MAX_S
            watcher.let_go.set()
    finally:
        await slow.close()


def seen(watcher: Watcher) -> int:
    return sum(lease.policy.concurrency_key == FREE for lease in watcher.leases)
