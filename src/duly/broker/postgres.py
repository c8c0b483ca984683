"""The ready queue in PostgreSQL, for installations of several processes.

Taking and leasing are one statement, so there is no moment at which a ticket is in nobody's hands.
The table is unlogged: a crash of the server empties it, and the schedulers publish again.

| event | what happens |
|---|---|
| taker dies, or the answer is lost | the tickets are gone; leases, if any were made, run out |
| publishers commit out of order | tickets of one lane may be taken out of order, or late |
| nobody comes for a lane | tickets past their deadline are swept, a bite at a time |
| server restarted | an empty table and perhaps a new sequence: bookmarks are forgotten in time |
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from uuid import UUID

from duly.broker.bookmarks import Bookmarks
from duly.broker.contract import OnTaken, in_ticket_order
from duly.broker.watch import Watch
from duly.domain.errors import DatabaseUnavailable
from duly.domain.lanes import TICKET_S, Lane, Ticket
from duly.environment import Environment
from duly.store.database import Database
from duly.store.lease import Lease
from duly.store.ready_queue import (
    BITE,
    FIRST_SPOT,
    Taken,
    count_tickets,
    lease_tickets,
    publish_tickets,
    sweep_tickets,
    wipe_tickets,
)

# Void tickets are in nobody's way for a while; a sweep is for lanes without consumers.
SWEEP_EVERY_S = TICKET_S / 2


class PostgresBroker:
    def __init__(
        self,
        database: Database,
        environment: Environment,
        on_taken: OnTaken | None = None,
        on_published: Callable[[list[Lane]], None] | None = None,
    ) -> None:
        self.database = database
        self.environment = environment
        self.on_taken = on_taken
        # For whoever can tell other processes to `wake`: lanes with more than our own consumers
        # waited for.
        self.on_published = on_published
        self.depths: dict[Lane, int] = {}
        self.bookmarks = Bookmarks(environment.clock, environment.random)
        self.watch = Watch(self.count)
        # Rises with each publish we know of, so that a consumer knows what it cannot have seen.
        self.publications = 0
        self.swept_to = FIRST_SPOT
        self.sweep_at = environment.clock.monotonic() + SWEEP_EVERY_S
        self.is_closed = False

    async def publish(self, tickets: Sequence[tuple[Lane, Ticket]]) -> None:
        if not tickets:
            return
        await publish_tickets(self.database, tickets)
        published = Counter(lane for lane, _ in tickets)
        for lane, number in published.items():
            self.depths[lane] = self.depth(lane) + number
        self.publications += 1
        self.watch.hurry()
        left = self.watch.tell(published)
        if left and self.on_published is not None:
            self.on_published(left)

    async def lease(
        self, lanes: Sequence[Lane], holder: UUID, count: int, lease_s: float, wait_s: float
    ) -> list[Lease]:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait_s
        while lanes and count > 0 and not self.is_closed:
            seen = self.publications
            taken = await self.take(lanes, holder, count, lease_s)
            if taken.leases:
                return taken.leases
            left_s = ends_at - loop.time()
            if left_s <= 0:
                return []
            is_news = bool(taken.tickets) or self.publications != seen
            if not is_news and not await self.watch.wait(lanes, count, left_s):
                return []
        return []

    def wake(self, lanes: Collection[Lane]) -> None:
        """Somebody else published there: look now."""
        self.publications += 1
        self.watch.look(lanes)

    def depth(self, lane: Lane) -> int:
        return self.depths.get(lane, 0)

    async def refresh(self, lanes: Sequence[Lane]) -> None:
        await self.sweep_sometimes()
        if lanes:
            await self.count(lanes)

    def waiting(self) -> int:
        return len(self.watch.waiters)

    async def wipe(self) -> None:
        while await wipe_tickets(self.database) == BITE:
            continue
        self.depths.clear()
        self.bookmarks.forget()

    async def close(self) -> None:
        self.is_closed = True
        await self.watch.close()

    async def take(self, lanes: Sequence[Lane], holder: UUID, count: int, lease_s: float) -> Taken:
        clock = self.environment.clock
        began = clock.monotonic()
        try:
            taken = await lease_tickets(
                self.database,
                self.environment,
                holder,
                self.bookmarks.places(lanes),
                count,
                lease_s,
            )
        except DatabaseUnavailable:
            self.bookmarks.forget()
            raise
        self.bookmarks.took(clock.monotonic() - began)
        if not taken.tickets:
            return taken
        self.watch.hurry()
        for lane, sequence, _ in taken.tickets:
            self.bookmarks.remember(lane, sequence)
        self.know_fewer(Counter(lane for lane, _, _ in taken.tickets))
        tickets = [ticket for _, _, ticket in taken.tickets]
        leases = in_ticket_order(tickets, taken.leases)
        if self.on_taken is not None:
            self.on_taken(tickets, leases)
        return Taken(taken.tickets, leases)

    async def count(self, lanes: Sequence[Lane]) -> Mapping[Lane, int]:
        counted = await count_tickets(self.database, self.bookmarks.places(lanes))
        for lane, number in counted.items():
            if number:
                self.depths[lane] = number
            else:
                self.depths.pop(lane, None)
        return counted

    def know_fewer(self, taken: Mapping[Lane, int]) -> None:
        for lane, number in taken.items():
            left = self.depth(lane) - number
            if left > 0:
                self.depths[lane] = left
            else:
                self.depths.pop(lane, None)

    async def sweep_sometimes(self) -> None:
        now = self.environment.clock.monotonic()
        if now < self.sweep_at:
            return
        self.sweep_at = now + SWEEP_EVERY_S
        self.swept_to, _ = await sweep_tickets(self.database, self.swept_to)
