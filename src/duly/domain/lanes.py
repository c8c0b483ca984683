"""Values of the ready queue: lanes, and the tickets in them. No queue is implemented here."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from duly.domain.task import BANDS, WEBHOOK_POOL

# Webhooks of all tenants lie in one queue for each band, in the fair order in which they were
# published; an executor takes from it by tenant.
ALL_TENANTS = 0
# How long a ticket is good for, by the database's clock; after that its task is published again.
TICKET_S = 10.0
# Tickets that may wait in one lane: what is in a lane is no longer in fair order with what comes,
# so a lane holds no more than keeps its consumers busy.
LANE_DEPTH_MAX = 400
# Tickets in the queue that webhooks share: as many as so many lanes. A tenant may use a third of
# what is free there (times its weight): a lone one as much as any lane holds, and however many
# tenants' tickets lie there untaken, there is room for one more's.
SHARED_LANES = 4
SHARED_FREE_PART = 3


class Lane(NamedTuple):
    """Tickets of one tenant's pool and band. An executor names `WEBHOOK_LANES` instead: webhooks
    of all tenants."""

    tenant: int
    pool: int
    band: int


class Ticket(NamedTuple):
    """A claim that a task was due and unleased at this fence; the timer row decides.

    Past its deadline, by the database's clock, a ticket is void. `in_place`: its lease may leave
    the row in its queue, because no cap counts it there. `fires_at`: since when the task is due, in
    seconds of the database's clock; None if unknown.
    """

    id: UUID
    fence: int
    deadline: datetime | None = None
    in_place: bool = False
    fires_at: float | None = None


WEBHOOK_QUEUES = (ALL_TENANTS, WEBHOOK_POOL)
WEBHOOK_LANES = tuple(Lane(*WEBHOOK_QUEUES, band) for band in range(BANDS))


def queue_of(lane: Lane) -> Lane:
    """The queue that carries a lane: its own, or for webhooks the one of all tenants."""
    return WEBHOOK_LANES[lane.band] if lane.pool == WEBHOOK_POOL else lane


def depth_max(lane: Lane, weight: float, queue_depth: int, lane_depth: int = LANE_DEPTH_MAX) -> int:
    """How many tickets a lane may hold, when so many lie in its queue. `lane_depth` is the setting:
    what a lane of workers holds."""
    if lane.pool != WEBHOOK_POOL:
        return lane_depth
    free = SHARED_LANES * lane_depth - queue_depth
    return max(int(weight * free / SHARED_FREE_PART), 1) if free > 0 else 0


def is_open_again(
    lane: Lane, weight: float, depth: int, queue_depth: int, lane_depth: int = LANE_DEPTH_MAX
) -> bool:
    """Whether a lane that was full has enough room. A queue that all tenants share needs little of
    it: what lies there may be of tenants whose turn to run is far off."""
    if lane.tenant == ALL_TENANTS:
        return SHARED_LANES * lane_depth - depth >= max(lane_depth // 8, 1)
    return depth <= depth_max(lane, weight, queue_depth, lane_depth) // 2
