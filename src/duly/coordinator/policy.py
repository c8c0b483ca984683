"""Ownership policy: what a node should hold, and when it looks again. Pure: from a view to a plan,
no store and no clock."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from duly.domain.ids import SLOTS
from duly.domain.slot_balance import fair_shares
from duly.store.ownership import MAINTENANCE, SCHEDULER_ROLE, SLOT, Assignment, Node, View

TICKS_PER_LEASE = 3
# Looking this long after another node's lease should have ended finds it ended.
EXPIRY_SLACK_S = 0.05
# What a claim passed by because others were at it is looked for again this many times per lease.
CONTENDED_PER_LEASE = 12
# The singleton roles; a process that runs the role of that name may lead it.
SINGLETONS = (MAINTENANCE,)


class OwnershipPlan(NamedTuple):
    """What to give back, and how many of each kind to claim; never more than is free."""

    release: list[Assignment]
    claim: Mapping[str, int]


def plan_changes(node: Node, held: Collection[Assignment], view: View) -> OwnershipPlan:
    """The fair share of the slots, and each singleton role that this node may lead."""
    slots = sorted(assignment for assignment in held if assignment.kind == SLOT)
    lacking = slots_wanted(node, len(slots), view) - len(slots)
    wanted = {SLOT: lacking} | {
        role: 1 for role in SINGLETONS if role in node.roles and Assignment(role, 0) not in held
    }
    claim = {kind: min(count, view.free.get(kind, 0)) for kind, count in wanted.items()}
    return OwnershipPlan(
        release=slots[lacking:] if lacking < 0 else [],
        claim={kind: count for kind, count in claim.items() if count > 0},
    )


def slots_wanted(node: Node, held: int, view: View) -> int:
    if SCHEDULER_ROLE not in node.roles:
        return 0
    return fair_shares({**view.slots_of_others, node.id: held}, SLOTS)[node.id]


def pause_s(lease_s: float, view: View, *, is_content: bool) -> float:
    """A third of the lease, or sooner if another node's lease ends before or a claim was shared."""
    pause = lease_s / TICKS_PER_LEASE
    if view.next_expiry_s is not None:
        pause = min(pause, view.next_expiry_s + EXPIRY_SLACK_S)
    return pause if is_content else min(pause, lease_s / CONTENDED_PER_LEASE)
