"""Task control: cancel, reschedule, change the priority, run now.

| event | what happens |
|---|---|
| a lease lands while we cancel | neither half matches; asked again, it becomes a request |
| a release lands while we cancel | the same, and it ends at once |
| the task is running | cancel is requested; a move is refused as RUNNING |
| the task has ended | ALREADY_TERMINAL, or ALREADY_CANCELLED, which is no error |
| another tenant's task | UNKNOWN, exactly as one that never was |
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from duly.domain.ids import address_of, shard_of
from duly.domain.states import Outcome, State
from duly.events import NodesReleased, TaskEvents, TasksFinished
from duly.store.database import Session
from duly.store.finish import (
    Released,
    SettleAnswer,
    SettleStatus,
    finish_cancelled,
    told,
    unleased_end,
)
from duly.store.load import Hint, TimerQueue
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
# Each round is lost only to another change of the same task; losing this many means a live lock.
ROUNDS_MAX = 8


class ControlAnswer(StrEnum):
    CANCELLED = "cancelled"
    CANCEL_REQUESTED = "cancel_requested"
    ALREADY_CANCELLED = "already_cancelled"
    MOVED = "moved"
    RUNNING = "running"
    WAITING = "waiting"
    ALREADY_TERMINAL = "already_terminal"
    UNKNOWN = "unknown"
    CONTENDED = "contended"


@dataclass(frozen=True, slots=True)
class TimerChange:
    """A new instant (`run_at`, else `delay_s`), a new priority, or both."""

    id: UUID
    run_at: datetime | None = None
    delay_s: float | None = None
    priority: int | None = None

    @property
    def keeps_due(self) -> bool:
        return self.run_at is None and self.delay_s is None


def run_now(task_id: UUID) -> TimerChange:
    return TimerChange(task_id, delay_s=0.0)


async def cancel_tasks(
    session: Session, tenant: int, ids: Sequence[UUID], released: Released | None = None
) -> dict[UUID, ControlAnswer]:
    """`released` learns what the end of workflow nodes set free, to be told after the commit."""
    freed = Released() if released is None else released

    async def change(remaining: list[UUID]) -> dict[UUID, ControlAnswer]:
        ended = await finish_cancelled(session, tenant, remaining, freed)
        return {task_id: ControlAnswer(answer) for task_id, answer in ended.items()}

    return await in_rounds(session, tenant, ids, change, cancel_refusal)


def ended_by_cancel(answers: Mapping[UUID, ControlAnswer]) -> list[UUID]:
    """The tasks that a cancel ended; a leased one is only asked to end."""
    return [i for i, answer in answers.items() if answer is ControlAnswer.CANCELLED]


def cancelled_tasks(
    tenant: int, ids: Sequence[UUID], released: Released | None = None
) -> TasksFinished:
    """To be published after the commit."""
    answer = SettleAnswer(SettleStatus.SETTLED, State.CANCELLED, tenant=tenant)
    ended = [unleased_end(task_id, Outcome.CANCELLED) for task_id in ids]
    answers = [answer] * len(ended)
    if answers and released is not None:
        answers[0] = told(answer, released)
    return TasksFinished(ended, answers)


def publish_released(events: TaskEvents, tenant: int, released: Released) -> None:
    """After the commit of a transaction that ended nodes of workflows, released or began them."""
    for event in released_event(tenant, released):
        events.publish(event)


def released_event(tenant: int, released: Released) -> list[TasksFinished | NodesReleased]:
    """What that commit is told by: nothing, if it did none of that."""
    ends = [unleased_end(node_id, end.outcome) for node_id, end in released.ended]
    ends += [unleased_end(node_id, Outcome.CANCELLED) for node_id in released.cancelled]
    answers = [
        SettleAnswer(
            SettleStatus.SETTLED,
            end.state,
            tenant=tenant,
            reason=None if end.reason is None else end.reason.value,
        )
        for _, end in released.ended
    ]
    answers += [SettleAnswer(SettleStatus.SETTLED, State.CANCELLED, tenant=tenant)] * len(
        released.cancelled
    )
    if ends:
        answers[0] = told(answers[0], released)
        return [TasksFinished(ends, answers)]
    if released.timers or released.workflows:
        return [NodesReleased(tuple(released.timers), tuple(released.workflows))]
    return []


async def reschedule_tasks(
    session: Session, tenant: int, moves: Sequence[TimerChange], hints: list[Hint] | None = None
) -> dict[UUID, ControlAnswer]:
    """`hints` collects the new due times for the doorbell after the commit."""
    wanted = {move.id: move for move in moves}

    async def change(remaining: list[UUID]) -> dict[UUID, ControlAnswer]:
        asked = reschedule_columns([wanted[task_id] for task_id in remaining])
        rows = await session.fetch(SQL.reschedule_tasks, tenant, *asked)
        if hints is not None:
            hints.extend((TimerQueue(*row[1:4]), row["due_at"]) for row in rows)
        return {row["id"]: ControlAnswer.MOVED for row in rows}

    return await in_rounds(session, tenant, list(wanted), change, reschedule_refusal)


async def in_rounds(
    session: Session,
    tenant: int,
    ids: Sequence[UUID],
    change: Callable[[list[UUID]], Awaitable[dict[UUID, ControlAnswer]]],
    refusal: Callable[[Any], ControlAnswer | None],
) -> dict[UUID, ControlAnswer]:
    """Apply the change, classify what did not change, and repeat for those that lost a race."""
    answers: dict[UUID, ControlAnswer] = {}
    remaining = sorted(set(ids), key=address_of)
    for _ in range(ROUNDS_MAX):
        answers |= await change(remaining)
        remaining = [task_id for task_id in remaining if task_id not in answers]
        if remaining:
            rows = await session.fetch(SQL.classify_tasks, tenant, *address_columns(remaining))
            refusals = {row["id"]: refusal(row) for row in rows}
            answers |= {task_id: why for task_id, why in refusals.items() if why is not None}
            remaining = [task_id for task_id in remaining if task_id not in answers]
        if not remaining:
            break
    return answers | dict.fromkeys(remaining, ControlAnswer.CONTENDED)


def cancel_refusal(row: Any) -> ControlAnswer | None:
    """None: still live, so the change lost a race and is worth another round."""
    if row["is_live"]:
        return None
    if not row["is_known"]:
        return ControlAnswer.UNKNOWN
    is_cancelled = row["final_state"] == State.CANCELLED
    return ControlAnswer.ALREADY_CANCELLED if is_cancelled else ControlAnswer.ALREADY_TERMINAL


def reschedule_refusal(row: Any) -> ControlAnswer | None:
    if row["is_held"]:
        return ControlAnswer.RUNNING
    if row["is_waiting"]:
        return ControlAnswer.WAITING
    if row["is_live"]:
        return None
    return ControlAnswer.ALREADY_TERMINAL if row["is_known"] else ControlAnswer.UNKNOWN


def address_columns(ids: Sequence[UUID]) -> tuple[list[int], list[UUID]]:
    return [shard_of(task_id) for task_id in ids], list(ids)


def reschedule_columns(moves: list[TimerChange]) -> list[list[Any]]:
    shards, ids = address_columns([move.id for move in moves])
    return [
        shards,
        ids,
        [move.keeps_due for move in moves],
        [move.run_at for move in moves],
        [move.delay_s or 0.0 for move in moves],
        [move.priority for move in moves],
    ]
