"""The simulated cluster: nodes that can be killed, the clocks, and who is told of every fault."""

import asyncio
import contextvars
import traceback
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from duly.domain.lanes import Ticket
from duly.domain.task import Submission
from duly.environment import CrashPoint, Environment
from duly.events import TaskEvents
from duly.store.batcher import Batcher
from duly.store.finish import SettleAnswer, Settlement
from duly.store.lease import Lease
from duly.store.load import Cursor, TimerQueue
from duly.store.settle import Settler
from duly.store.submit import GroupCommit, Submitter
from duly.verify.check import Violation
from tests.simulation.database import Postgres, SimulatedDatabase, statement_names
from tests.simulation.plan import FaultKind, Plan
from tests.simulation.recorder import Recorder, short

CURRENT_NODE: contextvars.ContextVar["Node | None"] = contextvars.ContextVar("node", default=None)
WAITING_MAX = 1000
RESTART_S_MAX = 5.0
OUTAGE_S_MAX = 4.0
NODE_CLOCK_S = 3600.0

Behaviour = Callable[["Cluster", "Node"], Coroutine[Any, Any, None]]


class NodeClock:
    """Virtual time, as a node with a wrong clock reads it."""

    def __init__(self, cluster: "Cluster", offset_s: float) -> None:
        self.cluster = cluster
        self.offset = timedelta(seconds=offset_s)

    def now(self) -> datetime:
        return self.cluster.true_now() + self.offset

    def monotonic(self) -> float:
        return self.cluster.elapsed_s()


class Node:
    """One process: its memory, its handle on the database, and the tasks that die with it."""

    def __init__(self, cluster: "Cluster", name: str, offset_s: float) -> None:
        self.cluster = cluster
        self.name = name
        self.is_dead = False
        # Statements and transactions under way at this instant.
        self.turns = 0
        self.is_frozen = False
        self.kept_back: list[asyncio.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.random = Random(f"{cluster.plan.seed} {name}")
        self.holder = UUID(int=self.random.getrandbits(128))
        self.environment = Environment(
            clock=NodeClock(cluster, offset_s),
            random=Random(f"{name} {cluster.plan.seed}"),
            crash_point=self.crash_point,
        )
        self.database = self.make_database()
        self.events = TaskEvents()
        self.submitter = Submitter(self.database, self.environment, self.events)
        self.group_commit = GroupCommit(self.submitter)
        self.plain_settler = Settler(self.database, self.environment)
        self.settler: Batcher[Settlement, SettleAnswer] = Batcher(
            "settle",
            self.plain_settler.settle,
            batch_size_max=cluster.plan.batch,
            waiting_max=WAITING_MAX,
            key=lambda item: (item.id, item.fence),
        )
        self.held: dict[tuple[UUID, int], Lease] = {}
        self.begun: set[tuple[UUID, int]] = set()
        self.told: dict[tuple[UUID, int], str] = {}
        self.something_held = asyncio.Event()
        self.timer_queues: list[TimerQueue] = []
        self.cursors: dict[TimerQueue, Cursor] = {}

    def make_database(self) -> SimulatedDatabase:
        return SimulatedDatabase(self.cluster, self)

    def start(self, behaviours: list[Behaviour]) -> None:
        for behaviour in behaviours:
            self.spawn(behaviour(self.cluster, self))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        context = contextvars.copy_context()
        context.run(CURRENT_NODE.set, self)
        task = context.run(asyncio.get_running_loop().create_task, self.supervise(work))
        # Killed before its first step, it would never have been awaited.
        task.add_done_callback(lambda _: work.close())

    async def supervise(self, work: Coroutine[Any, Any, None]) -> None:
        """An actor that fails for any reason that was not injected is a finding."""
        try:
            await work
        except Exception:
            self.cluster.failures.append(f"{self.name}: {traceback.format_exc()}")

    async def crash_point(self, point: CrashPoint) -> None:
        self.refuse_the_dead()
        if self.cluster.strikes(FaultKind.CRASH, self):
            self.cluster.recorder.crash_points[point] += 1
            self.cluster.kill(self, str(point))
            raise asyncio.CancelledError

    def refuse_the_dead(self) -> None:
        if self.is_dead:
            raise asyncio.CancelledError


class Cluster:
    # Whether somebody minds caps and keys.
    has_schedulers = False

    def __init__(self, plan: Plan, postgres: Postgres, behaviours: list[Behaviour]) -> None:
        self.plan = plan
        self.postgres = postgres
        self.statements_before = postgres.statements
        self.behaviours = behaviours
        self.recorder = Recorder(self.database_now)
        self.random = Random(f"cluster {plan.seed}")
        self.turn = asyncio.Lock()
        # Whose turn it is: the task of a statement or a transaction.
        self.turn_of: asyncio.Task[Any] | None = None
        self.nodes: dict[int, Node] = {}
        self.restarts: set[asyncio.Task[None]] = set()
        self.incarnations = 0
        self.is_healed = False
        self.failures: list[str] = []
        # What was seen to be wrong at the very moment, beside what the logs tell afterwards.
        self.findings: list[Violation] = []
        self.struck = 0
        self.statement_names = statement_names()
        self.step_s = 0.0
        self.away_until_s = 0.0
        # What the outside world knows, whoever dies: the ready queue, tasks, leases, keys.
        self.ready: list[Ticket] = []
        self.ready_bell = asyncio.Event()
        self.drawer: list[Ticket] = []
        self.late: list[Ticket] = []
        self.known: list[tuple[int, UUID]] = []
        self.leases: list[tuple[int, UUID, int, UUID]] = []
        self.keyed: dict[tuple[int, str], Submission] = {}
        self.schedules: list[tuple[int, UUID]] = []
        self.workflows: list[Any] = []
        self.requests = 0

    # Time ------------------------------------------------------------------------------------

    def elapsed_s(self) -> float:
        return asyncio.get_running_loop().time()

    def true_now(self) -> datetime:
        return self.plan.start + timedelta(seconds=self.elapsed_s())

    def database_now(self) -> datetime:
        return self.true_now() + timedelta(seconds=self.step_s)

    def latency_s(self) -> float:
        if self.is_healed or not self.plan.has(FaultKind.LATENCY):
            return 0.0
        return self.random.uniform(0.0, self.plan.latency_s)

    # Faults ----------------------------------------------------------------------------------

    def strikes(self, kind: FaultKind, node: Node | None = None) -> bool:
        if not self.draws(kind):
            return False
        self.recorder.fault(kind, node.name if node else "")
        return True

    def draws(self, kind: FaultKind) -> bool:
        """Whether this fault happens now. A shrunk case draws as its seed did, and strikes less."""
        rate = self.plan.rates.get(kind)
        if rate is None or self.is_healed or self.random.random() >= rate:
            return False
        self.struck += 1
        return self.plan.strikes is None or self.struck in self.plan.strikes

    @property
    def is_away(self) -> bool:
        return self.elapsed_s() < self.away_until_s

    def kill(self, node: Node, where: str) -> None:
        """No cleanup: the handle is dead before any `finally` can run."""
        self.recorder.note(f"{node.name} dies at {where}")
        node.is_dead = True
        mine = asyncio.current_task()
        for task in node.tasks:
            if task is not mine:
                task.cancel()
        place = next(number for number, other in self.nodes.items() if other is node)
        # Outside of every node, or it would die with the one that called.
        outside = contextvars.Context()
        restart = outside.run(asyncio.get_running_loop().create_task, self.restart(place))
        self.restarts.add(restart)
        restart.add_done_callback(self.restarts.discard)

    async def restart(self, place: int) -> None:
        await asyncio.sleep(self.random.uniform(0.0, RESTART_S_MAX))
        self.start_node(place)

    def start_node(self, place: int) -> None:
        self.incarnations += 1
        is_wrong = self.plan.has(FaultKind.NODE_CLOCK)
        offset_s = self.random.uniform(-NODE_CLOCK_S, NODE_CLOCK_S) if is_wrong else 0.0
        node = self.make_node(f"node-{place}.{self.incarnations}", offset_s)
        self.nodes[place] = node
        self.recorder.note(f"{node.name} starts as {short(node.holder)}")
        node.start(self.behaviours)

    def make_node(self, name: str, offset_s: float) -> Node:
        return Node(self, name, offset_s)

    def start(self) -> None:
        for place in range(self.plan.nodes):
            self.start_node(place)

    async def disturb(self) -> None:
        """Faults that strike by themselves, not at somebody's statement."""
        while not self.is_healed:
            await asyncio.sleep(self.plan.tick_s)
            if self.strikes(FaultKind.OUTAGE):
                self.away_until_s = self.elapsed_s() + self.random.uniform(0.0, OUTAGE_S_MAX)
            if self.strikes(FaultKind.KILL):
                node = self.random.choice(list(self.nodes.values()))
                if not node.is_dead:
                    self.kill(node, "an arbitrary moment")
            self.step_the_clock()

    def step_the_clock(self) -> None:
        if self.draws(FaultKind.DATABASE_CLOCK):
            step_s = self.random.uniform(-2.0, 10.0)
            self.recorder.fault(FaultKind.DATABASE_CLOCK, "", max(0.0, -step_s))
            self.step_s += step_s

    def heal(self) -> None:
        self.recorder.note("everything heals")
        self.is_healed = True
        self.away_until_s = 0.0
        self.ready_bell.set()

    def look_at_tickets(self, slot: int, epoch: int, deadline: datetime) -> None:
        """Only where schedulers own slots."""

    def publish(self, tickets: list[Ticket]) -> None:
        self.ready.extend(tickets)
        self.ready_bell.set()


def keep_back(step: asyncio.Handle, context: contextvars.Context) -> bool:
    """A frozen node does nothing; it is frozen between two statements, never in one."""
    node = context.get(CURRENT_NODE)
    if node is None or not node.is_frozen or node.turns > 0:
        return False
    node.kept_back.append(step)
    return True


def register_task(task: "asyncio.Task[Any]") -> None:
    node = CURRENT_NODE.get()
    if node is not None:
        node.tasks.append(task)
        if node.is_dead:
            task.cancel()
