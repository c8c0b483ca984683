"""Wait nodes: for a signal, with a timeout or without one, or for a time.

| event | what happens |
|---|---|
| the time of a pure timer comes, or a timeout | its `wait` timer ends the node |
| a signal of its name was kept | it ends at once, with that |
| a signal comes while it waits | `workflow_signals` takes its timer, and ends it |
| a signal and its timeout come together | the lock decides: who takes the timer ends the node |
| the workflow is paused | time goes on; what the end of a wait releases is held |
| the node was cancelled | its timer finds no node, and nothing happens |
"""

from typing import Any

from duly.domain.ids import node_id_of, node_number, workflow_of
from duly.domain.node_spec import OnTimeout, WaitSpec
from duly.domain.states import FailureReason, Outcome, State
from duly.store.database import Session
from duly.store.finish import NodeEnd, Released, end_node
from duly.store.workflow_nodes import LiveNode, begin_node, read_live_node
from duly.store.workflow_signals import take_signal
from duly.store.workflow_timers import TimerKind, WorkflowTimer, arm

OVER = NodeEnd(Outcome.COMPLETED, State.COMPLETED)
TIMED_OUT = {
    OnTimeout.SKIP: NodeEnd(Outcome.SKIPPED, State.SKIPPED),
    OnTimeout.FAIL: NodeEnd(
        Outcome.EXPIRED, State.FAILED, FailureReason.EXPIRED, "no signal came in time"
    ),
    OnTimeout.CONTINUE: NodeEnd(
        Outcome.COMPLETED, State.COMPLETED, result='{"timed_out":true,"payload":null}'
    ),
}


async def begin_wait(session: Session, node: LiveNode, _row: Any, released: Released) -> None:
    """From its step. Its timer is there even where no time ends it: signals look for it."""
    wait = node.spec.wait
    assert wait is not None
    if not await begin_node(session, node):
        return
    if wait.signal is not None:
        result = await take_signal(session, node.id, wait)
        if result is not None:
            end = NodeEnd(Outcome.COMPLETED, State.COMPLETED, result=result)
            await end_node(session, node.id, end, released)
            return
    await arm(
        session,
        node.tenant,
        workflow_of(node.id),
        TimerKind.WAIT,
        node=node_number(node.id),
        in_s=wait.delay_s if wait.signal is None else wait.timeout_s,
        at=wait.until,
        cursor=wait.signal,
    )
    released.workflows.append(workflow_of(node.id))


async def run_wait(session: Session, timer: WorkflowTimer, row: Any, released: Released) -> None:
    """Its time has come, and no signal before that: under the lock of the workflow."""
    node = await read_live_node(session, node_id_of(timer.workflow, timer.node), timer.due_at)
    if node is None or row["stop_reason"] is not None:
        return
    assert node.spec.wait is not None
    await end_node(session, node.id, end_of(node.spec.wait), released)


def end_of(wait: WaitSpec) -> NodeEnd:
    return OVER if wait.signal is None else TIMED_OUT[wait.on_timeout]
