"""The ready queue inside one process, for `duly up`, which owns the whole installation.

Tickets are handed to waiting consumers by the publisher itself, whole lists at a time, so nobody
polls and nobody is woken in vain. Between two awaits this invariant holds: a lane with tickets has
no consumer that waits for it.

| event | what happens |
|---|---|
| consumer cancelled, or out of time, after tickets were handed to it | they go back to the front |
| lease statement of unknown outcome | `read_held` is asked; if it fails too the leases run out |
| lane without consumers | its tickets are dropped once they must be past their deadline |
| consumer out of time while it is reserved | it waits on until it is told what it got |
"""

import asyncio
from collections.abc import Iterable, Sequence
from uuid import UUID

from duly.broker.contract import OnTaken
from duly.broker.lane_queue import LaneQueue
from duly.broker.tickets import turn_into_leases
from duly.broker.waiter import Waiter, to_reserve
from duly.domain.lanes import TICKET_S, Lane, Ticket
from duly.environment import Environment
from duly.store.database import Database
from duly.store.hands import Hands
from duly.store.lease import Lease

# What was taken from each lane, so that it can be given back.
Hand = list[tuple[Lane, list[Ticket]]]


class HandedWaiter(Waiter):
    """The publisher puts tickets into its hand."""

    __slots__ = ("hand",)

    def __init__(self, lanes: Sequence[Lane], holder: UUID, count: int, lease_s: float) -> None:
        super().__init__(lanes, holder, count, lease_s)
        self.hand: Hand = []

    def get(self, hand: Hand) -> None:
        self.hand = hand
        self.tell()


class MemoryBroker:
    def __init__(
        self, database: Database, environment: Environment, on_taken: OnTaken | None = None
    ) -> None:
        self.database = database
        self.environment = environment
        self.on_taken = on_taken
        # Only lanes with tickets, and only lanes with waiters: tenants come and go.
        self.queues: dict[Lane, LaneQueue] = {}
        self.waiters: dict[Lane, dict[HandedWaiter, None]] = {}
        self.waiting_count = 0
        self.is_closed = False

    async def publish(self, tickets: Sequence[tuple[Lane, Ticket]]) -> None:
        by_lane: dict[Lane, list[Ticket]] = {}
        for lane, ticket in tickets:
            by_lane.setdefault(lane, []).append(ticket)
        moment = self.environment.clock.monotonic()
        for lane, batch in by_lane.items():
            self.queue(lane).put(batch, moment)
        self.hand_over(by_lane)

    async def lease(
        self, lanes: Sequence[Lane], holder: UUID, count: int, lease_s: float, wait_s: float
    ) -> list[Lease]:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait_s
        while not self.is_closed:
            hand = self.take(lanes, count)
            if not hand:
                waiter = HandedWaiter(lanes, holder, count, lease_s)
                hand = await self.wait(waiter, ends_at - loop.time())
                if waiter.leases:
                    return waiter.leases
                if waiter.is_reserved:
                    continue
            if not hand:
                return []
            tickets = [ticket for _, batch in hand for ticket in batch]
            leases = await turn_into_leases(
                self.database, self.environment, holder, tickets, lease_s, self.on_taken
            )
            if leases or loop.time() >= ends_at:
                return leases
        return []

    def reserve(self, lane: Lane, count: int) -> Hands | None:
        waiter = to_reserve(self.waiters.get(lane, ()), lane, count)
        if waiter is not None:
            waiter.is_reserved = True
            self.leave(waiter)
        return waiter

    def depth(self, lane: Lane) -> int:
        queue = self.queues.get(lane)
        return 0 if queue is None else len(queue.tickets)

    async def refresh(self, lanes: Sequence[Lane]) -> None:
        # By time passed here, not by the deadline itself: the node's clock may be wrong.
        void_before = self.environment.clock.monotonic() - TICKET_S
        for lane in lanes:
            queue = self.queues.get(lane)
            if queue is not None:
                queue.drop_published_before(void_before)
                if not queue.tickets:
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

    def take(self, lanes: Iterable[Lane], count: int) -> Hand:
        hand: Hand = []
        for lane in lanes:
            if count <= 0:
                break
            queue = self.queues.get(lane)
            if queue is None:
                continue
            batch = queue.take(count)
            count -= len(batch)
            hand.append((lane, batch))
            if not queue.tickets:
                del self.queues[lane]
        return hand

    def give_back(self, hand: Hand) -> None:
        for lane, batch in hand:
            self.queue(lane).put_back(batch)
        self.hand_over([lane for lane, _ in hand])

    def hand_over(self, lanes: Iterable[Lane]) -> None:
        """Give what lies in these lanes to those who wait for it, the longest waiting first."""
        for lane in lanes:
            while lane in self.queues and lane in self.waiters:
                waiter = next(iter(self.waiters[lane]))
                self.leave(waiter)
                waiter.get(self.take(waiter.lanes, waiter.count))

    async def wait(self, waiter: HandedWaiter, wait_s: float) -> Hand:
        if wait_s <= 0 or waiter.count <= 0:
            return []
        self.join(waiter)
        try:
            await waiter.wait(wait_s)
        except asyncio.CancelledError:
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
