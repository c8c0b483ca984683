"""A carrier that goes away under load and comes back: nothing lost, nothing leased twice."""

import asyncio
import time
from collections.abc import Callable
from uuid import UUID

from duly.broker.contract import Delivery
from duly.broker.fallback import BrokerCarrier
from duly.broker.lease_queue import LeaseQueue
from duly.domain.errors import CarrierUnavailable
from duly.domain.lanes import Ticket
from duly.role import RoleLoop, stop_roles
from duly.store.lease import Lease
from duly.telemetry import Metrics
from tests.broker.stage import LANE, WAIT_MAX_S, Stage
from tests.store.world import LEASE_S, World

BEFORE, DURING, AFTER = 60, 20, 60
LIMIT_S = 60.0


async def lease_through_outage(
    world: World,
    carrier: BrokerCarrier,
    begin: Callable[[], None],
    end: Callable[[], None],
) -> float:
    """Seconds from the end of the outage to the first lease after it. Two consumers lease all the
    time, and a scheduler publishes again and again what is not leased."""
    queue = LeaseQueue(carrier, world.database, world.environment)
    loops = [RoleLoop(role, world.environment, Metrics()) for role in (queue, carrier)]
    running = [asyncio.create_task(loop.run()) for loop in loops]
    stage = Stage(world, queue)
    leases: list[tuple[float, Lease]] = []
    is_over = asyncio.Event()

    async def consume(holder: UUID) -> None:
        while not is_over.is_set():
            found = await queue.lease([LANE], holder, 5, LEASE_S, 0.05)
            leases.extend((time.monotonic(), lease) for lease in found)

    async def publish() -> None:
        while not is_over.is_set():
            due = [Delivery(LANE, Ticket(each.id, each.fence)) for each in await world.due()]
            if carrier.is_up and due:
                try:
                    # Straight to the carrier: nothing stays in this process.
                    await carrier.publish(due)
                except CarrierUnavailable:
                    continue
            await asyncio.sleep(0.1)

    async def leased(count: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while len(leases) < count:  # noqa: ASYNC110 (it is looked at from outside)
                await asyncio.sleep(0.005)

    working = [asyncio.create_task(consume(UUID(int=number))) for number in (1, 2)]
    working.append(asyncio.create_task(publish()))
    try:
        submitted = await stage.submit(BEFORE)
        await leased(BEFORE // 2)
        begin()
        submitted += await stage.submit(DURING)
        await asyncio.sleep(0.5)
        end()
        ended_at = time.monotonic()
        submitted += await stage.submit(AFTER)
        await leased(len(submitted))
    finally:
        is_over.set()
        await asyncio.gather(*working)
        await queue.close()
        await stop_roles(loops, running, WAIT_MAX_S)
    assert sorted(lease.id for _, lease in leases) == sorted(ticket.id for ticket in submitted)
    assert {lease.fence for _, lease in leases} == {1}
    return min(at for at, _ in leases if at > ended_at) - ended_at
