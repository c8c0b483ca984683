"""Pause and unpause of workflows. A pause is no gate: under the lock of the workflow, what was to
start is due at no instant any more, and whatever releases, retries or adds nodes holds them as
well.

| event | what happens |
|---|---|
| a node is leased while its workflow is paused | the row decides: it runs, or it is held |
| a running node fails, and is to be tried again | held, and tried again after the pause |
| a parent ends | its children are held, or skipped |
| a step comes due | it is put off until the pause ends |
| the deadline passes, a cancel comes | as without a pause |
"""

from uuid import UUID

from duly.domain.ids import NODE_NUMBER_MAX, node_id_of, shard_of
from duly.store.database import Session
from duly.store.finish import Released
from duly.store.statements import statements_beside
from duly.store.workflow_timers import TimerKind

SQL = statements_beside(__file__)
# Who paused a workflow of a schedule that waits for the end of the one before it.
QUEUE = "queue_one"
# What is put off while a workflow is paused; all else goes on.
PARKED = (TimerKind.STEP, TimerKind.MAP, TimerKind.COMPENSATE, TimerKind.RESUME)


async def pause_workflow(session: Session, tenant: int, workflow_id: UUID, by: str) -> bool:
    """False: it is paused, or has ended, or never was."""
    shard = shard_of(workflow_id)
    if not await session.fetch(SQL.pause, shard, workflow_id, tenant, by):
        return False
    await hold_nodes(session, tenant, workflow_id)
    return True


async def hold_nodes(session: Session, tenant: int, workflow_id: UUID) -> None:
    """Under the lock of the paused workflow: what is due of it, or will be, is held."""
    last = node_id_of(workflow_id, NODE_NUMBER_MAX)
    await session.fetch(SQL.hold_timers, shard_of(workflow_id), workflow_id, last, tenant)


async def unpause_workflow(
    session: Session, tenant: int, workflow_id: UUID, released: Released, by: str | None = None
) -> bool:
    """False: it is not paused (by that name), or has ended."""
    shard = shard_of(workflow_id)
    if not await session.fetch(SQL.unpause, shard, workflow_id, tenant, by):
        return False
    last = node_id_of(workflow_id, NODE_NUMBER_MAX)
    released.note(await session.fetch(SQL.release_timers, shard, workflow_id, last, tenant))
    if await session.fetch(SQL.unpark, shard, workflow_id, [kind.value for kind in PARKED]):
        released.workflows.append(workflow_id)
    return True


async def park(
    session: Session, shard: int, workflow_id: UUID, kind: str, node: int, fence: int
) -> None:
    """Under the lock of the paused workflow."""
    await session.fetch(SQL.park, shard, workflow_id, kind, node, fence)


async def queue_behind(session: Session, tenant: int, ahead: UUID, workflow_id: UUID) -> bool:
    """It waits for the end of the other one, unless that has ended."""
    rows = await session.fetch(SQL.queue_behind, shard_of(ahead), ahead, tenant, workflow_id)
    return bool(rows) and await pause_workflow(session, tenant, workflow_id, QUEUE)
