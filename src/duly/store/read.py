"""Reading tasks, their attempts, and lists of them; always of one tenant, always bounded.

Live states are listed from `timers` (soonest first), FAILED from `dead_letters` (newest first), the
rest from `tasks` (newest first) through a bounded window. A page may hold fewer tasks than its
limit and still have a next one: the filter looked only at its window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from duly.domain.ids import shard_of
from duly.domain.states import TERMINAL, State, live_state
from duly.domain.task import Policy
from duly.store.database import Session
from duly.store.dead_letters import list_failed_ids
from duly.store.lease import IN_PLACE_LISTED_MAX
from duly.store.load import BEGINNING, FIRST_ID
from duly.store.policies import decode_policy
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
LAST_ID = UUID(int=2**128 - 1)
WINDOW_MAX = 1000
PAGE_MAX = 200


@dataclass(frozen=True, slots=True)
class Task:
    """A task as its tenant sees it."""

    id: UUID
    tenant: int
    type: str
    state: State
    payload: str | None
    policy: Policy
    url: str | None
    pool: str | None
    tags: dict[str, str] | None
    priority: int
    created_at: datetime
    run_at: datetime
    execution_key: str
    replay_of: UUID | None
    attempt: int
    fence: int
    next_at: datetime | None
    holder: UUID | None
    lease_until: datetime | None
    cancel_requested: bool
    progress: str | None
    outcome: str | None
    reason: str | None
    result: str | None
    error: str | None
    finished_at: datetime | None
    is_purged: bool


class Attempt(NamedTuple):
    """One that has ended, or the one that runs: then without `ended_at`, and with its lease."""

    fence: int
    charged: int
    holder: UUID | None
    started_at: datetime | None
    ended_at: datetime | None
    outcome: str
    state: str | None
    reason: str | None
    result: str | None
    error: str | None
    lease_until: datetime | None


@dataclass(frozen=True, slots=True)
class Filter:
    """What a list is narrowed to; every given field must match."""

    state: State | None = None
    type: str | None = None
    tag: tuple[str, str] | None = None
    created_after: datetime | None = None
    run_before: datetime | None = None


class Page(NamedTuple):
    items: list[Task]
    next_cursor: str | None


async def read_task(session: Session, tenant: int, task_id: UUID) -> Task | None:
    found = await read_tasks(session, tenant, [task_id])
    return found[0] if found else None


async def read_tasks(session: Session, tenant: int, ids: Sequence[UUID]) -> list[Task]:
    """In the order asked; those of other tenants are as missing as those that never were."""
    found = await read_asked(session, [(tenant, task_id) for task_id in ids])
    return [task for task in found if task is not None]


async def read_asked(session: Session, asked: Sequence[tuple[int, UUID]]) -> list[Task | None]:
    """Many callers' tasks in one look: (tenant, id) each, and None where it is not theirs."""
    tenants, ids = [tenant for tenant, _ in asked], [task_id for _, task_id in asked]
    shards = [shard_of(task_id) for task_id in ids]
    rows = await session.fetch(SQL.read_tasks, tenants, shards, ids)
    found = {(row["tenant"], row["id"]): task_from(row) for row in rows}
    return [found.get(pair) for pair in asked]


async def read_ended(session: Session, ids: Sequence[UUID]) -> list[UUID]:
    """Those without a timer; whether they ever were is for their readers to find out."""
    rows = await session.fetch(SQL.read_ended, [shard_of(task_id) for task_id in ids], list(ids))
    return [row["id"] for row in rows]


async def read_attempts(
    session: Session, tenant: int, task_id: UUID, after_fence: int = -1, limit: int = PAGE_MAX
) -> list[Attempt]:
    rows = await session.fetch(
        SQL.read_attempts, tenant, shard_of(task_id), task_id, after_fence, limit
    )
    return [Attempt(*row) for row in rows]


async def list_tasks(
    session: Session, tenant: int, wanted: Filter, cursor: str | None = None, limit: int = 50
) -> Page:
    """One page; `next_cursor` is opaque and None at the end."""
    assert 1 <= limit <= PAGE_MAX
    if wanted.state is State.FAILED:
        ids, following = await list_failed_ids(session, tenant, cursor, limit)
    elif wanted.state in (State.SCHEDULED, State.READY, State.RUNNING):
        ids, following = await list_live_ids(session, tenant, wanted.state, cursor, limit)
    elif wanted.state is State.WAITING:
        ids, following = await list_waiting_ids(session, tenant, cursor, limit)
    else:
        return await list_window(session, tenant, wanted, cursor, limit)
    tasks = await read_tasks(session, tenant, ids)
    return Page([task for task in tasks if matches(task, wanted)], following)


async def list_window(
    session: Session, tenant: int, wanted: Filter, cursor: str | None, limit: int
) -> Page:
    """Newest first; reads tasks of a window of ids until one page is full or it is used up."""
    before = UUID(cursor) if cursor else LAST_ID
    rows = await session.fetch(SQL.list_recent, tenant, before, WINDOW_MAX)
    ids = [row["id"] for row in rows if may_match(row, wanted)]
    if wanted.state in TERMINAL:
        # Most of what is newest by its fire time is yet to run, and need not be read in full.
        ended = set(await read_ended(session, ids))
        ids = [task_id for task_id in ids if task_id in ended]
    kept: list[Task] = []
    # Without a state to look for, the first bite is the page.
    for bite in (ids[:limit], *bites(ids[limit:], PAGE_MAX)):
        for task in await read_tasks(session, tenant, bite):
            if matches(task, wanted):
                kept.append(task)
            if len(kept) == limit:
                return Page(kept, str(task.id))
    return Page(kept, str(rows[-1]["id"]) if len(rows) == WINDOW_MAX else None)


def bites(ids: Sequence[UUID], size: int) -> list[Sequence[UUID]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]


async def list_live_ids(
    session: Session, tenant: int, state: State, cursor: str | None, limit: int
) -> tuple[list[UUID], str | None]:
    after_due_at, after_id = BEGINNING, FIRST_ID
    if cursor:
        instant, _, last = cursor.partition("|")
        after_due_at = datetime.fromisoformat(instant).astimezone(UTC)
        after_id = UUID(last)
    place = (tenant, after_due_at, after_id)
    if state is State.RUNNING:
        rows = await session.fetch(SQL.list_running, *place, limit, IN_PLACE_LISTED_MAX)
    else:
        rows = await session.fetch(SQL.list_live, *place, state is State.READY, limit)
    if len(rows) < limit:
        return [row["id"] for row in rows], None
    # With a Z: a plus would be read as a space by whoever pastes it into a URL.
    instant = rows[-1]["due_at"].isoformat().replace("+00:00", "Z")
    return [row["id"] for row in rows], f"{instant}|{rows[-1]['id']}"


async def list_waiting_ids(
    session: Session, tenant: int, cursor: str | None, limit: int
) -> tuple[list[UUID], str | None]:
    rows = await session.fetch(
        SQL.list_waiting, tenant, UUID(cursor) if cursor else FIRST_ID, limit
    )
    ids = [row["id"] for row in rows]
    return ids, str(ids[-1]) if len(ids) == limit else None


def may_match(row: Any, wanted: Filter) -> bool:
    """The part of a filter that the window itself can tell, before the full rows are read."""
    if wanted.type is not None and row["type"] != wanted.type:
        return False
    if wanted.tag is not None:
        name, value = wanted.tag
        if (decode_tags(row["tags"]) or {}).get(name) != value:
            return False
    return not (wanted.created_after is not None and row["created_at"] <= wanted.created_after)


def matches(task: Task, wanted: Filter) -> bool:
    return (
        (wanted.state is None or task.state is wanted.state)
        and (wanted.type is None or task.type == wanted.type)
        and (wanted.tag is None or (task.tags or {}).get(wanted.tag[0]) == wanted.tag[1])
        and (wanted.created_after is None or task.created_at > wanted.created_after)
        and (wanted.run_before is None or task.run_at < wanted.run_before)
    )


def task_from(row: Any) -> Task:
    is_live = row["is_live"]
    state = (
        live_state(row["due_at"], row["holder"], row["now"])
        if is_live
        else State(row["final_state"])
    )
    return Task(
        id=row["id"],
        tenant=row["tenant"],
        type=row["type"],
        state=state,
        payload=row["payload"],
        policy=decode_policy(row["policy"]),
        url=row["url"],
        pool=row["pool_name"],
        tags=decode_tags(row["tags"]),
        priority=row["priority"],
        created_at=row["created_at"],
        run_at=row["run_at"],
        execution_key=row["execution_key"] or str(row["id"]),
        replay_of=row["replay_of"],
        attempt=row["charged"] + (1 if row["holder"] is not None else 0),
        fence=row["fence"],
        next_at=row["lease_until"] or row["due_at"],
        holder=row["holder"],
        lease_until=row["lease_until"],
        cancel_requested=bool(row["cancel_requested"]),
        progress=row["progress"],
        outcome=None if is_live else row["outcome"],
        reason=None if is_live else row["reason"],
        result=None if is_live else row["result"],
        error=row["error"],
        finished_at=None if is_live else row["ended_at"],
        is_purged=row["is_purged"],
    )


def decode_tags(text: str | None) -> dict[str, str] | None:
    return None if text is None else msgspec.json.decode(text, type=dict[str, str])
