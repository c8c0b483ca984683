"""Lane hints: tell other processes of tickets in PostgreSQL, so that idle consumers need not poll.

A hint names lanes, each once and a bounded number of times a second: busy consumers take more by
themselves. A lost hint costs time until the next poll, never a ticket.
"""

from duly.broker.lease_queue import LeaseQueue
from duly.domain.lanes import Lane, queue_of
from duly.store.notify import READY, PacedHints, Send
from duly.telemetry import get_logger

log = get_logger("duly.broker.lane_hints")


class LaneHints:
    """Sends hints; `on_lane_hints` is what another process does with them."""

    def __init__(self, send: Send) -> None:
        self.hints = PacedHints(send, READY)

    def send(self, lanes: list[Lane]) -> None:
        queues = dict.fromkeys(map(queue_of, lanes))
        self.hints.add(f"{queue.tenant} {queue.pool} {queue.band}" for queue in queues)


def on_lane_hints(lease_queue: LeaseQueue, hints: list[str]) -> None:
    lanes = [lane for lane in map(decode_hint, hints) if lane is not None]
    if lanes:
        lease_queue.on_arrivals(lanes)


def decode_hint(hint: str) -> Lane | None:
    try:
        tenant, pool, band = hint.split()
        return Lane(int(tenant), int(pool), int(band))
    except ValueError:
        log.warning("lane hint not understood", hint=hint[:100])
        return None
