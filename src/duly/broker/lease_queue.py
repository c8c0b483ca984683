"""The lease queue: tickets come in, from the dispatcher or a carrier, and leases go out to the
consumers of this process. The only place where a ticket becomes a lease.

A ticket lies in one of two places: in memory here, for consumers that wait or come back at once
(local_tickets.py), or with the carrier, for any process. One tick looks for all consumers that wait,
less and less often while nothing happens.

| event | what happens |
|---|---|
| tickets published or seen | as many consumers are woken as there is work for, longest waiting first |
| consumer cancelled, or out of time, after it was woken | the tickets stay, and the next is woken |
| lease statement of unknown outcome | `read_held` is asked; if it fails too the leases run out |
| consumer cancelled during that statement | like a lost answer: such leases run out |
| no consumer here comes for a ticket in time | back to the carrier; if that fails it is lost, and void in time |
| a delivery that repeats a lease of this holder | the same (id, fence) may come again: drop it |
| a consumer is reserved by a submit | it gets nothing else; cancelled, its lease runs out |
| slots of an executor become free | `reconsider`: consumers that wait beside tickets are woken |
| the look for tickets fails | every consumer that waits gets the error; the role backs off |
| carrier down | consumers wait on; what is here and what is leased directly still reaches them |
"""  # noqa: E501 (a table row is one line)

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from uuid import UUID

from duly.broker.consumer import WaitingConsumer, WaitingConsumers
from duly.broker.contract import Carrier, Delivery, LeasingCarrier, Received
from duly.broker.lane_depths import LaneDepths
from duly.broker.lane_queue import count_lanes
from duly.broker.local_tickets import KEPT_S, LocalTickets
from duly.domain.errors import CarrierUnavailable, DatabaseUnavailable, DulyError
from duly.domain.execution_shares import UNSHARED, UnsharedSlots
from duly.domain.lanes import Lane, Ticket, queue_of
from duly.environment import Environment
from duly.events import TaskEvents, TasksLeased
from duly.role import Wakeup
from duly.store.database import Database
from duly.store.insert import IdleConsumer
from duly.store.lease import Lease, lease_tasks, read_held
from duly.telemetry import get_logger

POLL_FIRST_S = 0.005
POLL_LAST_S = 0.5
GROWTH = 2.0
# Looks at the carrier of one request, each with other tenants left out.
LOOKS_MAX = 3
# Tickets of one delivery: more would wait here for consumers that are busy with the first.
CREDIT_MAX = 1000
LOG_EVERY_S = 60.0

log = get_logger("duly.broker.lease_queue")


class LeaseQueue:
    """A role: each tick looks for what consumers wait for, and gives back what they left."""

    name = "lease_queue"

    def __init__(
        self,
        carrier: Carrier | LeasingCarrier,
        database: Database,
        environment: Environment,
        events: TaskEvents | None = None,
        on_published: Callable[[list[Lane]], None] | None = None,
    ) -> None:
        self.carrier = carrier
        # Asked by one of the two.
        self.leasing: LeasingCarrier | None = None
        self.receiving: Carrier | None = None
        if isinstance(carrier, LeasingCarrier):
            self.leasing = carrier
        else:
            self.receiving = carrier
        self.database = database
        self.environment = environment
        # Consumers see their leases after their event.
        self.events = events or TaskEvents()
        # Called with lanes that have more than our own consumers wait for, to wake other processes.
        self.on_published = on_published
        self.wakeup = Wakeup()
        self.local = LocalTickets(environment.clock)
        self.consumers = WaitingConsumers()
        # Of the carrier, as far as this process knows.
        self.depths = LaneDepths()
        # Rises with each publish we know of, so that a consumer knows what it cannot have seen.
        self.arrivals = 0
        self.interval_s = POLL_LAST_S
        # When the next tick is, by the loop's clock.
        self.tick_at = 0.0
        self.was_up = True
        self.log_at = -math.inf
        self.late_check: asyncio.TimerHandle | None = None
        # Tokens of deliveries that are leased or void, and of those for another process.
        self.done: list[object] = []
        self.unused: list[object] = []
        self.is_closed = False

    # For the dispatcher --------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether tickets can be published to other processes."""
        return self.carrier.is_up

    async def publish(self, batch: Sequence[Delivery]) -> None:
        """Append to the lanes, keeping the order within each. The caller respects their depth."""
        published = count_lanes(batch)
        others = self.keep(batch, published) if batch and not self.is_closed else batch
        if len(others) < len(batch):
            self.arrivals += 1
            kept = Counter(published)
            kept.subtract(count_lanes(others))
            self.consumers.wake(kept)
            self.schedule_local_check()
        if others:
            await self.publish_to_carrier(others)

    def keep(self, batch: Sequence[Delivery], published: Mapping[Lane, int]) -> list[Delivery]:
        """Keep here what consumers of this process take at once; answers the rest."""
        wanted: dict[Lane, int] = {}
        for lane, number in self.consumers.wanted(published).items():
            queue = queue_of(lane)
            wanted[queue] = wanted.get(queue, 0) + number
        # Not beside older ones that lie with the carrier: a lane has an order.
        passed_on = {lane for lane in published if self.depths.of(lane)}
        rooms = {queue: self.local.room(queue, number) for queue, number in wanted.items()}
        return self.local.keep(batch, rooms, passed_on) if any(rooms.values()) else list(batch)

    async def publish_to_carrier(self, batch: Sequence[Delivery]) -> None:
        await self.carrier.publish(batch)
        published = count_lanes(batch)
        for lane, number in published.items():
            self.depths.add(lane, number)
        self.arrivals += 1
        self.interval_s = POLL_FIRST_S
        more = self.consumers.wake(published)
        if more and self.on_published is not None:
            self.on_published(more)

    def depth(self, lane: Lane) -> int:
        """Tickets in a lane, or in one of `WEBHOOK_LANES` of all tenants, as far as this process
        knows."""
        return self.depths.of(lane) + self.local.depth(lane)

    async def refresh(self, lanes: Sequence[Lane]) -> None:
        """Learn the depth of these lanes, and let go of tickets past their deadline."""
        await self.count(list(dict.fromkeys(map(queue_of, lanes))))

    def reserve(self, lane: Lane, count: int) -> IdleConsumer | None:
        """A consumer of this process that waits for this lane, with room for so many; none if
        tickets lie there or its slots are not for this tenant, and not the last one of a queue that
        tenants share. It gets nothing else until the submit has released it."""
        return None if self.depth(lane) else self.consumers.reserve(lane, count)

    async def purge(self) -> None:
        """Forget every ticket. Costs a delay, never a task."""
        await self.carrier.purge()
        self.local.clear()
        self.depths.clear()

    # For consumers -------------------------------------------------------------------------------

    async def lease(
        self,
        lanes: Sequence[Lane],
        holder: UUID,
        count: int,
        lease_s: float,
        wait_s: float,
        slots: UnsharedSlots = UNSHARED,
    ) -> list[Lease]:
        """Up to `count` leases: lanes in the order given, oldest ticket first in each, as far as
        `slots` has room for their tenants.

        Returns as soon as there is one, or with none once `wait_s` has passed. A ticket that does
        not become a lease is gone.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait_s
        self.local.note_came(holder)
        while lanes and count > 0 and not self.is_closed:
            arrivals = self.arrivals
            slots.release()
            try:
                leases = await self.take(lanes, holder, count, lease_s, slots)
            finally:
                self.wake_for_local(lanes)
            if leases:
                return leases
            left_s = ends_at - loop.time()
            if left_s <= 0:
                return []
            if leases is not None or self.arrivals != arrivals:
                continue
            consumer = WaitingConsumer(lanes, holder, count, lease_s, slots)
            is_news = await self.wait(consumer, left_s)
            if consumer.leases or not is_news:
                return consumer.leases
        return []

    def reconsider(self, lanes: Sequence[Lane]) -> None:
        """Slots became free: consumers that wait for these lanes may now take tickets that they
        could not."""
        if self.consumers:
            self.consumers.wake(self.known_tickets(lanes))

    def waiting(self) -> int:
        """Consumers of this process that wait for a ticket now."""
        return len(self.consumers)

    def on_arrivals(self, lanes: Collection[Lane]) -> None:
        """Tickets of other processes arrived in these lanes: look for them now, if a consumer
        waits. Once: where other processes were quicker, there is nothing to hurry for."""
        self.arrivals += 1
        if self.consumers.awaits_any(map(queue_of, lanes)):
            self.tick_now()

    async def close(self) -> None:
        """Wake waiting consumers without leases."""
        self.is_closed = True
        if self.late_check is not None:
            self.late_check.cancel()
        self.consumers.wake_all()

    async def wait(self, consumer: WaitingConsumer, wait_s: float) -> bool:
        """Whether there seem to be tickets; another consumer may be quicker."""
        if self.is_closed:
            return False
        self.consumers.join(consumer)
        tick_at = asyncio.get_running_loop().time() + self.interval_s
        if tick_at < self.tick_at:
            # It was put off while no consumer waited.
            self.tick_at = tick_at
            self.wakeup.wake()
        try:
            await consumer.wait(wait_s)
        except asyncio.CancelledError:
            if consumer.is_woken and consumer.error is None:
                self.consumers.wake(self.known_tickets(consumer.lanes))
                self.tick_now()
            raise
        finally:
            self.consumers.leave(consumer)
        if consumer.error is not None:
            raise consumer.error
        return consumer.is_woken

    # From tickets to leases ----------------------------------------------------------------------

    async def take(
        self,
        lanes: Sequence[Lane],
        holder: UUID,
        count: int,
        lease_s: float,
        slots: UnsharedSlots,
    ) -> list[Lease] | None:
        """None if no ticket was there; none of those that were may have become a lease."""
        looked: set[frozenset[int]] = set()
        while True:
            for most, left_out in slots.rounds(count):
                before = self.lanes_up_to_local(lanes, left_out)
                is_for_carrier = left_out not in looked and self.is_carrier_first(before)
                if is_for_carrier and len(looked) < LOOKS_MAX:
                    looked.add(left_out)
                    asked = lanes if before is None else before
                    leases = await self.take_from_carrier(
                        asked, holder, most, left_out, lease_s, slots
                    )
                    if leases is not None:
                        return leases
                    # Slots may have been used meanwhile: the rounds are others.
                    break
                if before is not None:
                    taken = self.local.take(lanes, most, left_out)
                    slots.take(each.lane for each in taken)
                    return await self.lease_deliveries(holder, taken, lease_s)
            else:
                return None

    def is_carrier_first(self, before: Sequence[Lane] | None) -> bool:
        """Whether the carrier is to be asked before what lies here, if anything does."""
        if before is None:
            return True
        return self.local.is_look_due(before) or any(map(self.depths.of, before[:-1]))

    def lanes_up_to_local(
        self, lanes: Sequence[Lane], left_out: frozenset[int]
    ) -> Sequence[Lane] | None:
        """Those that come before what lies here, and its own; None if nothing does."""
        if self.local:
            for index, lane in enumerate(lanes):
                if self.local.has(lane, left_out):
                    return lanes[: index + 1]
        return None

    async def take_from_carrier(
        self,
        lanes: Sequence[Lane],
        holder: UUID,
        count: int,
        left_out: frozenset[int],
        lease_s: float,
        slots: UnsharedSlots,
    ) -> list[Lease] | None:
        self.local.note_looked(lanes)
        slots.ask(count)
        try:
            received, is_leased = await self.receive(lanes, holder, count, left_out, lease_s)
        finally:
            slots.release()
        if not received.deliveries:
            # Others were quicker, if we believed that there were any.
            self.depths.forget(lanes, left_out)
            return None
        taken = self.note_received(received.deliveries, left_out)
        slots.take(each.lane for each in taken)
        if len(received.deliveries) == count:
            self.local.look_again(lanes)
        if not is_leased:
            return await self.lease_deliveries(holder, taken, lease_s) if taken else None
        self.local.note_taken(holder, count_lanes(taken))
        tickets = [each.ticket for each in taken]
        leases = in_ticket_order(tickets, received.leases)
        self.events.publish(TasksLeased(tickets, leases))
        return leases

    async def receive(
        self,
        lanes: Sequence[Lane],
        holder: UUID,
        count: int,
        left_out: frozenset[int],
        lease_s: float,
    ) -> tuple[Received, bool]:
        """What the carrier has now, and whether it was leased at once."""
        if self.leasing is not None:
            received = await self.leasing.receive_and_lease(lanes, holder, count, lease_s, left_out)
            return received, True
        assert self.receiving is not None
        try:
            return Received(await self.receiving.receive(lanes, count, 0.0, left_out), []), False
        except CarrierUnavailable:
            return Received([], []), False

    def note_received(self, deliveries: list[Delivery], left_out: frozenset[int]) -> list[Delivery]:
        """Those that may be used now; the others, of a carrier that cannot leave out tenants, lie
        here for a moment."""
        self.interval_s = POLL_FIRST_S
        for lane, number in count_lanes(deliveries).items():
            self.depths.add(lane, -number)
        unfit = [each for each in deliveries if each.lane.tenant in left_out] if left_out else []
        if not unfit:
            return deliveries
        self.local.accept(unfit)
        self.schedule_local_check()
        return [each for each in deliveries if each.lane.tenant not in left_out]

    async def lease_deliveries(
        self, holder: UUID, taken: list[Delivery], lease_s: float
    ) -> list[Lease]:
        """In the order of the tickets. Whatever happens, `TasksLeased` says what became of them.
        They are acknowledged after the commit, or released where its outcome is not known."""
        self.local.note_taken(holder, count_lanes(taken))
        tickets = [each.ticket for each in taken]
        wanted = without_repeats(tickets)
        leases: list[Lease] = []
        tokens = self.unused
        try:
            try:
                rows = await lease_tasks(self.database, self.environment, holder, wanted, lease_s)
            except DatabaseUnavailable:
                # Perhaps they were leased before the connection broke. If this fails as well the
                # caller is told, and what was leased runs out.
                rows = await read_held(self.database, holder, wanted)
            leases, tokens = in_ticket_order(wanted, rows), self.done
        finally:
            self.finish_deliveries(taken, tokens)
            self.events.publish(TasksLeased(tickets, leases))
        return leases

    def finish_deliveries(self, taken: Iterable[Delivery], tokens: list[object]) -> None:
        """Sent by the next tick: a handler waits for no acknowledgement."""
        before = len(tokens)
        tokens += [each.token for each in taken if each.token is not None]
        if len(tokens) > before:
            self.wakeup.wake()

    # The role ------------------------------------------------------------------------------------

    async def tick(self) -> float:
        loop = asyncio.get_running_loop()
        self.log_carrier_changes(loop.time())
        if not self.carrier.is_up:
            return POLL_LAST_S
        await self.send_tokens()
        if late := self.local.take_late():
            await self.return_late(late)
        self.schedule_local_check()
        now = loop.time()
        if now < self.tick_at:
            return self.tick_at - now
        if not self.consumers:
            self.tick_at = now + POLL_LAST_S
            return POLL_LAST_S
        wait_s, self.interval_s = self.interval_s, min(self.interval_s * GROWTH, POLL_LAST_S)
        # A carrier that waits by itself has then waited.
        self.tick_at = now + wait_s
        await self.receive_for_consumers(wait_s)
        return max(self.tick_at - loop.time(), 0.0)

    def tick_now(self) -> None:
        self.tick_at = 0.0
        self.wakeup.wake()

    async def receive_for_consumers(self, wait_s: float) -> None:
        try:
            if self.receiving is None:
                # Consumers take by themselves, and lease with it.
                await self.count(list(self.consumers.by_queue))
                self.consumers.wake(self.known_tickets(list(self.consumers.by_queue)))
                return
            for queues, credit, left_out in self.consumers.demands():
                local_depth = sum(map(self.local.depth, queues))
                most = min(credit, CREDIT_MAX) - local_depth
                if most > 0:
                    found = await self.receiving.receive(queues, most, wait_s, left_out)
                    self.accept(queues, found, left_out)
                    wait_s = 0.0
        except CarrierUnavailable as error:
            log.debug("carrier receive failed", error=str(error))
        except Exception as error:
            self.consumers.wake_all(error)
            raise

    def accept(
        self, queues: Sequence[Lane], deliveries: list[Delivery], left_out: frozenset[int]
    ) -> None:
        if deliveries:
            self.local.accept(self.note_received(deliveries, left_out))
            self.arrivals += 1
            self.schedule_local_check()
            self.wake_for_local(queues)

    async def send_tokens(self) -> None:
        if self.receiving is None or not (self.done or self.unused):
            return
        done, self.done = self.done, []
        unused, self.unused = self.unused, []
        try:
            if done:
                await self.receiving.ack(done)
            if unused:
                await self.receiving.release(unused)
        except CarrierUnavailable as error:
            # They are delivered again; by then their fence has passed, or they are wanted.
            log.debug("deliveries not acknowledged", error=str(error))

    def log_carrier_changes(self, now: float) -> None:
        """Log when the carrier goes down or comes up, at most once in `LOG_EVERY_S`."""
        if self.carrier.is_up != self.was_up:
            self.was_up = self.carrier.is_up
            if now >= self.log_at:
                self.log_at = now + LOG_EVERY_S
                log.warning("carrier is up again" if self.was_up else "carrier is down")

    async def return_late(self, late: list[Delivery]) -> None:
        """Publish what no consumer here took in time for any process."""
        self.finish_deliveries(late, self.unused)
        own = [each for each in late if each.token is None]
        try:
            await self.send_tokens()
            if own:
                await self.publish_to_carrier(own)
        except DulyError as error:
            log.warning("tickets lost: publish to the carrier failed", error=str(error))

    def schedule_local_check(self) -> None:
        """Check in time whether the local tickets are taken."""
        if self.late_check is None and self.local and not self.is_closed:
            loop = asyncio.get_running_loop()
            self.late_check = loop.call_later(KEPT_S, self.check_local)

    def check_local(self) -> None:
        self.late_check = None
        if self.local:
            self.wakeup.wake()

    def wake_for_local(self, lanes: Iterable[Lane]) -> None:
        """Wake the next consumer for local tickets: the one that was woken for them may have found
        others, or have left."""
        if self.local:
            self.consumers.wake(self.local.tickets(lanes))

    async def count(self, queues: Sequence[Lane]) -> None:
        self.depths.learn(queues, await self.carrier.depths(queues))

    def known_tickets(self, queues: Sequence[Lane]) -> dict[Lane, int]:
        """Those of each lane of these queues, here and with the carrier."""
        known = self.depths.tickets(queues)
        for lane, number in self.local.tickets(queues).items():
            known[lane] = known.get(lane, 0) + number
        return known


def in_ticket_order(tickets: Sequence[Ticket], leases: Sequence[Lease]) -> list[Lease]:
    """The database answers in the order of addresses; a lane has its own, mostly the same."""
    if [ticket.id for ticket in tickets] == [lease.id for lease in leases]:
        return list(leases)
    leased = {lease.id: lease for lease in leases}
    ordered = (leased.pop(ticket.id, None) for ticket in tickets)
    return [lease for lease in ordered if lease is not None]


def without_repeats(tickets: list[Ticket]) -> list[Ticket]:
    """One ticket for each task: of several the one with the highest fence, the newest."""
    if len({ticket.id for ticket in tickets}) == len(tickets):
        return tickets
    best: dict[UUID, Ticket] = {}
    for ticket in tickets:
        known = best.get(ticket.id)
        if known is None or ticket.fence >= known.fence:
            best[ticket.id] = ticket
    return list(best.values())
