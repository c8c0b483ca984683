"""Carrier arrivals: what a carrier of another program reports of new tickets, for consumers of this
process that wait: they look at once instead of at their next poll. Losing it costs time until that
poll."""

from duly.broker.fallback import BrokerCarrier
from duly.broker.lease_queue import LeaseQueue
from duly.domain.errors import CarrierUnavailable

RETRY_S = 0.5


class CarrierArrivals:
    """A role."""

    name = "carrier_arrivals"

    def __init__(self, carrier: BrokerCarrier, lease_queue: LeaseQueue) -> None:
        self.carrier = carrier
        self.lease_queue = lease_queue

    async def tick(self) -> float:
        if not self.carrier.is_up:
            return RETRY_S
        try:
            queues = await self.carrier.arrivals()
        except CarrierUnavailable:
            return RETRY_S
        if queues:
            self.lease_queue.on_arrivals(queues)
        return 0.0

    async def close(self) -> None:
        """The carrier closes its connections by itself."""
