"""The lease queue over carriers that fail: no task is lost, and none is leased twice."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from random import Random
from uuid import UUID

import pytest

from duly.broker.codec import decode_ticket
from duly.broker.contract import Delivery
from duly.broker.lease_queue import LeaseQueue
from duly.broker.local_tickets import KEPT_S
from duly.domain.errors import CarrierUnavailable, DatabaseUnavailable
from duly.domain.execution_shares import ExecutionShares, SlotClaim
from duly.domain.lanes import TICKET_S, WEBHOOK_LANES, Lane, Ticket
from duly.domain.task import WEBHOOK_POOL
from duly.store.lease import Lease
from tests.broker.conformance import Conformance
from tests.broker.faulty import KEY, FaultyCarrier
from tests.broker.stage import HIGH_LANE, LANE, Stage, deliveries, ids, staged, until
from tests.broker.test_memory import lose_answers
from tests.store.world import HOLDER, LEASE_S, TENANT, World

TASKS = 40
STEPS_MAX = 2_000
SEEDS = range(12)


@pytest.fixture
async def stage(world: World) -> AsyncIterator[Stage]:
    async with staged(world, FaultyCarrier(Random(1), world.now)) as stage:
        yield stage


class TestFaultless(Conformance):
    """A carrier with acknowledgements, as those of other programs are, without any fault."""


async def test_the_faulty_carrier_has_every_fault() -> None:
    """Proven against a carrier that only seems to fail, the lease queue is proven against none."""
    carrier = FaultyCarrier(Random(7), lambda: datetime(2026, 1, 1, tzinfo=UTC), rate=0.15)
    tickets = [Ticket(UUID(int=number), 0) for number in range(300)]
    failures = 0
    for ticket in tickets:
        try:
            await carrier.publish(deliveries([ticket]))
        except CarrierUnavailable:
            failures += 1
    delayed = len(carrier.delayed)
    found = await carrier.receive([LANE], 1000, 0.0)
    came = [each.ticket for each in found]
    first = list(dict.fromkeys(came))
    waiting = [decode_ticket(KEY, wire) for _, wire in carrier.delayed]
    late = {each.ticket for each in waiting if each is not None}
    await carrier.ack([each.token for each in found])
    assert failures > 0
    assert delayed > 0
    assert set(tickets) - set(came) - late, "none was lost"
    assert len(first) < len(came), "none was repeated"
    assert first != sorted(first), "all came in order"
    assert carrier.unacknowledged, "each acknowledgement was kept"
    again = len(carrier.unacknowledged)
    carrier.deliver_late()
    assert len(await carrier.receive([LANE], 1000, 0.0)) == delayed + again
    carrier.is_up = False
    with pytest.raises(CarrierUnavailable):
        await carrier.receive([LANE], 1, 0.0)


class Fleet:
    """Two processes on one carrier, and a scheduler that publishes whatever is not leased."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.carrier = FaultyCarrier(random, world.now, rate=0.15)
        self.queues = [
            LeaseQueue(self.carrier, each.database, each.environment)
            for each in (world, world.node(7))
        ]
        self.leases: list[Lease] = []
        self.waiting: list[asyncio.Task[list[Lease]]] = []

    async def publish_unleased(self) -> None:
        """As a sweep does: what is in lanes, lost or delayed is published once more."""
        due = await self.world.due()
        tickets = [Ticket(timer.id, timer.fence) for timer in due]
        lanes = [self.random.choice([LANE, HIGH_LANE]) for _ in tickets]
        try:
            await self.random.choice(self.queues).publish([*map(Delivery, lanes, tickets)])
        except CarrierUnavailable:
            return

    async def step(self) -> None:
        queue = self.random.choice(self.queues)
        match self.random.randrange(8):
            case 0:
                await self.publish_unleased()
            case 1 | 2:
                count = self.random.randint(1, 5)
                self.leases += await queue.lease(
                    [LANE, HIGH_LANE], self.holder(), count, LEASE_S, 0
                )
            case 3 | 4:
                await queue.tick()
            case 5:
                self.carrier.is_up = self.random.random() < 0.7
            case 6:
                self.carrier.deliver_late()
            case _ if not queue.waiting():
                work = queue.lease([HIGH_LANE, LANE], self.holder(), 2, LEASE_S, 60.0)
                self.waiting.append(asyncio.create_task(work))
                await asyncio.sleep(0)
            case _:
                # What lies in a process moves on.
                self.world.node_clock.advance(KEPT_S)

    def holder(self) -> UUID:
        return UUID(int=self.random.randint(1, 3))

    async def end(self) -> None:
        for queue in self.queues:
            await queue.close()
        for leases in await asyncio.gather(*self.waiting):
            self.leases += leases


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_a_carrier_does_each_task_is_leased_once(world: World, seed: int) -> None:
    """A lost ticket must not be a lost task, nor a repeated one a second lease (I2, I11)."""
    fleet = Fleet(world, Random(seed))
    tickets = await Stage(world, fleet.queues[0]).submit(TASKS)
    for _ in range(STEPS_MAX):
        await fleet.step()
        if not await world.due():
            break
    await fleet.end()
    assert sorted(ids(fleet.leases)) == sorted(ids(tickets))
    assert {lease.fence for lease in fleet.leases} == {1}


async def test_a_ticket_is_acknowledged_after_its_lease_and_not_before(stage: Stage) -> None:
    """Acknowledged first, it would be lost with a process that dies in between."""
    carrier = stage.queue.carrier
    assert isinstance(carrier, FaultyCarrier)
    tickets = await stage.submit(2)
    await stage.publish(tickets)
    assert ids(await stage.lease(2)) == ids(tickets)
    assert carrier.unacknowledged
    await until(lambda: not carrier.unacknowledged)


async def test_tickets_of_a_lease_of_unknown_outcome_are_released(stage: Stage) -> None:
    """Another process takes them; had they become leases after all, their fence has passed."""
    carrier = stage.queue.carrier
    assert isinstance(carrier, FaultyCarrier)
    tickets = await stage.submit(1)
    await stage.publish(tickets)
    lose_answers(stage.world, 2)
    with pytest.raises(DatabaseUnavailable):
        await stage.lease(1)
    await until(lambda: not carrier.unacknowledged)
    assert len(carrier.queues[LANE]) == 1


async def test_a_carrier_that_is_down_is_no_error_for_who_waits(stage: Stage) -> None:
    """Workers would get errors for as long as it is down, though nothing is wrong with theirs."""
    carrier = stage.queue.carrier
    assert isinstance(carrier, FaultyCarrier)
    consumer = await stage.wait_in_turn(1)
    carrier.is_up = False
    tickets = await stage.submit(2)
    with pytest.raises(CarrierUnavailable):
        await stage.publish(tickets, HIGH_LANE)
    assert await stage.lease(1, HIGH_LANE) == []
    carrier.is_up = True
    await carrier.publish(deliveries(tickets[:1]))
    assert ids(await consumer) == ids(tickets[:1])


async def test_what_waits_here_for_a_carrier_that_is_down_is_not_lost(stage: Stage) -> None:
    """Its consumer left: it lies here until the carrier can take it."""
    carrier = stage.queue.carrier
    assert isinstance(carrier, FaultyCarrier)
    carrier.is_up = False
    tickets = await stage.submit(1)
    leaving = await stage.wait_in_turn(1)
    await stage.publish(tickets)
    leaving.cancel()
    stage.world.node_clock.advance(KEPT_S)
    await stage.queue.tick()
    assert stage.queue.depth(LANE) == 1
    carrier.is_up = True
    await until(lambda: bool(carrier.queues.get(LANE)))


async def test_an_executor_short_of_slots_gives_back_what_it_may_not_run(stage: Stage) -> None:
    """This carrier cannot leave out tenants: theirs would lie here until they are void."""
    carrier = stage.queue.carrier
    assert isinstance(carrier, FaultyCarrier)
    shares = ExecutionShares(10)
    shares.add(TENANT, 9)
    (queue, *_), mine = WEBHOOK_LANES, Lane(TENANT, WEBHOOK_POOL, 0)
    await carrier.publish(deliveries(await stage.submit(3), mine))
    leases = await stage.queue.lease([queue], HOLDER, 5, LEASE_S, 0.0, SlotClaim(shares))
    assert leases == []
    stage.world.node_clock.advance(KEPT_S)
    await until(lambda: len(carrier.queues[queue]) == 3)
    assert not stage.queue.local


async def test_a_ticket_past_its_deadline_is_acknowledged_and_gone(stage: Stage) -> None:
    """A carrier would deliver it for ever."""
    carrier = stage.queue.carrier
    assert isinstance(carrier, FaultyCarrier)
    await stage.publish(await stage.submit(1))
    stage.world.advance(TICKET_S)
    assert await stage.lease(1) == []
    await until(lambda: not carrier.unacknowledged)
    assert await carrier.depths([LANE]) == {}
