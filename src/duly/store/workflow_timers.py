"""Workflow timers: what workflows have to do without a caller, and when; no dispatch leases them.

Each is done in the transaction that deletes it (`workflow_control.run_timer`).
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from duly.domain.ids import shard_of
from duly.store.database import Database, Session
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
# Timers that one look finds.
TIMERS_AT_ONCE = 100


class TimerKind(StrEnum):
    """What `workflow_timers` are for."""

    DEADLINE = "deadline"
    CANCEL = "cancel"
    CASCADE = "cascade"
    CALLBACK = "callback"
    STEP = "step"
    MAP = "map"
    WAIT = "wait"
    COMPENSATE = "compensate"
    # Of a workflow within it: whether that has ended; and of that one, to stop with what is around.
    CHILD = "child"
    STOP = "stop"
    RESUME = "resume"
    NEXT = "next"


class WorkflowTimer(NamedTuple):
    """Something that a workflow has to do, in `wait_s`; the fence tells a repeated one from a new
    one."""

    shard: int
    tenant: int
    workflow: UUID
    kind: str
    node: int
    fence: int
    cursor: str | None
    due_at: datetime
    wait_s: float


async def arm(
    session: Session,
    tenant: int,
    workflow_id: UUID,
    kind: TimerKind,
    *,
    node: int = 0,
    in_s: float | None = 0.0,
    at: datetime | None = None,
    cursor: str | None = None,
) -> None:
    """In so many seconds, or at an instant, or (`in_s=None`) never: then it only says what is
    waited for. One that is armed already comes at the earlier one."""
    shard = shard_of(workflow_id)
    await session.fetch(SQL.arm, shard, tenant, workflow_id, kind.value, node, in_s, cursor, at)


async def find_due_timers(
    database: Database, shards: Sequence[int], ahead_s: float = 0.0
) -> list[WorkflowTimer]:
    rows = await database.fetch(SQL.find_due_timers, list(shards), TIMERS_AT_ONCE, ahead_s)
    return [WorkflowTimer(*row) for row in rows]


async def take_timer(session: Session, timer: WorkflowTimer) -> bool:
    """False: done by another process, or armed anew since it was found."""
    key = timer.shard, timer.workflow, timer.kind, timer.node, timer.fence
    return bool(await session.fetch(SQL.take_timer, *key))


async def postpone_timer(
    database: Database, timer: WorkflowTimer, again_s: float, again_s_max: float
) -> None:
    """One that could not be done: the longer, the more often it was tried. Nothing happens to one
    that was done or armed anew since."""
    key = timer.shard, timer.workflow, timer.kind, timer.node, timer.fence
    await database.fetch(SQL.postpone_timer, *key, again_s, again_s_max)
