"""Nodes that run the real roles: ownership, loading, dispatch, reaping, execution, on virtual time.

A node is killed without cleanup, stopped in order, or frozen: then nothing of it runs until it
thaws and goes on as if no time had passed.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Generator
from datetime import datetime
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

import asyncpg

from duly.broker.contract import Carrier, LeasingCarrier
from duly.broker.lane_hints import LaneHints, on_lane_hints
from duly.broker.lease_queue import LeaseQueue
from duly.broker.memory import MemoryCarrier
from duly.broker.postgres import PostgresCarrier
from duly.coordinator.ownership import Coordinator
from duly.coordinator.postgres import PostgresOwnership
from duly.domain.errors import DulyError
from duly.domain.lanes import ALL_TENANTS, Lane
from duly.domain.states import Outcome
from duly.domain.task import BANDS, WEBHOOK_POOL
from duly.execution.attempt import AttemptResult
from duly.execution.executor import Executor
from duly.role import Role, RoleLoop, stop_roles
from duly.scheduler.assembly import make_scheduler
from duly.store.lease import Lease
from duly.store.notify import DOORBELL, FREED, OWNERSHIP, READY, SCHEDULES, WORKFLOWS, Listener
from duly.store.ownership import MAINTENANCE, SCHEDULER_ROLE
from duly.store.ownership import Node as Member
from duly.store.settle import SettleQueue
from duly.store.stats import StatsBook
from duly.store.submit import GroupCommit
from duly.telemetry import Metrics
from duly.verify.check import Violation
from tests.simulation.cluster import CURRENT_NODE, Behaviour, Cluster, Node, register_task
from tests.simulation.database import Postgres, SimulatedDatabase
from tests.simulation.fleet_plan import CarrierKind, FleetPlan
from tests.simulation.fleet_queue import SharedLanes, SimulatedCarrier
from tests.simulation.loop import VirtualLoop
from tests.simulation.node_handlers import do_more, orders_of, result_of
from tests.simulation.plan import FaultKind
from tests.simulation.witness import WitnessedSettler
from tests.simulation.workers import HEALED_WEIGHTS, OUTCOMES

POOLS = (1, 2)
EXECUTOR_LOOPS = 2
STOP_S = 2.0
# Of the seeds over a carrier, how many keep no ticket in memory: one that may lose tickets should
# have some to lose.
NOTHING_NEAR_SHARE = {
    CarrierKind.MEMORY: 0.0,
    CarrierKind.POSTGRES: 0.5,
    CarrierKind.SIMULATED: 0.9,
}
# A statement of a healthy network; time passes even where nothing is slow.
TRAVEL_S = 0.0005
RING_S_MAX = 0.05


class FleetDatabase(SimulatedDatabase):
    """After each statement, nobody may believe to own what somebody else owns."""

    node: "FleetNode"

    def run(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        rows = super().run(statement, *arguments)
        fleet, name = self.node.fleet, self.name_of(statement)
        if name == "release_assignments" or (name == "keep_assignments" and rows[0]["hints"]):
            fleet.send_hints(self.node, OWNERSHIP, [str(self.node.member.id)])
        fleet.look_at_owners()
        return rows


class FleetNode(Node):
    """One process of `duly serve`, without its front door."""

    def __init__(self, fleet: "Fleet", name: str, offset_s: float) -> None:
        self.fleet = fleet
        super().__init__(fleet, name, offset_s)
        plan = fleet.fleet_plan
        self.metrics = Metrics()
        roles = (SCHEDULER_ROLE, MAINTENANCE)
        self.member = Member(UUID(int=self.random.getrandbits(128)), name, "simulated", roles)
        self.coordinator = Coordinator(
            PostgresOwnership(self.database, lease_s=plan.slot_lease_s, ticket_s=plan.ticket_s),
            self.environment,
            self.member,
            events=self.events,
        )
        self.lease_queue = fleet.make_lease_queue(self)
        self.scheduler = make_scheduler(
            self.database,
            self.environment,
            self.coordinator,
            self.lease_queue,
            self.metrics,
            self.events,
            send=self.send,
            lane_depth=plan.lane_depth,
        )
        self.submitter = self.scheduler.submitter
        self.group_commit = GroupCommit(self.submitter)
        self.listeners: dict[str, Listener] = {
            OWNERSHIP: self.coordinator.on_notify,
            DOORBELL: self.scheduler.doorbell.on_notify,
            FREED: self.scheduler.freed_capacity.on_notify,
            SCHEDULES: self.scheduler.cron_role.on_notify,
            WORKFLOWS: self.scheduler.workflows.on_notify,
            READY: partial(on_lane_hints, self.lease_queue),
        }
        self.settling = SettleQueue(self.database, self.environment)
        self.settling.settler = WitnessedSettler(self.database, self.environment, self.events)
        self.executor = Executor(
            self.database,
            self.environment,
            self.lease_queue,
            lanes_of(plan),
            self.settling,
            self.handle,
            self.metrics,
            StatsBook(self.environment),
            self.holder,
            plan.running_max,
            lease_s=plan.lease_s,
        )
        self.loops: list[RoleLoop] = []
        self.running: list[asyncio.Task[None]] = []

    def make_database(self) -> SimulatedDatabase:
        return FleetDatabase(self.fleet, self)

    async def run_roles(self) -> None:
        executor: list[Role] = [self.executor] * EXECUTOR_LOOPS
        roles = [self.lease_queue, *self.scheduler.roles, *executor, self.executor.leases]
        self.loops = [RoleLoop(role, self.environment, self.metrics) for role in roles]
        self.running = [asyncio.create_task(loop.run()) for loop in self.loops]
        await asyncio.gather(*self.running)

    async def leave(self) -> None:
        """As after SIGTERM; then the process ends."""
        await self.lease_queue.close()
        await stop_roles(self.loops, self.running, STOP_S)
        if not self.is_dead:
            self.fleet.kill(self, "its orderly end")

    def send(self, channel: str, hints: list[str]) -> None:
        self.fleet.send_hints(self, channel, hints)

    def on_notify(self, channel: str, hints: list[str]) -> None:
        if self.is_dead:
            return
        self.listeners[channel](hints)

    # Handlers --------------------------------------------------------------------------------

    def handle(self, lease: Lease) -> AttemptResult | Awaitable[AttemptResult]:
        """Some answer at once, some take their time, some hang, some take the node with them."""
        self.fleet.recorder.effect(lease.id, lease.fence, self.holder)
        orders = orders_of(lease)
        is_quick = self.random.random() < 0.3 and not self.fleet.is_poison(lease)
        if is_quick and orders.keys() <= {"says"}:
            return self.verdict(orders)
        return Work(self, lease)

    async def work(self, lease: Lease) -> AttemptResult:
        plan, is_healed = self.fleet.fleet_plan, self.fleet.is_healed
        is_hanging = not is_healed and self.random.random() < plan.hang_share
        own_s = plan.handler_s * self.random.random()
        await asyncio.sleep(plan.timeout_s * 2 if is_hanging else own_s)
        if self.fleet.is_poison(lease) and not self.fleet.is_healed:
            self.fleet.recorder.note(f"{self.name} is poisoned by {lease.id}")
            self.fleet.kill(self, "a poisonous task")
            raise asyncio.CancelledError
        orders = orders_of(lease)
        return await do_more(self, lease, orders, self.verdict(orders))

    def verdict(self, orders: dict[str, Any]) -> AttemptResult:
        weights = HEALED_WEIGHTS if self.fleet.is_healed else self.fleet.plan.outcome_weights
        (outcome,) = self.random.choices(OUTCOMES, weights)
        retry_in_s = self.random.choice([None, None, 0.0, 1.0])
        return AttemptResult(
            outcome,
            result=result_of(orders) if outcome is Outcome.COMPLETED else None,
            error="boom" if outcome in (Outcome.FAILED, Outcome.REJECTED) else None,
            retry_in_s=retry_in_s,
        )


class Work:
    """A handler's work, begun when it is first awaited: a node that dies before has done none."""

    def __init__(self, node: FleetNode, lease: Lease) -> None:
        self.node = node
        self.lease = lease

    def __await__(self) -> Generator[Any, None, AttemptResult]:
        return self.node.work(self.lease).__await__()


def no_room(lane: Lane, waited_for: int) -> int:
    return 0


def lanes_of(plan: FleetPlan) -> list[Lane]:
    lanes = [Lane(ALL_TENANTS, WEBHOOK_POOL, band) for band in range(BANDS)]
    return lanes + [
        Lane(tenant, pool, band)
        for tenant in plan.tenants
        for pool in POOLS
        for band in range(BANDS)
    ]


class Fleet(Cluster):
    """A cluster whose nodes run the real roles."""

    has_schedulers = True
    nodes: dict[int, FleetNode]  # type: ignore[assignment]

    def __init__(self, plan: FleetPlan, postgres: Postgres, behaviours: list[Behaviour]) -> None:
        super().__init__(plan, postgres, behaviours)
        self.fleet_plan = plan
        self.shared = SharedLanes(self)
        # Tickets for counted work, by slot: the epoch of their owner, and until when they are good.
        self.counted_tickets: dict[int, dict[int, datetime]] = {}

    def make_node(self, name: str, offset_s: float) -> FleetNode:
        return FleetNode(self, name, offset_s)

    def make_lease_queue(self, node: FleetNode) -> LeaseQueue:
        kind = self.fleet_plan.carrier
        on_published = LaneHints(node.send).send
        queue = LeaseQueue(
            self.make_carrier(node), node.database, node.environment, node.events, on_published
        )
        draw = Random(f"near {self.plan.seed}").random()
        if draw < NOTHING_NEAR_SHARE[kind]:
            # Small fleets take nearly everything where it was written.
            queue.local.room = no_room  # type: ignore[method-assign]
        return queue

    def make_carrier(self, node: FleetNode) -> Carrier | LeasingCarrier:
        match self.fleet_plan.carrier:
            case CarrierKind.MEMORY:
                return MemoryCarrier(node.environment.clock)
            case CarrierKind.POSTGRES:
                return PostgresCarrier(node.database, node.environment)
            case CarrierKind.SIMULATED:
                return SimulatedCarrier(self.shared, node)

    def latency_s(self) -> float:
        return TRAVEL_S + super().latency_s()

    def is_poison(self, lease: Lease) -> bool:
        draw = Random(f"{self.plan.seed} {lease.type}").random()
        return draw < self.fleet_plan.poison_share

    @property
    def living(self) -> list[FleetNode]:
        return [node for node in self.nodes.values() if not node.is_dead]

    # Hints -----------------------------------------------------------------------------------

    def send_hints(self, sender: FleetNode, channel: str, hints: list[str]) -> None:
        """To everybody else, each after a while of its own, or never."""
        loop = asyncio.get_running_loop()
        for node in self.living:
            if node is sender or self.strikes(FaultKind.RING_LOST, node):
                continue
            context = contextvars.Context()
            context.run(CURRENT_NODE.set, node)
            delay_s = self.random.uniform(0.0, RING_S_MAX)
            loop.call_later(delay_s, node.on_notify, channel, hints, context=context)

    # Faults ----------------------------------------------------------------------------------

    async def disturb(self) -> None:
        while not self.is_healed:
            await asyncio.sleep(self.plan.tick_s * self.random.uniform(0.5, 1.5))
            if self.strikes(FaultKind.OUTAGE):
                self.away_until_s = self.elapsed_s() + self.random.uniform(0.0, 4.0)
            self.shared.go_down_sometimes()
            if self.strikes(FaultKind.QUEUE_WIPED):
                await self.wipe()
            if not self.living:
                continue
            node = self.random.choice(self.living)
            if self.strikes(FaultKind.KILL, node):
                self.kill(node, "an arbitrary moment")
            elif self.strikes(FaultKind.STOP, node):
                node.spawn(node.leave())
            elif not node.is_frozen and self.strikes(FaultKind.FREEZE, node):
                self.freeze(node)

    def freeze(self, node: FleetNode) -> None:
        """Mostly past its leases, its tickets or its seats; then it goes on as a zombie."""
        plan = self.fleet_plan
        longest = self.random.choice([plan.slot_lease_s, plan.lease_s, plan.ticket_s])
        node.is_frozen = True
        asyncio.get_running_loop().call_later(
            longest * self.random.uniform(0.5, 2.0), self.thaw, node, context=contextvars.Context()
        )

    def thaw(self, node: FleetNode) -> None:
        if not node.is_frozen:
            return
        self.recorder.note(f"{node.name} thaws")
        node.is_frozen = False
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        steps, node.kept_back = node.kept_back, []
        loop.resume(steps)

    def kill(self, node: Node, where: str) -> None:
        super().kill(node, where)
        assert isinstance(node, FleetNode)
        # The dead feel no frost: what is left of its tasks must end.
        self.thaw(node)

    async def wipe(self) -> None:
        match self.fleet_plan.carrier:
            case CarrierKind.SIMULATED:
                self.shared.clear()
            case CarrierKind.MEMORY:
                for node in self.living:
                    await node.lease_queue.purge()
            case CarrierKind.POSTGRES:
                async with self.turn:
                    self.postgres.fetch(self.database_now(), "DELETE FROM duly.ready_tickets")

    def heal(self) -> None:
        super().heal()
        for node in list(self.nodes.values()):
            self.thaw(node)

    def look_at_owners(self) -> None:
        owners: dict[Any, str] = {}
        for node in self.living:
            if node.coordinator.is_trusted:
                for assignment in node.coordinator.assignments:
                    if owners.setdefault(assignment, node.name) != node.name:
                        told = f"{assignment} is owned by {owners[assignment]} and {node.name}"
                        self.findings.append(Violation("owner", None, told))

    def look_at_tickets(self, slot: int, epoch: int, deadline: datetime) -> None:
        """Of counted work in one slot, only one owner's tickets are good at any moment."""
        good = self.counted_tickets.setdefault(slot, {})
        now = self.database_now()
        for other, until in good.items():
            if other != epoch and until > now:
                told = f"slot {slot}: tickets of epochs {other} and {epoch} are good at once"
                self.findings.append(Violation("I10", None, told))
        good[epoch] = max(deadline, good.get(epoch, deadline))


async def run_roles(cluster: Cluster, node: Node) -> None:
    assert isinstance(node, FleetNode)
    await node.run_roles()


def register_fleet_task(task: "asyncio.Task[Any]") -> None:
    """A background task that fails for a reason of its own is a finding."""
    register_task(task)
    node = CURRENT_NODE.get()
    if node is not None:
        task.add_done_callback(lambda done: find_failure(node, done))


def find_failure(node: Node, task: "asyncio.Task[Any]") -> None:
    if task.cancelled() or node.is_dead:
        return
    error = task.exception()
    if error is not None and not isinstance(error, DulyError | TimeoutError):
        node.cluster.failures.append(f"{node.name}: {task.get_name()} {error!r}")
