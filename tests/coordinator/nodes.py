"""Several nodes on one database: their coordinators, ticked by hand, under clocks of their own."""

from collections.abc import Sequence
from random import Random
from uuid import UUID

from duly.coordinator.ownership import Coordinator
from duly.coordinator.postgres import PostgresOwnership
from duly.domain.ids import SLOTS
from duly.environment import Environment
from duly.events import SlotsChanged
from duly.store.ownership import Node, list_ownership
from duly.testing.clock import ManualClock
from tests.store.world import TimedDatabase, World

LEASE_S = 10.0
TICKET_S = 10.0
TICK_S = LEASE_S / 3
ALL_ROLES = ("scheduler", "maintenance")
ROUNDS_MAX = 10


class TestNode:
    """One process: its coordinator, its own monotonic clock, and what it was told."""

    __test__ = False

    def __init__(self, database: TimedDatabase, number: int, roles: Sequence[str]) -> None:
        self.clock = ManualClock()
        self.id = UUID(int=number)
        self.coordinator = Coordinator(
            PostgresOwnership(database, lease_s=LEASE_S, ticket_s=TICKET_S),
            Environment(clock=self.clock, random=Random(number)),
            Node(self.id, f"node-{number}", "1", tuple(roles)),
        )
        self.told: list[tuple[frozenset[int], frozenset[int]]] = []
        self.coordinator.events.subscribe(
            SlotsChanged, lambda event: self.told.append((event.gained, event.lost))
        )

    async def tick(self) -> float:
        return await self.coordinator.tick()

    @property
    def slots(self) -> set[int]:
        """Those it would dispatch from now."""
        return {slot for slot in range(SLOTS) if self.coordinator.owns(slot * 16) is not None}


class Cluster:
    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes: list[TestNode] = []

    def join(self, roles: Sequence[str] = ALL_ROLES) -> TestNode:
        node = TestNode(self.world.database, len(self.nodes) + 1, roles)
        self.nodes.append(node)
        return node

    def advance(self, seconds: float) -> None:
        """Real time passes: for the database and for every node alike."""
        self.world.advance(seconds)
        for node in self.nodes:
            node.clock.advance(seconds)

    async def settle(self, *nodes: TestNode) -> None:
        """Everybody ticks, time passes between, until nobody moves anything any more."""
        for node in nodes:
            await node.tick()
        for _ in range(ROUNDS_MAX):
            told = sum(len(node.told) for node in nodes)
            for node in nodes:
                await node.tick()
                self.assert_nobody_shares()
            if sum(len(node.told) for node in nodes) == told:
                return
            self.advance(0.1)
        raise AssertionError("slots still move after many rounds")

    def assert_nobody_shares(self) -> None:
        for number, node in enumerate(self.nodes):
            for other in self.nodes[number + 1 :]:
                assert not node.slots & other.slots, "two nodes would dispatch from one slot"

    async def epochs(self) -> dict[tuple[str, int], int]:
        rows = await list_ownership(self.world.database)
        return {(row.kind, row.number): row.epoch for row in rows}
