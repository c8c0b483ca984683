"""The whole scheduler on a real PostgreSQL, with handlers that watch what happens to them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import pytest

from duly.domain.gates import Gate
from duly.domain.lanes import LANE_DEPTH_MAX
from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome, State
from duly.domain.task import HIGH, LOW, NORMAL, Policy, Submission, host_of
from duly.environment import Environment
from duly.execution.attempt import DONE, AttemptResult
from duly.execution.worker_leases import LeaseCall
from duly.store.breakers import open_breaker
from duly.store.control import cancel_tasks
from duly.store.database import Database
from duly.store.lease import Lease
from duly.store.read import read_attempts, read_task
from duly.store.submit import Stored, Submitter
from duly.store.tenants import (
    PauseKind,
    TenantLimits,
    clear_pause,
    create_tenant,
    set_pause,
    suspend_tenant,
)
from duly.testing.engine import Engine

pytestmark = pytest.mark.slow

URL = "http://receiver.example/hook"
PATIENCE_S = 40.0


@pytest.fixture
async def pool(engine_url: str) -> AsyncIterator[Database]:
    database = await Database.open(engine_url, 12)
    yield database
    await database.close()


class Watcher:
    """A handler that remembers every start and can be awaited for a number of them."""

    def __init__(self, work_s: float = 0.0) -> None:
        self.work_s = work_s
        self.leases: list[Lease] = []
        self.running: Counter[object] = Counter()
        self.most: Counter[object] = Counter()
        self.changed = asyncio.Event()
        self.group_by: Callable[[Lease], object] = lambda lease: lease.tenant

    async def __call__(self, lease: Lease) -> AttemptResult:
        group = self.group_by(lease)
        self.leases.append(lease)
        self.running[group] += 1
        self.most[group] = max(self.most[group], self.running[group])
        self.changed.set()
        try:
            if self.work_s:
                await asyncio.sleep(self.work_s)
        finally:
            self.running[group] -= 1
        return DONE

    async def count(self, number: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.leases) < number:
                self.changed.clear()
                await self.changed.wait()


def task(tenant: int = 1, **facts: object) -> Submission:
    return Submission(tenant=tenant, type="t", url=URL, **facts)  # type: ignore[arg-type]


async def finished(pool: Database, answer: object, tenant: int = 1) -> State:
    """The state of a task once it has ended."""
    assert isinstance(answer, Stored)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await read_task(pool, tenant, answer.id)
            assert found is not None
            if found.finished_at is not None:
                return found.state
            await asyncio.sleep(0.02)


def silent(engine: Engine) -> Submitter:
    """What it stores, the engine's scheduler is not told of."""
    return Submitter(engine.submitter.database, engine.environment)


async def test_a_task_runs_as_soon_as_it_is_submitted(pool: Database) -> None:
    """The doorbell carries it: nobody waits for the next load."""
    watcher = Watcher()
    async with Engine(pool, Environment(), watcher) as engine:
        answer = await engine.group_commit.submit(task())
        await watcher.count(1)
        assert await finished(pool, answer) is State.COMPLETED


async def test_a_delayed_task_never_starts_before_its_instant(pool: Database) -> None:
    """Early is wrong, however little (I12): the fire time is somebody's promise."""
    watcher = Watcher()
    run_at = datetime.now(UTC) + timedelta(seconds=1.2)
    async with Engine(pool, Environment(), watcher) as engine:
        await engine.submitter.submit([task(run_at=run_at), task(delay_s=0.7), task()])
        await watcher.count(3)
    assert all(lease.started_at >= lease.run_at for lease in watcher.leases)


async def test_a_lost_doorbell_delays_and_loses_nothing(pool: Database) -> None:
    """The ring may be lost at any time; loads and sweeps must find the timer (I11)."""
    watcher = Watcher()
    async with Engine(pool, Environment(), watcher) as engine:
        await silent(engine).submit([task(), task(delay_s=0.5)])
        await watcher.count(2)


async def test_a_backlog_from_before_is_worked_off(pool: Database) -> None:
    """All schedulers were down; starting one must be enough (I11)."""
    watcher = Watcher()
    engine = Engine(pool, Environment(), watcher)
    submitter = silent(engine)
    for _ in range(12):
        await submitter.submit([task() for _ in range(500)])
    async with engine:
        await watcher.count(6000)
    assert len({lease.id for lease in watcher.leases}) == 6000


async def test_a_wiped_ready_queue_is_published_again(pool: Database) -> None:
    """The queue is a cache: losing it costs time, never a task (I11)."""
    watcher = Watcher()
    engine = Engine(pool, Environment(), watcher)
    await engine.submitter.submit([task() for _ in range(300)])
    taking, engine.executor.shares.slots = engine.executor.shares.slots, 0
    async with engine:
        await until(lambda: bool(engine.scheduler.dispatcher.ready_state.tickets))
        await engine.parts.lease_queue.purge()
        engine.executor.shares.slots = taking
        engine.executor.has_room.set()
        await watcher.count(300)
    samples = engine.metrics.registry.get_sample_value
    assert samples("duly_dispatched_total") == 300, "a ticket again is no other attempt"
    assert samples("duly_republished_total") == 300


async def test_another_node_goes_on_where_one_was_killed(pool: Database) -> None:
    """kill -9 in the middle of everything: leases run out, slots change hands (I11)."""
    watcher = Watcher()
    first = Engine(pool, Environment(), watcher)
    first.scheduler.coordinator.store.lease_s = 1.0
    await first.__aenter__()
    await first.submitter.submit([task() for _ in range(50)])
    await watcher.count(50)
    await first.kill()
    second = Engine(pool, Environment(), watcher)
    async with second:
        await second.submitter.submit([task() for _ in range(50)])
        await watcher.count(100)


async def test_a_concurrency_key_holds_its_limit_and_hides_nobody(pool: Database) -> None:
    """One customer at a time, and the next customer's task is not stuck behind the first's."""
    watcher = Watcher(work_s=0.05)
    watcher.group_by = lambda lease: lease.policy.concurrency_key
    keyed = [
        task(policy=Policy(concurrency_key=key, concurrency_limit=limit))
        for key, limit, count in (("ann", 1, 12), ("bob", 3, 24))
        for _ in range(count)
    ]
    async with Engine(pool, Environment(), watcher) as engine:
        await engine.submitter.submit(keyed)
        await watcher.count(36)
    assert watcher.most["ann"] == 1
    assert 2 <= watcher.most["bob"] <= 3


async def test_a_tenant_never_has_more_in_flight_than_its_cap(pool: Database) -> None:
    """The cap protects somebody's downstream (I10); another tenant is not held up by it."""
    capped = await create_tenant(pool, "capped", TenantLimits(in_flight_max=3))
    free = await create_tenant(pool, "free")
    assert capped is not None
    assert free is not None
    watcher = Watcher(work_s=0.03)
    async with Engine(pool, Environment(), watcher) as engine:
        await learned(engine, capped.id)
        await engine.submitter.submit([task(capped.id) for _ in range(40)])
        await engine.submitter.submit([task(free.id) for _ in range(40)])
        await watcher.count(80)
    assert watcher.most[capped.id] == 3
    assert watcher.most[free.id] > 3


async def test_a_dispatch_rate_is_kept(pool: Database) -> None:
    """A receiver that allows twenty a second gets twenty a second (I10)."""
    tenant = await create_tenant(pool, "slow", TenantLimits(dispatch_rate=20.0, dispatch_burst=5.0))
    assert tenant is not None
    watcher = Watcher()
    async with Engine(pool, Environment(), watcher) as engine:
        await learned(engine, tenant.id)
        await engine.submitter.submit([task(tenant.id) for _ in range(30)])
        await watcher.count(30)
    starts = sorted(lease.started_at for lease in watcher.leases)
    for first in range(len(starts)):
        window = [s for s in starts[first:] if s - starts[first] <= timedelta(seconds=1)]
        assert len(window) <= 5 + 20 + 1


async def test_a_paused_tenant_waits_and_goes_on_when_resumed(pool: Database) -> None:
    """Paused work must be neither lost nor run."""
    tenant = await create_tenant(pool, "paused")
    assert tenant is not None
    await set_pause(pool, tenant.id, PauseKind.TENANT, "", "ann", "release")
    watcher = Watcher()
    async with Engine(pool, Environment(), watcher) as engine:
        await learned(engine, tenant.id)
        await engine.submitter.submit([task(tenant.id) for _ in range(100)] + [task(77)])
        await watcher.count(1)
        assert [lease.tenant for lease in watcher.leases] == [77]
        await clear_pause(pool, tenant.id, PauseKind.TENANT, "")
        await watcher.count(101)


async def test_a_suspended_tenant_waits_and_goes_on_when_resumed(pool: Database) -> None:
    """Suspended for not paying, its work would go on all the same."""
    tenant = await create_tenant(pool, "suspended")
    assert tenant is not None
    await suspend_tenant(pool, tenant.id, True)
    watcher = Watcher()
    async with Engine(pool, Environment(), watcher) as engine:
        await learned(engine, tenant.id)
        await engine.submitter.submit([task(tenant.id) for _ in range(10)] + [task(77)])
        await watcher.count(1)
        assert [lease.tenant for lease in watcher.leases] == [77]
        await suspend_tenant(pool, tenant.id, False)
        await watcher.count(11)


async def test_a_task_that_may_no_longer_start_is_a_dead_letter(pool: Database) -> None:
    """Start-by: late is worse than never, and it is said so."""
    watcher = Watcher()
    start_by = datetime.now(UTC) + timedelta(seconds=0.2)
    engine = Engine(pool, Environment(), watcher)
    (answer,) = await engine.submitter.submit([task(policy=Policy(start_by=start_by), delay_s=0.5)])
    async with engine:
        assert await finished(pool, answer) is State.FAILED
    assert watcher.leases == []


async def test_a_failing_handler_is_tried_again_and_then_given_up(pool: Database) -> None:
    """Every attempt on record, numbers without gaps, and an end."""

    async def fail(_lease: Lease) -> AttemptResult:
        raise ValueError("broken")

    policy = Policy(retry=RetryPolicy(max_attempts=3, backoff="fixed", initial_s=0.05))
    async with Engine(pool, Environment(), fail) as engine:
        answer = await engine.group_commit.submit(task(policy=policy))
        assert await finished(pool, answer) is State.FAILED
        assert isinstance(answer, Stored)
        attempts = await read_attempts(pool, 1, answer.id)
    assert [attempt.charged for attempt in attempts] == [1, 2, 3]
    assert {attempt.outcome for attempt in attempts} == {Outcome.FAILED}
    assert attempts[-1].error == "ValueError: broken"


async def test_a_probe_that_was_cancelled_is_followed_by_the_next(pool: Database) -> None:
    """One probe a minute is all a broken host gets: one that nobody sends must not be it."""
    host = host_of(URL)
    assert host is not None
    owner = await create_tenant(pool, "acme")
    assert owner is not None
    assert await open_breaker(pool, owner.id, host, 3600.0, "down") is not None
    watcher = Watcher()
    async with Engine(pool, Environment(), watcher) as engine:
        dispatcher = engine.scheduler.dispatcher
        await until(lambda: (owner.id, host) in dispatcher.gatekeeper.bounds.breakers)
        first, second = await engine.submitter.submit([task(owner.id), task(owner.id, delay_s=0.1)])
        assert isinstance(first, Stored)
        assert isinstance(second, Stored)
        parked = dispatcher.ready_state.parked
        await until(lambda: len(parked.get((Gate.BREAKER.value, owner.id, host), ())) == 2)
        await cancel_tasks(pool, owner.id, [first.id])
        await pool.fetch("UPDATE duly.breakers SET open_until = duly.now()")
        await watcher.count(1)
    assert [lease.id for lease in watcher.leases] == [second.id]


async def test_a_breaker_of_a_type_or_a_pool_stops_nothing_else(pool: Database) -> None:
    """One broken handler would stop every task of its pool, or one pool the whole tenant."""
    owner = await create_tenant(pool, "acme")
    assert owner is not None
    async with Engine(pool, Environment(), Watcher()) as engine:
        numbers = await engine.parts.workers.pools.resolve({(owner.id, "p"), (owner.id, "q")})
        assert await open_breaker(pool, owner.id, "type/bad", 3600.0, "x") is not None
        subject = f"pool/{numbers[owner.id, 'q']}"
        assert await open_breaker(pool, owner.id, subject, 3600.0, "x") is not None
        gatekeeper = engine.scheduler.dispatcher.gatekeeper
        await until(lambda: len(gatekeeper.bounds.breakers) == 2)
        await engine.submitter.submit(
            [
                Submission(tenant=owner.id, type=task_type, pool=name)
                for task_type, name in (("bad", "p"), ("good", "p"), ("good", "q"), ("good", "r"))
            ]
        )
        asked = LeaseCall(owner.id, "w", ("p", "q", "r"), (HIGH, NORMAL, LOW), 10, 5.0, 15.0)
        taken: list[tuple[str, str]] = []
        while len(taken) < 2:
            granted = await engine.parts.workers.lease(asked)
            for lease in granted.leases:
                read = await read_task(pool, owner.id, lease.id)
                assert read is not None
                taken.append((lease.type, read.pool or ""))
        parked = engine.scheduler.dispatcher.ready_state.parked
        await until(lambda: sum(map(len, parked.values())) == 2)
        assert sorted(taken) == [("good", "p"), ("good", "r")]
        await pool.fetch("UPDATE duly.breakers SET open_until = duly.now()")
        probes = [*(await engine.parts.workers.lease(asked)).leases]
        while len(probes) < 2:
            probes += (await engine.parts.workers.lease(asked)).leases
    assert sorted(lease.type for lease in probes) == ["bad", "good"]


async def test_shares_follow_weights_under_saturation(pool: Database) -> None:
    """Three to one means three to one within a tenth (I10), however much each has waiting."""
    big = await create_tenant(pool, "big", TenantLimits(weight=3.0))
    small = await create_tenant(pool, "small", TenantLimits(weight=1.0))
    assert big is not None
    assert small is not None
    watcher = Watcher()
    engine = Engine(pool, Environment(), watcher)
    submitter = silent(engine)
    for _ in range(8):
        await submitter.submit([task(small.id) for _ in range(500)])
        await submitter.submit([task(big.id) for _ in range(500)])
    engine.executor.shares.slots = 0
    async with engine:
        await learned(engine, big.id)
        await until(lambda: len(engine.scheduler.dispatcher.ready_state.queues) == 2)
        engine.executor.shares.slots = 1000
        engine.executor.has_room.set()
        await watcher.count(8000)
    # The first tickets were written before the weights were known and both were loaded; at the end
    # the bigger one has nothing left.
    served = Counter(lease.tenant for lease in watcher.leases[LANE_DEPTH_MAX + 500 : 4500])
    share = served[big.id] / (served[big.id] + served[small.id])
    assert 0.75 * 0.9 <= share <= 0.75 * 1.1


async def learned(engine: Engine, tenant: int) -> None:
    """Wait until the gates know the tenant's bounds."""
    bounds = engine.scheduler.dispatcher.gatekeeper
    await until(lambda: tenant in bounds.bounds.tenants)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (the scheduler's memory has no signals for tests)
            await asyncio.sleep(0.01)
