"""What owners tell of their dispatch buckets; and `explain` and dispatch, asked about one row."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest

from duly.coordinator.ownership import Coordinator
from duly.coordinator.postgres import PostgresOwnership
from duly.domain.explain import explain
from duly.domain.gates import Gate
from duly.domain.ids import slot_of, tenant_shard
from duly.domain.lanes import LANE_DEPTH_MAX, Ticket
from duly.domain.task import Policy, Submission
from duly.environment import Environment, SystemClock
from duly.role import Wakeup
from duly.scheduler.closed_lanes import ClosedLanes
from duly.scheduler.database_time import DatabaseTime
from duly.scheduler.gatekeeper import BoundsReader, Gatekeeper
from duly.scheduler.in_flight import InFlight
from duly.scheduler.ready_state import ReadyState, ReadyTimer
from duly.store.breakers import open_breaker
from duly.store.database import Database
from duly.store.explain import read_situation
from duly.store.lease import lease_tasks
from duly.store.load import Cursor, DueTimer, list_placements, load_due
from duly.store.ownership import Assignment, Node
from duly.store.submit import Stored, Submitter
from duly.store.tenants import (
    PauseKind,
    Tenant,
    TenantLimits,
    create_tenant,
    set_pause,
    update_tenant,
)
from tests.pressure.counting import CountingDatabase

NODE = Node(UUID(int=1), "n", "0", ("scheduler", "executor"))
HOLDER = UUID(int=2)
HOST = "api.example.com"
# One token, and so slow that none comes back while a test runs.
RATE = 0.001
READ_LEVELS = "SELECT tenant, tokens, rate, burst FROM duly.rate_levels ORDER BY tenant"


@dataclass
class Stage:
    """A scheduler that owns every slot and dispatches only when told to."""

    database: Database
    environment: Environment
    coordinator: Coordinator
    gatekeeper: Gatekeeper
    keeper: BoundsReader
    tenant: Tenant

    async def levels(self) -> dict[int, tuple[float, float]]:
        rows = await self.database.fetch(READ_LEVELS)
        return {row["tenant"]: (row["tokens"], row["burst"]) for row in rows}

    def bucket(self) -> Any:
        return self.gatekeeper.buckets[self.tenant.id]

    async def submit(self, **fields: Any) -> UUID:
        task = Submission(tenant=self.tenant.id, type="t", url=f"https://{HOST}/", **fields)
        (answer,) = await Submitter(self.database, self.environment).submit([task])
        assert isinstance(answer, Stored)
        return answer.id

    async def due(self, task_id: UUID) -> DueTimer:
        timer_queues = await list_placements(self.database, 0, 1023)
        found = await load_due(self.database, dict.fromkeys(timer_queues, Cursor()), 0.0, 100)
        (due,) = [each for each in found if each.id == task_id]
        return due

    async def lease(self, task_id: UUID) -> None:
        """Leased, and known to be so by the scheduler's accounts."""
        due = await self.due(task_id)
        self.gatekeeper.counts.ticketed(due, self.gatekeeper.time.now() + 60.0)
        await lease_tasks(
            self.database, self.environment, HOLDER, [Ticket(due.id, due.fence)], 60.0
        )

    async def dispatch_says(self, task_id: UUID) -> Gate | None:
        due = await self.due(task_id)
        tenant_pool, band = ReadyState(0.0).pool_and_band(due.timer_queue)
        entry = ReadyTimer(due, due.timer_queue, tenant_pool, band, due.due_at.timestamp())
        refusal = self.gatekeeper.ask(entry, 0, LANE_DEPTH_MAX)
        return None if refusal is None else refusal.gate

    async def explain_says(self, task_id: UUID) -> object:
        async with self.database.tenant(self.tenant.id) as session:
            situation = await read_situation(session, self.tenant.id, task_id)
        assert situation is not None
        return explain(situation).binding


@pytest.fixture
async def stage(engine_url: str) -> AsyncIterator[Stage]:
    database = await CountingDatabase.open(engine_url, 4)
    environment = Environment(clock=SystemClock(), random=Random(5))
    tenant = await create_tenant(database, "acme", TenantLimits(dispatch_rate=RATE))
    assert tenant is not None
    coordinator = Coordinator(PostgresOwnership(database, lease_s=600.0), environment, NODE)
    await coordinator.tick()
    time = DatabaseTime(environment.clock)
    (row,) = await database.fetch("SELECT duly.now() AS now")
    time.observe(row["now"])
    gatekeeper = Gatekeeper(time, InFlight(), coordinator)
    closed = ClosedLanes(database, ReadyState(0.0), LANE_DEPTH_MAX)
    keeper = BoundsReader(database, gatekeeper, lambda _bounds: None, closed, Wakeup())
    await keeper.tick()
    yield Stage(database, environment, coordinator, gatekeeper, keeper, tenant)
    await database.close()


async def test_a_bucket_in_use_is_told_and_a_full_one_is_not(stage: Stage) -> None:
    """An idle installation must not be told every few seconds that nothing happens."""
    assert stage.gatekeeper.rate_levels() == {}
    assert await stage.levels() == {}
    stage.bucket().take(stage.gatekeeper.time.now())
    await stage.keeper.tick()
    ((tokens, burst),) = (await stage.levels()).values()
    assert (tokens < 1.0, burst) == (True, 1.0)


async def test_a_full_bucket_costs_no_statement(stage: Stage) -> None:
    """The budget of an idle duly is five statements a second for everything."""
    assert isinstance(stage.database, CountingDatabase)
    stage.database.asked.clear()
    await stage.keeper.tick()
    assert stage.database.asked.total() == 1


async def test_only_the_owner_of_the_home_shard_tells(stage: Stage) -> None:
    """Two nodes that tell of one tenant would contradict each other every few seconds."""
    stage.bucket().take(stage.gatekeeper.time.now())
    assert stage.gatekeeper.rate_levels().keys() == {stage.tenant.id}
    home = Assignment("slot", slot_of(tenant_shard(stage.tenant.id, 1, 0)))
    del stage.coordinator.assignments[home]
    stage.gatekeeper.forget_foreign()
    assert stage.gatekeeper.rate_levels() == {}


async def test_a_new_owner_starts_with_what_the_last_one_cannot_have_spent(stage: Stage) -> None:
    """A full bucket at every change of owner is a burst at every change of owner (I10)."""
    await update_tenant(stage.database, stage.tenant.id, TenantLimits(dispatch_rate=10.0))
    await stage.coordinator.close()
    stage.gatekeeper.forget_foreign()
    await stage.coordinator.tick()
    await stage.keeper.tick()
    bucket, now = stage.bucket(), stage.gatekeeper.time.now()
    home = stage.gatekeeper.scope.owns(stage.tenant.id, 0)
    assert home is not None
    since_s = now - home.void_at.timestamp() + stage.coordinator.ticket_s
    bucket.refill(now)
    assert bucket.tokens == pytest.approx(min(10.0, since_s * 10.0), abs=0.1)


async def test_a_changed_rate_keeps_what_is_left_of_the_bucket(stage: Stage) -> None:
    """A full bucket at every change would let a burst through at each edit of a tenant."""
    stage.bucket().take(stage.gatekeeper.time.now())
    await update_tenant(stage.database, stage.tenant.id, TenantLimits(dispatch_rate=RATE * 2))
    await stage.keeper.tick()
    assert stage.bucket().rate == RATE * 2
    assert stage.bucket().tokens < 1.0


async def test_what_is_told_is_what_explain_says(stage: Stage) -> None:
    """From the owner's memory through the table to a person."""
    task_id = await stage.submit()
    assert await stage.explain_says(task_id) is None
    stage.bucket().take(stage.gatekeeper.time.now())
    await stage.keeper.tick()
    assert await stage.dispatch_says(task_id) is Gate.TENANT_RATE
    assert await stage.explain_says(task_id) is Gate.TENANT_RATE


async def close_gate(stage: Stage, gate: Gate) -> UUID:
    """One task that exactly this gate holds back."""
    policy = Policy()
    database, tenant = stage.database, stage.tenant.id
    if gate is Gate.PAUSED:
        await set_pause(database, tenant, PauseKind.TYPE, "t", "ann", "why")
    elif gate is Gate.EXPIRED:
        policy = replace(policy, start_by=datetime.now(UTC) - timedelta(seconds=1))
    elif gate is Gate.BREAKER:
        await open_breaker(database, tenant, HOST, 60.0, "why")
    elif gate is Gate.OWNERSHIP_TRANSFER:
        await database.fetch("UPDATE duly.ownership SET void_at = duly.now() + interval '60 s'")
        await stage.coordinator.tick()
        policy = replace(policy, concurrency_key="k")
    elif gate is Gate.TENANT_IN_FLIGHT:
        await update_tenant(database, tenant, TenantLimits(in_flight_max=1))
        await stage.lease(await stage.submit())
    elif gate is Gate.CONCURRENCY_KEY:
        policy = replace(policy, concurrency_key="k")
        await stage.lease(await stage.submit(policy=policy))
    return await stage.submit(policy=policy)


@pytest.mark.parametrize("gate", [g for g in Gate if g not in (Gate.TENANT_RATE, Gate.LANE_FULL)])
async def test_dispatch_and_explain_agree_on_the_same_rows(stage: Stage, gate: Gate) -> None:
    """Two readers of one truth drift apart unless somebody compares them."""
    task_id = await close_gate(stage, gate)
    await stage.keeper.tick()
    now = stage.gatekeeper.time.now()
    due = await stage.due(task_id)
    if gate is not Gate.OWNERSHIP_TRANSFER:
        stage.gatekeeper.counted_at[due.tenant, due.shard] = now
    assert await stage.dispatch_says(task_id) is gate
    assert await stage.explain_says(task_id) is gate
