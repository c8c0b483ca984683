"""Steps: what happens when the parents of a node let it run, and it is no plain task.

`duly.release_children` (and the start, for nodes without parents) arms a `step` timer for such a
node instead of making it due. The step decides its `if` in Python, so that a hostile result decides
one node and fails nothing, and begins what the node is.

| event | what happens |
|---|---|
| its `if` does not hold | the node is skipped, and its children are told in the same commit |
| the workflow is being stopped | nothing: its cancel ends the node |
| the workflow is paused | `workflow_control` puts the step off until the pause ends |
| the node was cancelled meanwhile | nothing is left to do |
| killed before the commit | the timer is still there: the next process decides the same |
"""

from collections.abc import Awaitable, Callable
from typing import Any

from duly.domain.ids import node_id_of
from duly.domain.node_spec import NodeKind
from duly.domain.predicate import evaluate, nodes_named, parse_predicate
from duly.domain.states import Outcome, State
from duly.store.database import Session
from duly.store.finish import NodeEnd, Released, end_node
from duly.store.workflow_maps import begin_map
from duly.store.workflow_nodes import (
    LiveNode,
    read_live_node,
    read_named_parents,
    release_node,
)
from duly.store.workflow_timers import WorkflowTimer
from duly.store.workflow_waits import begin_wait

SKIPPED = NodeEnd(Outcome.SKIPPED, State.SKIPPED)
After = Callable[[], Awaitable[None]]
# With the row of its workflow, which is locked.
Begin = Callable[[Session, LiveNode, Any, Released], Awaitable[None]]
# The same for a node that starts a workflow, which is stored as any other; what follows its commit.
BeginInner = Callable[[Session, LiveNode, Any, Released], Awaitable[After | None]]
# What runs a node of each kind, once its `if` lets it. A kind to come has its own file with what
# begins it here, and what ends it (`end_node`) at its timers.
BEGINNINGS: dict[NodeKind, Begin] = {
    NodeKind.TASK: release_node,
    NodeKind.MAP: begin_map,
    NodeKind.WAIT: begin_wait,
}


async def run_step(
    session: Session, timer: WorkflowTimer, row: Any, released: Released, begin_inner: BeginInner
) -> After | None:
    """Under the lock of the workflow, whose row this is. Answers what follows the commit."""
    node = await read_live_node(session, node_id_of(timer.workflow, timer.node), timer.due_at)
    if node is None or row["stop_reason"] is not None:
        return None
    if not await is_wanted(session, node):
        await end_node(session, node.id, SKIPPED, released)
    elif node.spec.kind is NodeKind.WORKFLOW:
        return await begin_inner(session, node, row, released)
    else:
        await BEGINNINGS[node.spec.kind](session, node, row, released)
    return None


async def is_wanted(session: Session, node: LiveNode) -> bool:
    if node.spec.predicate is None:
        return True
    predicate = parse_predicate(node.spec.predicate)
    return evaluate(predicate, await read_named_parents(session, node.id, nodes_named(predicate)))
