"""The carrier inside one process, for `duly up`, which owns the whole installation. A ticket that
was received has left it: what dies with the process is published again by the next one."""

from collections.abc import Collection, Sequence

from duly.broker.contract import Delivery
from duly.broker.lane_queue import LaneQueues
from duly.domain.execution_shares import NO_TENANTS
from duly.domain.lanes import TICKET_S, Lane
from duly.environment import Clock


class MemoryCarrier:
    is_up = True

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.queues = LaneQueues()

    async def publish(self, batch: Sequence[Delivery]) -> None:
        self.queues.put(batch, self.clock.monotonic())

    async def receive(
        self,
        queues: Sequence[Lane],
        credit: int,
        wait_s: float,  # noqa: ARG002 (of the contract)
        left_out: Collection[int] = NO_TENANTS,
    ) -> list[Delivery]:
        """Never waits: what is published here, the lease queue of this process published."""
        return self.queues.take(queues, credit, left_out)

    async def ack(self, tokens: Sequence[object]) -> None:
        """Nothing is kept for one."""

    async def release(self, tokens: Sequence[object]) -> None:
        """Nothing was kept for one."""

    async def depths(self, queues: Sequence[Lane]) -> dict[Lane, int]:
        # By time passed here, not by the deadline itself: the node's clock may be wrong.
        self.queues.drop_put_before(self.clock.monotonic() - TICKET_S, queues)
        return self.queues.tickets(queues)

    async def purge(self) -> None:
        self.queues.clear()
