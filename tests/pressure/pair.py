"""Two processes on one database: one owns a tenant's shard and runs nothing, the other works."""

import contextlib
from collections.abc import AsyncIterator

from duly.domain.ids import tenant_shard
from duly.environment import Environment
from duly.execution.attempt import Handler
from duly.store.tenants import Tenant
from duly.testing.engine import Engine
from tests.pressure.counting import CountingDatabase
from tests.pressure.watching import until

# Short, so that a handler easily outlives its ticket, and hand-overs are soon complete.
TICKET_S = 1.5


@contextlib.asynccontextmanager
async def owner_and_worker(
    pool: CountingDatabase, tenant: Tenant, handler: Handler
) -> AsyncIterator[tuple[Engine, Engine]]:
    engines = [Engine(pool, Environment(), handler, is_alone=False) for _ in range(2)]
    shard = tenant_shard(tenant.id, spread=1, choice=0)
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            engine.scheduler.coordinator.store.ticket_s = TICKET_S
            engine.executor.shares.slots = 0
            await stack.enter_async_context(engine)
        coordinators = [engine.scheduler.coordinator for engine in engines]
        await until(lambda: all(len(each.owned) == 32 for each in coordinators))
        await until(lambda: all(knows(engine, tenant) for engine in engines))
        engines.sort(key=lambda engine: engine.scheduler.coordinator.owns(shard) is None)
        engines[1].executor.shares.slots = 100
        engines[1].executor.has_room.set()
        yield engines[0], engines[1]


def knows(engine: Engine, tenant: Tenant) -> bool:
    return tenant.id in engine.scheduler.dispatcher.gatekeeper.bounds.tenants
