"""A consumer of this process with nothing to do. How it is found work is the carriers' business."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from duly.domain.execution_shares import UNSHARED, UnsharedSlots
from duly.domain.lanes import Lane, queue_of
from duly.domain.task import WEBHOOK_POOL
from duly.store.lease import Lease


class Waiter:
    """It is told once: that it should look, or what it got, by whoever reserved it."""

    __slots__ = (
        "count",
        "error",
        "holder",
        "is_reserved",
        "is_told",
        "lanes",
        "lease_s",
        "leases",
        "slots",
        "waking",
    )

    def __init__(
        self,
        lanes: Sequence[Lane],
        holder: UUID,
        count: int,
        lease_s: float,
        slots: UnsharedSlots = UNSHARED,
    ) -> None:
        self.lanes = lanes
        self.slots = slots
        self.holder = holder
        self.count = count
        self.lease_s = lease_s
        self.is_reserved = False
        self.is_told = False
        self.error: Exception | None = None
        self.leases: list[Lease] = []
        self.waking: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self, wait_s: float) -> None:
        """Wakes at the first turn of the loop after it is told: `asyncio.wait` would take two, and
        whoever submitted the task would come before its handler."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(wait_s, self.rouse)
        try:
            await self.waking
        finally:
            timer.cancel()
        if self.is_reserved and not self.is_told:
            # A statement is under way that may end in its hands.
            self.waking = loop.create_future()
            await self.waking

    def tell(self, error: Exception | None = None) -> None:
        self.is_told = True
        self.error = error
        self.rouse()

    def rouse(self) -> None:
        # One that is interrupted, or out of time, is awake already.
        if not self.waking.done():
            self.waking.set_result(None)

    def take(self, leases: list[Lease]) -> None:
        """See `Hands`."""
        self.leases = leases
        self.tell()


Kind = TypeVar("Kind", bound=Waiter)


def to_reserve(waiters: Iterable[Kind], lane: Lane, count: int) -> Kind | None:
    """Who has waited longest of those that may get so many of a lane; its slots are claimed. One of
    a queue that all tenants share stays free: a submit of one of them that hangs is nobody else's
    business."""
    queue = queue_of(lane)
    fit = (each for each in waiters if each.count >= count and queue in each.lanes)
    first = next(fit, None)
    if first is None or not first.slots.admits(lane.tenant, count):
        return None
    if lane.pool == WEBHOOK_POOL and next(fit, None) is None:
        return None
    first.slots.take([lane] * count)
    return first
