"""A consumer of this process with nothing to do. How it is found work is the carriers' business."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from duly.domain.lanes import ALL_TENANTS, Lane
from duly.store.lease import Lease


class Waiter:
    """`told` is set once it should look, or once whoever reserved it has said what it got."""

    __slots__ = ("count", "holder", "is_reserved", "lanes", "lease_s", "leases", "told")

    def __init__(self, lanes: Sequence[Lane], holder: UUID, count: int, lease_s: float) -> None:
        self.lanes = lanes
        self.holder = holder
        self.count = count
        self.lease_s = lease_s
        self.is_reserved = False
        self.leases: list[Lease] = []
        self.told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self, wait_s: float) -> None:
        await asyncio.wait((self.told,), timeout=wait_s)
        if self.is_reserved and not self.told.done():
            # A statement is under way that may end in its hands.
            await asyncio.wait((self.told,))

    def take(self, leases: list[Lease]) -> None:
        """See `Hands`."""
        self.leases = leases
        self.told.set_result(None)


Kind = TypeVar("Kind", bound=Waiter)


def to_reserve(waiters: Iterable[Kind], lane: Lane, count: int) -> Kind | None:
    """Who has waited longest of those that may get so many of a lane. One of a lane that all
    tenants share stays free: a submit of one of them that hangs is nobody else's business."""
    fit = (each for each in waiters if each.count >= count and lane in each.lanes)
    first = next(fit, None)
    return None if lane.tenant == ALL_TENANTS and next(fit, None) is None else first
