"""Names for the ready queue: lanes, and the tickets they carry. No queue lives here."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from duly.domain.task import WEBHOOK_POOL

# Webhook lanes are shared by all tenants: the order in them is already fair.
ALL_TENANTS = 0
# How long a ticket is good for, by the database's clock; after that its task is published again.
TICKET_S = 10.0


class Lane(NamedTuple):
    """Where a kind of consumer looks for work: a pool of one tenant, or webhooks of all."""

    tenant: int
    pool: int
    band: int


class Ticket(NamedTuple):
    """A claim that a task was due and unleased at this fence; the timer row decides.

    Past its deadline, by the database's clock, a ticket is void whoever carries it.
    """

    id: UUID
    fence: int
    deadline: datetime | None = None


def lane_for(tenant: int, pool: int, band: int) -> Lane:
    return Lane(ALL_TENANTS if pool == WEBHOOK_POOL else tenant, pool, band)
