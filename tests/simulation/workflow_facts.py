"""What was asked of workflows, and what the tables say became of them, for the models of their
semantics. No code of the engine."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from tests.simulation.database import Postgres
from tests.simulation.step_model import (
    PLAIN,
    SIGNALS,
    STARTS,
    Item,
    Pauses,
    Sent,
    Spoken,
    Step,
    Undoing,
    WantedSignal,
)

WORKFLOWS = """SELECT id, tenant, name, state, stop_reason, created_at, deadline_at, ended_at, live,
                      completed, failed, skipped, cancelled, paused_at, resumed_from
                 FROM duly.workflows WHERE tenant = ANY($1::integer[]) ORDER BY id"""
NODES = """SELECT duly.workflow_of(node.id) AS workflow, node.map_number, node.map_index,
                  node.compensates,
                  node.id, duly.node_number(node.id) AS number,
                  max(attempts.state) AS state, min(attempts.started_at) AS started_at,
                  max(attempts.ended_at) FILTER (WHERE attempts.state IS NOT NULL) AS ended_at,
                  count(attempts.state) AS ends, node.name, node.source, max(attempts.result),
                  (SELECT tasks.created_at FROM duly.tasks
                    WHERE tasks.shard = node.shard AND tasks.id = node.id) AS created_at
             FROM duly.workflow_nodes AS node
             LEFT JOIN duly.attempts
               ON attempts.shard = node.shard AND attempts.id = coalesce(node.source, node.id)
            WHERE node.tenant = ANY($1::integer[])
            GROUP BY node.shard, node.id ORDER BY node.id"""
CALLBACKS = """SELECT execution_key, payload FROM duly.tasks
                WHERE tenant = ANY($1::integer[]) AND execution_key LIKE '%:end'
                  AND replay_of IS NULL"""
# What `workflow_tables` is made of, each read for tenants.
STATEMENTS = (WORKFLOWS, NODES, CALLBACKS, SIGNALS, STARTS)
ENDS = ("COMPLETED", "FAILED", "SKIPPED", "CANCELLED")
# Beyond its deadline, or the end of all faults, before a workflow counts as forgotten.
LATE = timedelta(seconds=30)


class Seen(NamedTuple):
    """What a reader was told."""

    at: datetime
    state: str


@dataclass(kw_only=True)
class WantedAppend:
    """Nodes that are added to a workflow that lives, all or none of them: by its node of that
    number when this completes, or from outside. Their parents, by name."""

    names: list[str]
    parents: list[list[str]]
    rules: list[str]
    by: int | None = None
    is_answered: bool = False
    is_refused: bool = False


@dataclass(kw_only=True)
class WantedWorkflow:
    """One that was asked for, as its client knows it. No other one has its name."""

    tenant: int
    name: str
    # Of each node: the numbers of those it comes after, from 1; its rule; its delay.
    parents: list[list[int]]
    rules: list[str]
    delays_s: list[float]
    on_failure: str
    has_key: bool
    has_callback: bool
    # By number: what it does besides, and what its handler answers.
    steps: dict[int, Step] = field(default_factory=dict)
    spoken: dict[int, Spoken] = field(default_factory=dict)
    added: list[WantedAppend] = field(default_factory=list)
    signals: list[WantedSignal] = field(default_factory=list)
    pauses: Pauses = field(default_factory=Pauses)
    is_pause_asked: bool = False
    # Of a resume: of which workflow, and from which nodes; None: from what failed.
    resumed_from: UUID | None = None
    resumed_names: list[str] | None = None
    ids: set[UUID] = field(default_factory=set)
    is_cancel_asked: bool = False
    cancelled_at: datetime | None = None
    seen: list[Seen] = field(default_factory=list)

    @property
    def id(self) -> UUID | None:
        return next(iter(self.ids), None)


class Terms(NamedTuple):
    """What else is known of a run. `cancelled`: the nodes that a client asked to cancel, or whose
    own handler said so. `is_serial`: no two transactions overlapped, so that instants tell which
    came first."""

    cancelled: Collection[UUID]
    healed_at: datetime
    # Those whose results a client asked to erase.
    purged: frozenset[UUID] = frozenset()
    may_be_moved: bool = False
    is_serial: bool = True


class Node(NamedTuple):
    id: UUID
    number: int
    state: str | None
    started_at: datetime | None
    ended_at: datetime | None
    ends: int
    name: str
    # Whose run stands for it.
    source: UUID | None = None
    result: str | None = None
    created_at: datetime | None = None


class Plan(NamedTuple):
    """What was asked of one node."""

    parents: list[int]
    rule: str
    delay_s: float = 0.0
    step: Step = PLAIN


class Decided(NamedTuple):
    """Whether a rule was met in the end, and when that was certain; None for a root."""

    runs: bool
    at: datetime | None


@dataclass(frozen=True)
class Story:
    """One workflow: what was asked for, its row, its nodes by number."""

    wanted: WantedWorkflow
    row: Any
    nodes: dict[int, Node]
    plans: dict[int, Plan]
    items: Mapping[int, Sequence[Item]]
    signals: Sequence[Sent]
    starts: Sequence[Any]
    undoing: Sequence[Undoing] = ()
    # Of a resume: the nodes that run again.
    again: frozenset[int] | None = None

    @property
    def failed_at(self) -> datetime | None:
        """When the first node failed."""
        own = [node for node in self.nodes.values() if node.source is None]
        ends = [node.ended_at for node in own if node.state == "FAILED"]
        return min((at for at in ends if at is not None), default=None)


class WorkflowTables(NamedTuple):
    """`items` by the id of their map; `signals` and `starts` by workflow."""

    workflows: list[Any]
    nodes: dict[UUID, dict[int, Node]]
    callbacks: list[Any]
    items: dict[UUID, dict[int, list[Item]]]
    signals: dict[UUID, list[Sent]]
    starts: dict[UUID, list[Any]]
    undoing: dict[UUID, list[Undoing]]


def read_workflow_tables(
    postgres: Postgres, now: datetime, tenants: Iterable[int]
) -> WorkflowTables:
    return workflow_tables(*(postgres.fetch(now, each, list(tenants)) for each in STATEMENTS))


def workflow_tables(
    workflows: list[Any],
    nodes: Iterable[Any],
    callbacks: list[Any],
    signals: Iterable[Any],
    starts: Iterable[Any],
) -> WorkflowTables:
    graphs: dict[UUID, dict[int, Node]] = defaultdict(dict)
    items: dict[UUID, dict[int, list[Item]]] = defaultdict(lambda: defaultdict(list))
    undoing: dict[UUID, list[Undoing]] = defaultdict(list)
    for workflow, map_number, map_index, undoes, *facts in nodes:
        node = Node(*facts)
        if undoes is not None:
            undoing[workflow].append(Undoing(undoes, *node[:5]))
        elif map_number is None:
            graphs[workflow][node.number] = node
        else:
            made = Item(node.id, map_index, node.state, node.created_at, *node[3:6])
            items[workflow][map_number].append(made)
    sent, begun = defaultdict(list), defaultdict(list)
    for workflow, *facts in signals:
        sent[workflow].append(Sent(*facts))
    for row in starts:
        begun[row["workflow"]].append(row)
    return WorkflowTables(workflows, graphs, callbacks, items, sent, begun, undoing)
