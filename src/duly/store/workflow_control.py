"""Changes of whole workflows: cancel, deadline, and what is left to `workflow_timers`.

| event | what happens |
|---|---|
| a node ends while its workflow is stopped | the lock decides which is first; nothing is released |
| more nodes than one commit cancels | a timer goes on after the last one that was looked at |
| killed between two batches of a cancel | the timer is still there: the next process goes on |
| two processes do the same timer | the first deletes it in its commit; the second does nothing |
| between two of its nodes that undo others | a cancel ends it at once |
| a workflow inside it lives as it is stopped | that one is asked to stop, and its node waits |
| a step comes due while its workflow is paused | it is put off until the pause ends |
| the deadline passes as the last node ends | the end deletes the timer: one of the two happened |
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from duly.domain.ids import NODE_NUMBER_MAX, node_id_of, shard_of
from duly.domain.workflow import Compensation, WorkflowStop
from duly.store.control import cancel_tasks, ended_by_cancel
from duly.store.database import Database, Session
from duly.store.finish import Released
from duly.store.statements import statements_beside
from duly.store.subworkflows import run_child
from duly.store.workflow_compensations import (
    compensation_from,
    end_compensated,
    run_compensation,
)
from duly.store.workflow_maps import run_map
from duly.store.workflow_nodes import lock_workflow
from duly.store.workflow_pauses import PARKED, QUEUE, park, unpause_workflow
from duly.store.workflow_steps import BeginInner, run_step
from duly.store.workflow_timers import TimerKind, WorkflowTimer, arm, take_timer
from duly.store.workflow_waits import run_wait

SQL = statements_beside(__file__)
# Nodes that one commit cancels.
CANCELLED_AT_ONCE = 1000

# Stores the task that tells of a workflow's end, in this transaction; what follows its commit.
CallBack = Callable[[Session, "EndedWorkflow"], Awaitable[Callable[[], Awaitable[None]]]]


@dataclass(frozen=True, slots=True)
class EndedWorkflow:
    """What a callback tells."""

    id: UUID
    tenant: int
    name: str
    state: str
    counts: dict[str, int]
    callback: str
    generated: int = 0
    compensation: Compensation | None = None


async def stop_workflow(
    session: Session, tenant: int, workflow_id: UUID, reason: WorkflowStop, released: Released
) -> bool:
    """Nothing is released from now on; unleased nodes are cancelled, and leased ones asked to
    end: a first batch here, the rest by a timer. False: it has ended, or never was."""
    rows = await session.fetch(SQL.stop, shard_of(workflow_id), workflow_id, tenant, reason.value)
    if not rows:
        return False
    if rows[0]["live"]:
        await cancel_nodes(session, tenant, workflow_id, workflow_id, released)
    else:
        await end_compensated(session, workflow_id, released)
    return True


async def cancel_nodes(
    session: Session, tenant: int, workflow_id: UUID, after: UUID, released: Released
) -> None:
    """The next batch of live nodes; under the lock of the workflow."""
    shard, last = shard_of(workflow_id), node_id_of(workflow_id, NODE_NUMBER_MAX)
    rows = await session.fetch(SQL.list_live, shard, after, last, tenant, CANCELLED_AT_ONCE)
    ids = [row["id"] for row in rows]
    if not ids:
        return
    answers = await cancel_tasks(session, tenant, ids, released)
    released.cancelled += ended_by_cancel(answers)
    if len(ids) == CANCELLED_AT_ONCE:
        cursor = str(ids[-1])
        await arm(session, tenant, workflow_id, TimerKind.CANCEL, cursor=cursor)
        released.workflows.append(workflow_id)


async def no_inner(*_: object) -> None:
    raise AssertionError("no workflow within a workflow was asked for")


async def run_timer(
    database: Database,
    timer: WorkflowTimer,
    call_back: CallBack,
    begin_inner: BeginInner = no_inner,
) -> tuple[Released, Callable[[], Awaitable[None]] | None]:
    """One commit: the timer goes, and what it was for is done. Answers what follows."""
    released = Released()
    after = None
    async with database.transaction() as session:
        row = await lock_workflow(session, timer.workflow)
        if row is not None and row["paused_at"] is not None and timer.kind in PARKED:
            key = timer.shard, timer.workflow, timer.kind, timer.node, timer.fence
            await park(session, *key)
            return released, None
        if await take_timer(session, timer) and row is not None:
            after = await do(session, timer, row, released, call_back, begin_inner)
    return released, after


async def do(
    session: Session,
    timer: WorkflowTimer,
    row: Any,
    released: Released,
    call_back: CallBack,
    begin_inner: BeginInner,
) -> Callable[[], Awaitable[None]] | None:
    match TimerKind(timer.kind):
        case TimerKind.CALLBACK:
            return await call_back(session, ended_from(row))
        case TimerKind.DEADLINE:
            reason = WorkflowStop.DEADLINE
            await stop_workflow(session, timer.tenant, timer.workflow, reason, released)
        case TimerKind.CANCEL:
            after = timer.workflow if timer.cursor is None else UUID(timer.cursor)
            await cancel_nodes(session, timer.tenant, timer.workflow, after, released)
        case TimerKind.CASCADE:
            assert timer.cursor is not None
            skipped = [node_id_of(timer.workflow, int(n)) for n in timer.cursor.split()]
            released.note(await session.fetch(SQL.cascade, skipped))
        case TimerKind.STEP:
            return await run_step(session, timer, row, released, begin_inner)
        case TimerKind.MAP:
            await run_map(session, timer, row, released)
        case TimerKind.CHILD:
            await run_child(session, timer, released)
        case TimerKind.STOP:
            reason = WorkflowStop.CANCELLED
            await stop_workflow(session, timer.tenant, timer.workflow, reason, released)
        case TimerKind.WAIT:
            await run_wait(session, timer, row, released)
        case TimerKind.COMPENSATE:
            await run_compensation(session, timer, row, released)
        case TimerKind.NEXT:
            # It waits for this end, unless its owner has paused or unpaused it since.
            following = row["next_workflow"]
            await unpause_workflow(session, timer.tenant, following, released, QUEUE)
        case kind:
            raise AssertionError(f"nothing is known to be done for {kind}")
    return None


def ended_from(row: Any) -> EndedWorkflow:
    names = ("completed", "failed", "skipped", "cancelled")
    return EndedWorkflow(
        id=row["id"],
        tenant=row["tenant"],
        name=row["name"],
        state=row["state"],
        counts={name: row[name] for name in names},
        callback=row["callback"],
        generated=row["generated"],
        compensation=compensation_from(row),
    )
