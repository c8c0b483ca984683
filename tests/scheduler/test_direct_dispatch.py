"""The short way of a task: only where it overtakes nobody and nothing could have held it back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import pytest

from duly.domain.states import Outcome, State
from duly.domain.task import Policy, Submission
from duly.environment import Environment
from duly.events import TasksFinished
from duly.execution.attempt import DONE, AttemptResult
from duly.store.database import Database
from duly.store.lease import SQL, Lease
from duly.store.read import read_attempts, read_task
from duly.store.submit import Stored
from duly.store.tenants import PauseAnswer, PauseKind, TenantLimits, create_tenant, set_pause
from duly.testing.engine import Engine
from tests.broker.stage import WAIT_MAX_S, until

pytestmark = pytest.mark.slow

TENANT = 1
URL = "http://receiver.example/hook"


class Consumer:
    """An engine at rest, its executor waiting; it counts how often a ticket became a lease."""

    def __init__(self, database: Database) -> None:
        self.started: list[Lease] = []
        self.tickets = 0
        self.engine = Engine(database, Environment(), self.handle)
        fetch = database.fetch

        async def counted(statement: str, *arguments: object) -> object:
            self.tickets += statement == SQL.lease_tasks
            return await fetch(statement, *arguments)

        database.fetch = counted  # type: ignore[method-assign, assignment]

    def handle(self, lease: Lease) -> AttemptResult:
        self.started.append(lease)
        return DONE

    async def submit(self, **facts: object) -> Stored:
        task = Submission(**({"tenant": TENANT, "type": "t", "url": URL} | facts))  # type: ignore[arg-type]
        answer = await self.engine.group_commit.submit(task)
        assert isinstance(answer, Stored)
        return answer

    def next_finish(self) -> asyncio.Event:
        """Set by the next task that ends."""
        finished = asyncio.Event()
        self.engine.parts.events.subscribe(TasksFinished, lambda _event: finished.set())
        return finished

    async def use_place(self, tenant: int) -> None:
        """Its place is known from here on."""
        settled = self.next_finish()
        await self.submit(tenant=tenant)
        async with asyncio.timeout(WAIT_MAX_S):
            await settled.wait()
        self.started.clear()
        await self.at_rest()
        self.tickets = 0

    async def starts(self, number: int) -> None:
        await until(lambda: len(self.started) == number)

    async def at_rest(self) -> None:
        """Everything that can wait waits, and what it knows is up to date."""
        scheduler, executor = self.engine.scheduler, self.engine.executor
        await until(
            lambda: (
                scheduler.dispatcher.is_idle()
                and bool(scheduler.loader.slots)
                and scheduler.loader.placements_at > 0.0
                # Also a place that the last task made: until it is read, others may come first.
                and all(map(scheduler.loader.is_loaded, scheduler.loader.timer_queues))
                # Of those who wait for webhooks, the last one is reserved for nobody.
                and executor.lease_queue.waiting() > 1
            )
        )


@pytest.fixture
async def pool(engine_url: str) -> AsyncIterator[Database]:
    database = await Database.open(engine_url, 12)
    yield database
    await database.close()


@pytest.fixture
async def consumer(pool: Database) -> AsyncIterator[Consumer]:
    consumer = Consumer(pool)
    async with consumer.engine:
        await consumer.at_rest()
        await consumer.use_place(TENANT)
        yield consumer


async def test_a_lone_task_costs_one_commit_before_it_starts(consumer: Consumer) -> None:
    """Two, and whoever submits one task at a time waits twice as long for its start."""
    for number in range(3):
        stored = await consumer.submit(idempotency_key=f"k{number}" if number else None)
        assert stored.is_leased
        await consumer.starts(number + 1)
        await consumer.at_rest()
    assert consumer.tickets == 0


async def test_it_is_settled_like_any_other(consumer: Consumer, pool: Database) -> None:
    """One attempt on record, charged once (I5)."""
    settled = consumer.next_finish()
    stored = await consumer.submit()
    async with asyncio.timeout(WAIT_MAX_S):
        await settled.wait()
    attempts = await read_attempts(pool, TENANT, stored.id)
    assert [(item.charged, item.outcome) for item in attempts] == [(1, Outcome.COMPLETED)]
    task = await read_task(pool, TENANT, stored.id)
    assert task is not None
    assert task.state is State.COMPLETED


async def test_several_of_one_lane_go_together(consumer: Consumer) -> None:
    """A concurrent submit shares the commit, and the consumer has room for all."""
    tasks = [Submission(tenant=TENANT, type="t", url=URL) for _ in range(20)]
    answers = await consumer.engine.submitter.submit(tasks)
    assert all(isinstance(answer, Stored) and answer.is_leased for answer in answers)
    await consumer.starts(20)
    assert consumer.tickets == 0


@pytest.mark.parametrize(
    "facts",
    [
        {"delay_s": 0.05},
        {"run_at": datetime.now(UTC) - timedelta(minutes=1)},
        {"policy": Policy(concurrency_key="k")},
        {"policy": Policy(start_by=datetime.now(UTC) + timedelta(days=1))},
        {"policy": Policy(jitter_s=0.05)},
    ],
    ids=["later", "of the past", "with a key", "with a last start", "smeared"],
)
async def test_what_a_gate_may_hold_back_takes_the_ordinary_way(
    consumer: Consumer, facts: dict[str, object]
) -> None:
    """A cap that is not asked is exceeded (I10)."""
    assert not (await consumer.submit(**facts)).is_leased
    await consumer.starts(1)
    assert consumer.tickets == 1


async def test_a_paused_tenant_is_still_paused(pool: Database) -> None:
    """Its tasks wait, also when a consumer has nothing else to do."""
    tenant = await create_tenant(pool, "paused", TenantLimits())
    assert tenant is not None
    answer = await set_pause(pool, tenant.id, PauseKind.TYPE, "t", actor="us", reason="test")
    assert answer is PauseAnswer.PAUSED
    consumer = Consumer(pool)
    async with consumer.engine:
        await consumer.at_rest()
        # Not for want of a known place: the next one would go straight.
        assert not (await consumer.submit(tenant=tenant.id, delay_s=0.01)).is_leased
        assert not (await consumer.submit(tenant=tenant.id)).is_leased


async def test_a_tenant_with_a_cap_keeps_it(pool: Database) -> None:
    """Who is counted is counted before it starts (I10)."""
    tenant = await create_tenant(pool, "capped", TenantLimits(in_flight_max=1))
    assert tenant is not None
    consumer = Consumer(pool)
    async with consumer.engine:
        await consumer.at_rest()
        # Not for want of a known place: the next one would go straight.
        assert not (await consumer.submit(tenant=tenant.id, delay_s=0.01)).is_leased
        assert not (await consumer.submit(tenant=tenant.id)).is_leased


def nobody_owns(consumer: Consumer) -> None:
    consumer.engine.scheduler.coordinator.trusted_until = 0.0


def others_wait(consumer: Consumer) -> None:
    consumer.engine.scheduler.dispatcher.ready_state.turns.join((TENANT, 0))


def unread(consumer: Consumer) -> None:
    for state in consumer.engine.scheduler.loader.timer_queues.values():
        state.is_caught_up = False


def unlisted(consumer: Consumer) -> None:
    consumer.engine.scheduler.loader.placements_at = 0.0


def just_gained(consumer: Consumer) -> None:
    consumer.engine.scheduler.loader.slots = frozenset()


@pytest.mark.parametrize("hinder", [nobody_owns, others_wait, unread, unlisted, just_gained])
async def test_nobody_is_overtaken(consumer: Consumer, hinder: Callable[[Consumer], None]) -> None:
    """Older work that is not dispatched yet, or a slot that may be somebody else's by now."""
    await consumer.submit()
    await consumer.starts(1)
    # As the loader finds it with its next look: the place is known.
    await consumer.submit(delay_s=0.01)
    await consumer.starts(2)
    await consumer.at_rest()
    hinder(consumer)
    assert not (await consumer.submit()).is_leased
