"""The ready queue in PostgreSQL, for installations of several processes.

What the consumers of this process take at once stays here (near.py); the rest lies in the table.
There, taking and leasing are one statement, so there is no moment at which a ticket is in nobody's
hands. The table is unlogged: a crash of the server empties it, and the schedulers publish again.

| event | what happens |
|---|---|
| taker dies, or the answer is lost | the tickets are gone; leases, if any were made, run out |
| publishers commit out of order | tickets of one lane may be taken out of order, or late |
| nobody here comes for a ticket | after a moment it moves to the table; if that fails it is lost |
| nobody comes for a lane | tickets past their deadline are swept, a bite at a time |
| server restarted | an empty table: its tickets are published again once they would be void |
| standby promoted | the same; its clock may be behind, so bookmarks are forgotten on reconnect |
| table unreadable | it is emptied and used again (store/ready_queue.py) |
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from uuid import UUID

from duly.broker.bookmarks import Bookmarks
from duly.broker.contract import OnTaken
from duly.broker.lane_depths import LaneDepths
from duly.broker.lane_queue import Entries
from duly.broker.near import MOMENT_S, NearLanes
from duly.broker.tickets import in_ticket_order, turn_into_leases
from duly.broker.waiter import Waiter
from duly.broker.watch import Watch
from duly.domain.errors import DatabaseUnavailable, DulyError
from duly.domain.execution_shares import UNSHARED, UnsharedSlots
from duly.domain.lanes import TICKET_S, Lane, Ticket, queue_of
from duly.environment import Environment
from duly.store.database import Database
from duly.store.hands import Hands
from duly.store.lease import Lease
from duly.store.ready_queue import (
    BEGINNING,
    BITE,
    FIRST_SPOT,
    count_tickets,
    lease_tickets,
    publish_tickets,
    sweep_tickets,
    wipe_tickets,
)
from duly.telemetry import get_logger

# Void tickets are in nobody's way for a while; a sweep is for lanes without consumers.
SWEEP_EVERY_S = TICKET_S / 2

# Looks into the table of one request, each with other tenants left out.
LOOKS_MAX = 3

log = get_logger("duly.broker.postgres")


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
        self.near = NearLanes(environment.clock)
        self.moving: asyncio.Task[None] | None = None
        # Of the table.
        self.depths = LaneDepths()
        self.bookmarks = Bookmarks(environment.clock, environment.random)
        # Ours, the last. Of sessions that were open when it and the bookmarks were made.
        self.last_sequence = BEGINNING
        self.sessions_opened = database.sessions_opened
        self.watch = Watch(self.count)
        # Rises with each publish we know of, so that a consumer knows what it cannot have seen.
        self.publications = 0
        self.swept_to = FIRST_SPOT
        self.sweep_at = environment.clock.monotonic() + SWEEP_EVERY_S
        self.is_closed = False

    async def publish(self, tickets: Sequence[tuple[Lane, Ticket]]) -> None:
        if not tickets:
            return
        published = Counter(lane for lane, _ in tickets)
        wanted: Counter[Lane] = Counter()
        for lane, number in self.watch.wanted(published).items():
            wanted[queue_of(lane)] += number
        # Not beside older ones that lie in the table: a lane has an order.
        passed_on = {lane for lane in published if self.depths.of(lane)}
        rooms = {queue: self.near.room(queue, number) for queue, number in wanted.items()}
        others = self.near.keep(tickets, {} if self.is_closed else rooms, passed_on)
        if len(others) < len(tickets):
            self.publications += 1
            self.watch.tell(published - Counter(lane for lane, _ in others))
            self.start_moving()
        if others:
            await self.publish_to_all(others)

    async def publish_to_all(self, tickets: Sequence[tuple[Lane, Ticket]]) -> None:
        self.forget_other_server()
        self.last_sequence = await publish_tickets(self.database, tickets, self.last_sequence)
        published = Counter(lane for lane, _ in tickets)
        for lane, number in published.items():
            self.depths.add(lane, number)
        self.publications += 1
        self.watch.hurry()
        left = self.watch.tell(published)
        if left and self.on_published is not None:
            self.on_published(left)

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
        self.near.note_came(holder)
        while lanes and count > 0 and not self.is_closed:
            seen = self.publications
            slots.release()
            try:
                leases = await self.take(lanes, holder, count, lease_s, slots)
            finally:
                self.tell_near(lanes)
            if leases:
                return leases
            left_s = ends_at - loop.time()
            if left_s <= 0:
                return []
            if leases is not None or self.publications != seen:
                continue
            waiter = Waiter(lanes, holder, count, lease_s, slots)
            is_news = await self.watch.wait(waiter, left_s)
            if waiter.leases or not is_news:
                return waiter.leases
        return []

    def wake(self, lanes: Collection[Lane]) -> None:
        """Somebody else published there: look now."""
        self.publications += 1
        self.watch.look(lanes)

    def reserve(self, lane: Lane, count: int) -> Hands | None:
        """Other processes' tickets that lie there unseen are no older than a look."""
        return None if self.depth(lane) else self.watch.reserve(lane, count)

    def reconsider(self, lanes: Sequence[Lane]) -> None:
        if self.watch.waiters:
            self.watch.tell(self.known_tickets(lanes))

    def depth(self, lane: Lane) -> int:
        return self.depths.of(lane) + self.near.depth(lane)

    async def refresh(self, lanes: Sequence[Lane]) -> None:
        await self.sweep_sometimes()
        if lanes:
            await self.count(lanes)

    def waiting(self) -> int:
        return len(self.watch.waiters)

    async def wipe(self) -> None:
        while await wipe_tickets(self.database) == BITE:
            continue
        self.near.queues.clear()
        self.depths.clear()
        self.bookmarks.forget()

    async def close(self) -> None:
        self.is_closed = True
        if self.moving is not None:
            self.moving.cancel()
            await asyncio.wait((self.moving,))
        await self.watch.close()

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
                before = self.lanes_up_to_near(lanes, left_out)
                is_for_table = left_out not in looked and self.is_table_first(before)
                if is_for_table and len(looked) < LOOKS_MAX:
                    looked.add(left_out)
                    leases = await self.take_from_table(
                        lanes if before is None else before, holder, most, left_out, lease_s, slots
                    )
                    if leases is not None:
                        return leases
                    # Slots may have been used meanwhile: the rounds are others.
                    break
                if before is not None:
                    taken = self.near.take(lanes, most, left_out)
                    slots.take(lane for lane, _ in taken)
                    return await self.lease_near(holder, taken, lease_s)
            else:
                return None

    def is_table_first(self, before: Sequence[Lane] | None) -> bool:
        """Whether the table is to be looked at before what lies here, if anything does."""
        if before is None:
            return True
        return self.near.is_look_due(before) or any(map(self.depths.of, before[:-1]))

    def lanes_up_to_near(
        self, lanes: Sequence[Lane], left_out: frozenset[int]
    ) -> Sequence[Lane] | None:
        """Those that come before what lies here, and its own; None if nothing does."""
        for index, lane in enumerate(lanes):
            if self.near.has(lane, left_out):
                return lanes[: index + 1]
        return None

    async def lease_near(self, holder: UUID, taken: Entries, lease_s: float) -> list[Lease]:
        tickets = [ticket for _, ticket in taken]
        leases = await turn_into_leases(
            self.database, self.environment, holder, tickets, lease_s, self.on_taken
        )
        self.near.note_taken(holder, Counter(queue_of(lane) for lane, _ in taken))
        return leases

    def tell_near(self, lanes: Iterable[Lane]) -> None:
        """Who was woken for tickets here may have found others, or have left: wake the next."""
        depths = self.near.tickets(lanes)
        if depths:
            self.watch.tell(depths)

    async def take_from_table(
        self,
        lanes: Sequence[Lane],
        holder: UUID,
        count: int,
        left_out: frozenset[int],
        lease_s: float,
        slots: UnsharedSlots,
    ) -> list[Lease] | None:
        clock = self.environment.clock
        began = clock.monotonic()
        self.near.note_looked(lanes)
        slots.ask(count)
        try:
            taken = await lease_tickets(
                self.database,
                self.environment,
                holder,
                self.places(lanes),
                count,
                lease_s,
                left_out,
            )
        except DatabaseUnavailable:
            self.bookmarks.forget()
            raise
        finally:
            slots.release()
        self.bookmarks.took(clock.monotonic() - began)
        if not taken.tickets:
            # Others were quicker, if we believed that there were any.
            self.depths.forget(lanes, left_out)
            return None
        slots.take(lane for lane, _, _ in taken.tickets)
        self.watch.hurry()
        if not left_out:
            # What was left out lies before what was taken.
            for lane, sequence, _ in taken.tickets:
                self.bookmarks.remember(queue_of(lane), sequence)
        for lane, number in Counter(lane for lane, _, _ in taken.tickets).items():
            self.depths.add(lane, -number)
        self.near.note_taken(holder, Counter(queue_of(lane) for lane, _, _ in taken.tickets))
        if len(taken.tickets) == count:
            self.near.look_again(lanes)
        tickets = [ticket for _, _, ticket in taken.tickets]
        leases = in_ticket_order(tickets, taken.leases)
        if self.on_taken is not None:
            self.on_taken(tickets, leases)
        return leases

    def start_moving(self) -> None:
        if self.moving is None and not self.is_closed:
            loop = asyncio.get_running_loop()
            self.moving = loop.create_task(self.move(), name="broker.near")

    async def move(self) -> None:
        """What is not taken here after all is for everybody. Lives while there is some."""
        try:
            while self.near.queues:
                await asyncio.sleep(MOMENT_S)
                if late := self.near.take_late():
                    await self.move_to_table(late)
        finally:
            self.moving = None

    async def move_to_table(self, tickets: list[tuple[Lane, Ticket]]) -> None:
        try:
            await self.publish_to_all(tickets)
        except DulyError as error:
            log.warning("tickets were lost on their way to other processes", error=str(error))

    async def count(self, lanes: Sequence[Lane]) -> Mapping[Lane, int]:
        queues = list(dict.fromkeys(map(queue_of, lanes)))
        self.depths.learn(queues, await count_tickets(self.database, self.places(queues)))
        return self.known_tickets(queues)

    def known_tickets(self, queues: Sequence[Lane]) -> Mapping[Lane, int]:
        """Those of each lane of these queues, here and in the table."""
        return Counter(self.depths.tickets(queues)) + Counter(self.near.tickets(queues))

    def places(self, lanes: Iterable[Lane]) -> dict[Lane, int]:
        self.forget_other_server()
        return self.bookmarks.places(lanes)

    def forget_other_server(self) -> None:
        """A new session may lead to another server, whose clock is behind: what is placed by that
        clock would lie before our bookmarks."""
        opened = self.database.sessions_opened
        if opened != self.sessions_opened:
            self.sessions_opened = opened
            self.last_sequence = BEGINNING
            self.bookmarks.forget()

    async def sweep_sometimes(self) -> None:
        now = self.environment.clock.monotonic()
        if now < self.sweep_at:
            return
        self.sweep_at = now + SWEEP_EVERY_S
        self.swept_to, _ = await sweep_tickets(self.database, self.swept_to)
