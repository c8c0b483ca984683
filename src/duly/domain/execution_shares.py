"""Fair shares of an executor's slots between tenants. Pure.

Slots are given work-conserving: while plenty are free, tickets go out in the order of their lane.
Once half of the slots are in use, tenants that use more than their share (by weight, among the
tenants that use any) come after the others. The last tenth is kept for tenants that use few: each
of them takes only a part of what is left there, so that the next tenant still finds a slot.

| slots free | which tickets are taken |
|---|---|
| more than half | any |
| more than a tenth | those of tenants within their share; if there are none, any |
| the last tenth | those of tenants that use less than a quarter of what is free |
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from duly.domain.lanes import Lane

# One tenant holds at most 90 % of the slots, so that others find some at once.
RESERVED_PART = 10
SCARCE_PART = 2
# Of the reserved slots that are free, the part that one tenant may use.
NEWCOMER_PART = 4
NO_TENANTS: frozenset[int] = frozenset()


class TakeRound(NamedTuple):
    """One round of taking tickets: a maximum, and the tenants that are excluded."""

    most: int
    left_out: frozenset[int]


def equal_weight(_tenant: int) -> float:
    return 1.0


class ExecutionShares:
    """The slots of one executor: who uses how many."""

    def __init__(self, slots: int, weight_of: Callable[[int], float] = equal_weight) -> None:
        self.slots = slots
        self.weight_of = weight_of
        self.used: dict[int, int] = {}
        # Asked for by statements under way: of which tenants is not known yet.
        self.asked = 0
        # Both.
        self.total = 0

    @property
    def free(self) -> int:
        return self.slots - self.total

    @property
    def is_full(self) -> bool:
        """Every slot is used, as far as is known."""
        return self.total - self.asked >= self.slots

    @property
    def is_scarce(self) -> bool:
        return self.free <= self.slots // SCARCE_PART

    @property
    def reserved(self) -> int:
        return self.slots // RESERVED_PART

    def add(self, tenant: int, count: int) -> None:
        """A negative count gives slots back."""
        self.total += count
        used = self.used.get(tenant, 0) + count
        if used:
            self.used[tenant] = used
        else:
            del self.used[tenant]

    def ask(self, count: int) -> None:
        self.asked += count
        self.total += count

    def rounds(self, count: int) -> list[TakeRound]:
        """How to look for up to `count` tickets: the next round only if the one before found none.
        Whatever mix of tenants a round finds, none of them gets more than it may."""
        free, reserved = self.free, self.reserved
        if free <= 0:
            return []
        if free > reserved:
            any_tenant = TakeRound(min(count, free - reserved), NO_TENANTS)
            above = self.above_share() if self.is_scarce else NO_TENANTS
            return [any_tenant._replace(left_out=above), any_tenant] if above else [any_tenant]
        limit = max(free // NEWCOMER_PART, 1)
        left_out = frozenset(tenant for tenant, used in self.used.items() if used >= limit)
        fewer = max((used for used in self.used.values() if used < limit), default=0)
        room = limit - fewer - self.asked
        # Half of it, so that others who ask meanwhile find some, too.
        return [TakeRound(min(count, (room + 1) // 2), left_out)] if room > 0 else []

    def above_share(self) -> frozenset[int]:
        weights = {tenant: self.weight_of(tenant) for tenant in self.used}
        share = (self.slots - self.reserved) / sum(weights.values()) if weights else 0.0
        return frozenset(t for t, used in self.used.items() if used > share * weights[t])


class UnsharedSlots:
    """Slots of a worker: its own, all of one tenant."""

    def rounds(self, count: int) -> list[TakeRound]:
        return [TakeRound(count, NO_TENANTS)]

    def admits(self, tenant: int, count: int) -> bool:
        """Whether so many tasks of this tenant may be started now."""
        return any(
            each.most >= count and tenant not in each.left_out for each in self.rounds(count)
        )

    def ask(self, count: int) -> None:
        """A statement is under way that may bring so many, of any tenants."""

    def take(self, lanes: Iterable[Lane]) -> None:
        """A ticket of each of these lanes was taken."""

    def release(self) -> None:
        """Nothing was taken, or what was taken is counted by its attempts."""


class SlotClaim(UnsharedSlots):
    """Slots of an executor that one request for leases uses, until its attempts have begun."""

    def __init__(self, shares: ExecutionShares) -> None:
        self.shares = shares
        self.asked = 0
        self.taken: Counter[int] = Counter()

    def rounds(self, count: int) -> list[TakeRound]:
        return self.shares.rounds(count)

    def ask(self, count: int) -> None:
        self.asked += count
        self.shares.ask(count)

    def take(self, lanes: Iterable[Lane]) -> None:
        taken = Counter(lane.tenant for lane in lanes)
        for tenant, count in taken.items():
            self.shares.add(tenant, count)
        self.taken += taken

    def release(self) -> None:
        self.shares.ask(-self.asked)
        self.asked = 0
        for tenant, count in self.taken.items():
            self.shares.add(tenant, -count)
        self.taken.clear()


UNSHARED = UnsharedSlots()
