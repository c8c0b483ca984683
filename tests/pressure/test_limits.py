"""Caps and rates are the tenant's for the whole installation, however many nodes dispatch it."""

import contextlib
from collections.abc import AsyncIterator

import pytest

from duly.domain.ids import shard_of, slot_of, tenant_shard
from duly.environment import Environment
from duly.scheduler import dispatcher
from duly.store.submit import Submitter
from duly.store.tenants import Tenant, TenantLimits, create_tenant, update_tenant
from duly.testing.engine import Engine
from tests.pressure.counting import CountingDatabase
from tests.pressure.pair import TICKET_S, knows
from tests.pressure.watching import Watcher, task, until

pytestmark = pytest.mark.slow

CAP = 2
RATE = 10.0
TASKS = 40
# Wider than a tenant gets, so that its shards are in the slots of both nodes.
SPREAD = 1024
LOOK_S = 2 * TICKET_S
# Tickets wait for a consumer, so starts bunch a little; a bucket on each node is twice as fast.
SLACK = 1.35


@pytest.fixture(autouse=True)
def short_tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "TICKET_S", TICKET_S)


@contextlib.asynccontextmanager
async def two_nodes(pool: CountingDatabase, watcher: Watcher) -> AsyncIterator[list[Engine]]:
    engines = [Engine(pool, Environment(), watcher, is_alone=False) for _ in range(2)]
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            engine.scheduler.coordinator.store.ticket_s = TICKET_S
            await stack.enter_async_context(engine)
        coordinators = [engine.scheduler.coordinator for engine in engines]
        await until(lambda: all(len(each.owned) == 32 for each in coordinators))
        yield engines


async def store_over_shards(pool: CountingDatabase, tenant: Tenant, *, is_keyed: bool) -> None:
    """As an API process did that knew of no limit: in many slots, so that both nodes own some."""
    submitter = Submitter(pool, Environment())
    submitter.tenant_shards.spreads = {tenant.id: SPREAD}
    keys = [f"k{n}" if is_keyed else None for n in range(TASKS)]
    answers = await submitter.submit([task(tenant.id, key) for key in keys])
    assert len({slot_of(shard_of(answer.id)) for answer in answers}) > 8


@pytest.mark.parametrize("is_keyed", [True, False])
async def test_a_dispatch_rate_holds_over_all_nodes(pool: CountingDatabase, is_keyed: bool) -> None:
    """Each node had a bucket of its own: two nodes were twice as fast, four four times."""
    limits = TenantLimits(dispatch_rate=RATE, dispatch_burst=1.0)
    tenant = await create_tenant(pool, "rated", limits)
    assert tenant is not None
    watcher = Watcher()
    async with two_nodes(pool, watcher) as engines:
        await until(lambda: all(knows(engine, tenant) for engine in engines))
        await store_over_shards(pool, tenant, is_keyed=is_keyed)
        await until(lambda: len(watcher.leases) == TASKS)
    starts = sorted(watcher.started.values())
    assert (TASKS - 1) / (starts[-1] - starts[0]) < RATE * SLACK


async def test_a_cap_holds_over_all_nodes(pool: CountingDatabase) -> None:
    """Tasks that were placed before the cap was set lie in the slots of both nodes."""
    tenant = await create_tenant(pool, "capped", TenantLimits(in_flight_max=CAP))
    assert tenant is not None
    await store_over_shards(pool, tenant, is_keyed=False)
    watcher = Watcher()
    watcher.is_held = lambda _lease: not watcher.let_go.is_set()
    async with two_nodes(pool, watcher):
        await until(lambda: len(watcher.leases) >= CAP)
        await pool.statements_in(LOOK_S)
        assert len(watcher.leases) == CAP
        watcher.let_go.set()
        await until(lambda: len(watcher.leases) == TASKS)


async def test_a_limit_that_comes_and_goes_moves_the_tasks_between_nodes(
    pool: CountingDatabase,
) -> None:
    """The former dispatcher forgets them, and the new one must not wait for a doorbell."""
    tenant = await create_tenant(pool, "moved", TenantLimits())
    assert tenant is not None
    home = tenant_shard(tenant.id, 1, 0)
    watcher = Watcher()
    async with two_nodes(pool, watcher) as engines:
        for limits in (
            TenantLimits(in_flight_max=100),
            TenantLimits(),
            TenantLimits(dispatch_rate=500.0),
        ):
            watcher.leases.clear()
            await update_tenant(pool, tenant.id, limits)
            await store_over_shards(pool, tenant, is_keyed=False)
            await until(lambda: len(watcher.leases) == TASKS)
        await until(lambda: all(tenant.id in each.scheduler.loader.at_home for each in engines))
        timer_queues = [
            {p for p in engine.scheduler.loader.timer_queues if p.tenant == tenant.id}
            for engine in engines
        ]
        owner = [engine.scheduler.coordinator.owns(home) is not None for engine in engines]
        assert sorted(zip(owner, map(bool, timer_queues), strict=True)) == [
            (False, False),
            (True, True),
        ]
