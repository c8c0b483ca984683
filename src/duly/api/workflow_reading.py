"""What a workflow's rows say about it: pages of nodes, graph, critical path, explanations."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from duly.api.workflow_wire import (
    BindingParent,
    GraphNode,
    GraphView,
    NodeExplanation,
    WaitingFor,
    WorkflowExplanation,
    WorkflowView,
    inner_view,
    kind_of,
    map_view,
    when_of,
    workflow_view,
)
from duly.domain.node_spec import OnTimeout, WaitSpec
from duly.domain.states import TERMINAL, State
from duly.domain.workflow import NODES_MAX, NodeTime, WaitRule, critical_path
from duly.store.database import Session
from duly.store.map_standing import MapStanding
from duly.store.workflow_compensations import read_not_undone, read_undone
from duly.store.workflow_signals import SENDERS
from duly.store.workflows import (
    SEARCHED_MAX,
    InnerWorkflow,
    Workflow,
    WorkflowNode,
    read_items,
    read_nodes,
)

# Nodes that one statement reads; between two, other calls have their turn.
STRETCH = 1000
# Larger workflows are read without critical path and estimate.
ESTIMATED_NODES_MAX = 1000
EXPLAINED_MAX = 20
PARENTS_NAMED_MAX = 20
BLOCKERS_MAX = 20

RULE_WORDS = {
    WaitRule.ALL_COMPLETED: "all parents to complete",
    WaitRule.NONE_FAILED: "all parents to complete or be skipped",
    WaitRule.ALL_DONE: "all parents to end",
    WaitRule.ANY_COMPLETED: "a parent to complete",
    WaitRule.ANY_FAILED: "a parent to fail",
}
TIMEOUT_WORDS = {
    OnTimeout.SKIP: "is skipped",
    OnTimeout.FAIL: "fails",
    OnTimeout.CONTINUE: "completes without it",
}


@dataclass(frozen=True)
class WorkflowReading:
    session: Session
    workflow: Workflow

    async def stretch(self, after: int, limit: int = STRETCH) -> list[WorkflowNode]:
        workflow = self.workflow
        return await read_nodes(self.session, workflow.tenant, workflow.id, after, limit)

    async def all_nodes(self) -> list[WorkflowNode]:
        """Of the graph."""
        nodes: list[WorkflowNode] = []
        last = self.workflow.nodes - self.workflow.generated
        while len(nodes) < last:
            after = nodes[-1].number if nodes else 0
            found = await self.stretch(after, min(STRETCH, last - after))
            nodes += found
            if not found:
                break
        return nodes

    async def page(
        self, after: int, limit: int, state: State | None
    ) -> tuple[list[WorkflowNode], str | None]:
        """Of the graph, and of what undoes it: full, or the last; a state is looked for until the
        page is full."""
        kept: list[WorkflowNode] = []
        asked = limit if state is None else STRETCH
        while True:
            found = await self.stretch(after, asked)
            for node in found:
                if state is None or node.state is state:
                    kept.append(node)
                if len(kept) == limit:
                    graph = self.workflow.nodes - self.workflow.generated
                    is_end = node.number >= graph and not self.workflow.generated
                    return kept, None if is_end else str(node.number)
            if len(found) < asked:
                return kept, None
            after = found[-1].number

    async def items(
        self, map_node: WorkflowNode, after: int, limit: int, state: State | None
    ) -> tuple[list[WorkflowNode], str | None]:
        """Of one map: full, or the last, or as far as a bounded search for a state went."""
        kept: list[WorkflowNode] = []
        asked = limit if state is None else STRETCH
        for _ in range(SEARCHED_MAX // STRETCH):
            tenant, map_id = self.workflow.tenant, map_node.source or map_node.id
            found = await read_items(self.session, tenant, map_id, after, asked)
            for node in found:
                after = node.number
                if state is None or node.state is state:
                    kept.append(node)
                if len(kept) == limit:
                    return kept, str(after)
            if len(found) < asked:
                return kept, None
        return kept, str(after)

    async def named(self, name: str) -> WorkflowNode | None:
        return next((node for node in await self.all_nodes() if node.name == name), None)

    async def graph(self) -> GraphView:
        nodes = await self.all_nodes()
        names = {node.number: node.name for node in nodes}
        workflow = self.workflow
        undone: dict[int, State] = {}
        if workflow.compensation is not None:
            undone = await read_undone(self.session, workflow.tenant, workflow.id)
        views: list[GraphNode] = []
        for some in stretches(nodes):
            await asyncio.sleep(0)
            views += [graph_node(node, names, undone.get(node.number)) for node in some]
        return GraphView(workflow.id, workflow.name, workflow.state, views)

    async def estimated(self) -> WorkflowView:
        view = await self.with_not_undone(workflow_view(self.workflow))
        if self.workflow.nodes - self.workflow.generated > ESTIMATED_NODES_MAX:
            return view
        nodes = await self.all_nodes()
        times = node_times(nodes)
        path, left_s = critical_path(times)
        names = {node.number: node.name for node in nodes}
        is_live = self.workflow.ended_at is None and self.workflow.compensation is None
        is_known = is_live and all(
            time.ended_s is not None or time.remaining_s > 0 for time in times.values()
        )
        estimate = self.workflow.now + timedelta(seconds=left_s) if is_known else None
        critical = [names[number] for number in path]
        return msgspec.structs.replace(view, critical_path=critical, estimate_at=estimate)

    async def with_not_undone(self, view: WorkflowView) -> WorkflowView:
        """Of one that has ended, the names of what stays done."""
        found = view.compensation
        if found is None or found.state not in (State.FAILED, State.CANCELLED):
            return view
        names = await read_not_undone(
            *(self.session, self.workflow.tenant, self.workflow.id, self.workflow.generated),
            is_cancelled=found.state is State.CANCELLED,
        )
        named = msgspec.structs.replace(found, not_undone=names)
        return msgspec.structs.replace(view, compensation=named)

    async def explanation(self, name: str | None) -> WorkflowExplanation:
        found_nodes = await self.all_nodes()
        if self.workflow.compensation is not None:
            found_nodes += await self.stretch(NODES_MAX)
        nodes = {node.number: node for node in found_nodes}
        asked = [
            node
            for node in nodes.values()
            if (node.state not in TERMINAL if name is None else node.name == name)
        ]
        asked.sort(key=lambda node: waiting_for(node) is None)
        found = [self.explain(node, nodes) for node in asked[:EXPLAINED_MAX]]
        return WorkflowExplanation(self.workflow.id, self.workflow.state, found)

    def explain(self, node: WorkflowNode, nodes: dict[int, WorkflowNode]) -> NodeExplanation:
        parents = [nodes[number] for number in node.parents if number in nodes]
        is_waiting = node.state is State.WAITING and node.held_due_at is None
        binding = (
            [each for each in parents if each.state not in TERMINAL] if is_waiting else parents
        )
        return NodeExplanation(
            id=node.id,
            name=node.name,
            state=node.state,
            when=when_of(node),
            detail=self.detail(node, len(binding)),
            waits_for=waiting_for(node),
            workflow=inner_view(node),
            parents=[binding_parent(each) for each in binding[:PARENTS_NAMED_MAX]],
            blocked_by=[binding_parent(each) for each in blockers(node, nodes)],
        )

    async def waiting_words(self, number: int) -> str | None:
        """What a node that has not ended waits for, without a look at the others."""
        if number > NODES_MAX and self.workflow.paused_at is not None:
            return f"is held: its workflow was paused by {self.workflow.paused_by}"
        found = await self.stretch(number - 1, 1)
        if not found or found[0].number != number or found[0].state in TERMINAL:
            return None
        return self.detail(found[0], found[0].parents_pending or 0)

    def detail(self, node: WorkflowNode, binding: int) -> str:
        if node.compensates is not None and node.state not in TERMINAL:
            return self.undoing_detail(node)
        match node.state:
            case State.WAITING if self.workflow.stop_reason is not None:
                return f"its workflow is being stopped ({self.workflow.stop_reason})"
            case State.WAITING if node.held_due_at is not None:
                return f"is held: its workflow was paused by {self.workflow.paused_by}"
            case State.WAITING if node.has_begun and node.spec.wait is not None:
                return f"waits for {wait_words(node.spec.wait, node.until)}"
            case State.WAITING if node.parents_pending is None:
                return "its parents let it run; what it then does is being decided"
            case State.WAITING:
                return f"waits for {RULE_WORDS[node.rule]}: {binding} have not ended"
            case State.SKIPPED if node.spec.is_step and node.started_at is not None:
                return "was skipped when the time to wait was over"
            case State.SKIPPED if node.spec.predicate is not None:
                return "was skipped: its `if` did not hold, or its parents did not let it run"
            case State.SKIPPED:
                return f"was to wait for {RULE_WORDS[node.rule]}, which can no longer be"
            case State.SCHEDULED:
                return "is due at next_at; GET /v1/tasks/{id}/explain says more"
            case State.RUNNING if node.map is not None:
                return map_detail(node.map)
            case State.RUNNING if node.inside is not None:
                return inside_detail(node.inside)
            case State.READY | State.RUNNING:
                return "its parents let it run; GET /v1/tasks/{id}/explain says more"
            case _:
                return "has ended"

    def undoing_detail(self, node: WorkflowNode) -> str:
        if node.held_due_at is not None:
            then = f"is held: its workflow was paused by {self.workflow.paused_by}"
        elif node.state is State.WAITING:
            then = "once what is undone before it has ended"
        else:
            then = "GET /v1/tasks/{id}/explain says more"
        return f"undoes {node.compensates}: {then}"


def stretches(nodes: Sequence[WorkflowNode]) -> Iterator[Sequence[WorkflowNode]]:
    return (nodes[at : at + STRETCH] for at in range(0, len(nodes), STRETCH))


def graph_node(node: WorkflowNode, names: Mapping[int, str], undone: State | None) -> GraphNode:
    after = [names[number] for number in node.parents]
    kinds = kind_of(node), map_view(node), undone, inner_view(node)
    return GraphNode(node.name, node.state, after, when_of(node), *kinds)


def waiting_for(node: WorkflowNode) -> WaitingFor | None:
    wait = node.spec.wait
    if wait is None or not node.has_begun:
        return None
    role = None if wait.signal is None else wait.role.value
    return WaitingFor(wait.signal, role, node.until)


def wait_words(wait: WaitSpec, until: datetime | None) -> str:
    """What a node waits for that has begun to."""
    instant = "" if until is None else f" until {until.isoformat()}"
    if wait.signal is None:
        return f"its time{instant}"
    roles = " or ".join(sorted(SENDERS[wait.role]))
    after = f", then it {TIMEOUT_WORDS[wait.on_timeout]}" if instant else ""
    return f"the signal {wait.signal} from the role {roles}{instant}{after}"


def inside_detail(inside: InnerWorkflow) -> str:
    """`RUNNING`, or what it ended as, which is told in a moment."""
    more = f"GET /v1/workflows/{inside.id}/explain says more"
    return f"ends with the workflow {inside.name} ({inside.id}), which is {inside.state}; {more}"


def map_detail(found: MapStanding) -> str:
    if found.detail is not None:
        return f"fails when its {found.open} open items have ended: {found.detail}"
    of = "the items that its parent hands over" if found.total is None else f"{found.total} items"
    told = f"has made {found.made} of {of}: {found.open} are open, {found.failed} failed"
    return told if found.failed_max is None else f"{told}, and {found.failed_max} may"


def blockers(node: WorkflowNode, nodes: dict[int, WorkflowNode]) -> list[WorkflowNode]:
    """Where the chains of unfinished parents begin: what has to move for this node to move."""
    if node.state is not State.WAITING:
        return []
    found: list[WorkflowNode] = []
    seen = {node.number}
    stack = list(node.parents)
    while stack and len(found) < BLOCKERS_MAX:
        number = stack.pop()
        if number in seen or number not in nodes:
            continue
        seen.add(number)
        parent = nodes[number]
        if parent.state is State.WAITING and parent.parents_pending is not None:
            stack += parent.parents
        elif parent.state not in TERMINAL:
            found.append(parent)
    return found


def binding_parent(node: WorkflowNode) -> BindingParent:
    return BindingParent(node.name, node.state, node.due_at or node.until)


def node_times(nodes: Sequence[WorkflowNode]) -> dict[int, NodeTime]:
    """What ended counts as it was, what did not as its type usually takes in this workflow."""
    usual = dict(mean_run_s(nodes))
    return {node.number: node_time(node, usual_s(node, usual)) for node in nodes}


def usual_s(node: WorkflowNode, usual: Mapping[str, float]) -> float:
    """How long a node takes in all, as far as is known: a map, as its items have ended so far."""
    if node.spec.map is None:
        return usual.get(node.type or "", 0.0)
    found = node.map
    if found is None or not found.total or node.started_at is None:
        return 0.0
    ended = found.completed + found.failed + found.cancelled
    return -seconds_from(node.now, node.started_at) * found.total / ended if ended else 0.0


def mean_run_s(nodes: Sequence[WorkflowNode]) -> Iterator[tuple[str, float]]:
    times: dict[str, list[float]] = {}
    for node in nodes:
        is_task = node.type is not None and node.map is None
        if node.state is State.COMPLETED and node.started_at and node.ended_at and is_task:
            run_s = (node.ended_at - node.started_at).total_seconds()
            times.setdefault(node.type or "", []).append(max(run_s, 0.001))
    for kind, found in times.items():
        yield kind, sum(found) / len(found)


def node_time(node: WorkflowNode, takes_s: float) -> NodeTime:
    if node.state in TERMINAL:
        return NodeTime(node.parents, seconds_from(node.now, node.ended_at), 0.0)
    ran_s = -seconds_from(node.now, node.started_at) if node.state is State.RUNNING else 0.0
    if node.spec.wait is not None:
        return NodeTime(node.parents, None, wait_s(node, node.spec.wait))
    until_s = (
        max(seconds_from(node.now, node.due_at), 0.0) if node.state is State.SCHEDULED else 0.0
    )
    left_s = max(takes_s - ran_s, 0.0) if takes_s else 0.0
    # Something is left as long as it has not ended, or nothing is known.
    left_s = max(left_s, 0.001) if takes_s else 0.0
    delay_s = node.delay_s if node.state is State.WAITING else 0.0
    return NodeTime(node.parents, None, left_s + (delay_s + until_s if takes_s else 0.0))


def wait_s(node: WorkflowNode, wait: WaitSpec) -> float:
    """The longest that it may take; 0.0 where a signal without a timeout decides."""
    if node.until is not None or wait.until is not None:
        return max(seconds_from(node.now, node.until or wait.until), 0.001)
    known_s = wait.timeout_s if wait.delay_s is None else wait.delay_s
    return 0.0 if known_s is None else max(node.delay_s + known_s, 0.001)


def seconds_from(now: datetime, instant: datetime | None) -> float:
    return 0.0 if instant is None else (instant - now).total_seconds()
