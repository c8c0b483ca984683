"""The carrier of the ready queue: moves tickets between processes, and knows nothing of leases. No
carrier lives here.

A lane is a cache of tickets. The timer row is right, always: a ticket becomes a lease only where
the row agrees (fence, no holder, due by the database's clock, before the ticket's deadline). So a
carrier may fail in every way that is named here; `lease_queue.py` is built on that.

| event | what happens |
|---|---|
| ticket lost (purge, restart, a dead consumer) | its task is published again after its deadline |
| ticket repeated, by a publisher or the carrier | one of them becomes a lease, the others nothing |
| ticket reordered | started out of order; a carrier keeps order as far as it knows it |
| ticket early, late or of an earlier fence | nothing: acknowledged, and the row is untouched |
| acknowledgement lost | the ticket is delivered again, and its fence has passed |
| carrier down, or publishers blocked | `is_up` is False: tasks stay in their rows until it is up |
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from duly.domain.execution_shares import NO_TENANTS
from duly.domain.lanes import Lane, Ticket
from duly.store.lease import Lease


class Delivery(NamedTuple):
    """A ticket in its lane. `token`: by what the carrier knows this delivery; None where the ticket
    has left the carrier, so that there is nothing to acknowledge or release."""

    lane: Lane
    ticket: Ticket
    token: object | None = None


class Received(NamedTuple):
    """Tickets that left the carrier, oldest first in each lane, and what became of them."""

    deliveries: list[Delivery]
    leases: list[Lease]


class TicketLanes(Protocol):
    """What both kinds of carrier do. `CarrierUnavailable` is the only error of their own; those of
    a database go through."""

    @property
    def is_up(self) -> bool:
        """Whether it takes tickets now."""
        ...

    async def publish(self, batch: Sequence[Delivery]) -> None:
        """Append to the lanes, keeping the order within each. The caller minds their depth."""
        ...

    async def depths(self, queues: Sequence[Lane]) -> Mapping[Lane, int]:
        """Tickets of each lane in these queues, as far as it can tell; those past their deadline
        are let go."""
        ...

    async def purge(self) -> None:
        """Forget every ticket. Costs a delay, never a task."""
        ...


class Carrier(TicketLanes, Protocol):
    """Delivers tickets, and forgets each once it is acknowledged."""

    async def receive(
        self,
        queues: Sequence[Lane],
        credit: int,
        wait_s: float,
        left_out: Collection[int] = NO_TENANTS,
    ) -> list[Delivery]:
        """Up to `credit` tickets: queues in the order given, oldest first in each. Waits no longer
        than `wait_s` for the first. A carrier that cannot leave out tenants delivers theirs, too,
        and has them released. Called by many at once."""
        ...

    async def ack(self, tokens: Sequence[object]) -> None:
        """These became leases, or never will: forget them."""
        ...

    async def release(self, tokens: Sequence[object]) -> None:
        """Deliver these again, to any process."""
        ...


@runtime_checkable
class LeasingCarrier(TicketLanes, Protocol):
    """Lies beside the timers: receiving and leasing are one round trip, and no ticket is ever
    between two holders."""

    async def receive_and_lease(
        self,
        queues: Sequence[Lane],
        holder: UUID,
        count: int,
        lease_s: float,
        left_out: Collection[int],
    ) -> Received:
        """As `Carrier.receive` without a wait; leases in the order of the tickets."""
        ...
