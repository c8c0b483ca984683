"""Busy tenants are spread over more shards, one doubling at a time, and nothing is lost by it."""

from random import Random
from uuid import UUID

from duly.coordinator.ownership import Coordinator
from duly.coordinator.postgres import PostgresOwnership
from duly.domain.ids import shard_of
from duly.domain.task import Submission
from duly.environment import Environment
from duly.scheduler.database_time import DatabaseTime
from duly.scheduler.gatekeeper import Bounds, Gatekeeper
from duly.scheduler.in_flight import InFlight
from duly.scheduler.shard_spread import RATE_PER_SHARD_MAX, ShardSpread
from duly.store.database import Database
from duly.store.ownership import Node
from duly.store.submit import Submitter
from duly.store.tenants import TenantLimits, create_tenant, find_tenant, read_gate_inputs
from duly.testing.clock import ManualClock

SECONDS = 10.0


class Stage:
    """A spread keeper with a clock that only we move."""

    def __init__(self, database: Database, environment: Environment) -> None:
        assert isinstance(environment.clock, ManualClock)
        self.clock = environment.clock
        self.database = database
        node = Node(environment_id(environment), "n", "0", ("scheduler",))
        time = DatabaseTime(environment.clock)
        time.observe(environment.clock.now())
        coordinator = Coordinator(PostgresOwnership(database), environment, node)
        self.gatekeeper = Gatekeeper(time, InFlight(), coordinator)
        self.keeper = ShardSpread(database, environment, self.gatekeeper)

    async def after(self, tenant: str, submitted: float) -> int:
        """The tenant's spread after ten seconds with so many submits a second."""
        found = await find_tenant(self.database, tenant)
        assert found is not None
        self.keeper.submitted[found.id] = int(submitted * SECONDS)
        self.clock.advance(SECONDS)
        self.gatekeeper.learn(Bounds(await read_gate_inputs(self.database)))
        await self.keeper.tick()
        widened = await find_tenant(self.database, tenant)
        assert widened is not None
        return widened.spread


def environment_id(environment: Environment) -> UUID:
    return UUID(int=environment.random.getrandbits(128))


async def test_a_busy_tenant_is_widened_by_one_doubling_at_a_time(
    database: Database, environment: Environment
) -> None:
    """One owner would be the bottleneck; a jump to all shards would follow every burst."""
    await create_tenant(database, "busy")
    stage = Stage(database, environment)
    assert await stage.after("busy", RATE_PER_SHARD_MAX) == 1
    assert await stage.after("busy", RATE_PER_SHARD_MAX * 5) == 2
    assert await stage.after("busy", RATE_PER_SHARD_MAX * 5) == 4
    assert await stage.after("busy", RATE_PER_SHARD_MAX * 3) == 4
    assert await stage.after("busy", 0) == 4


async def test_a_capped_tenant_stays_at_home(database: Database, environment: Environment) -> None:
    """Two owners would each allow the whole cap (I10)."""
    await create_tenant(database, "capped", TenantLimits(in_flight_max=10_000))
    stage = Stage(database, environment)
    assert await stage.after("capped", RATE_PER_SHARD_MAX * 50) == 1


async def test_a_spread_tenant_keeps_its_old_shard_among_the_new(database: Database) -> None:
    """What was placed before must still be probed, and keys must still be found (I8)."""
    submitter = Submitter(database, Environment(random=Random(7)))
    before = await submitter.submit([Submission(tenant=5, type="t")])
    submitter.tenant_shards.spreads = {5: 4}
    after = await submitter.submit([Submission(tenant=5, type="t") for _ in range(200)])
    shards = {shard_of(answer.id) for answer in after}
    assert len(shards) == 4
    assert shard_of(before[0].id) in shards


async def test_an_idempotency_key_is_found_after_the_spread_changed(database: Database) -> None:
    """The key lives in the shard of its own hash, so a retry after widening is still a replay."""
    submitter = Submitter(database, Environment(random=Random(7)))
    task = Submission(tenant=5, type="t", idempotency_key="once")
    (first,) = await submitter.submit([task])
    submitter.tenant_shards.spreads = {5: 64}
    for _ in range(5):
        (again,) = await submitter.submit([task])
        assert again.id == first.id
