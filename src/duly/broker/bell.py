"""Lane hints: tell other processes of tickets in PostgreSQL, so that idle consumers need not poll.

A hint names lanes, each once and a bounded number of times a second: busy consumers take more by
themselves. A lost hint costs time until the next poll, never a ticket.
"""

from duly.broker.lease_queue import LeaseQueue
from duly.domain.lanes import Lane, queue_of
from duly.store.notify import READY, Paced, Send
from duly.telemetry import get_logger

log = get_logger("duly.broker.bell")


class LaneHints:
    """Sends them; `hear_lanes` is what the other process does with them."""

    def __init__(self, send: Send) -> None:
        self.bell = Paced(send, READY)

    def tell(self, lanes: list[Lane]) -> None:
        queues = dict.fromkeys(map(queue_of, lanes))
        self.bell.ring(f"{queue.tenant} {queue.pool} {queue.band}" for queue in queues)


def hear_lanes(lease_queue: LeaseQueue, rings: list[str]) -> None:
    lanes = [lane for lane in map(read_ring, rings) if lane is not None]
    if lanes:
        lease_queue.look(lanes)


def read_ring(ring: str) -> Lane | None:
    try:
        tenant, pool, band = ring.split()
        return Lane(int(tenant), int(pool), int(band))
    except ValueError:
        log.warning("lane hint not understood", ring=ring[:100])
        return None
