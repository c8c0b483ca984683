"""One tenant has a mountain of overdue work; the others must not notice, and memory must not."""

import asyncio
import os

import asyncpg
import pytest

from duly.domain.lanes import LANE_DEPTH_MAX
from duly.environment import Environment
from duly.execution.attempt import DONE, AttemptResult
from duly.scheduler.dispatcher import DISPATCH_MAX
from duly.scheduler.loader import PAGE
from duly.scheduler.ready_state import QUEUE_ENTRIES_MAX
from duly.store.lease import Lease
from duly.store.submit import Stored
from duly.testing.engine import Engine
from tests.pressure.counting import CountingDatabase
from tests.pressure.crowd import Crowd, count_timers, gather_crowd
from tests.pressure.watching import Watcher, fullest_queue, task, until

pytestmark = pytest.mark.slow

NOISY, QUIET = 1, 2
# A million takes a minute to write.
BACKLOG = int(os.environ.get("DULY_TEST_BACKLOG", "100000"))
PROBES = 15
# Consumers that take this long, this many at a time, need 20 s for the backlog.
WORK_S = 0.02
RUNNING_MAX = 100
# What lies in the lane goes first (a third of a second); the backlog itself does not.
WAIT_MAX_S = 15.0
IN_MEMORY_MAX = QUEUE_ENTRIES_MAX + PAGE + LANE_DEPTH_MAX + 2 * DISPATCH_MAX + RUNNING_MAX


async def test_another_tenant_does_not_wait_behind_a_huge_backlog(
    pool: CountingDatabase, owner: asyncpg.Connection
) -> None:
    """Another tenant's outage of yesterday must not delay today's tasks, nor fill the memory."""
    await gather_crowd(owner, Crowd(BACKLOG, tenant=NOISY))
    watcher = Watcher()

    def handle(lease: Lease) -> AttemptResult | asyncio.Future[AttemptResult]:
        watcher(lease)
        return DONE if lease.tenant == QUIET else asyncio.ensure_future(work())

    async with Engine(pool, Environment(), handle, running_max=RUNNING_MAX) as engine:
        ready_state = engine.scheduler.dispatcher.ready_state
        await until(lambda: watcher.counts[NOISY] >= LANE_DEPTH_MAX)
        for _ in range(PROBES):
            answer = await engine.group_commit.submit(task(QUIET))
            assert isinstance(answer, Stored)
            waited_s = await until(lambda: answer.id in watcher.started)  # noqa: B023 (awaited)
            assert waited_s < WAIT_MAX_S
            assert fullest_queue(engine) <= QUEUE_ENTRIES_MAX + PAGE
            assert len(ready_state.known) <= IN_MEMORY_MAX
        assert await count_timers(owner, NOISY) > BACKLOG / 10, "the backlog was gone too soon"


async def work() -> AttemptResult:
    await asyncio.sleep(WORK_S)
    return DONE
