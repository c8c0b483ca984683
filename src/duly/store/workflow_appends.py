"""Nodes that are added to a workflow that lives: in the settlement of one of its tasks, or from
outside.

| event | what happens |
|---|---|
| the workflow ends at the same moment | the lock decides: they are added before, or refused |
| a parent ends at the same moment | it is counted here, or its end counts for the new node |
| a parent was skipped, and its cascade goes on later | the cascade counts for the new node |
| the settlement is sent again | REPLAY, and nothing is added twice |
| its lease was lost | STALE, and nothing is added |
| a name is taken, a parent is no node | nothing is stored, and the lease stays |
| the workflow is paused | they are added and held |
| it is being stopped | in a settlement they are added and cancelled at once; else refused |
| killed before the commit | nothing is added, and nothing was settled |
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from duly.domain.ids import is_node, key_shard, node_id_of, node_number, shard_of, workflow_of
from duly.domain.limits import Problem
from duly.domain.states import Outcome, State
from duly.domain.workflow import (
    EDGES_MAX,
    NODES_MAX,
    PROBLEMS_MAX,
    OnFailure,
    pointer_name,
    unknown_parent,
)
from duly.environment import CrashPoint
from duly.events import TasksFinished, TasksStored
from duly.store.control import cancel_tasks, ended_by_cancel, publish_released
from duly.store.database import Database, Session
from duly.store.finish import (
    Released,
    SettleAnswer,
    Settlement,
    finish_completed_nodes,
)
from duly.store.insert import InsertRow, insert_nodes, lanes_of
from duly.store.load import DueTimer
from duly.store.settle import Settler
from duly.store.statements import statements_beside
from duly.store.submit import Submitter, near_timers, stored_at
from duly.store.unnest import array_text
from duly.store.workflow_nodes import lock_workflow, number_nodes
from duly.store.workflow_pauses import hold_nodes
from duly.store.workflows import (
    NodeStart,
    PlacedStart,
    WorkflowStart,
    WorkflowStarter,
    is_waiting,
    node_columns,
    pools_named,
    root_steps,
    step_columns,
)

SQL = statements_beside(__file__)


@dataclass(frozen=True, slots=True)
class Append:
    """New nodes, numbered from 1 among themselves, and of each the names of all its parents."""

    tenant: int
    nodes: Sequence[NodeStart]
    after: Sequence[Sequence[str]]

    @property
    def edges(self) -> int:
        return sum(map(len, self.after))

    @property
    def names(self) -> list[str]:
        return [node.name for node in self.nodes]


class AppendRefusal(StrEnum):
    """Why nothing was added."""

    # It is no workflow, or of another tenant.
    UNKNOWN = "unknown"
    # The task that was settled is no node.
    PLAIN = "plain"
    ENDED = "ended"
    STOPPED = "stopped"
    # What its problems say.
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class RefusedAppend:
    why: AppendRefusal
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node that is there already; its state once it has ended."""

    id: UUID
    state: State | None

    @property
    def number(self) -> int:
        return node_number(self.id)


@dataclass(slots=True)
class Added:
    """To be published once it has committed. `timers` are those of the new nodes that are due."""

    rows: list[InsertRow]
    now: datetime
    timers: list[DueTimer] = field(default_factory=list)
    released: Released = field(default_factory=Released)


class RollBack(Exception):
    """Rolls back a settlement whose nodes were refused; never leaves this module."""

    def __init__(self, answer: RefusedAppend) -> None:
        super().__init__()
        self.answer = answer


class WorkflowAppends:
    def __init__(self, submitter: Submitter, settler: Settler) -> None:
        self.database: Database = submitter.database
        self.submitter = submitter
        self.starter = WorkflowStarter(submitter.database, submitter)
        self.settler = settler

    async def prepare(self, append: Append) -> None:
        """Before a transaction: what it would wait for another connection for."""
        await self.submitter.pools.resolve(pools_of(append))

    async def settle(self, settlement: Settlement, append: Append) -> SettleAnswer | RefusedAppend:
        """A completed node that adds others, in one commit."""
        assert settlement.outcome is Outcome.COMPLETED
        if not is_node(settlement.id):
            return RefusedAppend(AppendRefusal.PLAIN)
        await self.submitter.environment.crash_point(CrashPoint.SETTLE_BEFORE)
        try:
            async with self.database.transaction() as session:
                settled = await self.settle_in(session, settlement, append)
        except RollBack as undone:
            return undone.answer
        if settled is None:
            return (await self.settler.classify([(0, settlement)]))[0]
        answer, added = settled
        self.publish(append.tenant, added)
        self.submitter.events.publish(TasksFinished([settlement], [answer]))
        await self.submitter.environment.crash_point(CrashPoint.SETTLE_AFTER_COMMIT)
        return answer

    async def settle_in(
        self, session: Session, settlement: Settlement, append: Append
    ) -> tuple[SettleAnswer, Added] | None:
        """None: the lease is lost, or ended by this very settlement, which would find the names
        taken that it added itself."""
        row = await lock_workflow(session, workflow_of(settlement.id))
        key = shard_of(settlement.id), settlement.id, settlement.fence, settlement.holder
        if row is None or not await session.fetch(SQL.read_lease, *key):
            return None
        if row["compensating_at"] is not None:
            raise RollBack(RefusedAppend(AppendRefusal.STOPPED))
        added = await self.add(session, row, append)
        if isinstance(added, RefusedAppend):
            raise RollBack(added)
        answers = await finish_completed_nodes(session, [(0, settlement)])
        assert answers, "only under the lock does the lease of a node end"
        return answers[0], added

    async def append(
        self, session: Session, workflow_id: UUID, append: Append
    ) -> Added | RefusedAppend:
        """In the caller's transaction: prepared before it, published after it."""
        row = await lock_workflow(session, workflow_id)
        if row is None or row["tenant"] != append.tenant:
            return RefusedAppend(AppendRefusal.UNKNOWN)
        if row["ended_at"] is not None:
            return RefusedAppend(AppendRefusal.ENDED)
        if row["stop_reason"] is not None or row["compensating_at"] is not None:
            return RefusedAppend(AppendRefusal.STOPPED)
        return await self.add(session, row, append)

    async def add(self, session: Session, row: Any, append: Append) -> Added | RefusedAppend:
        """Under the lock of the workflow, whose row this is."""
        workflow_id: UUID = row["id"]
        known = await self.find_named(session, workflow_id, append)
        if problems := list(append_problems(row, append, known)):
            return RefusedAppend(AppendRefusal.INVALID, tuple(problems[:PROBLEMS_MAX]))
        count = len(append.nodes)
        first = await number_nodes(session, append.tenant, workflow_id, count, append.edges)
        assert first is not None, "a workflow with a live node lives"
        placed = await self.place(session, row, append, known, first)
        added = Added(placed.rows, await self.store(session, placed, known))
        if row["stop_reason"] is not None:
            nodes = [each.id for each in placed.rows]
            answers = await cancel_tasks(session, append.tenant, nodes, added.released)
            added.released.cancelled += ended_by_cancel(answers)
        else:
            await self.begin(session, row, placed, known, added)
        return added

    async def begin(
        self,
        session: Session,
        row: Any,
        placed: PlacedStart,
        known: Mapping[str, KnownNode],
        added: Added,
    ) -> None:
        """Parents that had ended count at once; and what has no parents is due, or held."""
        ended = [node for node in known.values() if node.state is not None]
        if ended:
            ids, states = [node.id for node in ended], [node.state for node in ended]
            rows = await session.fetch(SQL.count_ended, ids, states, node_number(placed.rows[0].id))
            added.released.note(rows)
        if row["paused_at"] is not None:
            await hold_nodes(session, row["tenant"], row["id"])
        else:
            roots = [each for each in placed.rows if not is_waiting(placed, each)]
            stored = {each.ordinal: stored_at(each, added.now) for each in roots}
            added.timers += near_timers(roots, stored)
        if root_steps(placed):
            added.released.workflows.append(row["id"])

    def publish(self, tenant: int, added: Added) -> None:
        self.submitter.placements |= lanes_of(added.rows)
        events = self.submitter.events
        events.publish(TasksStored(added.rows, added.timers, added.now))
        publish_released(events, tenant, added.released)

    async def find_named(
        self, session: Session, workflow_id: UUID, append: Append
    ) -> dict[str, KnownNode]:
        names = {*append.names, *(name for after in append.after for name in after)}
        last = node_id_of(workflow_id, NODES_MAX)
        key = shard_of(workflow_id), workflow_id, last, append.tenant
        rows = await session.fetch(SQL.find_named, *key, sorted(names))
        return {row["name"]: known_from(row) for row in rows}

    async def place(
        self,
        session: Session,
        row: Any,
        append: Append,
        known: Mapping[str, KnownNode],
        first: int,
    ) -> PlacedStart:
        """The new nodes as a graph of their own would be, with their numbers in the workflow."""
        numbers = {name: node.number for name, node in known.items()}
        numbers |= {name: first + ordinal for ordinal, name in enumerate(append.names)}
        nodes = [
            replace(
                node,
                parents=[numbers[name] for name in after],
                children=[first - 1 + number for number in node.children],
            )
            for node, after in zip(append.nodes, append.after, strict=True)
        ]
        start = WorkflowStart(append.tenant, row["name"], nodes)
        workflow_id, shard = row["id"], shard_of(row["id"])
        pools = await self.submitter.pools.resolve(pools_of(append), session)
        rows = [
            self.starter.row_of(ordinal, node, workflow_id, first + ordinal, shard, pools)
            for ordinal, node in enumerate(nodes)
        ]
        return PlacedStart(0, start, workflow_id, shard, rows)

    async def store(
        self, session: Session, placed: PlacedStart, known: Mapping[str, KnownNode]
    ) -> datetime:
        children = children_by_parent(placed)
        told = [node for node in known.values() if node.number in children]
        await session.fetch(
            SQL.append_nodes,
            *node_columns([placed]),
            *step_columns([placed]),
            [node.id for node in told],
            [array_text(children[node.number]) for node in told],
        )
        new = lanes_of(placed.rows) - self.submitter.placements
        return await insert_nodes(session, placed.rows, new)


def children_by_parent(placed: PlacedStart) -> dict[int, list[int]]:
    """By the number of each parent."""
    found: dict[int, list[int]] = {}
    for node, row in zip(placed.start.nodes, placed.rows, strict=True):
        for parent in node.parents:
            found.setdefault(parent, []).append(node_number(row.id))
    return found


def pools_of(append: Append) -> set[tuple[int, str]]:
    return {(append.tenant, pool) for node in append.nodes for pool in pools_named(node)}


def append_problems(row: Any, append: Append, known: Mapping[str, KnownNode]) -> Iterator[Problem]:
    """What only the workflow itself can say."""
    most = NODES_MAX - (row["nodes"] - row["generated"])
    if len(append.nodes) > most:
        yield Problem(
            "/nodes", f"has {len(append.nodes)} nodes, and the workflow takes {most} more"
        )
    if row["edges"] + append.edges > EDGES_MAX:
        yield Problem("/nodes", f"would give the workflow more than {EDGES_MAX} edges in all")
    new = set(append.names)
    for node, after in zip(append.nodes, append.after, strict=True):
        at = f"/nodes/{pointer_name(node.name)}"
        if node.name in known:
            yield Problem(at, "has the name of a node that is there already")
        if node.spec.compensate is not None and row["on_failure"] != OnFailure.COMPENSATE:
            yield Problem(f"{at}/compensate", "needs a workflow with on_failure: compensate")
        for position, name in enumerate(after):
            if name not in new and name not in known:
                yield unknown_parent(node.name, position, name)
        key = node.task.policy.concurrency_key
        if key is not None and key_shard(append.tenant, key) != shard_of(row["id"]):
            yield Problem(
                f"{at}/concurrency_key",
                "is counted on another shard than that of the workflow; its first nodes decide",
            )


def known_from(row: Any) -> KnownNode:
    state = None if row["is_live"] else State(row["state"])
    return KnownNode(row["id"], state)
