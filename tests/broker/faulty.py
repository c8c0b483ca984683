"""A carrier for tests that does everything a carrier may do wrong, by a seed: it loses, repeats,
delays and reorders deliveries, forgets acknowledgements, cannot leave out tenants, goes down."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from random import Random

from duly.broker.codec import decode_ticket, encode_ticket
from duly.broker.contract import Delivery
from duly.domain.errors import CarrierUnavailable
from duly.domain.execution_shares import NO_TENANTS
from duly.domain.lanes import Lane, queue_of

KEY = b"the key of a carrier for tests, of 32"


class FaultyCarrier:
    """One for all processes of a test. Tickets lie in it as bytes."""

    def __init__(self, random: Random, now: Callable[[], datetime], rate: float = 0.0) -> None:
        self.random = random
        self.now = now
        self.rate = rate
        self.is_up = True
        self.queues: dict[Lane, list[bytes]] = {}
        self.delayed: list[tuple[Lane, bytes]] = []
        self.unacknowledged: dict[int, tuple[Lane, bytes]] = {}
        self.delivered = 0

    def strikes(self) -> bool:
        return self.random.random() < self.rate

    def be_up(self) -> None:
        if not self.is_up:
            raise CarrierUnavailable(address="here", problem="down")

    def put(self, queue: Lane, wire: bytes) -> None:
        lying = self.queues.setdefault(queue, [])
        lying.insert(self.random.randint(0, len(lying)) if self.strikes() else len(lying), wire)

    async def publish(self, batch: Sequence[Delivery]) -> None:
        self.be_up()
        for each in batch:
            queue, wire = queue_of(each.lane), encode_ticket(KEY, each.lane, each.ticket)
            if self.strikes():
                continue
            self.put(queue, wire)
            if self.strikes():
                self.put(queue, wire)
            if self.strikes():
                self.delayed.append((queue, self.queues[queue].pop()))
        if self.strikes():
            raise CarrierUnavailable(address="here", problem="down after it took them")

    async def receive(
        self,
        queues: Sequence[Lane],
        credit: int,
        wait_s: float,
        left_out: Collection[int] = NO_TENANTS,
    ) -> list[Delivery]:
        self.be_up()
        found: list[Delivery] = []
        for queue in queues:
            lying = self.queues.get(queue, [])
            while lying and len(found) < credit:
                wire = lying.pop(0)
                self.delivered += 1
                self.unacknowledged[self.delivered] = queue, wire
                delivery = decode_ticket(KEY, wire, self.delivered)
                assert delivery is not None
                found.append(delivery)
        return found

    async def ack(self, tokens: Sequence[object]) -> None:
        self.be_up()
        for token in tokens:
            assert isinstance(token, int)
            if not self.strikes():
                self.unacknowledged.pop(token, None)

    async def release(self, tokens: Sequence[object]) -> None:
        self.be_up()
        for token in tokens:
            assert isinstance(token, int)
            if token in self.unacknowledged:
                self.put(*self.unacknowledged.pop(token))

    async def depths(self, queues: Sequence[Lane]) -> dict[Lane, int]:
        self.be_up()
        counted: dict[Lane, int] = {}
        for queue in queues:
            lying, self.queues[queue] = self.queues.get(queue, []), []
            for wire in lying:
                delivery = decode_ticket(KEY, wire)
                assert delivery is not None
                deadline = delivery.ticket.deadline
                if deadline is None or deadline > self.now():
                    self.queues[queue].append(wire)
                    counted[delivery.lane] = counted.get(delivery.lane, 0) + 1
        return counted

    async def purge(self) -> None:
        self.queues.clear()
        self.delayed.clear()

    def deliver_late(self) -> None:
        """What was delayed arrives, and what was never acknowledged comes again."""
        late = [*self.delayed, *self.unacknowledged.values()]
        self.delayed, self.unacknowledged = [], {}
        for queue, wire in late:
            self.put(queue, wire)
