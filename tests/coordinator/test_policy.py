"""What a node releases and claims, decided from a view alone."""

from uuid import UUID

import pytest

from duly.coordinator.policy import (
    CONTENDED_PER_LEASE,
    EXPIRY_SLACK_S,
    TICKS_PER_LEASE,
    pause_s,
    plan_changes,
)
from duly.domain.ids import SLOTS
from duly.store.ownership import MAINTENANCE, SLOT, Assignment, Node, View

LEASE_S = 10.0
NODE = Node(UUID(int=1), "node-1", "1", ("scheduler", MAINTENANCE))
OTHER = UUID(int=2)
LEADS = Assignment(MAINTENANCE, 0)


def slots(count: int) -> list[Assignment]:
    return [Assignment(SLOT, number) for number in range(count)]


def view(
    free_slots: int = 0,
    free_roles: int = 0,
    others: dict[UUID, int] | None = None,
    next_expiry_s: float | None = None,
) -> View:
    return View({}, others or {}, {SLOT: free_slots, MAINTENANCE: free_roles}, {}, next_expiry_s)


def test_a_lone_node_claims_all_that_is_free() -> None:
    """A slot that its only scheduler leaves alone is never dispatched."""
    plan = plan_changes(NODE, [], view(free_slots=SLOTS, free_roles=1))
    assert plan == ([], {SLOT: SLOTS, MAINTENANCE: 1})


def test_nothing_is_claimed_that_is_not_free() -> None:
    """Asked for in vain at every tick, a claim costs a statement and brings nothing."""
    assert plan_changes(NODE, slots(10), view()) == ([], {})


def test_what_is_above_the_share_is_released_highest_first() -> None:
    """Nodes that chose at random would move more slots than need to move."""
    plan = plan_changes(NODE, [*slots(SLOTS), LEADS], view(others={OTHER: 0}))
    assert plan.release == slots(SLOTS)[SLOTS // 2 :]
    assert plan.claim == {}


def test_a_fair_share_is_left_as_it_is() -> None:
    """A plan that moves slots between nodes in balance never comes to rest."""
    held = [*slots(SLOTS // 2), LEADS]
    assert plan_changes(NODE, held, view(others={OTHER: SLOTS // 2})) == ([], {})


@pytest.mark.parametrize("role", ["api", "executor"])
def test_without_the_role_nothing_is_held(role: str) -> None:
    """A process that does not dispatch must give back slots that it was given earlier."""
    node = Node(UUID(int=1), "node-1", "1", (role,))
    plan = plan_changes(node, slots(2), view(free_slots=SLOTS, free_roles=1))
    assert plan == (slots(2), {})


@pytest.mark.parametrize(
    ("next_expiry_s", "is_content", "expected_s"),
    [
        (None, True, LEASE_S / TICKS_PER_LEASE),
        (1.0, True, 1.0 + EXPIRY_SLACK_S),
        (9.0, True, LEASE_S / TICKS_PER_LEASE),
        (9.0, False, LEASE_S / CONTENDED_PER_LEASE),
        (0.1, False, 0.1 + EXPIRY_SLACK_S),
    ],
)
def test_the_next_look_comes_in_time(
    next_expiry_s: float | None, is_content: bool, expected_s: float
) -> None:
    """Too late leaves a dead node's slots alone; too soon asks the database for nothing."""
    seen = view(next_expiry_s=next_expiry_s)
    assert pause_s(LEASE_S, seen, is_content=is_content) == pytest.approx(expected_s)
