"""The ready queue inside one process, for `duly up`, which owns the whole installation.

Tickets are handed to waiting consumers by the publisher itself, whole lists at a time, so nobody
polls and nobody is woken in vain. Between two awaits this invariant holds: no consumer waits for a
ticket that it may take; an executor may not take those of a tenant that uses too many of its slots.

| event | what happens |
|---|---|
| consumer cancelled, or out of time, after tickets were handed to it | they go back to the front |
| lease statement of unknown outcome | `read_held` is asked; if it fails too the leases run out |
| lane without consumers | its tickets are dropped once they must be past their deadline |
| consumer out of time while it is reserved | it waits on until it is told what it got |
| slots of an executor become free | `reconsider`: its waiting consumers get what they now may |
"""

import asyncio
from collections.abc import Iterable, Sequence
from uuid import UUID

from duly.broker.contract import OnTaken
from duly.broker.lane_queue import Entries, LaneQueue
from duly.broker.tickets import turn_into_leases
from duly.broker.waiter import Waiter, to_reserve
from duly.domain.execution_shares import UNSHARED, UnsharedSlots
from duly.domain.lanes import ALL_TENANTS, TICKET_S, Lane, Ticket, queue_of
from duly.environment import Environment
from duly.store.database import Database
from duly.store.hands import Hands
from duly.store.lease import Lease


class HandedWaiter(Waiter):
    """The publisher puts tickets into its hand."""

    __slots__ = ("hand",)

    def __init__(
        self,
        lanes: Sequence[Lane],
        holder: UUID,
        count: int,
        lease_s: float,
        slots: UnsharedSlots,
    ) -> None:
        super().__init__(lanes, holder, count, lease_s, slots)
        self.hand: Entries = []

    def get(self, hand: Entries) -> None:
        self.hand = hand
        self.tell()


class MemoryBroker:
    def __init__(
        self, database: Database, environment: Environment, on_taken: OnTaken | None = None
    ) -> None:
        self.database = database
        self.environment = environment
        self.on_taken = on_taken
        # By queue; only those with tickets, and only those with waiters: tenants come and go.
        self.queues: dict[Lane, LaneQueue] = {}
        self.waiters: dict[Lane, dict[HandedWaiter, None]] = {}
        self.waiting_count = 0
        self.is_closed = False

    async def publish(self, tickets: Sequence[tuple[Lane, Ticket]]) -> None:
        by_queue: dict[Lane, Entries] = {}
        for entry in tickets:
            by_queue.setdefault(queue_of(entry[0]), []).append(entry)
        moment = self.environment.clock.monotonic()
        for queue, batch in by_queue.items():
            self.queue(queue).put(batch, moment)
        self.hand_over(by_queue)

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
            hand = self.take(lanes, count, slots)
            if not hand:
                waiter = HandedWaiter(lanes, holder, count, lease_s, slots)
                hand = await self.wait(waiter, ends_at - loop.time())
                if waiter.leases:
                    return waiter.leases
                if waiter.is_reserved:
                    continue
            if not hand:
                return []
            tickets = [ticket for _, ticket in hand]
            leases = await turn_into_leases(
                self.database, self.environment, holder, tickets, lease_s, self.on_taken
            )
            if leases or loop.time() >= ends_at:
                return leases
        return []

    def reserve(self, lane: Lane, count: int) -> Hands | None:
        if self.depth(lane):
            return None
        waiter = to_reserve(self.waiters.get(queue_of(lane), ()), lane, count)
        if waiter is not None:
            waiter.is_reserved = True
            self.leave(waiter)
        return waiter

    def reconsider(self, lanes: Sequence[Lane]) -> None:
        if self.waiting_count:
            self.hand_over(lanes)

    def depth(self, lane: Lane) -> int:
        queue = self.queues.get(queue_of(lane))
        if queue is None:
            return 0
        return queue.size if lane.tenant == ALL_TENANTS else queue.counts.get(lane, 0)

    async def refresh(self, lanes: Sequence[Lane]) -> None:
        # By time passed here, not by the deadline itself: the node's clock may be wrong.
        void_before = self.environment.clock.monotonic() - TICKET_S
        for lane in {queue_of(lane) for lane in lanes}:
            queue = self.queues.get(lane)
            if queue is not None:
                queue.drop_published_before(void_before)
                if not queue.size:
                    del self.queues[lane]

    def waiting(self) -> int:
        return self.waiting_count

    async def wipe(self) -> None:
        self.queues.clear()

    async def close(self) -> None:
        self.is_closed = True
        while self.waiters:
            waiter = next(iter(next(iter(self.waiters.values()))))
            self.leave(waiter)
            waiter.tell()

    def queue(self, lane: Lane) -> LaneQueue:
        queue = self.queues.get(lane)
        if queue is None:
            queue = self.queues[lane] = LaneQueue()
        return queue

    def take(self, lanes: Iterable[Lane], count: int, slots: UnsharedSlots) -> Entries:
        for most, left_out in slots.rounds(count):
            hand: Entries = []
            for lane in lanes:
                queue = self.queues.get(lane)
                if queue is None or len(hand) >= most:
                    continue
                hand += queue.take(most - len(hand), left_out)
                if not queue.size:
                    del self.queues[lane]
            if hand:
                slots.take(lane for lane, _ in hand)
                return hand
        return []

    def give_back(self, hand: Entries) -> None:
        by_queue: dict[Lane, Entries] = {}
        for entry in hand:
            by_queue.setdefault(queue_of(entry[0]), []).append(entry)
        moment = self.environment.clock.monotonic()
        for queue, batch in by_queue.items():
            self.queue(queue).put_back(batch, moment)
        self.hand_over(by_queue)

    def hand_over(self, lanes: Iterable[Lane]) -> None:
        """Give what lies in these queues to those who wait for it, the longest waiting first."""
        for lane in lanes:
            for waiter in [*self.waiters.get(lane, ())]:
                if lane not in self.queues:
                    break
                hand = self.take(waiter.lanes, waiter.count, waiter.slots)
                if hand:
                    self.leave(waiter)
                    waiter.get(hand)

    async def wait(self, waiter: HandedWaiter, wait_s: float) -> Entries:
        if wait_s <= 0 or waiter.count <= 0:
            return []
        self.join(waiter)
        try:
            await waiter.wait(wait_s)
        except asyncio.CancelledError:
            waiter.slots.release()
            self.give_back(waiter.hand)
            raise
        finally:
            self.leave(waiter)
        return waiter.hand

    def join(self, waiter: HandedWaiter) -> None:
        self.waiting_count += 1
        for lane in waiter.lanes:
            self.waiters.setdefault(lane, {})[waiter] = None

    def leave(self, waiter: HandedWaiter) -> None:
        """Safe to call again: the publisher takes a waiter out before the waiter itself does."""
        was_waiting = False
        for lane in waiter.lanes:
            waiters = self.waiters.get(lane)
            if waiters is not None and waiter in waiters:
                was_waiting = True
                del waiters[waiter]
                if not waiters:
                    del self.waiters[lane]
        self.waiting_count -= was_waiting
