"""Workflows: graphs of tasks, started in one commit, and what their rows say.

| event | what happens |
|---|---|
| killed before the commit | no workflow, no node |
| the same key, the same request | one workflow; every caller learns its id |
| the same key, another request | Mismatch, and nothing is stored |
| the last two parents of a node end at once | one waits for the other's lock, and releases it |
| a node ends while its workflow is cancelled | the lock decides; nothing is released |
| a long cascade of skips | the rest is done by `workflow_timers` |

Ends and releases of nodes are part of the finish move (`finish.sql`, `duly.release_children`).
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from asyncpg.pgproto import pgproto

from duly.domain.errors import StatementRefused
from duly.domain.ids import (
    NODE_NUMBER_MAX,
    key_shard,
    make_workflow_id,
    milliseconds,
    node_id_of,
    node_octets,
    shard_of,
)
from duly.domain.node_spec import PLAIN, STAND_IN_TYPES, NodeSpec
from duly.domain.states import State, live_state
from duly.domain.task import WEBHOOK_POOL, Submission, timer_queue
from duly.domain.workflow import NODES_MAX, Compensation, OnFailure, WaitRule, WorkflowStop
from duly.environment import CrashPoint
from duly.events import NodesReleased, TasksStored
from duly.store.database import SERIALIZATION_FAILURE, Database, Session
from duly.store.idempotency import find_replay
from duly.store.insert import KEY_TTL_S, InsertRow, insert_nodes, jittered_start, lanes_of
from duly.store.map_standing import MapStanding, map_standing
from duly.store.partitions import RETENTION_S
from duly.store.policies import decode_callback
from duly.store.statements import statements_beside
from duly.store.submit import (
    CLAIM_TRIES_MAX,
    Gone,
    Mismatch,
    Replayed,
    Submitter,
    near_timers,
    stored_at,
)
from duly.store.unnest import array_text, columns
from duly.store.workflow_compensations import compensation_from
from duly.store.workflow_nodes import decode_spec, encode_spec

SQL = statements_beside(__file__)
PAGE_MAX = 200
# Nodes of a workflow that is started, before other calls have their turn.
PLACED_AT_ONCE = 1000
# Parents that a handler is given; more are read in pages.
PARENTS_GIVEN_MAX = 1000
SEARCHED_MAX = 20_000
LAST_WORKFLOW = UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True)
class NodeStart:
    """One node: its task (of other kinds, one that stands for it), the numbers of its parents and
    children, and when it runs."""

    name: str
    task: Submission
    parents: Sequence[int] = ()
    children: Sequence[int] = ()
    rule: WaitRule = WaitRule.ALL_COMPLETED
    spec: NodeSpec = PLAIN


@dataclass(frozen=True, slots=True)
class WorkflowStart:
    """One request for a workflow. Its nodes are numbered from 1 in their order."""

    tenant: int
    name: str
    nodes: Sequence[NodeStart]
    on_failure: OnFailure = OnFailure.FINISH_BRANCHES
    deadline_s: float | None = None
    callback: str | None = None
    tags: dict[str, str] | None = None
    idempotency_key: str | None = None
    # Digest of the request, for the key.
    asked: bytes = b""
    # The workflow type that it is a run of, pinned to a version.
    type: str | None = None
    type_version: int | None = None
    # The node of another workflow that stands for this one, and how many are above it.
    parent_node: UUID | None = None
    depth: int = 0


class Started(NamedTuple):
    id: UUID
    created_at: datetime


StartAnswer = Started | Replayed | Mismatch | Gone


class PlacedStart(NamedTuple):
    """A start on its way, with its address and the rows of its nodes."""

    ordinal: int
    start: WorkflowStart
    id: UUID
    shard: int
    rows: list[InsertRow]


class WorkflowStarter:
    """Starts batches; `submitter` knows pools, partitions and the spread of tenants."""

    def __init__(self, database: Database, submitter: Submitter) -> None:
        self.database = database
        self.submitter = submitter

    async def start(self, starts: Sequence[WorkflowStart]) -> list[StartAnswer]:
        """All of them in one commit, but for those whose key is known. Keys are unique within one
        call: the batcher sees to it."""
        placed = await self.place(starts)
        answers: dict[int, StartAnswer] = {}
        for _ in range(CLAIM_TRIES_MAX):
            async with self.database.transaction() as session:
                won, now = await self.store(session, placed)
            answers |= {each.ordinal: Started(each.id, now) for each in won}
            if won:
                await self.publish_stored(won, now)
            losers = [each for each in placed if each.ordinal not in answers]
            if losers:
                answers |= await self.answer_known(losers)
            placed = [each for each in losers if each.ordinal not in answers]
            if not placed:
                return [answers[ordinal] for ordinal in range(len(starts))]
        raise StatementRefused(
            problem="its key is released by one submit and claimed by another",
            code=SERIALIZATION_FAILURE,
        )

    async def publish_stored(self, won: list[PlacedStart], now: datetime) -> None:
        """The roots are due, or have their step; others are released when their parents end."""
        submitter = self.submitter
        rows = [row for each in won for row in each.rows]
        submitter.placements |= lanes_of(rows)
        await submitter.environment.crash_point(CrashPoint.SUBMIT_AFTER_COMMIT)
        roots = [row for each in won for row in each.rows if not is_waiting(each, row)]
        timers = near_timers(roots, {row.ordinal: stored_at(row, now) for row in roots})
        submitter.events.publish(TasksStored(rows, timers, now))
        stepping = tuple(each.id for each in won if root_steps(each))
        if stepping:
            submitter.events.publish(NodesReleased(workflows=stepping))

    async def store(
        self, session: Session, placed: list[PlacedStart]
    ) -> tuple[list[PlacedStart], datetime]:
        keyed = [each for each in placed if each.start.idempotency_key is not None]
        graphs = [*node_columns(placed), *step_columns(placed), *workflow_columns(placed)]
        # Of a large graph, each of these and what the driver makes of them takes long enough.
        await asyncio.sleep(0)
        if keyed:
            claims = sorted((*key_of(each.start), each.start.asked, each.id) for each in keyed)
            ttls = [KEY_TTL_S] * len(claims)
            rows = await session.fetch(SQL.start_keyed, *graphs, *columns(claims, 5), ttls)
        else:
            rows = await session.fetch(SQL.start, *graphs)
        lost = {row["id"] for row in rows}
        won = [each for each in placed if each.id not in lost]
        tasks = [row for each in won for row in each.rows]
        known = self.submitter.placements
        new = {(row.task.tenant, row.shard, row.queue) for row in tasks} - known
        return won, await insert_nodes(session, tasks, new)

    async def place(
        self, starts: Sequence[WorkflowStart], session: Session | None = None
    ) -> list[PlacedStart]:
        """Give each its id, and each node the id that says whose it is; in the order of the ids, in
        which every batch takes its locks. A caller in a transaction gives its session."""
        submitter = self.submitter
        await submitter.learn_tenants()
        placement = await submitter.current_range(session or self.database)
        wanted = pools_of_starts(starts)
        pools = await submitter.pools.resolve(wanted, session) if wanted else {}
        environment = submitter.environment
        placed_ms = milliseconds(placement.clamp(environment.clock.now()))
        placed = []
        ordinals = iter(range(sum(len(start.nodes) for start in starts)))
        for ordinal, start in enumerate(starts):
            shard = self.shard_for(start)
            workflow_id = make_workflow_id(placed_ms, shard, environment.random)
            rows: list[InsertRow] = []
            for number, node in enumerate(start.nodes, 1):
                rows.append(self.row_of(next(ordinals), node, workflow_id, number, shard, pools))
                if number % PLACED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            placed.append(PlacedStart(ordinal, start, workflow_id, shard, rows))
        placed.sort(key=lambda each: (each.shard, each.id.bytes))
        return placed

    def shard_for(self, start: WorkflowStart) -> int:
        """That of the workflow around it, which looks for it there."""
        if start.parent_node is not None:
            return shard_of(start.parent_node)
        return self.submitter.choose_shard(shard_task(start))

    def row_of(
        self,
        ordinal: int,
        node: NodeStart,
        workflow_id: UUID,
        number: int,
        shard: int,
        pools: dict[tuple[int, str], int],
    ) -> InsertRow:
        task = node.task._replace(execution_key=f"{workflow_id}:{node.name}")
        pool = pools[task.tenant, task.pool] if is_pooled(node) else WEBHOOK_POOL
        _, delay_s = jittered_start(task, self.submitter.environment.random)
        node_id = pgproto.UUID(node_octets(workflow_id, number))
        queue = timer_queue(pool, task.priority)
        return InsertRow(ordinal, task, node_id, shard, pool, queue, None, delay_s)

    async def answer_known(self, losers: list[PlacedStart]) -> dict[int, StartAnswer]:
        keys = [key_of(each.start) for each in losers]
        rows = await self.database.fetch(SQL.read_known, *columns(keys, 3))
        known = {row["key"]: row for row in rows}
        answers: dict[int, StartAnswer] = {}
        for each in losers:
            held = known.get(key_of(each.start)[2])
            if held is not None:
                is_same = held["request_hash"] == each.start.asked
                answers[each.ordinal] = (Replayed if is_same else Mismatch)(held["task_id"])
        return answers


def pools_of_starts(starts: Sequence[WorkflowStart]) -> set[tuple[int, str]]:
    """Those of callbacks as well: the transactions that tell of an end cannot make any."""
    wanted = {
        (start.tenant, pool)
        for start in starts
        for node in start.nodes
        for pool in pools_named(node)
    }
    told = [(s.tenant, decode_callback(s.callback)) for s in starts if s.callback is not None]
    return wanted | {(tenant, callback.pool) for tenant, callback in told if callback.url is None}


def shard_task(start: WorkflowStart) -> Submission:
    """What has a concurrency key lives where its key does, and its workflow with it."""
    keyed = (n.task for n in start.nodes if n.task.policy.concurrency_key is not None)
    return next(keyed, start.nodes[0].task)


def stored_key(name: str, key: str) -> str:
    return f"{name} {key}"


def key_of(start: WorkflowStart) -> tuple[int, int, str]:
    """Keys of workflows are those of their name; the space keeps them apart from keys of tasks."""
    assert start.idempotency_key is not None
    key = stored_key(start.name, start.idempotency_key)
    return key_shard(start.tenant, key), start.tenant, key


def is_waiting(placed: PlacedStart, row: InsertRow) -> bool:
    node = placed.start.nodes[row.ordinal - placed.rows[0].ordinal]
    return bool(node.parents) or node.spec.is_step


def is_pooled(node: NodeStart) -> bool:
    """Whether workers run it; a stand-in for a node of another kind is run by no consumer."""
    return node.task.url is None and node.spec.kind not in STAND_IN_TYPES


def pools_named(node: NodeStart) -> Iterator[str]:
    """Those of its task, and of what undoes it."""
    if is_pooled(node):
        yield node.task.pool
    undo = node.spec.compensate
    if undo is not None and undo.url is None:
        yield undo.pool


def root_steps(placed: PlacedStart) -> list[tuple[NodeStart, InsertRow]]:
    """Nodes without parents of which a step decides at once."""
    nodes = zip(placed.start.nodes, placed.rows, strict=True)
    return [(node, row) for node, row in nodes if node.spec.is_step and not node.parents]


def workflow_columns(placed: list[PlacedStart]) -> list[Any]:
    starts = [each.start for each in placed]
    return [
        [each.shard for each in placed],
        [each.id for each in placed],
        [start.tenant for start in starts],
        [start.name for start in starts],
        [len(start.nodes) for start in starts],
        [sum(len(node.parents) for node in start.nodes) for start in starts],
        [start.deadline_s for start in starts],
        [start.on_failure.value for start in starts],
        [start.callback for start in starts],
        [None if t.tags is None else msgspec.json.encode(t.tags).decode() for t in starts],
        [start.type for start in starts],
        [start.type_version for start in starts],
        [start.parent_node for start in starts],
        [start.depth for start in starts],
    ]


def node_columns(placed: list[PlacedStart]) -> list[Any]:
    nodes = [(e, n, r) for e in placed for n, r in zip(e.start.nodes, e.rows, strict=True)]
    return [
        [each.shard for each, _, _ in nodes],
        [row.id for _, _, row in nodes],
        [each.start.tenant for each, _, _ in nodes],
        [node.name for _, node, _ in nodes],
        [int(node.rule) for _, node, _ in nodes],
        [round(row.delay_s * 1000) for _, _, row in nodes],
        [array_text(node.parents) for _, node, _ in nodes],
        [array_text(node.children) for _, node, _ in nodes],
        *spec_columns([node.spec for _, node, _ in nodes]),
    ]


def spec_columns(specs: Sequence[NodeSpec]) -> list[Any]:
    """Kind, whether it is a step, and the spec; nothing where all nodes are plain tasks."""
    if all(spec is PLAIN for spec in specs):
        return [[], [], []]
    return [
        [None if spec is PLAIN else int(spec.kind) for spec in specs],
        [None if spec is PLAIN else spec.is_step for spec in specs],
        [encode_spec(spec) for spec in specs],
    ]


def step_columns(placed: list[PlacedStart]) -> list[Any]:
    rows = [row for each in placed for _, row in root_steps(each)]
    return [
        [row.shard for row in rows],
        [row.id for row in rows],
        [row.task.tenant for row in rows],
        [round(row.delay_s * 1000) for row in rows],
    ]


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow as its tenant sees it. RUNNING until its last node has ended."""

    id: UUID
    tenant: int
    name: str
    state: State
    nodes: int
    # Of these, items of maps and what undoes; numbered from 10,001 on.
    generated: int
    edges: int
    counts: dict[str, int]
    created_at: datetime
    deadline_at: datetime | None
    ended_at: datetime | None
    on_failure: OnFailure
    stop_reason: WorkflowStop | None
    tags: dict[str, str] | None
    now: datetime
    # Of a run of a type: `name@version`.
    type: str | None = None
    paused_at: datetime | None = None
    paused_by: str | None = None
    # The workflow whose finished nodes it reuses, and the node of another one that stands for it.
    resumed_from: UUID | None = None
    parent_node: UUID | None = None
    # Of one that failed and undoes what completed.
    compensation: Compensation | None = None
    parent_name: str | None = None

    @property
    def last_number(self) -> int:
        return NODES_MAX + self.generated if self.generated else self.nodes

    def has_node(self, number: int) -> bool:
        return 1 <= number <= self.nodes - self.generated or NODES_MAX < number <= self.last_number


class InnerWorkflow(NamedTuple):
    """The workflow that a node stands for."""

    id: UUID
    name: str
    state: State


@dataclass(frozen=True, slots=True)
class WorkflowNode:
    """A node as it stands."""

    id: UUID
    name: str
    number: int
    type: str | None
    state: State
    rule: WaitRule
    delay_s: float
    parents: list[int]
    children: list[int]
    parents_pending: int | None
    due_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    reason: str | None
    now: datetime
    # When it was due before its workflow was paused.
    held_due_at: datetime | None = None
    spec: NodeSpec = PLAIN
    # The node of an earlier workflow whose run stands for it.
    source: UUID | None = None
    # Of a wait that has begun: when its timeout or its timer comes.
    until: datetime | None = None
    # Of a map that has begun.
    map: MapStanding | None = None
    # Of an item: its place in its map.
    map_index: int | None = None
    # The node or item that it undoes.
    compensates: str | None = None
    # Of one that has started a workflow.
    inside: InnerWorkflow | None = None

    @property
    def has_begun(self) -> bool:
        """Of one that no handler runs: it is what its kind does."""
        return self.state is State.WAITING and self.started_at is not None


class Parent(NamedTuple):
    """How a parent of a node stands, with what it answered."""

    id: UUID
    name: str
    state: State
    result: str | None
    # Of its last attempt, if it had one.
    fence: int | None = None


class WorkflowFilter(NamedTuple):
    state: State | None = None
    name: str | None = None
    tag: tuple[str, str] | None = None
    created_after: datetime | None = None


class FoundWorkflows(NamedTuple):
    items: list[Workflow]
    next_cursor: str | None


async def find_started(
    database: Database, tenant: int, name: str, key: str, asked: bytes
) -> UUID | None:
    """The workflow of an earlier request with this key and the same words."""
    return await find_replay(database, tenant, stored_key(name, key), asked)


async def read_workflows(session: Session, tenant: int, ids: Sequence[UUID]) -> list[Workflow]:
    """In the order asked; those of other tenants are as missing as those that never were."""
    rows = await session.fetch(
        SQL.read_workflows,
        tenant,
        [shard_of(workflow_id) for workflow_id in ids],
        list(ids),
        [node_id_of(workflow_id, NODE_NUMBER_MAX) for workflow_id in ids],
    )
    found = {row["id"]: workflow_from(row) for row in rows}
    return [found[workflow_id] for workflow_id in ids if workflow_id in found]


async def read_workflow(session: Session, tenant: int, workflow_id: UUID) -> Workflow | None:
    found = await read_workflows(session, tenant, [workflow_id])
    return found[0] if found else None


async def list_workflows(
    session: Session, tenant: int, wanted: WorkflowFilter, cursor: str | None, limit: int
) -> FoundWorkflows:
    """One page, newest first: full, or the last, or as far as a bounded search went."""
    assert 1 <= limit <= PAGE_MAX
    before = LAST_WORKFLOW if cursor is None else UUID(cursor)
    is_narrow = wanted != WorkflowFilter()
    rows = await session.fetch(
        SQL.list_workflows,
        tenant,
        before,
        wanted.state,
        wanted.name,
        *(wanted.tag or (None, None)),
        wanted.created_after,
        SEARCHED_MAX if is_narrow else limit,
    )
    looked_at = rows[0]["looked_at"] if rows else 0
    ids = [row["id"] for row in rows if row["is_match"]][:limit]
    most = SEARCHED_MAX if is_narrow else limit
    following = None
    if len(ids) == limit:
        following = str(ids[-1])
    elif looked_at == most:
        following = str(rows[-1]["id"])
    return FoundWorkflows(await read_workflows(session, tenant, ids), following)


async def read_nodes(
    session: Session, tenant: int, workflow_id: UUID, after: int, limit: int
) -> list[WorkflowNode]:
    """The nodes after that number, in the order of their numbers."""
    start = workflow_id if after == 0 else node_id_of(workflow_id, after)
    rows = await session.fetch(
        SQL.read_nodes, tenant, shard_of(workflow_id), start, workflow_id, limit
    )
    return [node_from(row) for row in rows]


async def read_items(
    session: Session, tenant: int, map_id: UUID, after: int, limit: int
) -> list[WorkflowNode]:
    """The items of a map after the node of that number, in their order."""
    start = node_id_of(map_id, max(after, NODES_MAX))
    rows = await session.fetch(SQL.read_items, tenant, shard_of(map_id), map_id, start, limit)
    return [node_from(row) for row in rows]


async def read_parents(
    session: Session, nodes: Sequence[UUID], *, after: int = 0, limit: int, is_paged: bool
) -> dict[UUID, list[Parent]]:
    """By node; without `is_paged`, none of a node that has more than `limit`."""
    rows = await session.fetch(
        SQL.read_parents, [shard_of(n) for n in nodes], list(nodes), after, limit, is_paged
    )
    found: dict[UUID, list[Parent]] = {}
    for row in rows:
        found.setdefault(row["node"], []).append(parent_from(row))
    return found


async def count_parents(session: Session, nodes: Sequence[UUID]) -> dict[UUID, int]:
    rows = await session.fetch(SQL.count_parents, [shard_of(n) for n in nodes], list(nodes))
    return {row["id"]: row["parents"] for row in rows}


async def read_names(
    session: Session, tenant: int, nodes: Sequence[UUID]
) -> dict[UUID, tuple[str, str | None]]:
    """The name of each node, and that of its workflow."""
    rows = await session.fetch(SQL.read_names, tenant, [shard_of(n) for n in nodes], list(nodes))
    return {row["id"]: (row["name"], row["workflow_name"]) for row in rows}


async def find_source(session: Session, tenant: int, node: UUID) -> UUID | None:
    """The node whose run stands for this one; None: it runs itself, or there is none."""
    rows = await session.fetch(SQL.find_source, tenant, shard_of(node), node)
    return rows[0]["source"] if rows else None


async def read_ended_workflows(session: Session, ids: Sequence[UUID]) -> list[UUID]:
    rows = await session.fetch(SQL.read_ended_workflows, [shard_of(i) for i in ids], list(ids))
    return [row["id"] for row in rows]


async def delete_old_workflows(
    database: Database, limit: int, retention_s: float = RETENTION_S
) -> int:
    """How many nodes went with them; below the limit, no more was to be deleted."""
    rows = await database.fetch(SQL.delete_old, retention_s, limit)
    return sum(row["nodes"] for row in rows)


def workflow_from(row: Any) -> Workflow:
    counts = {
        name: row[name]
        for name in (
            *("waiting", "scheduled", "ready", "running"),
            *("completed", "failed", "skipped", "cancelled"),
        )
    }
    return Workflow(
        id=row["id"],
        tenant=row["tenant"],
        name=row["name"],
        state=State.RUNNING if row["state"] is None else State(row["state"]),
        nodes=row["nodes"],
        generated=row["generated"],
        edges=row["edges"],
        counts=counts,
        created_at=row["created_at"],
        deadline_at=row["deadline_at"],
        ended_at=row["ended_at"],
        on_failure=OnFailure(row["on_failure"]),
        stop_reason=None if row["stop_reason"] is None else WorkflowStop(row["stop_reason"]),
        tags=None if row["tags"] is None else msgspec.json.decode(row["tags"]),
        now=row["now"],
        type=None if row["type"] is None else f"{row['type']}@{row['type_version']}",
        paused_at=row["paused_at"],
        paused_by=row["paused_by"],
        resumed_from=row["resumed_from"],
        parent_node=row["parent_node"],
        compensation=compensation_from(row),
        parent_name=row["parent_name"],
    )


def node_from(row: Any) -> WorkflowNode:
    state = live_node_state(row) if row["is_live"] else State(row["state"])
    has_run = row["started_at"] is not None
    spec = decode_spec(row["spec"])
    return WorkflowNode(
        id=row["id"],
        name=row["name"],
        number=int.from_bytes(row["id"].bytes[13:]),
        type=None if spec.kind in STAND_IN_TYPES else row["type"],
        state=state,
        rule=WaitRule(row["wait_rule"]),
        delay_s=row["delay_ms"] / 1000,
        parents=row["parents"],
        children=row["children"],
        parents_pending=row["parents_pending"],
        due_at=row["due_at"],
        started_at=row["started_at"] if has_run and not row["is_live"] else row["live_started_at"],
        ended_at=None if row["is_live"] else row["ended_at"],
        reason=row["reason"],
        now=row["now"],
        held_due_at=row["held_due_at"],
        spec=spec,
        until=row["until"] if row["is_live"] else None,
        source=row["source"],
        map=None if spec.map is None else map_standing(row, spec.map),
        map_index=row["map_index"],
        compensates=row["undone"],
        inside=None if row["inside_id"] is None else inner_workflow(row),
    )


def inner_workflow(row: Any) -> InnerWorkflow:
    state = State(row["inside_state"] or State.RUNNING)
    return InnerWorkflow(row["inside_id"], row["inside_name"], state)


def live_node_state(row: Any) -> State:
    """A map runs from its first item on; it counts these as a waiting node counts its parents. So
    does one that stands for a workflow count that."""
    if row["live_started_at"] is not None and row["parents_pending"] is not None:
        return State.RUNNING
    return live_state(row["due_at"], row["holder"], row["now"])


def parent_from(row: Any) -> Parent:
    state = live_node_state(row) if row["is_live"] else State(row["state"])
    return Parent(row["id"], row["name"], state, row["result"], row["fence"])
