"""Names for the ready queue: lanes, and the tickets they carry. No queue lives here."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from duly.domain.task import BANDS, WEBHOOK_POOL

# Webhook lanes are shared by all tenants: the order in them is already fair.
ALL_TENANTS = 0
# How long a ticket is good for, by the database's clock; after that its task is published again.
TICKET_S = 10.0
# Tickets that may wait in one lane: what is in a lane is no longer in fair order with what comes,
# so a lane holds no more than keeps its consumers busy.
LANE_DEPTH_MAX = 400


class Lane(NamedTuple):
    """Where a kind of consumer looks for work: a pool of one tenant, or webhooks of all."""

    tenant: int
    pool: int
    band: int


class Ticket(NamedTuple):
    """A claim that a task was due and unleased at this fence; the timer row decides.

    Past its deadline, by the database's clock, a ticket is void whoever carries it. `stays`: its
    lease may leave the row in its place, because nobody counts it there. `fires_at`: since when the
    task is due, in seconds of the database's clock; None where nobody said.
    """

    id: UUID
    fence: int
    deadline: datetime | None = None
    stays: bool = False
    fires_at: float | None = None


SHARED = (ALL_TENANTS, WEBHOOK_POOL)
WEBHOOK_LANES = tuple(Lane(*SHARED, band) for band in range(BANDS))


def lane_for(tenant: int, pool: int, band: int) -> Lane:
    return Lane(*lanes_of((tenant, pool)), band)


def lanes_of(member: tuple[int, int]) -> tuple[int, int]:
    """Whose lanes the tasks of a tenant's pool go to: its own, or everybody's."""
    return SHARED if member[1] == WEBHOOK_POOL else member
