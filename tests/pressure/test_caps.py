"""Caps when the work is done in another process than the one that counts it (I10)."""

import contextlib
from collections.abc import Callable

import pytest

from duly.environment import Environment
from duly.scheduler import dispatcher
from duly.store.lease import Lease
from duly.store.submit import Stored
from duly.store.tenants import Tenant, TenantLimits, create_tenant
from duly.testing.engine import Engine
from tests.pressure.counting import CountingDatabase
from tests.pressure.pair import TICKET_S, owner_and_worker
from tests.pressure.watching import Watcher, task, until

pytestmark = pytest.mark.slow

CAP = 2
TASKS = 12
# Each pair of tasks waits until the owner has asked what became of the last; a ticket's life is
# what it must not wait for.
PASS_MAX_S = TASKS / CAP * TICKET_S * 0.9
LOOK_S = 3 * TICKET_S


@pytest.fixture(autouse=True)
def short_tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "TICKET_S", TICKET_S)


async def capped_tenant(pool: CountingDatabase) -> Tenant:
    tenant = await create_tenant(pool, "capped", TenantLimits(in_flight_max=CAP))
    assert tenant is not None
    return tenant


async def test_a_lease_that_outlives_its_ticket_still_counts(pool: CountingDatabase) -> None:
    """The owner never hears of a lease taken elsewhere; when the ticket's time is over it must not
    take the task for finished and send one more."""
    tenant = await capped_tenant(pool)
    watcher = Watcher()
    watcher.is_held = lambda _lease: not watcher.let_go.is_set()
    async with owner_and_worker(pool, tenant, watcher) as (owner, _worker):
        await owner.submitter.submit([task(tenant.id) for _ in range(TASKS)])
        await until(lambda: len(watcher.leases) == CAP)
        await pool.statements_in(LOOK_S)
        assert len(watcher.leases) == CAP
        watcher.let_go.set()
        await until(lambda: len(watcher.leases) == TASKS)


async def test_work_done_elsewhere_frees_its_cap_before_its_ticket_is_void(
    pool: CountingDatabase,
) -> None:
    """A cap of two would otherwise mean two tasks for each life of a ticket, if hints are lost."""
    tenant = await capped_tenant(pool)
    watcher = Watcher()
    async with owner_and_worker(pool, tenant, watcher) as (owner, worker):
        worker.scheduler.freed_capacity.hints = None
        await owner.submitter.submit([task(tenant.id) for _ in range(CAP)])
        await until(lambda: len(watcher.leases) == CAP)
        await owner.submitter.submit([task(tenant.id) for _ in range(TASKS)])
        assert await until(lambda: len(watcher.leases) == TASKS + CAP) < PASS_MAX_S


async def test_a_new_owner_counts_leases_that_it_never_sent(pool: CountingDatabase) -> None:
    """The key's one task still runs when its slot changes hands; the next must wait for it."""
    tenant = await create_tenant(pool, "keyed")
    assert tenant is not None
    watcher = Watcher()
    watcher.is_held = only_first(watcher)
    async with contextlib.AsyncExitStack() as stack:
        worker = Engine(pool, Environment(), watcher, is_alone=False)
        former = Engine(pool, Environment(), watcher, is_alone=False)
        former.executor.shares.slots = 0
        for engine in (worker, former):
            engine.scheduler.coordinator.store.ticket_s = TICKET_S
        async with former:
            await until(lambda: len(former.scheduler.coordinator.owned) == 64)
            # It takes from the lanes, and owns nothing yet.
            worker.parts.roles[:] = [
                role for role in worker.parts.roles if role.name != "coordinator"
            ]
            await stack.enter_async_context(worker)
            await former.group_commit.submit(task(tenant.id, "one-at-a-time"))
            await until(lambda: len(watcher.leases) == 1)
        heir = Engine(pool, Environment(), watcher, is_alone=False)
        heir.scheduler.coordinator.store.ticket_s = TICKET_S
        heir.executor.shares.slots = 0
        await stack.enter_async_context(heir)
        await until(lambda: len(heir.scheduler.coordinator.owned) == 64)
        await pool.statements_in(LOOK_S)
        answer = await heir.group_commit.submit(task(tenant.id, "one-at-a-time"))
        assert isinstance(answer, Stored)
        await pool.statements_in(LOOK_S)
        assert answer.id not in watcher.started, "two tasks of a key for one at a time"
        watcher.let_go.set()
        await until(lambda: answer.id in watcher.started)


def only_first(watcher: Watcher) -> Callable[[Lease], bool]:
    return lambda _lease: len(watcher.leases) == 1
