"""A carrier of another program beside the table of tickets in PostgreSQL, which carries what the
other cannot: lanes that it does not take, and all of them while it is down.

| event | what happens |
|---|---|
| the carrier goes down, `falls_back` | tickets go to PostgreSQL at once; consumers look there too |
| the same, without it | tasks stay in their rows until it is up again |
| it is up for one process and down for another | each looks at both, so each finds the other's |
| more lanes of workers than `WORKER_QUEUES_MAX` | those used last go to PostgreSQL |
| publish of unknown outcome | published to PostgreSQL too; one of the two becomes a lease |
"""

import contextlib
import math
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Protocol

from duly.broker.carrier_queues import WORKER_QUEUES_MAX
from duly.broker.contract import Carrier, Delivery
from duly.broker.postgres import PostgresCarrier
from duly.domain.errors import CarrierUnavailable
from duly.domain.execution_shares import NO_TENANTS
from duly.domain.lanes import TICKET_S, Lane
from duly.domain.task import WEBHOOK_POOL
from duly.environment import Clock

# How often a consumer looks into PostgreSQL while its carrier is up: another process may see it
# down. A lane of workers that was not used for a while gives its queue to another.
LOOK_S = 0.5
UNUSED_S = 60.0


class BrokerCarrier(Carrier, Protocol):
    """A carrier of another program. It is a role, too: its tick sees whether it is up."""

    name: str
    # The broker: redis, rabbitmq, kafka.
    kind: str
    # Without credentials.
    address: str
    # Why it is down; None while it is up.
    problem: str | None
    # Whether it carries lanes of workers at all.
    has_worker_lanes: bool

    async def arrivals(self) -> list[Lane]:
        """Queues in which tickets may have come; waits for them, at most a few seconds."""
        ...

    async def tick(self) -> float: ...

    async def close(self) -> None: ...


class FallbackCarrier:
    def __init__(
        self, main: BrokerCarrier, beside: PostgresCarrier, clock: Clock, *, falls_back: bool
    ) -> None:
        self.main = main
        self.beside = beside
        self.clock = clock
        self.falls_back = falls_back
        # Lanes of workers with a queue of the carrier, the one used last at the end.
        self.worker_lanes: OrderedDict[Lane, float] = OrderedDict()
        self.look_at = -math.inf
        # While tickets that this process put into PostgreSQL may lie there.
        self.beside_until = -math.inf

    @property
    def is_up(self) -> bool:
        return self.main.is_up or self.falls_back

    async def publish(self, batch: Sequence[Delivery]) -> None:
        if not self.main.is_up and not self.falls_back:
            raise CarrierUnavailable(address=self.main.address, problem=self.main.problem)
        carried: list[Delivery] = []
        others: list[Delivery] = []
        for each in batch:
            (carried if self.main.is_up and self.is_carried(each.lane) else others).append(each)
        if carried:
            try:
                await self.main.publish(carried)
            except CarrierUnavailable:
                if not self.falls_back:
                    raise
                others = list(batch)
        if others:
            self.beside_until = self.clock.monotonic() + TICKET_S
            await self.beside.publish(others)

    def is_carried(self, lane: Lane) -> bool:
        if lane.pool == WEBHOOK_POOL:
            return True
        if not self.main.has_worker_lanes:
            return False
        now = self.clock.monotonic()
        lanes = self.worker_lanes
        while lanes and next(iter(lanes.values())) < now - UNUSED_S:
            lanes.popitem(last=False)
        if lane not in lanes and len(lanes) >= WORKER_QUEUES_MAX:
            return False
        lanes[lane] = now
        lanes.move_to_end(lane)
        return True

    async def receive(
        self,
        queues: Sequence[Lane],
        credit: int,
        wait_s: float,
        left_out: Collection[int] = NO_TENANTS,
    ) -> list[Delivery]:
        found: list[Delivery] = []
        if self.main.is_up:
            carried = [queue for queue in queues if self.may_carry(queue)]
            with contextlib.suppress(CarrierUnavailable):
                found = await self.main.receive(carried, credit, wait_s, left_out)
        if len(found) < credit and self.is_look_due(queues):
            self.look_at = self.clock.monotonic() + LOOK_S
            room = credit - len(found)
            found += await self.beside.take(queues, room, left_out)
        return found

    def may_carry(self, queue: Lane) -> bool:
        return queue.pool == WEBHOOK_POOL or self.main.has_worker_lanes

    def is_look_due(self, queues: Sequence[Lane]) -> bool:
        now = self.clock.monotonic()
        return (
            now >= self.look_at
            or now < self.beside_until
            or not self.main.is_up
            or not all(map(self.may_carry, queues))
        )

    async def ack(self, tokens: Sequence[object]) -> None:
        await self.main.ack(tokens)

    async def release(self, tokens: Sequence[object]) -> None:
        await self.main.release(tokens)

    async def depths(self, queues: Sequence[Lane]) -> dict[Lane, int]:
        counted: dict[Lane, int] = {}
        if self.main.is_up:
            with contextlib.suppress(CarrierUnavailable):
                counted |= await self.main.depths(queues)
        if self.clock.monotonic() < self.beside_until:
            for lane, number in (await self.beside.depths(queues)).items():
                counted[lane] = counted.get(lane, 0) + number
        return counted

    async def purge(self) -> None:
        if self.main.is_up:
            await self.main.purge()
        await self.beside.purge()
