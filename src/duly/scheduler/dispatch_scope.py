"""Dispatch scope: which timer queues this node dispatches.

A timer queue (tenant, shard, queue) is dispatched by the owner of its shard's slot. A tenant with
an in-flight cap or a dispatch rate is dispatched as a whole by the owner of its home slot, wherever
its tasks are stored: one node counts them, so the limit holds for the installation.

| event | what happens |
|---|---|
| a limit is set or removed | nodes learn of it within seconds; until then both may dispatch |
| tickets of the former dispatcher are out | counted tasks wait until those are void |
| the home slot is lost | the next owner dispatches and counts all of the tenant |
"""

from datetime import UTC, datetime

from duly.coordinator.ownership import Coordinator
from duly.domain.ids import slot_of, tenant_shard
from duly.store.ownership import SLOT, Assignment, OwnershipClaim

# How long another node may go on as before after this one learned of a changed limit.
MOVE_NOTICE_S = 6.0


class DispatchScope:
    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        # Tenants that are dispatched as a whole.
        self.at_home: frozenset[int] = frozenset()
        # Tenants that moved between one dispatcher and several, and when, by the database's clock.
        self.moved_at: dict[int, float] = {}

    def learn(self, at_home: frozenset[int], moved: frozenset[int], now: float) -> None:
        """`moved`: tenants whose dispatcher changed since the last word."""
        self.at_home = at_home
        oldest = now - MOVE_NOTICE_S - self.coordinator.ticket_s
        self.moved_at = {t: at for t, at in self.moved_at.items() if at > oldest}
        self.moved_at |= dict.fromkeys(moved, now)

    def shard_of(self, tenant: int, shard: int) -> int:
        """The shard whose owner dispatches the queue."""
        return home_shard(tenant) if tenant in self.at_home else shard

    def owns(self, tenant: int, shard: int) -> OwnershipClaim | None:
        """Our claim to dispatch it, or None as soon as another node might have one."""
        return self.coordinator.owns(self.shard_of(tenant, shard))

    def believed(self, tenant: int, shard: int) -> OwnershipClaim | None:
        """What we believe to be our claim; `owns` says whether the belief is still good."""
        return self.coordinator.assignments.get(
            Assignment(SLOT, slot_of(self.shard_of(tenant, shard)))
        )

    def includes(self, tenant: int, shard: int) -> bool:
        return self.believed(tenant, shard) is not None

    def void_at(self, tenant: int, shard: int) -> datetime | None:
        """Until then a former dispatcher's tickets may become leases; None: not ours."""
        owned = self.owns(tenant, shard)
        moved_at = self.moved_at.get(tenant)
        if owned is None or moved_at is None or slot_of(shard) == slot_of(home_shard(tenant)):
            return None if owned is None else owned.void_at
        settled_at = moved_at + MOVE_NOTICE_S + self.coordinator.ticket_s
        return max(owned.void_at, datetime.fromtimestamp(settled_at, UTC))


def home_shard(tenant: int) -> int:
    return tenant_shard(tenant, spread=1, choice=0)
