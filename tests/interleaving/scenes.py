"""What a race begins with (a task of a tenant of its own) and what must be true after it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import Any, Never
from uuid import UUID

import asyncpg
import msgspec

from duly.domain.access import Access
from duly.domain.ids import node_id_of, shard_of
from duly.domain.lanes import Lane, Ticket
from duly.domain.node_spec import (
    PLAIN,
    STAND_IN_TYPES,
    CompensationSpec,
    MapSpec,
    NodeKind,
    NodeSpec,
    WaitSpec,
    WorkflowSpec,
)
from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome
from duly.domain.task import Callback, Policy, Submission
from duly.domain.workflow import NODES_MAX, OnFailure, WaitRule
from duly.environment import Environment
from duly.store.control import ControlAnswer, cancel_tasks
from duly.store.database import Database
from duly.store.finish import Released, Settlement
from duly.store.lease import ACCEPTED_ASYNC, Beat, Lease, extend_leases, lease_tasks
from duly.store.ready_tickets import publish_tickets
from duly.store.settle import Settler
from duly.store.submit import Stored, Submitter
from duly.store.subworkflows import Subworkflows
from duly.store.templates import InnerStart, workflow_template_of
from duly.store.workflow_control import run_timer
from duly.store.workflow_handovers import ItemPage, hand_over_page
from duly.store.workflow_pauses import pause_workflow
from duly.store.workflow_timers import find_due_timers
from duly.store.workflows import NodeStart, Started, WorkflowStart, WorkflowStarter

HOLDERS = {"first": UUID(int=1), "second": UUID(int=2)}
NAMES = {number: name for name, number in HOLDERS.items()} | {
    None: None,
    ACCEPTED_ASYNC: "receiver",
}
LEASE_S = 60.0
ENVIRONMENT = Environment()
SIGNAL = "approved"
FAR_S = 3600.0

READ_TASKS = """
SELECT id, payload IS NULL AS is_blank, replay_of FROM duly.tasks WHERE tenant = $1 ORDER BY id"""
READ_TIMERS = """
SELECT id, fence, attempt, losses, holder, cancel_requested, confirmed, priority, queue,
       due_at IS NULL AND held_due_at IS NULL AND coalesce(parents_pending, 0) = 0
           AND NOT EXISTS (SELECT FROM duly.workflow_timers AS armed
                            WHERE armed.shard = timers.shard
                              AND armed.workflow = duly.workflow_of(timers.id)
                              AND armed.node = duly.node_number(timers.id))
           OR started_at IS NOT NULL AND holder IS NULL
              AND EXISTS (SELECT FROM duly.workflow_nodes AS node
                           WHERE node.shard = timers.shard
                             AND node.id = timers.id
                             AND node.kind = 3)
              AND NOT EXISTS (SELECT FROM duly.workflows AS inside
                               WHERE inside.shard = timers.shard
                                 AND inside.parent_node = timers.id
                                 AND inside.ended_at IS NULL)
              AND NOT EXISTS (SELECT FROM duly.workflow_timers AS armed
                               WHERE armed.shard = timers.shard
                                 AND armed.kind = 'child'
                                 AND armed.workflow = duly.workflow_of(timers.id)
                                 AND armed.node = duly.node_number(timers.id)) AS is_stranded,
       started_at IS NOT NULL AND holder IS NULL AS has_begun,
       held_due_at IS NOT NULL AS is_held, due_at IS NOT NULL AND holder IS NULL AS may_start,
       parents_pending, parents_completed, parents_failed, parents_skipped
  FROM duly.timers WHERE tenant = $1 ORDER BY id"""
READ_ATTEMPTS = """
SELECT id, fence, charged, holder, outcome, state, reason, error,
       regexp_replace(result, '"(received_at|workflow)":"[^"]*"', '"\\1"') AS result
  FROM duly.attempts WHERE tenant = $1 ORDER BY id, fence"""
READ_LETTERS = """
SELECT id, reason, attempts, replayed_as IS NOT NULL AS is_replayed
  FROM duly.dead_letters WHERE tenant = $1 ORDER BY id"""
READ_WORKFLOWS = """
SELECT state, live, completed, failed, skipped, cancelled, stop_reason,
       paused_at IS NOT NULL AS is_paused, compensating_at IS NOT NULL AS is_undone, compensated,
       compensations_failed, generated, parent_node IS NOT NULL AS is_inside
  FROM duly.workflows WHERE tenant = $1 ORDER BY parent_node IS NOT NULL"""
READ_WORKFLOW_TIMERS = """
SELECT kind, node, cursor, due_at <= duly.now() AS is_due
  FROM duly.workflow_timers
 WHERE tenant = $1
   -- A stop that comes after the end does nothing, whenever it is done.
   AND (kind <> 'stop' OR EXISTS (SELECT FROM duly.workflows
                                   WHERE workflows.shard = workflow_timers.shard
                                     AND workflows.id = workflow_timers.workflow
                                     AND workflows.ended_at IS NULL))
 ORDER BY kind, node"""
FIND_INSIDE = "SELECT id FROM duly.workflows WHERE tenant = $1 AND parent_node = $2"
READ_SIGNALS = """
SELECT number, name, consumed_by FROM duly.workflow_signals WHERE tenant = $1 ORDER BY number"""
READ_MAPS = """
SELECT node, made, handed, total, reason FROM duly.workflow_maps WHERE tenant = $1 ORDER BY node"""
READ_PAGES = """
SELECT node, first_index, content FROM duly.workflow_map_pages
 WHERE tenant = $1 ORDER BY node, first_index"""
READ_ITEMS = """
SELECT duly.node_number(id) AS number, map_number, map_index FROM duly.workflow_nodes
 WHERE tenant = $1 AND map_number IS NOT NULL ORDER BY id"""
READ_REST = """
SELECT (SELECT count(*) FROM duly.tombstones WHERE tenant = $1) AS tombstones,
       (SELECT count(*) FROM duly.idempotency_keys WHERE tenant = $1) AS keys,
       (SELECT count(*) FROM duly.pools WHERE tenant = $1) AS pools,
       (SELECT count(*) FROM duly.workflow_timers
         WHERE tenant = $1 AND kind = 'callback' AND due_at <= duly.now()) AS to_be_told"""


@dataclass
class Scene:
    """One task, the ticket or lease that exists for it, and every lease ever granted on it."""

    tenant: int
    id: UUID
    fence: int = 0
    holder: UUID = HOLDERS["first"]
    granted: set[int] = field(default_factory=set)
    submission: Submission | None = None
    # Of a node: its workflow, and the lease of the other parent of its child.
    workflow: UUID | None = None
    sibling: Lease | None = None
    # The workflow that the node has started, and the lease of the task inside.
    inside: UUID | None = None
    inner_lease: Lease | None = None

    @property
    def ticket(self) -> Ticket:
        return Ticket(self.id, self.fence)

    @property
    def lane(self) -> Lane:
        return Lane(self.tenant, pool=1, band=0)

    def grant(self, leases: Sequence[Lease]) -> None:
        self.granted |= {lease.fence for lease in leases}


async def run_due_timer(database: Database, scene: Scene) -> Released | None:
    """What the scene's workflow has to do by now, if there is anything."""
    assert scene.workflow is not None
    for timer in await find_due_timers(database, [shard_of(scene.workflow)]):
        if timer.workflow == scene.workflow:
            submitter = Submitter(database, ENVIRONMENT)
            begin_inner = Subworkflows(submitter).begin
            released, _ = await run_timer(database, timer, no_callback, begin_inner)
            return released
    return None


async def no_callback(*_: object) -> Never:
    raise AssertionError("no scene has a callback")


def inner_start(task: Submission) -> Submission:
    """Of a node that starts a workflow of this one task."""
    start = WorkflowStart(task.tenant, "inner", [NodeStart("x", task)])
    payload = msgspec.json.encode(InnerStart(template=workflow_template_of(start))).decode()
    return Submission(task.tenant, STAND_IN_TYPES[NodeKind.WORKFLOW], payload)


@dataclass
class Stage:
    """Makes scenes, each for a tenant of its own, so that they cannot touch each other."""

    database: Database
    owner: asyncpg.Connection
    environment: Environment
    tenants: Iterator[int] = field(default_factory=lambda: count(1))

    async def empty(self) -> Scene:
        return Scene(next(self.tenants), UUID(int=0))

    async def ready(self, policy: Policy | None = None, delay_s: float = 0.0) -> Scene:
        """A task that nobody holds; due at once unless `delay_s` says otherwise."""
        tenant = next(self.tenants)
        asked = Submission(
            tenant=tenant,
            type="email",
            url="https://example.org/",
            delay_s=delay_s,
            policy=policy or Policy(),
        )
        (answer,) = await Submitter(self.database, self.environment).submit([asked])
        assert isinstance(answer, Stored)
        return Scene(tenant, answer.id)

    async def published(self) -> Scene:
        """Late to start, and with a ticket in the table of tickets, in a lane of its own."""
        scene = await self.start_by_over()
        await publish_tickets(self.database, [(scene.lane, scene.ticket)])
        return scene

    async def scheduled(self) -> Scene:
        return await self.ready(delay_s=FAR_S)

    async def start_by_over(self) -> Scene:
        now = await self.owner.fetchval("SELECT duly.now()")
        return await self.ready(Policy(start_by=now))

    async def running(self, policy: Policy | None = None, lease_s: float = LEASE_S) -> Scene:
        scene = await self.ready(policy)
        leases = await lease_tasks(
            self.database, self.environment, scene.holder, [scene.ticket], lease_s
        )
        scene.grant(leases)
        scene.fence = leases[0].fence
        return scene

    async def last_try(self) -> Scene:
        return await self.running(Policy(retry=RetryPolicy(max_attempts=1)))

    async def expired(self) -> Scene:
        """Leased, and the lease ran out at once."""
        return await self.running(lease_s=0.0)

    async def told(self) -> Scene:
        """The same, of a task with a callback."""
        told = Callback("told", "https://example.org/told")
        return await self.running(Policy(callback=told), lease_s=0.0)

    async def prolonged(self) -> Scene:
        """Leased and alive, but the moment to look at the lease has come."""
        scene = await self.expired()
        beat = Beat(scene.id, scene.fence)
        await extend_leases(self.database, scene.holder, [beat], LEASE_S)
        return scene

    async def doomed(self) -> Scene:
        """Leased, run out, and a cancel was requested."""
        scene = await self.expired()
        answers = await cancel_tasks(self.database, scene.tenant, [scene.id])
        assert answers == {scene.id: ControlAnswer.CANCEL_REQUESTED}
        return scene

    async def completed(self) -> Scene:
        return await self.ended(await self.running(), Outcome.COMPLETED)

    async def dead(self) -> Scene:
        return await self.ended(await self.running(), Outcome.REJECTED)

    async def ended(self, scene: Scene, outcome: Outcome) -> Scene:
        end = Settlement(scene.id, scene.fence, scene.holder, outcome)
        await Settler(self.database, self.environment).settle([end])
        return scene

    async def node(
        self,
        lease_s: float = 0.0,
        spec: NodeSpec = PLAIN,
        rule: WaitRule = WaitRule.ALL_COMPLETED,
    ) -> Scene:
        """One of two parents of a node of a workflow, both leased; its lease ran out at once."""
        tenant = next(self.tenants)
        task = Submission(tenant=tenant, type="email", url="https://example.org/")
        own = task if spec.workflow is None else inner_start(task)
        nodes = [
            NodeStart("left", task, children=[3]),
            NodeStart("right", task, children=[3]),
            NodeStart("join", own, [1, 2], [4] if spec.is_step else [], rule, spec),
            *([NodeStart("after", task, [3])] if spec.is_step else []),
        ]
        submitter = Submitter(self.database, self.environment)
        start = WorkflowStart(tenant, "invoice", nodes)
        (answer,) = await WorkflowStarter(self.database, submitter).start([start])
        assert isinstance(answer, Started)
        left, right = (Ticket(node_id_of(answer.id, number), 0) for number in (1, 2))
        scene = Scene(tenant, left.id, workflow=answer.id)
        for ticket, length_s in ((left, lease_s), (right, LEASE_S)):
            (scene.sibling,) = await lease_tasks(
                self.database, self.environment, scene.holder, [ticket], length_s
            )
            if ticket is left:
                scene.grant([scene.sibling])
                scene.fence = scene.sibling.fence
        return scene

    async def free_node(self) -> Scene:
        """The same, given back: due, and held by nobody."""
        scene = await self.node(LEASE_S)
        await self.ended(scene, Outcome.RELEASED)
        scene.fence += 1
        return scene

    async def undecided_node(self) -> Scene:
        """A node whose `if` is to be decided by a step that is due; another node runs."""
        spec = NodeSpec(predicate='{"node": "right", "of": "state", "eq": "COMPLETED"}')
        return await self.scene_of(spec)

    async def timed_node(self) -> Scene:
        """A wait whose time has come; another node runs."""
        scene = await self.scene_of(NodeSpec(wait=WaitSpec(delay_s=0.0)))
        await run_due_timer(self.database, scene)
        return scene

    async def approved_node(self) -> Scene:
        """A wait for a signal, whose timeout has come; another node runs."""
        spec = NodeSpec(wait=WaitSpec(signal=SIGNAL, timeout_s=0.0))
        scene = await self.scene_of(spec)
        await run_due_timer(self.database, scene)
        return scene

    async def unbegun_inner(self) -> Scene:
        """A node that is to start a workflow of one task by a step that is due; another runs."""
        return await self.scene_of(NodeSpec(workflow=WorkflowSpec(name="inner")))

    async def begun_inner(self) -> Scene:
        """The same, and the task inside is leased."""
        scene = await self.unbegun_inner()
        await run_due_timer(self.database, scene)
        inside = await self.owner.fetchval(FIND_INSIDE, scene.tenant, scene.id)
        ticket = Ticket(node_id_of(inside, 1), 0)
        (lease,) = await lease_tasks(
            self.database, self.environment, scene.holder, [ticket], LEASE_S
        )
        return replace(scene, inside=inside, inner_lease=lease)

    async def ended_inner(self) -> Scene:
        """The same, and the workflow inside has ended: its node is to hear of it."""
        scene = await self.begun_inner()
        assert scene.inner_lease is not None
        lease = scene.inner_lease
        end = Settlement(lease.id, lease.fence, scene.holder, Outcome.COMPLETED)
        await Settler(self.database, self.environment).settle([end])
        return scene

    async def unbegun_wait(self) -> Scene:
        """A wait for a signal, of which a step that is due lets it begin; another node runs."""
        return await self.scene_of(NodeSpec(wait=WaitSpec(signal=SIGNAL)))

    async def waits(self, *roles: Access) -> Scene:
        """Nodes that wait for one signal from these roles, each beginning by a step that is due."""
        tenant = next(self.tenants)
        stand_in = Submission(tenant=tenant, type=STAND_IN_TYPES[NodeKind.WAIT])
        nodes = [
            NodeStart(
                f"n{number}", stand_in, spec=NodeSpec(wait=WaitSpec(signal=SIGNAL, role=role))
            )
            for number, role in enumerate(roles)
        ]
        submitter = Submitter(self.database, self.environment)
        start = WorkflowStart(tenant, "approvals", nodes)
        (answer,) = await WorkflowStarter(self.database, submitter).start([start])
        assert isinstance(answer, Started)
        return Scene(tenant, node_id_of(answer.id, 1), workflow=answer.id)

    async def scene_of(self, spec: NodeSpec) -> Scene:
        """A node of that kind behind two others, of which the first has completed; and one after
        it."""
        scene = await self.node(LEASE_S, spec, WaitRule.ANY_COMPLETED)
        await self.ended(scene, Outcome.COMPLETED)
        assert scene.workflow is not None
        return replace(scene, id=node_id_of(scene.workflow, 3), fence=0, granted=set())

    async def unopened_map(self) -> Scene:
        """A map whose step is due; nothing else of its workflow can happen."""
        spec = NodeSpec(map=MapSpec(count=4, max_items=10, max_parallel=2))
        task = self.hooked()
        nodes = [
            NodeStart("charge", task, children=[2], spec=spec),
            NodeStart("after", task, [1]),
        ]
        return await self.started(nodes)

    async def open_map(self) -> Scene:
        """An item of a map that may have two open; it has to make more, as another one has
        completed. The lease of this one ran out at once."""
        scene = await self.unopened_map()
        await run_due_timer(self.database, scene)
        assert scene.workflow is not None
        first, second = (node_id_of(scene.workflow, NODES_MAX + n) for n in (1, 2))
        await self.held(scene, first, LEASE_S)
        await self.ended(scene, Outcome.COMPLETED)
        scene.granted.clear()
        await self.held(scene, second, 0.0)
        return scene

    async def paged_map(self) -> Scene:
        """A node that has handed over one item, of which no task is made yet; its lease ran out."""
        spec = NodeSpec(map=MapSpec(parent="list", max_items=10))
        task = self.hooked()
        nodes = [
            NodeStart("list", task, children=[2]),
            NodeStart("charge", task, [1], [3], spec=spec),
            NodeStart("after", task, [2]),
        ]
        scene = await self.started(nodes)
        await self.held(scene, scene.id, 0.0)
        page = ItemPage(scene.tenant, scene.id, scene.fence, "charge", 0, ["1"])
        await hand_over_page(self.database, page, Released())
        return scene

    def hooked(self) -> Submission:
        return Submission(tenant=next(self.tenants), type="email", url="https://example.org/")

    async def started(self, nodes: list[NodeStart]) -> Scene:
        tenant = nodes[0].task.tenant
        submitter = Submitter(self.database, self.environment)
        start = WorkflowStart(tenant, "invoice", nodes)
        (answer,) = await WorkflowStarter(self.database, submitter).start([start])
        assert isinstance(answer, Started)
        return Scene(tenant, node_id_of(answer.id, 1), workflow=answer.id)

    async def held(self, scene: Scene, node: UUID, lease_s: float) -> None:
        """The scene is about this node, which is leased."""
        scene.id, scene.fence = node, 0
        leases = await lease_tasks(
            self.database, self.environment, scene.holder, [scene.ticket], lease_s
        )
        scene.grant(leases)
        scene.fence = leases[0].fence

    async def held_node(self) -> Scene:
        """The same, and its workflow is paused; the other parent runs on."""
        scene = await self.free_node()
        assert scene.workflow is not None
        async with self.database.transaction() as session:
            await pause_workflow(session, scene.tenant, scene.workflow, "operator")
        scene.fence += 1
        return scene

    async def undone_workflow(self) -> Scene:
        """Two nodes completed and one failed: what undoes the two is to be made."""
        tenant = next(self.tenants)
        task = Submission(tenant=tenant, type="email", url="https://example.org/")
        undo = CompensationSpec(
            type="undo", url=task.url, pool="default", priority=5, timeout_ms=60_000
        )
        spec = NodeSpec(compensate=undo)
        nodes = [
            NodeStart("left", task, children=[3], spec=spec),
            NodeStart("right", task, children=[3], spec=spec),
            NodeStart("join", task, [1, 2], spec=spec),
        ]
        submitter = Submitter(self.database, self.environment)
        start = WorkflowStart(tenant, "order", nodes, OnFailure.COMPENSATE)
        (answer,) = await WorkflowStarter(self.database, submitter).start([start])
        assert isinstance(answer, Started)
        scene = Scene(tenant, node_id_of(answer.id, 3), workflow=answer.id)
        for number in (1, 2, 3):
            node = Scene(tenant, node_id_of(answer.id, number))
            leases = await lease_tasks(
                self.database, self.environment, scene.holder, [node.ticket], LEASE_S
            )
            node.fence = leases[0].fence
            await self.ended(node, Outcome.REJECTED if number == 3 else Outcome.COMPLETED)
        scene.grant(leases)
        return scene

    async def undoing_node(self) -> Scene:
        """The first of two that undo, one after the other, is leased; its lease ran out at once."""
        scene = await self.undone_workflow()
        assert scene.workflow is not None
        await run_due_timer(self.database, scene)
        scene = Scene(
            scene.tenant, node_id_of(scene.workflow, NODES_MAX + 1), workflow=scene.workflow
        )
        leases = await lease_tasks(
            self.database, self.environment, scene.holder, [scene.ticket], 0.0
        )
        scene.grant(leases)
        scene.fence = leases[0].fence
        return scene

    async def facts(self, scene: Scene) -> "Facts":
        """Everything the tables say of the scene's tenant, in names instead of random ids."""
        tables = []
        for query in (
            *(READ_TASKS, READ_TIMERS, READ_ATTEMPTS, READ_LETTERS),
            *(READ_WORKFLOWS, READ_WORKFLOW_TIMERS, READ_SIGNALS),
            *(READ_MAPS, READ_PAGES, READ_ITEMS, READ_REST),
        ):
            rows = [dict(row) for row in await self.owner.fetch(query, scene.tenant)]
            for row in rows:
                row |= {"holder": NAMES[row["holder"]]} if "holder" in row else {}
            tables.append(rows)
        return Facts(*tables)


@dataclass(frozen=True)
class Facts:
    tasks: list[dict[str, Any]]
    timers: list[dict[str, Any]]
    attempts: list[dict[str, Any]]
    letters: list[dict[str, Any]]
    workflows: list[dict[str, Any]]
    workflow_timers: list[dict[str, Any]]
    signals: list[dict[str, Any]]
    maps: list[dict[str, Any]]
    pages: list[dict[str, Any]]
    items: list[dict[str, Any]]
    rest: list[dict[str, Any]]

    def told(self, scene: Scene) -> str:
        """The same words for the same facts, whatever the ids; to compare two scenes."""
        text = repr([getattr(self, each.name) for each in fields(self)])
        ids = [scene.id] + [row["id"] for row in self.tasks if row["id"] != scene.id]
        for position, task_id in enumerate(ids):
            text = text.replace(repr(task_id), f"task {position}")
        return text


def assert_invariants(scene: Scene, facts: Facts) -> None:
    """I1, I2, I4 and I5 for everything the scene's tenant owns."""
    for task in facts.tasks:
        timers = [row for row in facts.timers if row["id"] == task["id"]]
        attempts = [row for row in facts.attempts if row["id"] == task["id"]]
        final = [row for row in attempts if row["state"] is not None]
        assert len(timers) + len(final) == 1, f"not exactly one of live and ended: {facts}"
        assert final in ([], attempts[-1:]), f"something happened after the end: {facts}"
        for timer in timers:
            assert all(row["fence"] < timer["fence"] for row in attempts), f"old fence: {facts}"
            assert not timer["is_stranded"], f"nothing will ever look at this timer: {facts}"
        charged = [row["charged"] for row in attempts if row["charged"]]
        assert charged == list(range(1, len(charged) + 1)), f"charged numbers: {facts}"
        if task["id"] == scene.id:
            held = [row["fence"] for row in timers + attempts if row["holder"] is not None]
            assert sorted(held) == sorted(scene.granted), f"granted {scene.granted}: {facts}"
    known = {task["id"] for task in facts.tasks}
    is_paused = any(workflow["is_paused"] for workflow in facts.workflows)
    # A pause of the one around is none of what is inside it.
    outer = [] if len(facts.workflows) > 1 else facts.timers
    for timer in outer:
        wrong = timer["may_start" if is_paused else "is_held"]
        assert not wrong, f"is due in a pause, or held without one: {facts}"
    live = [workflow["live"] for workflow in facts.workflows]
    assert not live or sum(live) == len(facts.timers), f"live nodes: {facts}"
    has_ended = all(workflow["state"] is not None for workflow in facts.workflows)
    assert not live or not has_ended or not facts.workflow_timers, f"has ended: {facts}"
    for workflow in facts.workflows:
        goes_on = workflow["live"] > 0
        if workflow["is_undone"] and workflow["state"] is None:
            # With no live node it is on its way to the next compensation.
            goes_on = goes_on or [row["kind"] for row in facts.workflow_timers] == ["compensate"]
        assert (workflow["state"] is None) == goes_on, f"how it stands: {facts}"
    orphans = [row for row in facts.timers + facts.attempts if row["id"] not in known]
    assert not orphans, f"rows of no task: {facts}"
