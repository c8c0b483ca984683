"""The carrier in PostgreSQL, for installations of several processes: an unlogged table, where
receiving and leasing are one statement. A crash of the server empties it, and the schedulers
publish again.

| event | what happens |
|---|---|
| consumer dies, or the answer is lost | the tickets are gone; leases, if any were made, run out |
| publishers commit out of order | tickets of one lane may be taken out of order, or late |
| lane without consumers | tickets past their deadline are swept, a batch at a time |
| server restarted | an empty table: its tickets are published again once they would be void |
| standby promoted | the same; its clock may be behind, so cursors are forgotten on reconnect |
| table unreadable | it is emptied and used again (store/ready_tickets.py) |
"""

from collections.abc import Collection, Iterable, Sequence
from uuid import UUID

from duly.broker.contract import Delivery, Received
from duly.broker.lane_cursors import LaneCursors
from duly.domain.errors import DatabaseUnavailable
from duly.domain.lanes import TICKET_S, Lane, Ticket, queue_of
from duly.environment import Environment
from duly.store.database import Database
from duly.store.ready_tickets import (
    BATCH_SIZE,
    BEGINNING,
    SWEEP_START,
    count_tickets,
    lease_tickets,
    publish_tickets,
    sweep_tickets,
    take_tickets,
    wipe_tickets,
)

# Void tickets are in no consumer's way for a while; a sweep is for lanes without consumers.
SWEEP_EVERY_S = TICKET_S / 2


class PostgresCarrier:
    # Down with the database, and then there is nothing to publish either.
    is_up = True

    def __init__(self, database: Database, environment: Environment) -> None:
        self.database = database
        self.environment = environment
        self.lane_cursors = LaneCursors(environment.clock, environment.random)
        # Ours, the last. Of sessions that were open when it and the cursors were made.
        self.last_sequence = BEGINNING
        self.sessions_opened = database.sessions_opened
        self.swept_to = SWEEP_START
        self.sweep_at = environment.clock.monotonic() + SWEEP_EVERY_S

    async def publish(self, batch: Sequence[Delivery]) -> None:
        self.forget_other_server()
        tickets = [(lane, ticket) for lane, ticket, _ in batch]
        self.last_sequence = await publish_tickets(self.database, tickets, self.last_sequence)

    async def receive_and_lease(
        self,
        queues: Sequence[Lane],
        holder: UUID,
        count: int,
        lease_s: float,
        left_out: Collection[int],
    ) -> Received:
        clock, cursors = self.environment.clock, self.cursors(queues)
        began = clock.monotonic()
        try:
            taken = await lease_tickets(
                self.database, self.environment, holder, cursors, count, lease_s, left_out
            )
        except DatabaseUnavailable:
            self.lane_cursors.forget()
            raise
        self.lane_cursors.took(clock.monotonic() - began)
        return Received(self.note_taken(taken.tickets, left_out), taken.leases)

    async def take(
        self, queues: Sequence[Lane], count: int, left_out: Collection[int]
    ) -> list[Delivery]:
        """Tickets that have left the table, for a lease queue whose carrier is another one."""
        return self.note_taken(
            await take_tickets(self.database, self.cursors(queues), count, left_out), left_out
        )

    def note_taken(
        self, taken: list[tuple[Lane, int, Ticket]], left_out: Collection[int]
    ) -> list[Delivery]:
        if not left_out:
            # What was left out lies before what was taken.
            for lane, sequence, _ in taken:
                self.lane_cursors.remember(queue_of(lane), sequence)
        return [Delivery(lane, ticket) for lane, _, ticket in taken]

    async def depths(self, queues: Sequence[Lane]) -> dict[Lane, int]:
        now = self.environment.clock.monotonic()
        if now >= self.sweep_at:
            self.sweep_at = now + SWEEP_EVERY_S
            self.swept_to, _ = await sweep_tickets(self.database, self.swept_to)
        return await count_tickets(self.database, self.cursors(queues)) if queues else {}

    async def purge(self) -> None:
        while await wipe_tickets(self.database) == BATCH_SIZE:
            continue
        self.lane_cursors.forget()

    def cursors(self, queues: Iterable[Lane]) -> dict[Lane, int]:
        self.forget_other_server()
        return self.lane_cursors.cursors(queues)

    def forget_other_server(self) -> None:
        """A new session may lead to another server, whose clock is behind: what is placed by that
        clock would lie before our cursors."""
        opened = self.database.sessions_opened
        if opened != self.sessions_opened:
            self.sessions_opened = opened
            self.last_sequence = BEGINNING
            self.lane_cursors.forget()
