"""A world with a carrier in it: verbs for tickets and consumers, and a count of statements."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg

from duly.broker.contract import Carrier, Delivery, LeasingCarrier
from duly.broker.lease_queue import LeaseQueue
from duly.broker.postgres import PostgresCarrier
from duly.domain.lanes import TICKET_S, Lane, Ticket
from duly.role import RoleLoop, stop_roles
from duly.store.lease import Lease
from duly.store.submit import Stored
from duly.telemetry import Metrics
from tests.store.world import HOLDER, LEASE_S, TENANT, TimedDatabase, World, wish

LANE = Lane(TENANT, 1, 1)
HIGH_LANE = Lane(TENANT, 1, 0)
WAIT_MAX_S = 10.0
READ_TIMERS = "SELECT * FROM duly.timers ORDER BY shard, id"


class Stage:
    def __init__(self, world: World, queue: LeaseQueue) -> None:
        self.world = world
        self.queue = queue

    async def submit(self, count: int, tenant: int = TENANT, delay_s: float = 0.0) -> list[Ticket]:
        """Fresh tasks, as tickets that are good for as long as tickets are."""
        wishes = [wish(tenant=tenant, delay_s=delay_s) for _ in range(count)]
        answers = await self.world.submitter.submit(wishes)
        deadline = self.world.now() + timedelta(seconds=TICKET_S)
        stored = [answer for answer in answers if isinstance(answer, Stored)]
        assert len(stored) == count
        return [Ticket(answer.id, 0, deadline) for answer in stored]

    async def publish(self, tickets: Sequence[Ticket], lane: Lane = LANE) -> None:
        await self.queue.publish([Delivery(lane, ticket) for ticket in tickets])

    async def lease(
        self,
        count: int,
        *lanes: Lane,
        wait_s: float = 0.0,
        holder: UUID = HOLDER,
        queue: LeaseQueue | None = None,
    ) -> list[Lease]:
        return await (queue or self.queue).lease(lanes or (LANE,), holder, count, LEASE_S, wait_s)

    async def wait_in_turn(self, count: int, *lanes: Lane) -> "asyncio.Task[list[Lease]]":
        """A consumer that is known to wait, behind those that waited before."""
        before = self.queue.waiting()
        consumer = asyncio.create_task(self.lease(count, *lanes, wait_s=WAIT_MAX_S))
        await until(lambda: self.queue.waiting() == before + 1)
        return consumer

    def wait_or_take(self, count: int, *lanes: Lane) -> "asyncio.Task[list[Lease]]":
        """A consumer that waits only if nothing lies there for it."""
        return asyncio.create_task(self.lease(count, *lanes, wait_s=WAIT_MAX_S))

    async def timers(self) -> list[asyncpg.Record]:
        return await self.world.database.fetch(READ_TIMERS)


class CountedStatements:
    """How many statements a database is asked while this is in place."""

    def __init__(self, database: TimedDatabase) -> None:
        self.database = database
        self.count = 0

    def __enter__(self) -> "CountedStatements":
        fetch = self.database.fetch

        async def counted(statement: str, *arguments: Any) -> list[asyncpg.Record]:
            self.count += 1
            return await fetch(statement, *arguments)

        self.database.fetch = counted  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        del self.database.fetch


@contextlib.asynccontextmanager
async def staged(world: World, carrier: Carrier | LeasingCarrier) -> AsyncIterator[Stage]:
    """A process with a lease queue that runs."""
    queue = LeaseQueue(carrier, world.database, world.environment)
    loop = RoleLoop(queue, world.environment, Metrics())
    running = asyncio.create_task(loop.run())
    yield Stage(world, queue)
    await queue.close()
    await stop_roles([loop], [running], WAIT_MAX_S)


def other_process(stage: Stage) -> LeaseQueue:
    """One that only publishes and takes: nothing of it waits."""
    world = stage.world
    carrier = PostgresCarrier(world.database, world.environment)
    return LeaseQueue(carrier, world.database, world.environment)


def deliveries(tickets: Sequence[Ticket], lane: Lane = LANE) -> list[Delivery]:
    return [Delivery(lane, ticket) for ticket in tickets]


async def until(holds: Callable[[], bool]) -> None:
    """Poll something observable, with a bound."""
    async with asyncio.timeout(WAIT_MAX_S):
        while not holds():  # noqa: ASYNC110 - it is polled from outside, on purpose
            await asyncio.sleep(0.001)


def ids(items: Sequence[Ticket | Lease]) -> list[UUID]:
    return [item.id for item in items]
