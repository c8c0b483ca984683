"""Workflows on the wire: what is asked for, and what is answered. No handlers."""

from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from duly.api.cursors import Cursor
from duly.api.wire import (
    NULL,
    IdempotencyKey,
    Instant,
    Limit,
    Page,
    TaskDefaults,
    TypeName,
)
from duly.api.workflow_nodes import (
    NodeName,
    NodeRequest,
    TypeReferenceText,
    When,
    WorkflowFields,
)
from duly.domain.ids import workflow_of
from duly.domain.states import State
from duly.domain.workflow import APPENDED_MAX, NODES_MAX, OnFailure
from duly.store.workflows import Workflow, WorkflowNode

NodeKindName = Literal["task", "map", "wait", "workflow"]
WAIT_S_MAX = 60.0


Nodes = Annotated[dict[NodeName, NodeRequest], Meta(min_length=1, max_length=NODES_MAX)]


class WorkflowTypeRequest(WorkflowFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The definition of a workflow type. A node without a payload gets that of the start."""

    nodes: Nodes

    def request(self, name: str) -> "WorkflowRequest":
        return WorkflowRequest(name=name, **msgspec.structs.asdict(self))


class OccurrenceWorkflow(WorkflowFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What each occurrence of a schedule starts: `name` and `nodes`, or a `type`: `name` or
    `name@version`, without a version the latest. `payload` is that of each node without one of its
    own."""

    name: TypeName | None = None
    nodes: Nodes = msgspec.field(default_factory=dict)
    type: TypeReferenceText | None = None
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)


class WorkflowRequest(OccurrenceWorkflow, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A graph of tasks: `name` and `nodes`, or a `type`: `name` or `name@version`, without a
    version the latest. With an idempotency key, the same body under the same name starts it once.
    `payload` is that of each node without one of its own."""

    idempotency_key: IdempotencyKey | None = None


class AppendRequest(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """Nodes that are added to a workflow that lives. They come `after` nodes that are there
    already, ended ones as well, and after each other."""

    nodes: Annotated[dict[NodeName, NodeRequest], Meta(min_length=1, max_length=APPENDED_MAX)]
    defaults: TaskDefaults = TaskDefaults()


class AppendedNode(msgspec.Struct, frozen=True):
    """A new node; its task has the same id."""

    id: UUID
    name: str


class AppendAnswer(msgspec.Struct, frozen=True):
    nodes: list[AppendedNode]


class AroundView(msgspec.Struct, frozen=True):
    """The node that stands for a workflow, and the workflow that it is in."""

    workflow: UUID
    node: str


class InnerWorkflowView(msgspec.Struct, frozen=True):
    """The workflow that a node started, which stands for it."""

    id: UUID
    name: str
    state: State


class NodeCounts(msgspec.Struct, frozen=True):
    """How many nodes are in each state."""

    waiting: int
    scheduled: int
    ready: int
    running: int
    completed: int
    failed: int
    skipped: int
    cancelled: int


class CompensationView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far what completed is undone: RUNNING, then COMPLETED, FAILED if something could not be
    undone, or CANCELLED with its workflow. `completed`: what is undone; `failed`: what could not
    be, or was cancelled. `not_undone`: names of nodes and items that stay done, the first 20; not
    in lists."""

    state: State
    started_at: Instant
    completed: int
    failed: int
    not_undone: list[str] | None = None


class WorkflowView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A workflow as it stands: RUNNING until its last node has ended. `critical_path` are the nodes
    that decide when it ends, `estimate_at` when that may be; neither for more than 1,000 nodes.
    `resumed_from`: the workflow whose finished nodes it reuses. `parent`: of one within another."""

    id: UUID
    name: str
    state: State
    nodes: int
    edges: int
    counts: NodeCounts
    created_at: Instant
    on_failure: OnFailure
    type: str | None = None
    resumed_from: UUID | None = None
    parent: AroundView | None = None
    paused_at: Instant | None = None
    paused_by: str | None = None
    ended_at: Instant | None = None
    deadline_at: Instant | None = None
    stop_reason: str | None = None
    tags: dict[str, str] | None = None
    compensation: CompensationView | None = None
    critical_path: list[str] | None = None
    estimate_at: Instant | None = None


class MapView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a map is. `items`: how many it has, once that is known; `made`: those that have a
    task; `open`: those of them that have not ended; `tolerated`: how many may fail."""

    items: int | None = None
    made: int
    open: int
    completed: int
    failed: int
    cancelled: int
    tolerated: int | None = None


class WorkflowNodeView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node as it stands; its task has the same id. `parents_pending`: how many have not ended.
    `source`: of one that is reused, the node of an earlier workflow whose task stands for it.
    `index`: of an item, its place in its map. `compensates`: the node or item that it undoes.
    `workflow`: the one that it started."""

    id: UUID
    name: str
    state: State
    when: When
    kind: NodeKindName = "task"
    type: str | None = None
    parents: int = 0
    parents_pending: int | None = None
    delay_s: float = 0.0
    next_at: Instant | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    reason: str | None = None
    source: UUID | None = None
    map: MapView | None = None
    index: int | None = None
    compensates: str | None = None
    workflow: InnerWorkflowView | None = None


class GraphNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A map is one node; its items are listed by `nodes?map=`. `compensation`: how far it is
    undone, of a map over 20,000 of its items at most."""

    name: str
    state: State
    after: list[str] = []
    when: When = "all_completed"
    kind: NodeKindName = "task"
    map: MapView | None = None
    compensation: State | None = None
    workflow: InnerWorkflowView | None = None


class GraphView(msgspec.Struct, frozen=True):
    """All nodes in the order in which they were given, each with the names of its parents."""

    id: UUID
    name: str
    state: State
    nodes: list[GraphNode]


class BindingParent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A parent that has not ended, or whose end decided."""

    name: str
    state: State
    next_at: Instant | None = None


class WaitingFor(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a wait node waits for: a signal, who may send it, and until when; or only until when."""

    signal: str | None = None
    role: str | None = None
    until: Instant | None = None


class NodeExplanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a node stands where it does. `blocked_by` are the nodes at the beginning of all chains
    that lead to it which could move now. `waits_for`: of a wait that has begun. `workflow`: the one
    that it started."""

    id: UUID
    name: str
    state: State
    when: When
    detail: str
    parents: list[BindingParent]
    blocked_by: list[BindingParent]
    waits_for: WaitingFor | None = None
    workflow: InnerWorkflowView | None = None


class WorkflowExplanation(msgspec.Struct, frozen=True):
    """Of one node, or of the first nodes that have not ended: those that wait for a signal or their
    time, then the others."""

    id: UUID
    state: State
    nodes: list[NodeExplanation]


class ParentView(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a parent ended, with its result."""

    state: State
    result: msgspec.Raw | None = None


class NamedParent(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    state: State
    result: msgspec.Raw | None = None


class WorkflowPage(Page[WorkflowView], frozen=True):
    """A filter looks at 20,000 workflows at most, and goes on at `next_cursor`."""


class WorkflowListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    state: Literal["RUNNING", "COMPLETED", "FAILED", "CANCELLED"] | None = None
    name: TypeName | None = None
    tag: (
        Annotated[str, Meta(pattern="^[^:]+:", max_length=400, description="name:value")] | None
    ) = None
    created_after: Instant | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class WorkflowNodesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """With `map`, the items of that map instead of the graph. A state looks at 20,000 items at
    most, and goes on at `next_cursor`."""

    map: NodeName | None = None
    state: State | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class ParentsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    limit: Limit = 50
    cursor: Cursor | None = None


class ExplainQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    node: NodeName | None = None


class WorkflowWaitQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    timeout_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX)] = 20.0


def compensation_view(workflow: Workflow) -> CompensationView | None:
    found = workflow.compensation
    if found is None:
        return None
    return CompensationView(
        state=found.state,
        started_at=found.started_at,
        completed=found.completed,
        failed=found.failed,
    )


def workflow_view(workflow: Workflow) -> WorkflowView:
    return WorkflowView(
        id=workflow.id,
        name=workflow.name,
        state=workflow.state,
        nodes=workflow.nodes,
        edges=workflow.edges,
        counts=NodeCounts(**workflow.counts),
        created_at=workflow.created_at,
        on_failure=workflow.on_failure,
        type=workflow.type,
        resumed_from=workflow.resumed_from,
        parent=parent_view(workflow),
        paused_at=workflow.paused_at if workflow.ended_at is None else None,
        paused_by=workflow.paused_by if workflow.ended_at is None else None,
        ended_at=workflow.ended_at,
        deadline_at=workflow.deadline_at,
        stop_reason=workflow.stop_reason,
        tags=workflow.tags,
        compensation=compensation_view(workflow),
    )


def parent_view(workflow: Workflow) -> AroundView | None:
    node = workflow.parent_node
    if node is None or workflow.parent_name is None:
        return None
    return AroundView(workflow_of(node), workflow.parent_name)


def inner_view(node: WorkflowNode) -> InnerWorkflowView | None:
    return None if node.inside is None else InnerWorkflowView(*node.inside)


def when_of(node: WorkflowNode) -> When:
    when: When = node.rule.name.lower()  # type: ignore[assignment]
    return when


def kind_of(node: WorkflowNode) -> NodeKindName:
    kind: NodeKindName = node.spec.kind.name.lower()  # type: ignore[assignment]
    return kind


def node_view(node: WorkflowNode) -> WorkflowNodeView:
    return WorkflowNodeView(
        id=node.id,
        name=node.name,
        state=node.state,
        type=node.type,
        when=when_of(node),
        kind=kind_of(node),
        parents=len(node.parents),
        parents_pending=None if has_items(node) else node.parents_pending,
        delay_s=node.delay_s,
        next_at=node.due_at or node.until,
        started_at=node.started_at,
        finished_at=node.ended_at,
        reason=node.reason,
        source=node.source,
        map=map_view(node),
        index=node.map_index,
        compensates=node.compensates,
        workflow=inner_view(node),
    )


def has_items(node: WorkflowNode) -> bool:
    """Whether it counts what is inside it instead of its parents."""
    return node.map is not None or node.inside is not None


def map_view(node: WorkflowNode) -> MapView | None:
    found = node.map
    if found is None:
        return None
    return MapView(
        items=found.total,
        made=found.made,
        open=found.open,
        completed=found.completed,
        failed=found.failed,
        cancelled=found.cancelled,
        tolerated=found.failed_max,
    )
