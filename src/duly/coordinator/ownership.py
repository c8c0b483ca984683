"""The coordinator: holds this node's assignments, which are slots for dispatch and singleton roles.

Who is right when nodes disagree: the row in `duly.ownership`. What a node remembers is a belief
about it, good only until its lease may have run out by this process's own monotonic clock, reckoned
from before the renewal was sent; so a node that cannot reach the database stops before another can
start.

| event | what happens |
|---|---|
| node joins | it announces itself and notifies; the others release what is above their share; it claims |
| node leaves | it releases everything and notifies in one commit; the others claim at once |
| node dies | its leases run out; the others look at that very instant and claim |
| node is stopped beyond its lease, then goes on | `owns` says None; its renewal names an old epoch, changes nothing, and it forgets the assignment |
| database cannot be reached | `owns` turns None before the lease ends; renewed after all if it is still free |
| renewal of unknown outcome | the belief stays as it was; the next renewal decides |
| claim of unknown outcome | the row has our name and we do not know: the next claim takes it again, one epoch higher |
| release of unknown outcome | forgotten before it is sent, sent again at the next tick |
| hint lost | the next tick, a third of the lease later at most, sees the same |
| notified before we listened, as two nodes start at once | `refresh`, as soon as we do |
| database clock jumps ahead | everything looks expired; the first claim holds it under a new epoch |
| database clock jumps back | expiries far ahead count as expired; waits are bounded by a lease and a ticket |
| a zombie dispatches all the same | its tickets end at their deadline; capped work waited for that (`void_at`) |
"""  # noqa: E501 (a table row is one line)

import asyncio
from collections.abc import Callable, Iterable, Mapping

from duly.coordinator.contract import OwnershipStore
from duly.coordinator.policy import TICKS_PER_LEASE, pause_s, plan_changes
from duly.domain.ids import slot_of
from duly.environment import Environment
from duly.events import SlotsChanged, TaskEvents
from duly.role import Wakeup
from duly.store.ownership import SLOT, Assignment, Node, NodeReport, OwnershipClaim, View
from duly.telemetry import get_logger

# The rest is for a monotonic clock that runs slower than the store's.
TRUSTED_PART = 0.95

log = get_logger("duly.coordinator")


class Coordinator:
    """Keeps, claims and releases what the policy says (policy.py), in a store (contract.py).
    Publishes `SlotsChanged`."""

    name = "coordinator"

    def __init__(
        self,
        store: OwnershipStore,
        environment: Environment,
        node: Node,
        *,
        report: Callable[[], NodeReport] = NodeReport,
        events: TaskEvents | None = None,
    ) -> None:
        self.store = store
        self.environment = environment
        self.node = node
        # Of this process: the node's row tells others.
        self.report = report
        self.assignments: dict[Assignment, OwnershipClaim] = {}
        # Forgotten, but not yet known to be released.
        self.releasing: dict[Assignment, OwnershipClaim] = {}
        self.trusted_until = environment.clock.monotonic()
        self.free: Mapping[str, int] = {}
        self.slots_free = 0
        self.slots_claimed = 0
        self.events = events or TaskEvents()
        self.wakeup = Wakeup()

    @property
    def ticket_s(self) -> float:
        """How long a ticket of ours may become a lease."""
        return self.store.ticket_s

    @property
    def owned(self) -> dict[int, OwnershipClaim]:
        """Slots we believe to be ours; `owns` says whether the belief is still good."""
        return {
            assignment.number: owned
            for assignment, owned in self.assignments.items()
            if assignment.kind == SLOT
        }

    @property
    def is_trusted(self) -> bool:
        return self.environment.clock.monotonic() < self.trusted_until

    @property
    def slots_without_owner(self) -> int | None:
        """As of the last tick; None if that is too old."""
        return self.slots_free - self.slots_claimed if self.is_trusted else None

    def is_free(self, role: str) -> bool | None:
        """Whether no node led the singleton role at the last tick; None if that is too old."""
        if not self.is_trusted:
            return None
        return self.free.get(role, 0) > 0 and Assignment(role, 0) not in self.assignments

    def owns(self, shard: int) -> OwnershipClaim | None:
        """Our claim to the shard's slot, or None as soon as another node might have it."""
        return self.assignments.get(Assignment(SLOT, slot_of(shard))) if self.is_trusted else None

    def leads(self, role: str) -> OwnershipClaim | None:
        """Our claim to a singleton role."""
        return self.assignments.get(Assignment(role, 0)) if self.is_trusted else None

    def on_notify(self, hints: Iterable[str]) -> None:
        """Another node joined or released; our own notifications are ignored."""
        if any(hint != str(self.node.id) for hint in hints):
            self.refresh()

    def refresh(self) -> None:
        """Read nodes and free assignments at once."""
        self.wakeup.wake()

    async def tick(self) -> float:
        """One statement when nothing changed; a release or claim more when something did."""
        lease_s = self.store.lease_s
        async with asyncio.timeout(lease_s / TICKS_PER_LEASE):
            sent_at = self.environment.clock.monotonic()
            view = await self.store.keep(self.node, self.assignments, self.report())
            self.trusted_until = sent_at + lease_s * TRUSTED_PART
            self.free = view.free
            self.slots_free, self.slots_claimed = view.free.get(SLOT, 0), 0
            self.forget(
                [assignment for assignment in self.assignments if assignment not in view.renewed]
            )
            self.assignments |= view.renewed
            is_content = await self.balance(view)
        return pause_s(lease_s, view, is_content=is_content)

    async def balance(self, view: View) -> bool:
        """Release what is too much, claim what is lacking; False if others were claiming too."""
        plan = plan_changes(self.node, self.assignments, view)
        await self.release(plan.release)
        is_content = True
        for kind, count in plan.claim.items():
            is_content &= await self.claim(kind, count, view) == count
        return is_content

    async def claim(self, kind: str, most: int, view: View) -> int:
        claimed = await self.store.claim(self.node, kind, most, view)
        # We were stopped since the renewal, and took from ourselves what had run out.
        self.forget([assignment for assignment in claimed if assignment in self.assignments])
        self.assignments |= claimed
        if kind == SLOT:
            self.slots_claimed += len(claimed)
        self.publish_changes(gained=claimed, lost=())
        return len(claimed)

    async def release(self, leaving: list[Assignment]) -> None:
        """Forget, notify listeners, then release: no other node may start before we stopped."""
        self.releasing |= {assignment: self.assignments[assignment] for assignment in leaving}
        self.forget(leaving)
        if self.releasing:
            await self.store.release(self.node, self.releasing)
            self.releasing.clear()

    def forget(self, assignments: Iterable[Assignment]) -> None:
        lost = list(assignments)
        for assignment in lost:
            del self.assignments[assignment]
        self.publish_changes(gained=(), lost=lost)

    def publish_changes(self, gained: Iterable[Assignment], lost: Iterable[Assignment]) -> None:
        slots_gained = frozenset(
            assignment.number for assignment in gained if assignment.kind == SLOT
        )
        slots_lost = frozenset(assignment.number for assignment in lost if assignment.kind == SLOT)
        if not slots_gained and not slots_lost:
            return
        log.info(
            "slots changed", gained=len(slots_gained), lost=len(slots_lost), held=len(self.owned)
        )
        self.events.publish(SlotsChanged(slots_gained, slots_lost))

    async def close(self) -> None:
        """Release everything; what cannot be released now expires by itself."""
        leaving = self.releasing | self.assignments
        self.forget(list(self.assignments))
        await self.store.release(self.node, leaving, is_leaving=True)
