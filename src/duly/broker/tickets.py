"""Tickets in this process's hands, and the leases they become. Where they lay is the carriers'
business."""

from collections.abc import Sequence
from uuid import UUID

from duly.broker.contract import OnTaken
from duly.domain.errors import DatabaseUnavailable
from duly.domain.lanes import Ticket
from duly.environment import Environment
from duly.store.database import Database
from duly.store.lease import Lease, lease_tasks, read_held


async def turn_into_leases(
    database: Database,
    environment: Environment,
    holder: UUID,
    tickets: list[Ticket],
    lease_s: float,
    on_taken: OnTaken | None,
) -> list[Lease]:
    """In the order of the tickets. Whatever happens, `on_taken` hears what became of them."""
    wanted = without_repeats(tickets)
    leases: list[Lease] = []
    try:
        leases = in_ticket_order(
            wanted, await lease_tasks(database, environment, holder, wanted, lease_s)
        )
    except DatabaseUnavailable:
        # Perhaps they were leased before the connection broke. If this fails as well the caller
        # is told, and whatever was leased runs out.
        leases = in_ticket_order(wanted, await read_held(database, holder, wanted))
    finally:
        if on_taken is not None:
            on_taken(tickets, leases)
    return leases


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
