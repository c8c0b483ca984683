"""What every carrier of the ready queue promises, and what it may get wrong. No carrier lives here.

A lane is a cache of tickets. The timer row is right, always: a ticket becomes a lease only where
the row agrees (fence, no holder, due by the database's clock, before the ticket's deadline).

| event | what happens |
|---|---|
| ticket lost (wipe, restart, a taker that died) | no task is lost: it is published again |
| ticket repeated, by whomever | one of them becomes a lease, the others nothing |
| ticket reordered | started out of order; a carrier keeps order as far as it knows it |
| ticket early, late or of an earlier fence | nothing: it is gone, and the row is untouched |
| consumer cancelled while it waits | its tickets are left or given back to the others |
| consumer cancelled during its lease statement | like a lost answer: such leases run out |
| answer lost | asked for again where the tickets were in memory, else the leases run out |
| ticket repeated to one holder, an answer lost | the same (id, fence) may come again: drop it |
| consumer cancelled while it is reserved | like a lost answer: what it was to get runs out |
"""

from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

from duly.domain.execution_shares import UNSHARED, UnsharedSlots
from duly.domain.lanes import Lane, Ticket
from duly.store.hands import Hands
from duly.store.lease import Lease

# Tickets that are gone from the queue, and those of them that became leases.
OnTaken = Callable[[list[Ticket], list[Lease]], None]


class Broker(Protocol):
    on_taken: OnTaken | None
    """Called in the process that took the tickets, before it sees its leases. Must not raise."""

    async def publish(self, tickets: Sequence[tuple[Lane, Ticket]]) -> None:
        """Append to the lanes, keeping the order within each. The caller minds their depth."""
        ...

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
        not become a lease is simply gone.
        """
        ...

    def reconsider(self, lanes: Sequence[Lane]) -> None:
        """Slots became free: consumers of this process that wait for these lanes may now take
        tickets that they could not."""
        ...

    def reserve(self, lane: Lane, count: int) -> Hands | None:
        """A consumer of this process that waits for this lane, with room for so many; none if
        tickets lie there or its slots are not for this tenant, and not the last one of a queue that
        tenants share. Until it is told what it got it is handed nothing else."""
        ...

    def depth(self, lane: Lane) -> int:
        """Tickets in a lane, or in one of `WEBHOOK_LANES` of all tenants, as far as this process
        knows."""
        ...

    async def refresh(self, lanes: Sequence[Lane]) -> None:
        """Learn the depth of these lanes, and let go of tickets past their deadline."""
        ...

    def waiting(self) -> int:
        """Consumers of this process that wait for a ticket now."""
        ...

    async def wipe(self) -> None:
        """Forget every ticket. Costs a delay, never a task."""
        ...

    async def close(self) -> None:
        """Send waiting consumers home with nothing."""
        ...
