"""Between processes a hint must be enough: nobody polls, sweeps or counts within these tests."""

import asyncio
from functools import partial

import pytest

from duly.broker import lease_queue
from duly.domain.ids import key_shard
from duly.domain.states import Outcome
from duly.execution import executor
from duly.execution.attempt import DONE, AttemptResult
from duly.scheduler import loader, reaper
from duly.store.lease import Lease
from duly.store.tenants import Tenant, TenantLimits, create_tenant
from duly.testing.engine import Engine
from tests.pressure.counting import CountingDatabase
from tests.pressure.pair import owner_and_worker
from tests.pressure.watching import Watcher, task, until

pytestmark = pytest.mark.slow

CAP = 2
TASKS = 12
# What a hint makes unnecessary comes only after the test is over; a hint takes milliseconds.
NEVER_S = 300.0
SOON_S = 15.0


class Crowd:
    """A handler that takes a moment, and knows how many ran at once. The first are given back."""

    def __init__(self, release: int = 0) -> None:
        self.release = release
        self.starts = 0
        self.ended = 0
        self.running = 0
        self.most = 0

    async def __call__(self, _lease: Lease) -> AttemptResult:
        self.starts += 1
        self.running += 1
        self.most = max(self.most, self.running)
        is_released = self.starts <= self.release
        await asyncio.sleep(0.005)
        self.running -= 1
        self.ended += not is_released
        return AttemptResult(Outcome.RELEASED) if is_released else DONE


@pytest.fixture
def nobody_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "REAP_S", NEVER_S)


@pytest.fixture
def nobody_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_queue, "POLL_FIRST_S", NEVER_S)
    monkeypatch.setattr(lease_queue, "POLL_LAST_S", NEVER_S)
    monkeypatch.setattr(executor, "TAKE_WAIT_S", NEVER_S)


async def make_tenant(pool: CountingDatabase, limits: TenantLimits) -> Tenant:
    tenant = await create_tenant(pool, "hinted", limits)
    assert tenant is not None
    return tenant


@pytest.mark.usefixtures("nobody_counts")
async def test_a_cap_freed_in_another_process_is_used_at_once(pool: CountingDatabase) -> None:
    """The owner would otherwise notice at its next count: a cap of two, two tasks a second."""
    tenant = await make_tenant(pool, TenantLimits(in_flight_max=CAP))
    crowd = Crowd()
    async with owner_and_worker(pool, tenant, crowd) as (owner, _worker):
        await owner.submitter.submit([task(tenant.id) for _ in range(TASKS)])
        # The first wait until the shard is counted; from then on nobody counts.
        await until(lambda: crowd.starts >= CAP)
        await until(lambda: crowd.ended == TASKS, SOON_S)
        assert crowd.most <= CAP


@pytest.mark.usefixtures("nobody_counts")
async def test_a_key_freed_in_another_process_is_used_at_once(pool: CountingDatabase) -> None:
    """A key is for one at a time: each of its tasks would wait for a count."""
    tenant = await make_tenant(pool, TenantLimits())
    crowd = Crowd()
    async with owner_and_worker(pool, tenant, crowd) as (owner, worker):
        key = key_owned_by(owner, tenant)
        await worker.submitter.submit([task(tenant.id, key) for _ in range(TASKS)])
        await until(lambda: crowd.starts >= 1)
        await until(lambda: crowd.ended == TASKS, SOON_S)
        assert crowd.most == 1


@pytest.mark.usefixtures("nobody_counts")
async def test_what_another_process_gives_back_starts_again_at_once(
    pool: CountingDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must be heard of twice: that its cap is free, and that it is due again."""
    monkeypatch.setattr(loader, "RELOAD_S", NEVER_S)
    monkeypatch.setattr(loader, "SWEEP_S", NEVER_S)
    tenant = await make_tenant(pool, TenantLimits(in_flight_max=1))
    crowd = Crowd(release=3)
    async with owner_and_worker(pool, tenant, crowd) as (owner, _worker):
        await owner.submitter.submit([task(tenant.id)])
        await until(lambda: crowd.starts >= 1)
        await until(lambda: crowd.ended == 1, SOON_S)
        assert crowd.starts == 4


@pytest.mark.usefixtures("nobody_polls")
async def test_an_idle_consumer_of_another_process_is_woken(pool: CountingDatabase) -> None:
    """A lone task of another process's slot would wait up to half a second for a poll."""
    tenant = await make_tenant(pool, TenantLimits())
    watcher = Watcher()
    async with owner_and_worker(pool, tenant, watcher) as (owner, worker):
        for number in range(1, 6):
            await until(lambda: worker.parts.lease_queue.waiting() > 0)
            await owner.group_commit.submit(task(tenant.id))
            await until(partial(has_started, watcher, number), SOON_S)


def has_started(watcher: Watcher, number: int) -> bool:
    return len(watcher.leases) == number


def key_owned_by(engine: Engine, tenant: Tenant) -> str:
    """Tasks with a key live in the key's shard, not in their tenant's."""
    owns = engine.scheduler.coordinator.owns
    keys = [f"key-{number}" for number in range(1000)]
    return next(key for key in keys if owns(key_shard(tenant.id, key)) is not None)
