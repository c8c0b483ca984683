"""The coordinator over a store that is not PostgreSQL: the contract is all that it needs."""

from random import Random
from uuid import UUID

import pytest

from duly.coordinator.ownership import TRUSTED_PART, Coordinator
from duly.domain.errors import DatabaseUnavailable
from duly.domain.ids import SLOTS
from duly.environment import Environment
from duly.store.ownership import MAINTENANCE, Node
from duly.testing.clock import ManualClock
from tests.coordinator.memory_store import MemoryOwnership

ROUNDS = 4


def join(store: MemoryOwnership, number: int) -> Coordinator:
    node = Node(UUID(int=number), f"node-{number}", "1", ("scheduler", MAINTENANCE))
    return Coordinator(store, Environment(clock=store.clock, random=Random(number)), node)


def slots(coordinator: Coordinator) -> set[int]:
    return {slot for slot in range(SLOTS) if coordinator.owns(slot * 16) is not None}


async def test_two_nodes_share_the_slots_of_any_store() -> None:
    """A policy that reads one store's rows has to be written again for the next."""
    store = MemoryOwnership(ManualClock())
    nodes = [join(store, number) for number in (1, 2)]
    for _ in range(ROUNDS):
        for node in nodes:
            await node.tick()
            assert not slots(nodes[0]) & slots(nodes[1])
    assert [len(slots(node)) for node in nodes] == [SLOTS // 2] * 2
    assert [bool(node.leads(MAINTENANCE)) for node in nodes] == [True, False]


async def test_while_the_store_is_away_a_node_keeps_its_slots_until_its_lease_ends() -> None:
    """Given up at the first failed call, every hiccup of the store would stop all dispatch."""
    store = MemoryOwnership(ManualClock())
    node = join(store, 1)
    await node.tick()
    store.is_away = True
    store.clock.advance(store.lease_s * TRUSTED_PART - 0.001)
    with pytest.raises(DatabaseUnavailable):
        await node.tick()
    assert len(slots(node)) == SLOTS
    store.clock.advance(0.002)
    assert slots(node) == set()


async def test_a_dead_nodes_slots_move_under_higher_epochs() -> None:
    """An epoch that stays makes the old owner's next renewal look right."""
    store = MemoryOwnership(ManualClock())
    dead, heir = join(store, 1), join(store, 2)
    await dead.tick()
    before = dead.owned
    store.clock.advance(store.lease_s)
    await heir.tick()
    assert all(heir.owned[slot].epoch == owned.epoch + 1 for slot, owned in before.items())
    await dead.tick()
    assert slots(dead) == set()
