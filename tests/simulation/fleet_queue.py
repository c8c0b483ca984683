"""A carrier that all simulated nodes share, and that gets wrong whatever a carrier may: it loses,
repeats, delays and reorders deliveries, forgets acknowledgements, and goes down. Tickets travel as
bytes."""

import asyncio
import contextvars
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import TYPE_CHECKING

from duly.broker.codec import decode_ticket, encode_ticket
from duly.broker.contract import Delivery
from duly.domain.errors import CarrierUnavailable, DulyError
from duly.domain.execution_shares import NO_TENANTS
from duly.domain.lanes import Lane, queue_of
from tests.simulation.plan import FaultKind

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet, FleetNode

DRAWER_MAX = 40
KEY = b"simulated installation, simulated key"
# Of the seeds, how many have a carrier that goes down; and how often it does.
DOWN_SHARE = 0.3
DOWN_RATE = 0.1


class SharedLanes:
    """Outside of every node: what was published is here, whoever dies."""

    def __init__(self, fleet: "Fleet") -> None:
        self.fleet = fleet
        # By queue.
        self.lanes: dict[Lane, list[Delivery]] = {}
        self.drawer: list[Delivery] = []
        self.waiting_events: dict[asyncio.Event, None] = {}
        # Delivered and not acknowledged, by token.
        self.delivered: dict[int, Delivery] = {}
        self.token = 0
        # A draw of its own: other seeds see nothing of it.
        self.weather = Random(f"carrier {fleet.plan.seed}")
        self.is_fragile = self.weather.random() < DOWN_SHARE
        self.down_until_s = 0.0

    @property
    def is_up(self) -> bool:
        return self.fleet.is_healed or self.fleet.elapsed_s() >= self.down_until_s

    def go_down_sometimes(self) -> None:
        if self.is_fragile and self.weather.random() < DOWN_RATE:
            ticket_s = self.fleet.fleet_plan.ticket_s
            self.down_until_s = self.fleet.elapsed_s() + ticket_s * self.weather.random()

    def publish(self, node: "FleetNode", batch: Sequence[Delivery]) -> None:
        fleet = self.fleet
        for each in batch:
            self.drawer = [*self.drawer, each][-DRAWER_MAX:]
            copies = 0 if fleet.strikes(FaultKind.TICKET_LOST, node) else 1
            copies += fleet.strikes(FaultKind.TICKET_REPEATED, node)
            for _ in range(copies):
                self.carry(node, each)
        if self.drawer and fleet.strikes(FaultKind.TICKET_STALE, node):
            self.put(fleet.random.choice(self.drawer))

    def carry(self, node: "FleetNode", each: Delivery) -> None:
        if not self.fleet.strikes(FaultKind.TICKET_LATE, node):
            self.put(each)
            return
        self.later(self.fleet.random.uniform(0.0, 2.5), lambda: self.put(each))

    def later(self, tickets_s: float, then: Callable[[], None]) -> None:
        """So many times the life of a ticket from now."""
        delay_s = self.fleet.fleet_plan.ticket_s * tickets_s
        asyncio.get_running_loop().call_later(delay_s, then, context=contextvars.Context())

    def put(self, each: Delivery) -> None:
        waiting = self.lanes.setdefault(queue_of(each.lane), [])
        is_shuffled = self.fleet.plan.has(FaultKind.REORDER) and not self.fleet.is_healed
        spot = self.fleet.random.randint(0, len(waiting)) if is_shuffled else len(waiting)
        waiting.insert(spot, each)
        for arrived in self.waiting_events:
            arrived.set()

    def receive(
        self, queues: Sequence[Lane], credit: int, left_out: Collection[int]
    ) -> list[Delivery]:
        found: list[Delivery] = []
        for queue in queues:
            waiting = self.lanes.get(queue, [])
            here = [each for each in waiting if each.lane.tenant not in left_out]
            for each in here[: credit - len(found)]:
                waiting.remove(each)
                found.append(self.deliver(each))
        return found

    def deliver(self, each: Delivery) -> Delivery:
        """By way of the wire. What is not acknowledged comes again."""
        self.token += 1
        token = self.token
        self.delivered[token] = each
        self.later(0.5, lambda: self.release([token]))
        delivery = decode_ticket(KEY, encode_ticket(KEY, each.lane, each.ticket), token)
        assert delivery is not None
        return delivery

    def ack(self, node: "FleetNode", tokens: Sequence[object]) -> None:
        for token in tokens:
            assert isinstance(token, int)
            if not self.fleet.strikes(FaultKind.TICKET_REPEATED, node):
                self.delivered.pop(token, None)

    def release(self, tokens: Sequence[object]) -> None:
        for token in tokens:
            assert isinstance(token, int)
            each = self.delivered.pop(token, None)
            if each is not None:
                self.put(each)

    def drop_void(self) -> None:
        now = self.fleet.database_now()
        for waiting in self.lanes.values():
            waiting[:] = [
                each
                for each in waiting
                if each.ticket.deadline is None or each.ticket.deadline > now
            ]

    def clear(self) -> None:
        self.lanes.clear()
        self.delivered.clear()


class SimulatedCarrier:
    """One node's way to the shared lanes; publishing breaks as a statement does."""

    def __init__(self, shared: SharedLanes, node: "FleetNode") -> None:
        self.shared = shared
        self.node = node
        self.arrived = asyncio.Event()

    @property
    def is_up(self) -> bool:
        return self.shared.is_up

    def be_up(self) -> None:
        if not self.is_up:
            raise CarrierUnavailable(address="simulated", problem="down")

    async def publish(self, batch: Sequence[Delivery]) -> None:
        self.be_up()
        try:
            await self.node.database.arrive("publish")
            self.be_up()
            self.shared.publish(self.node, batch)
            await self.node.database.leave("publish")
        except DulyError as error:
            raise CarrierUnavailable(address="simulated", problem=str(error)) from error

    async def receive(
        self,
        queues: Sequence[Lane],
        credit: int,
        wait_s: float,
        left_out: Collection[int] = NO_TENANTS,
    ) -> list[Delivery]:
        self.be_up()
        self.arrived.clear()
        self.shared.waiting_events[self.arrived] = None
        found = self.shared.receive(queues, credit, left_out)
        try:
            if not found and wait_s > 0:
                async with asyncio.timeout(wait_s):
                    await self.arrived.wait()
        except TimeoutError:
            return []
        finally:
            self.shared.waiting_events.pop(self.arrived, None)
        return found or self.shared.receive(queues, credit, left_out)

    async def ack(self, tokens: Sequence[object]) -> None:
        self.be_up()
        self.shared.ack(self.node, tokens)

    async def release(self, tokens: Sequence[object]) -> None:
        self.be_up()
        self.shared.release(tokens)

    async def depths(self, queues: Sequence[Lane]) -> dict[Lane, int]:
        self.be_up()
        self.shared.drop_void()
        counted: dict[Lane, int] = {}
        for queue in queues:
            for each in self.shared.lanes.get(queue, ()):
                counted[each.lane] = counted.get(each.lane, 0) + 1
        return counted

    async def purge(self) -> None:
        self.shared.clear()
