"""What workers' failures open: a type's breaker, a pool's, or none; and how it ends."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from duly.broker.contract import Delivery
from duly.broker.lease_queue import LeaseQueue
from duly.broker.memory import MemoryCarrier
from duly.domain.breaker import ATTEMPTS_MIN, OPEN_S, BreakerKind, BreakerPhase, phase_of
from duly.domain.lanes import Lane, Ticket
from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome
from duly.domain.task import NORMAL, Policy, Submission
from duly.environment import Environment
from duly.events import TaskEvents, TasksFinished, TasksRescheduled
from duly.execution.breakers import COMPLETED_MAX, IDLE_S, Breakers
from duly.execution.worker_leases import LeaseCall, WorkerLeases, holder_of
from duly.store.breakers import list_breakers
from duly.store.database import Database
from duly.store.finish import Settlement
from duly.store.lease import Lease
from duly.store.reap import reap_leases
from duly.store.settle import SettleQueue
from duly.store.stats import StatsBook
from duly.store.submit import Stored, Submitter
from duly.store.tenants import create_tenant
from duly.telemetry import Metrics
from duly.testing.clock import ManualClock

WORKER = "w1"
ONCE = Policy(retry=RetryPolicy(max_attempts=1))
AGAIN_AT_ONCE = Policy(retry=RetryPolicy(max_attempts=100, initial_s=0.0, jitter=False))


class Shop:
    """A tenant with workers, without schedulers: tickets are made as they are wanted."""

    def __init__(self, database: Database, environment: Environment, tenant: int) -> None:
        self.database = database
        self.tenant = tenant
        self.environment = environment
        self.queue = LeaseQueue(MemoryCarrier(environment.clock), database, environment)
        self.submitter = Submitter(database, environment)
        self.breakers = Breakers(database, environment)
        self.worker_leases = WorkerLeases(
            database,
            environment,
            self.queue,
            SettleQueue(database, environment),
            Metrics(),
            StatsBook(environment),
            breakers=self.breakers,
        )

    async def lease(
        self, count: int, task_type: str = "a", pool: str = "default", policy: Policy = ONCE
    ) -> list[Lease]:
        tasks = [
            Submission(tenant=self.tenant, type=task_type, pool=pool, policy=policy)
            for _ in range(count)
        ]
        stored = await self.submitter.submit(tasks)
        return await self.take([each.id for each in stored if isinstance(each, Stored)], pool)

    async def take(self, ids: list[UUID], pool: str, fence: int = 0) -> list[Lease]:
        numbers = await self.worker_leases.pools.resolve({(self.tenant, pool)})
        lane = Lane(self.tenant, numbers[self.tenant, pool], NORMAL)
        await self.queue.publish([Delivery(lane, Ticket(each, fence)) for each in ids])
        leases: list[Lease] = []
        while len(leases) < len(ids):
            most = len(ids) - len(leases)
            asked = LeaseCall(self.tenant, WORKER, (pool,), (NORMAL,), most, 0.0, 15.0)
            granted = await self.worker_leases.lease(asked)
            assert granted.leases
            leases += granted.leases
        return leases

    async def settle(self, leases: list[Lease], outcome: Outcome) -> None:
        holder = holder_of(self.tenant, WORKER)
        await self.worker_leases.settle(
            [Settlement(lease.id, lease.fence, holder, outcome) for lease in leases]
        )

    async def run(
        self, count: int, outcome: Outcome, task_type: str = "a", pool: str = "default"
    ) -> None:
        await self.settle(await self.lease(count, task_type, pool), outcome)

    async def pass_minute(self, database: Database, clock: ManualClock) -> None:
        """By both clocks; what is settled next is a probe."""
        await database.fetch("UPDATE duly.breakers SET open_until = duly.now()")
        clock.advance(OPEN_S)
        await self.breakers.tick()

    async def open(self) -> list[tuple[BreakerKind, str, BreakerPhase]]:
        await self.breakers.tick()
        rows, _ = await list_breakers(self.database, self.tenant, None, 50)
        return [
            (row.kind, row.name, phase_of(row.now, row.open_until, row.ramp_at)) for row in rows
        ]


@pytest.fixture
async def shop(database: Database, environment: Environment) -> AsyncIterator[Shop]:
    made = await create_tenant(database, "acme")
    assert made is not None
    shop = Shop(database, environment, made.id)
    yield shop
    await shop.queue.close()


async def test_a_type_that_fails_in_every_attempt_opens_its_breaker(shop: Shop) -> None:
    """Sixty of sixty failed, and the sixty-first was sent as if nothing had happened."""
    await shop.run(ATTEMPTS_MIN - 1, Outcome.FAILED)
    assert await shop.open() == []
    await shop.run(1, Outcome.FAILED)
    assert await shop.open() == [(BreakerKind.TYPE, "a", BreakerPhase.OPEN)]


async def test_successes_beside_failures_keep_it_closed(shop: Shop) -> None:
    """Failures alone are counted from the first one on; what succeeds meanwhile must count, too."""
    await shop.run(1, Outcome.FAILED)
    await shop.run(5, Outcome.COMPLETED)
    await shop.run(2 * ATTEMPTS_MIN - 1, Outcome.FAILED)
    assert await shop.open() == []
    await shop.run(2 * ATTEMPTS_MIN, Outcome.FAILED)
    assert await shop.open() == [(BreakerKind.TYPE, "a", BreakerPhase.OPEN)]


@pytest.mark.parametrize(
    "outcome", [Outcome.REJECTED, Outcome.RELEASED, Outcome.SNOOZED, Outcome.CANCELLED]
)
async def test_what_says_nothing_about_the_workers_counts_for_nothing(
    shop: Shop, outcome: Outcome
) -> None:
    """A rejected task is bad itself; a released one was not tried."""
    await shop.run(2 * ATTEMPTS_MIN, outcome)
    assert await shop.open() == []
    assert not shop.breakers.windows


async def test_one_task_that_is_tried_again_and_again_opens_nothing(shop: Shop) -> None:
    """It is the task's own trouble: others of its type never failed."""
    leases = await shop.lease(1, policy=AGAIN_AT_ONCE)
    for _ in range(2 * ATTEMPTS_MIN):
        await shop.settle(leases, Outcome.FAILED)
        (lease,) = leases
        leases = await shop.take([lease.id], "default", lease.fence + 1)
        assert leases
    assert await shop.open() == []


async def test_a_few_failures_now_and_then_open_nothing(shop: Shop, clock: ManualClock) -> None:
    """A type with one task a minute is never judged by a handful."""
    for _ in range(2 * ATTEMPTS_MIN):
        await shop.run(1, Outcome.FAILED)
        clock.advance(60.0)
        assert await shop.open() == []


async def test_a_pool_opens_only_when_several_types_fail(shop: Shop) -> None:
    """One broken handler must not stop the rest of the pool."""
    await shop.run(3 * ATTEMPTS_MIN, Outcome.FAILED, "a")
    assert await shop.open() == [(BreakerKind.TYPE, "a", BreakerPhase.OPEN)]
    await shop.run(ATTEMPTS_MIN // 2, Outcome.FAILED, "b", "other")
    await shop.run(ATTEMPTS_MIN // 2, Outcome.FAILED, "c", "other")
    assert await shop.open() == [
        (BreakerKind.POOL, "other", BreakerPhase.OPEN),
        (BreakerKind.TYPE, "a", BreakerPhase.OPEN),
    ]


async def test_a_pool_with_a_type_that_works_stays_closed(shop: Shop) -> None:
    """Its workers live: only some of their handlers do not."""
    await shop.run(ATTEMPTS_MIN - 1, Outcome.FAILED, "a")
    await shop.run(ATTEMPTS_MIN - 1, Outcome.FAILED, "b")
    await shop.run(ATTEMPTS_MIN, Outcome.COMPLETED, "c")
    assert await shop.open() == []


async def test_lost_leases_count_as_failures(shop: Shop, database: Database) -> None:
    """Workers that die of their tasks never settle anything."""
    leases = await shop.lease(ATTEMPTS_MIN)
    await database.fetch(
        "UPDATE duly.timers SET lease_until = duly.now(), due_at = duly.now() WHERE tenant = $1",
        shop.tenant,
    )
    shards = await database.fetch(
        "SELECT DISTINCT shard FROM duly.timers WHERE tenant = $1", shop.tenant
    )
    places = [(shop.tenant, row["shard"]) for row in shards]
    events = TaskEvents()
    events.subscribe(TasksFinished, shop.breakers.on_ended)
    events.subscribe(TasksRescheduled, shop.breakers.on_ended)
    reaped = await reap_leases(database, shop.environment, places, 100, events=events)
    assert len(reaped.lost) == len(leases)
    assert await shop.open() == [(BreakerKind.TYPE, "a", BreakerPhase.OPEN)]


async def test_a_probe_that_succeeds_gives_the_work_back(
    shop: Shop, database: Database, clock: ManualClock
) -> None:
    """And one that fails keeps it away for another minute."""
    await shop.run(ATTEMPTS_MIN, Outcome.FAILED)
    await shop.open()
    await shop.pass_minute(database, clock)
    await shop.run(1, Outcome.FAILED)
    assert await shop.open() == [(BreakerKind.TYPE, "a", BreakerPhase.OPEN)]
    await shop.pass_minute(database, clock)
    await shop.run(1, Outcome.COMPLETED)
    assert await shop.open() == [(BreakerKind.TYPE, "a", BreakerPhase.RAMP)]


async def test_a_probe_that_another_process_settles_is_heard(
    shop: Shop, database: Database, environment: Environment, clock: ManualClock
) -> None:
    """It saw no failure itself; that there is a breaker it knows from the gates."""
    await shop.run(ATTEMPTS_MIN, Outcome.FAILED)
    await shop.open()
    await shop.pass_minute(database, clock)
    other = Shop(database, environment, shop.tenant)
    other.breakers.watched_workers = lambda: {shop.tenant}
    await other.run(1, Outcome.COMPLETED)
    assert await other.open() == [(BreakerKind.TYPE, "a", BreakerPhase.RAMP)]
    await other.queue.close()


async def test_successes_cost_nothing_while_nothing_fails(shop: Shop) -> None:
    """Every completed task would be looked up once more."""
    await shop.run(5, Outcome.COMPLETED)
    assert (shop.breakers.completed, shop.breakers.windows) == ([], {})
    assert await shop.breakers.tick() == IDLE_S


async def test_more_successes_than_are_looked_up_count_all_the_same(shop: Shop) -> None:
    """A sample that counts for itself only would make rare failures look like the rule."""
    await shop.run(1, Outcome.FAILED)
    leases = await shop.lease(1)
    await shop.settle(leases, Outcome.COMPLETED)
    shop.breakers.on_worker_successes([(shop.tenant, leases[0].id)] * (COMPLETED_MAX + 999))
    assert len(shop.breakers.completed) == COMPLETED_MAX
    await shop.breakers.tick()
    window = shop.breakers.windows[shop.tenant, "type/a"]
    assert window.total(shop.environment.clock.monotonic()).attempts >= COMPLETED_MAX
