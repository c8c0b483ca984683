"""A ready queue that all simulated nodes share, and that gets wrong whatever a carrier may."""

import asyncio
import contextvars
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from duly.broker.contract import OnTaken
from duly.broker.tickets import in_ticket_order, without_repeats
from duly.domain.execution_shares import UNSHARED, UnsharedSlots
from duly.domain.lanes import ALL_TENANTS, Lane, Ticket, queue_of
from duly.store.lease import Lease
from tests.simulation.plan import FaultKind
from tests.simulation.witness import lease_tasks_witnessed

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet, FleetNode

DRAWER_MAX = 40


class SharedLanes:
    """Outside of every node: what was published is here, whoever dies."""

    def __init__(self, fleet: "Fleet") -> None:
        self.fleet = fleet
        # By queue.
        self.lanes: dict[Lane, list[tuple[Lane, Ticket]]] = {}
        self.drawer: list[tuple[Lane, Ticket]] = []
        self.bells: dict[asyncio.Event, None] = {}

    def publish(self, node: "FleetNode", tickets: Sequence[tuple[Lane, Ticket]]) -> None:
        fleet = self.fleet
        for lane, ticket in tickets:
            self.drawer = [*self.drawer, (lane, ticket)][-DRAWER_MAX:]
            copies = 0 if fleet.strikes(FaultKind.TICKET_LOST, node) else 1
            copies += fleet.strikes(FaultKind.TICKET_REPEATED, node)
            for _ in range(copies):
                self.carry(node, lane, ticket)
        if self.drawer and fleet.strikes(FaultKind.TICKET_STALE, node):
            self.put(*fleet.random.choice(self.drawer))

    def carry(self, node: "FleetNode", lane: Lane, ticket: Ticket) -> None:
        if not self.fleet.strikes(FaultKind.TICKET_LATE, node):
            self.put(lane, ticket)
            return
        delay_s = self.fleet.fleet_plan.ticket_s * self.fleet.random.uniform(0.0, 2.5)
        outside = contextvars.Context()
        asyncio.get_running_loop().call_later(delay_s, self.put, lane, ticket, context=outside)

    def put(self, lane: Lane, ticket: Ticket) -> None:
        waiting = self.lanes.setdefault(queue_of(lane), [])
        is_shuffled = self.fleet.plan.has(FaultKind.REORDER) and not self.fleet.is_healed
        spot = self.fleet.random.randint(0, len(waiting)) if is_shuffled else len(waiting)
        waiting.insert(spot, (lane, ticket))
        for bell in self.bells:
            bell.set()

    def take(self, lanes: Sequence[Lane], count: int, slots: UnsharedSlots) -> list[Ticket]:
        for most, left_out in slots.rounds(count):
            taken: list[tuple[Lane, Ticket]] = []
            for lane in lanes:
                waiting = self.lanes.get(lane, [])
                here = [entry for entry in waiting if entry[0].tenant not in left_out]
                here = here[: most - len(taken)]
                for entry in here:
                    waiting.remove(entry)
                taken += here
            if taken:
                slots.take(lane for lane, _ in taken)
                return [ticket for _, ticket in taken]
        return []

    def drop_void(self) -> None:
        now = self.fleet.database_now()
        for waiting in self.lanes.values():
            waiting[:] = [
                (lane, ticket)
                for lane, ticket in waiting
                if ticket.deadline is None or ticket.deadline > now
            ]


class SimulatedBroker:
    """One node's way to the shared lanes; publishing breaks as a statement does."""

    def __init__(self, shared: SharedLanes, node: "FleetNode") -> None:
        self.shared = shared
        self.node = node
        self.on_taken: OnTaken | None = None
        self.bell = asyncio.Event()
        self.waiting_count = 0
        self.is_closed = False

    async def publish(self, tickets: Sequence[tuple[Lane, Ticket]]) -> None:
        await self.node.database.arrive("publish")
        self.shared.publish(self.node, tickets)
        await self.node.database.leave("publish")

    async def lease(
        self,
        lanes: Sequence[Lane],
        holder: UUID,
        count: int,
        lease_s: float,
        wait_s: float,
        slots: UnsharedSlots = UNSHARED,
    ) -> list[Lease]:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait_s
        while not self.is_closed:
            slots.release()
            tickets = self.shared.take(lanes, count, slots)
            if tickets:
                leases = await self.turn_into_leases(holder, tickets, lease_s)
                if leases:
                    return leases
            elif not await self.wait(ends_at - loop.time()):
                return []
        return []

    async def turn_into_leases(
        self, holder: UUID, tickets: list[Ticket], lease_s: float
    ) -> list[Lease]:
        wanted = without_repeats(tickets)
        node = self.node
        made = await lease_tasks_witnessed(node.database, node.environment, holder, wanted, lease_s)
        leases = in_ticket_order(wanted, made)
        if self.on_taken is not None:
            self.on_taken(tickets, leases)
        return leases

    async def wait(self, wait_s: float) -> bool:
        self.bell.clear()
        self.shared.bells[self.bell] = None
        self.waiting_count += 1
        try:
            async with asyncio.timeout(wait_s):
                await self.bell.wait()
        except TimeoutError:
            return False
        finally:
            self.waiting_count -= 1
            self.shared.bells.pop(self.bell, None)
        return True

    def reserve(self, lane: Lane, count: int) -> None:
        """Everything goes through the lanes here, where it can be lost."""

    def reconsider(self, lanes: Sequence[Lane]) -> None:
        self.bell.set()

    def depth(self, lane: Lane) -> int:
        waiting = self.shared.lanes.get(queue_of(lane), [])
        return sum(lane.tenant in (ALL_TENANTS, each.tenant) for each, _ in waiting)

    async def refresh(self, lanes: Sequence[Lane]) -> None:
        self.shared.drop_void()

    def waiting(self) -> int:
        return self.waiting_count

    async def wipe(self) -> None:
        self.shared.lanes.clear()

    async def close(self) -> None:
        self.is_closed = True
        self.bell.set()
