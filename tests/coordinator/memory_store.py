"""A store of ownership in memory, which tests fail and switch off: no PostgreSQL behind it."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

from duly.domain.errors import DatabaseUnavailable
from duly.domain.ids import SLOTS
from duly.store.ownership import (
    MAINTENANCE,
    SLOT,
    Assignment,
    Node,
    NodeReport,
    OwnershipClaim,
    View,
)
from duly.testing.clock import ManualClock

VOID_AT = datetime(2026, 1, 1, tzinfo=UTC)


class MemoryOwnership:
    """An OwnershipStore. Epochs are numbers of the store; leases end by its clock."""

    def __init__(self, clock: ManualClock, lease_s: float = 10.0, ticket_s: float = 10.0) -> None:
        self.clock = clock
        self.lease_s = lease_s
        self.ticket_s = ticket_s
        self.is_away = False
        self.epochs: Counter[Assignment] = Counter()
        self.holders: dict[Assignment, tuple[Node, float]] = {}
        self.nodes: dict[Node, float] = {}

    @property
    def all(self) -> list[Assignment]:
        return [Assignment(MAINTENANCE, 0), *(Assignment(SLOT, n) for n in range(SLOTS))]

    def ask(self) -> float:
        if self.is_away:
            raise DatabaseUnavailable(address="here", problem="away")
        return self.clock.monotonic()

    def is_free(self, assignment: Assignment) -> bool:
        _, until = self.holders.get(assignment, (None, 0.0))
        return until <= self.clock.monotonic()

    async def keep(
        self, node: Node, held: Mapping[Assignment, OwnershipClaim], report: NodeReport
    ) -> View:
        self.nodes[node] = self.ask() + self.lease_s
        renewed = {
            assignment: owned
            for assignment, owned in held.items()
            if self.holders[assignment][0] == node and self.epochs[assignment] == owned.epoch
        }
        for assignment in renewed:
            self.holders[assignment] = (node, self.ask() + self.lease_s)
        others = [each for each, until in self.nodes.items() if each != node and until > self.ask()]
        slots = Counter(
            holder.id
            for assignment, (holder, _) in self.holders.items()
            if assignment.kind == SLOT and not self.is_free(assignment)
        )
        free = Counter(each.kind for each in self.all if self.is_free(each))
        return View(renewed, {each.id: slots[each.id] for each in others}, free, {}, None)

    async def claim(
        self, node: Node, kind: str, most: int, view: View
    ) -> dict[Assignment, OwnershipClaim]:
        until = self.ask() + self.lease_s
        claimed = [each for each in self.all if each.kind == kind and self.is_free(each)][:most]
        for assignment in claimed:
            self.epochs[assignment] += 1
            self.holders[assignment] = (node, until)
        return {each: OwnershipClaim(self.epochs[each], VOID_AT) for each in claimed}

    async def release(
        self, node: Node, held: Mapping[Assignment, OwnershipClaim], *, is_leaving: bool = False
    ) -> None:
        self.ask()
        for assignment in held:
            if self.holders[assignment][0] == node:
                del self.holders[assignment]
        if is_leaving:
            self.nodes.pop(node, None)
