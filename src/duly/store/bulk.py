"""Bulk operations: one action on all that a filter matches, in batches at a rate, kept in a table.

A batch is one commit: a few moves by `control`, `dead_letters` or `purge`, and their count.

| event | what happens |
|---|---|
| killed within a batch | it is rolled back; the next process does it, from the same position |
| killed between two batches | the row says where to go on |
| two processes find one batch | the first locks the row; the second passes it by |
| stopped while a batch runs | the stop waits for its commit; no batch follows |
| tasks are submitted, letters fail meanwhile | newer than the operation: not matched |
| a task changes its state or instant | walked by address, so it is met once |
| a batch fails | nothing of it happened; again after a pause, then FAILED |
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from duly.backoff import backoff_s
from duly.domain.errors import StatementRefused
from duly.domain.states import State
from duly.environment import CrashPoint, Environment
from duly.events import TasksRescheduled, TasksStored
from duly.store.audit import append_audit
from duly.store.bulk_workflows import (
    WORKFLOWS_AT_ONCE,
    ChangedWorkflows,
    cancel_workflows,
    pause_workflows,
    resume_workflows,
    unpause_workflows,
    walk_workflows,
)
from duly.store.control import (
    ControlAnswer,
    TimerChange,
    cancel_tasks,
    cancelled_tasks,
    ended_by_cancel,
    reschedule_tasks,
    run_now,
)
from duly.store.database import Database, Session
from duly.store.dead_letters import (
    END_OF_TIME,
    LAST_ID,
    LetterFilter,
    LetterSpan,
    replay_dead_letters,
    walk_dead_letters,
)
from duly.store.finish import Released
from duly.store.load import Hint
from duly.store.purge import purge_letters
from duly.store.read import PAGE_MAX, Filter, Task, walk_live_tasks
from duly.store.statements import statements_beside
from duly.store.workflows import WorkflowFilter

SQL = statements_beside(__file__)
# Of a tenant, without those that have ended.
LIVE_MAX = 20
# Counted before a start, and looked at for it: more than that is "has_more".
PREVIEWED_MAX = 1000
LOOKED_AT_MAX = 10_000
SAMPLE_MAX = 10
RATE_DEFAULT, RATE_MIN, RATE_MAX = 100.0, 0.01, 10_000.0
CANARY_MAX = 1_000_000
# What one batch changes: a second's worth of the rate, and no more than a page.
BATCH_S = 1.0
BATCH_MAX = PAGE_MAX
FAILURES_MAX = 8
RETRY_FIRST_S, RETRY_MAX_S = 1.0, 60.0
ERROR_CHARACTERS_MAX = 500
KEEP_S = 30 * 86400.0


class BulkAction(StrEnum):
    CANCEL = "cancel"
    REPLAY = "replay"
    RESCHEDULE = "reschedule"
    RUN_NOW = "run_now"
    PURGE = "purge"
    CANCEL_WORKFLOWS = "cancel_workflows"
    PAUSE_WORKFLOWS = "pause_workflows"
    UNPAUSE_WORKFLOWS = "unpause_workflows"
    RESUME_WORKFLOWS = "resume_workflows"

    @property
    def is_of_letters(self) -> bool:
        return self in (BulkAction.REPLAY, BulkAction.PURGE)

    @property
    def is_of_workflows(self) -> bool:
        return self in WORKFLOW_CHANGES


class BulkState(StrEnum):
    RUNNING = "RUNNING"
    PAUSED_AFTER_CANARY = "PAUSED_AFTER_CANARY"
    DONE = "DONE"
    STOPPED = "STOPPED"
    FAILED = "FAILED"


class BulkFilter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Unfinished tasks by the first five fields; dead letters by type, tag and the next three;
    workflows by state, name, tag and created_after. `tag` is `name:value`."""

    state: State | None = None
    type: str | None = None
    tag: str | None = None
    created_after: datetime | None = None
    run_before: datetime | None = None
    reason: str | None = None
    fingerprint: str | None = None
    replayed: bool | None = None
    name: str | None = None

    @property
    def tag_pair(self) -> tuple[str, str] | None:
        if self.tag is None:
            return None
        name, _, value = self.tag.partition(":")
        return name, value

    def of_tasks(self) -> Filter:
        return Filter(self.state, self.type, self.tag_pair, self.created_after, self.run_before)

    def of_letters(self, action: BulkAction) -> LetterFilter:
        is_replayed = False if action is BulkAction.REPLAY else self.replayed
        return LetterFilter(self.type, self.reason, self.fingerprint, is_replayed)

    def of_workflows(self) -> WorkflowFilter:
        return WorkflowFilter(self.state, self.name, self.tag_pair, self.created_after)


class BulkItem(msgspec.Struct, frozen=True):
    """Of a workflow, `type` is its name."""

    id: UUID
    type: str


class BulkRequest(NamedTuple):
    """What is asked for; `delay_s` only of a reschedule."""

    action: BulkAction
    filter: BulkFilter
    rate_per_s: float = RATE_DEFAULT
    canary: int | None = None
    delay_s: float | None = None


@dataclass(frozen=True, slots=True)
class BulkPreview:
    """`has_more`: more match, or may match, than were counted."""

    matched: int
    has_more: bool
    sample: list[BulkItem]


@dataclass(frozen=True, slots=True)
class BulkRecord:
    """A row: the operation and how far it is."""

    tenant: int
    id: UUID
    action: BulkAction
    state: BulkState
    filter: BulkFilter
    delay_s: float | None
    rate_per_s: float
    canary: int | None
    matched: int
    has_more: bool
    done: int
    refused: int
    sample: list[BulkItem]
    actor: str
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None
    error: str | None
    epoch: int
    failures: int
    position: str | None

    @property
    def batch_size(self) -> int:
        most = WORKFLOWS_AT_ONCE if self.action.is_of_workflows else BATCH_MAX
        size = max(1, min(most, int(self.rate_per_s * BATCH_S)))
        if self.canary is None:
            return size
        return max(1, min(size, self.canary - self.done - self.refused))


class RunningBulk(NamedTuple):
    """As it was found; the epoch tells whether it still stands so."""

    tenant: int
    id: UUID
    epoch: int
    wait_s: float


class BulkMatches(NamedTuple):
    """A batch's worth of what matches, and where the next one starts; None at the end."""

    items: list[BulkItem]
    following: str | None


class BulkChanges(NamedTuple):
    done: int
    events: list[Any]


@dataclass(slots=True)
class BulkBatch:
    """What a batch did; `events` are published after its commit."""

    done: int = 0
    refused: int = 0
    state: BulkState = BulkState.RUNNING
    events: list[Any] = field(default_factory=list)


async def preview(session: Session, tenant: int, asked: BulkRequest) -> BulkPreview:
    """Counted up to a bound, without a change."""
    items: list[BulkItem] = []
    position: str | None = None
    looked_at = 0
    while len(items) <= PREVIEWED_MAX and looked_at < LOOKED_AT_MAX:
        found, searched = await find(session, tenant, asked, END_OF_TIME, position, BATCH_MAX)
        items += found.items
        looked_at += searched
        position = found.following
        if position is None:
            break
    has_more = position is not None or len(items) > PREVIEWED_MAX
    return BulkPreview(min(len(items), PREVIEWED_MAX), has_more, items[:SAMPLE_MAX])


async def create_operation(
    session: Session, environment: Environment, tenant: int, asked: BulkRequest, actor: str
) -> BulkRecord | None:
    """None: so many of the tenant's operations have not ended."""
    seen = await preview(session, tenant, asked)
    rows = await session.fetch(
        SQL.create_operation,
        tenant,
        UUID(int=environment.random.getrandbits(128), version=4),
        asked.action.value,
        msgspec.json.encode(asked.filter).decode(),
        asked.delay_s,
        asked.rate_per_s,
        asked.canary,
        seen.matched,
        seen.has_more,
        msgspec.json.encode(seen.sample).decode(),
        actor,
        LIVE_MAX,
    )
    return record_from(rows[0]) if rows else None


async def read_operation(session: Session, tenant: int, operation_id: UUID) -> BulkRecord | None:
    rows = await session.fetch(SQL.read_operation, tenant, operation_id)
    return record_from(rows[0]) if rows else None


async def list_operations(
    session: Session, tenant: int, cursor: str | None, limit: int
) -> tuple[list[BulkRecord], str | None]:
    """Newest first."""
    before = (END_OF_TIME, LAST_ID)
    if cursor is not None:
        instant, _, last = cursor.partition("~")
        before = (datetime.fromisoformat(instant), UUID(last))
    rows = await session.fetch(SQL.list_operations, tenant, *before, limit)
    found = [record_from(row) for row in rows]
    if len(found) < limit:
        return found, None
    return found, f"{found[-1].created_at.isoformat()}~{found[-1].id}"


async def stop_operation(session: Session, tenant: int, operation_id: UUID) -> bool:
    """False: it has ended, or never was."""
    return bool(await session.fetch(SQL.stop_operation, tenant, operation_id))


async def continue_operation(session: Session, tenant: int, operation_id: UUID) -> bool:
    """False: it is not paused after its canary."""
    return bool(await session.fetch(SQL.continue_operation, tenant, operation_id))


async def delete_old_operations(database: Database, limit: int) -> int:
    return len(await database.fetch(SQL.delete_old_operations, KEEP_S, limit))


async def find_running(database: Database, limit: int) -> list[RunningBulk]:
    return [RunningBulk(*row) for row in await database.fetch(SQL.find_running, limit)]


async def run_batch(
    database: Database, environment: Environment, due: RunningBulk
) -> BulkBatch | None:
    """One commit. None: another process has it, or it is not to go on."""
    try:
        async with database.tenant(due.tenant) as session:
            rows = await session.fetch(SQL.lock_operation, due.tenant, due.id, due.epoch)
            if not rows:
                return None
            batch = await apply_batch(session, environment, record_from(rows[0]))
            await environment.crash_point(CrashPoint.BULK_BEFORE_COMMIT)
    except StatementRefused as refused:
        return await record_failure(database, environment, due, str(refused))
    await environment.crash_point(CrashPoint.BULK_AFTER_COMMIT)
    return batch


async def apply_batch(
    session: Session, environment: Environment, operation: BulkRecord
) -> BulkBatch:
    asked = BulkRequest(operation.action, operation.filter, delay_s=operation.delay_s)
    found, _ = await find(
        *(session, operation.tenant, asked, operation.created_at),
        *(operation.position, operation.batch_size),
    )
    changed = BulkChanges(0, [])
    if found.items:
        ids = [item.id for item in found.items]
        changed = await CHANGES[operation.action](session, environment, operation, ids)
    batch = BulkBatch(changed.done, len(found.items) - changed.done, events=changed.events)
    processed = operation.done + operation.refused + len(found.items)
    if found.following is None:
        batch.state = BulkState.DONE
    elif operation.canary is not None and processed >= operation.canary:
        batch.state = BulkState.PAUSED_AFTER_CANARY
    (row,) = await session.fetch(
        SQL.record_batch,
        *(operation.tenant, operation.id, operation.epoch),
        *(found.following, batch.state.value, batch.done, batch.refused),
    )
    if batch.state is not BulkState.RUNNING:
        detail = {"state": batch.state.value, "done": row["done"], "refused": row["refused"]}
        await append_audit(
            *(session, operation.tenant, operation.actor, f"bulk.{operation.action}"),
            *(str(operation.id), msgspec.json.encode(detail).decode()),
        )
    return batch


async def record_failure(
    database: Database, environment: Environment, due: RunningBulk, problem: str
) -> BulkBatch:
    async with database.tenant(due.tenant) as session:
        found = await read_operation(session, due.tenant, due.id)
        pause_s = backoff_s(
            1 + (found.failures if found else 0), RETRY_FIRST_S, RETRY_MAX_S, environment.random
        )
        rows = await session.fetch(
            SQL.record_failure,
            *(due.tenant, due.id, due.epoch, problem[:ERROR_CHARACTERS_MAX], pause_s, FAILURES_MAX),
        )
    return BulkBatch(state=BulkState(rows[0]["state"]) if rows else BulkState.RUNNING)


async def find(
    session: Session,
    tenant: int,
    asked: BulkRequest,
    until: datetime,
    position: str | None,
    limit: int,
) -> tuple[BulkMatches, int]:
    """What matches behind a position and is not newer than the instant; how many were looked at."""
    if asked.action.is_of_letters:
        letters, following = await walk_dead_letters(
            *(session, tenant, asked.filter.of_letters(asked.action)),
            *(LetterSpan(position, until, asked.filter.tag_pair), limit),
            with_nodes=asked.action is not BulkAction.REPLAY,
        )
        items = [BulkItem(letter_id, task_type) for letter_id, task_type in letters]
        return BulkMatches(items, following), len(items)
    if asked.action.is_of_workflows:
        wanted, action = asked.filter.of_workflows(), asked.action.value
        bounds = until, position, limit, LOOKED_AT_MAX
        seen = await walk_workflows(session, tenant, action, wanted, *bounds)
        items = [BulkItem(found.id, found.name) for found in seen.items]
        return BulkMatches(items, seen.following), seen.looked_at
    page = await walk_live_tasks(
        *(session, tenant, asked.filter.of_tasks(), position, limit), searched_max=LOOKED_AT_MAX
    )
    tasks = [task for task in page.items if is_meant(task, asked.action, until)]
    return BulkMatches(
        [BulkItem(task.id, task.type) for task in tasks], page.next_cursor
    ), page.searched


def is_meant(task: Task, action: BulkAction, until: datetime) -> bool:
    if task.created_at > until:
        return False
    return action is not BulkAction.CANCEL or not task.cancel_requested


async def cancel(
    session: Session, _environment: Environment, operation: BulkRecord, ids: Sequence[UUID]
) -> BulkChanges:
    released = Released()
    answers = await cancel_tasks(session, operation.tenant, ids, released)
    ended = ended_by_cancel(answers)
    asked_to_end = sum(each is ControlAnswer.CANCEL_REQUESTED for each in answers.values())
    event = cancelled_tasks(operation.tenant, ended, released)
    return BulkChanges(len(ended) + asked_to_end, [event])


async def reschedule(
    session: Session, _environment: Environment, operation: BulkRecord, ids: Sequence[UUID]
) -> BulkChanges:
    assert operation.delay_s is not None
    moves = [TimerChange(task_id, delay_s=operation.delay_s) for task_id in ids]
    return await move(session, operation, moves)


async def run_all_now(
    session: Session, _environment: Environment, operation: BulkRecord, ids: Sequence[UUID]
) -> BulkChanges:
    return await move(session, operation, [run_now(task_id) for task_id in ids])


async def move(
    session: Session, operation: BulkRecord, moves: Sequence[TimerChange]
) -> BulkChanges:
    hints: list[Hint] = []
    answers = await reschedule_tasks(session, operation.tenant, moves, hints)
    done = sum(each is ControlAnswer.MOVED for each in answers.values())
    return BulkChanges(done, [TasksRescheduled(hints)] if hints else [])


async def replay(
    session: Session, environment: Environment, operation: BulkRecord, ids: Sequence[UUID]
) -> BulkChanges:
    hints: list[Hint] = []
    made = await replay_dead_letters(session, environment, operation.tenant, ids, hints)
    return BulkChanges(len(made), [TasksStored(hints=hints)] if hints else [])


async def purge(
    session: Session, _environment: Environment, operation: BulkRecord, ids: Sequence[UUID]
) -> BulkChanges:
    return BulkChanges(
        len(await purge_letters(session, operation.tenant, ids, operation.actor)), []
    )


def of_workflows(change: "ChangeWorkflows") -> "Change":
    async def changed(
        session: Session, environment: Environment, operation: BulkRecord, ids: Sequence[UUID]
    ) -> BulkChanges:
        asked = operation.tenant, operation.actor, ids
        return BulkChanges(*await change(session, environment, *asked))

    return changed


ChangeWorkflows = Callable[
    [Session, Environment, int, str, Sequence[UUID]], Awaitable[ChangedWorkflows]
]
WORKFLOW_CHANGES: dict[BulkAction, ChangeWorkflows] = {
    BulkAction.CANCEL_WORKFLOWS: cancel_workflows,
    BulkAction.PAUSE_WORKFLOWS: pause_workflows,
    BulkAction.UNPAUSE_WORKFLOWS: unpause_workflows,
    BulkAction.RESUME_WORKFLOWS: resume_workflows,
}
Change = Callable[[Session, Environment, BulkRecord, Sequence[UUID]], Awaitable[BulkChanges]]
CHANGES: dict[BulkAction, Change] = {
    BulkAction.CANCEL: cancel,
    BulkAction.RESCHEDULE: reschedule,
    BulkAction.RUN_NOW: run_all_now,
    BulkAction.REPLAY: replay,
    BulkAction.PURGE: purge,
    **{action: of_workflows(change) for action, change in WORKFLOW_CHANGES.items()},
}


def record_from(row: Any) -> BulkRecord:
    """The columns are named as the fields are."""
    facts = dict(row) | {
        "action": BulkAction(row["action"]),
        "state": BulkState(row["state"]),
        "filter": msgspec.json.decode(row["filter"], type=BulkFilter),
        "sample": msgspec.json.decode(row["sample"], type=list[BulkItem]),
    }
    return BulkRecord(**facts)
