"""Reading tasks, their attempts, and lists of them; always of one tenant, always bounded.

Live states are listed from `timers` (soonest first), FAILED from `dead_letters` (newest failure
first), everything else from `tasks` (newest created first). A filter searches stretch after stretch
until its page is full or the list ends; past a bound, a page has fewer tasks and a next one.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from duly.domain.ids import shard_of
from duly.domain.states import TERMINAL, State, live_state
from duly.domain.task import Policy
from duly.metric_families import Buckets
from duly.store.batcher import Batcher
from duly.store.database import Database, Session
from duly.store.dead_letters import END_OF_TIME, LAST_ID, list_failed
from duly.store.lease import IN_PLACE_LISTED_MAX
from duly.store.load import BEGINNING, FIRST_ID
from duly.store.policies import decode_policy
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
# Of single reads by many callers.
READ_BATCH_MAX = 200
READS_WAITING_MAX = 20_000
READ_BATCHES_MAX = 2
READ_PARALLEL_MIN = 100
PAGE_MAX = 200
# Tasks that a filter looks at in one statement, and for one page.
STRETCH = 1000
SEARCHED_MAX = 20_000
# Tasks read in full at a time, where a page needs fewer.
READ_MIN = 20


class ListOrder(StrEnum):
    """`created`: newest created first. `run_at`: by the next instant, soonest first."""

    CREATED = "created"
    RUN_AT = "run_at"


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


class AttemptRecord(NamedTuple):
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

    @property
    def is_narrow(self) -> bool:
        """Whether a state alone does not say what matches."""
        return self != Filter(state=self.state)


class ListPage(NamedTuple):
    """`searched`: how many tasks were looked at for it."""

    items: list[Task]
    next_cursor: str | None
    searched: int


class ListWindow(NamedTuple):
    """Some of a list in its order: ids with their positions, of those that may match. `last` is
    where it ends, `following` the same if the list may go on there."""

    found: list[tuple[UUID, str]]
    looked_at: int
    last: str | None
    following: str | None


Look = Callable[[Session, int, Filter, str | None, int], Awaitable[ListWindow]]


async def read_task(session: Session, tenant: int, task_id: UUID) -> Task | None:
    found = await read_tasks(session, tenant, [task_id])
    return found[0] if found else None


async def read_tasks(session: Session, tenant: int, ids: Sequence[UUID]) -> list[Task]:
    """In the order asked; other tenants' tasks are missing like unknown ones."""
    found = await read_asked(session, [(tenant, task_id) for task_id in ids])
    return [task for task in found if task is not None]


async def read_asked(session: Session, asked: Sequence[tuple[int, UUID]]) -> list[Task | None]:
    """Tasks of many callers in one query: (tenant, id) each, and None where it is not theirs."""
    tenants, ids = [tenant for tenant, _ in asked], [task_id for _, task_id in asked]
    shards = [shard_of(task_id) for task_id in ids]
    rows = await session.fetch(SQL.read_tasks, tenants, shards, ids)
    found = {(row["tenant"], row["id"]): task_from(row) for row in rows}
    return [found.get(pair) for pair in asked]


class ReadBatcher:
    """Reads of single tasks by many callers in one statement."""

    def __init__(self, database: Database, sizes: Buckets | None = None) -> None:
        self.queue: Batcher[tuple[int, UUID], Task | None] = Batcher(
            "read",
            lambda asked: read_asked(database, asked),
            batch_size_max=READ_BATCH_MAX,
            waiting_max=READS_WAITING_MAX,
            batches_max=READ_BATCHES_MAX,
            parallel_min=READ_PARALLEL_MIN,
            sizes=sizes,
        )

    async def read(self, tenant: int, task_id: UUID) -> Task | None:
        """None for another tenant's task, as for one that never was."""
        return await self.queue.submit((tenant, task_id))

    async def close(self) -> None:
        await self.queue.close()


async def read_ended(session: Session, ids: Sequence[UUID]) -> list[UUID]:
    """Those without a timer; whether they ever were is for their readers to find out."""
    rows = await session.fetch(SQL.read_ended, [shard_of(task_id) for task_id in ids], list(ids))
    return [row["id"] for row in rows]


async def read_attempts(
    session: Session, tenant: int, task_id: UUID, after_fence: int = -1, limit: int = PAGE_MAX
) -> list[AttemptRecord]:
    rows = await session.fetch(
        SQL.read_attempts, tenant, shard_of(task_id), task_id, after_fence, limit
    )
    return [AttemptRecord(*row) for row in rows]


async def list_tasks(
    session: Session,
    tenant: int,
    wanted: Filter,
    cursor: str | None = None,
    limit: int = 50,
    order: ListOrder | None = None,
    *,
    searched_max: int = SEARCHED_MAX,
) -> ListPage:
    """One page: full, or the last, or as far as `searched_max` went. `next_cursor` is None at the
    end."""
    look = source_of(wanted, order)
    size = STRETCH if wanted.is_narrow or (look is look_by_creation and wanted.state) else limit
    return await page_of(session, tenant, wanted, cursor, limit, look, size, searched_max)


async def walk_live_tasks(
    session: Session,
    tenant: int,
    wanted: Filter,
    cursor: str | None,
    limit: int,
    *,
    searched_max: int = SEARCHED_MAX,
) -> ListPage:
    """Unfinished tasks by address, which no move changes: a walk meets each of them once."""
    size = STRETCH if wanted != Filter() else limit
    look = look_by_address
    return await page_of(session, tenant, wanted, cursor, limit, look, size, searched_max)


async def page_of(
    session: Session,
    tenant: int,
    wanted: Filter,
    cursor: str | None,
    limit: int,
    look: Look,
    size: int,
    searched_max: int,
) -> ListPage:
    """From windows of `size`, read in full as far as they may match."""
    assert 1 <= limit <= PAGE_MAX
    kept: list[Task] = []
    searched = 0
    while True:
        stretch = await look(session, tenant, wanted, cursor, size)
        found = await narrowed(session, tenant, wanted, look, stretch.found)
        while found:
            # Read in full, payloads too: not many more than fit.
            most = min(PAGE_MAX, max(limit - len(kept), READ_MIN))
            batch, found = found[:most], found[most:]
            positions = dict(batch)
            for task in await read_tasks(session, tenant, list(positions)):
                if matches(task, wanted):
                    kept.append(task)
                if len(kept) == limit:
                    is_end = positions[task.id] == stretch.last and stretch.following is None
                    following = None if is_end else positions[task.id]
                    return ListPage(kept, following, searched + stretch.looked_at)
        searched += stretch.looked_at
        cursor = stretch.following
        if cursor is None or searched >= searched_max:
            return ListPage(kept, cursor, searched)


def source_of(wanted: Filter, order: ListOrder | None) -> Look:
    """Where a list comes from; without an order, from where its state is found soonest."""
    if order is ListOrder.CREATED:
        return look_by_creation
    if wanted.state is State.FAILED:
        return look_at_failed
    if wanted.state is State.WAITING:
        return look_at_waiting
    if order is ListOrder.RUN_AT or wanted.state in (State.SCHEDULED, State.READY, State.RUNNING):
        assert wanted.state not in TERMINAL, "what has ended has no next instant"
        return look_at_live
    return look_by_creation


async def narrowed(
    session: Session, tenant: int, wanted: Filter, look: Look, found: list[tuple[UUID, str]]
) -> list[tuple[UUID, str]]:
    """Without those that cannot match, told by what is cheap to read."""
    if not found:
        return found
    ids = [task_id for task_id, _ in found]
    if look is look_by_creation:
        if wanted.state is None:
            return found
        ended = set(await read_ended(session, ids))
        is_terminal = wanted.state in TERMINAL
        return [each for each in found if (each[0] in ended) == is_terminal]
    if not wanted.is_narrow:
        return found
    tag_name, tag_value = wanted.tag or (None, None)
    rows = await session.fetch(
        SQL.narrow_tasks,
        tenant,
        [shard_of(task_id) for task_id in ids],
        ids,
        wanted.type,
        tag_name,
        tag_value,
        wanted.created_after,
    )
    matching = {row["id"] for row in rows}
    return [each for each in found if each[0] in matching]


async def look_by_creation(
    session: Session, tenant: int, wanted: Filter, cursor: str | None, size: int
) -> ListWindow:
    """All tasks of a tenant, newest created first."""
    before = instant_and_id(cursor) if cursor else (END_OF_TIME, LAST_ID)
    tag_name, tag_value = wanted.tag or (None, None)
    after = wanted.created_after or BEGINNING
    rows = await session.fetch(
        SQL.list_created, tenant, *before, after, wanted.type, tag_name, tag_value, size
    )
    return window_by_creation(rows, size)


def window_by_creation(rows: Sequence[Any], size: int) -> ListWindow:
    """Rows of those that match and of the last one, with how many were looked at."""
    if not rows:
        return ListWindow([], 0, None, None)
    looked_at = rows[-1]["looked_at"]
    last = position_text(rows[-1]["created_at"], rows[-1]["id"])
    found = [
        (row["id"], position_text(row["created_at"], row["id"])) for row in rows if row["is_match"]
    ]
    return ListWindow(found, looked_at, last, last if looked_at == size else None)


async def look_at_live(
    session: Session, tenant: int, wanted: Filter, cursor: str | None, size: int
) -> ListWindow:
    """Tasks that wait for an instant, or those that run, by their next instant."""
    after = instant_and_id(cursor) if cursor else (BEGINNING, FIRST_ID)
    if wanted.state is State.RUNNING:
        rows = await session.fetch(SQL.list_running, tenant, *after, size, IN_PLACE_LISTED_MAX)
    else:
        is_due = None if wanted.state is None else wanted.state is State.READY
        rows = await session.fetch(SQL.list_live, tenant, *after, is_due, size)
    return stretch_of([(row["id"], position_text(row["due_at"], row["id"])) for row in rows], size)


async def look_at_failed(
    session: Session, tenant: int, _wanted: Filter, cursor: str | None, size: int
) -> ListWindow:
    """By their dead letters, newest failure first."""
    rows = await list_failed(session, tenant, cursor, size)
    return stretch_of(rows, size)


async def look_at_waiting(
    session: Session, tenant: int, _wanted: Filter, cursor: str | None, size: int
) -> ListWindow:
    after = UUID(cursor) if cursor else FIRST_ID
    rows = await session.fetch(SQL.list_waiting, tenant, after, size)
    return stretch_of([(row["id"], str(row["id"])) for row in rows], size)


async def look_by_address(
    session: Session, tenant: int, _wanted: Filter, cursor: str | None, size: int
) -> ListWindow:
    """Tasks with a timer, shard by shard, by id; in a shard the earliest placed first."""
    shard, _, last = (cursor or f"0|{FIRST_ID}").partition("|")
    rows = await session.fetch(SQL.list_by_address, tenant, int(shard), UUID(last), size)
    window = stretch_of([(row["id"], f"{shard}|{row['id']}") for row in rows], size)
    if window.following is not None:
        return window
    places = await session.fetch(SQL.find_next_shard, tenant, int(shard))
    following = f"{places[0]['shard']}|{FIRST_ID}" if places else None
    return window._replace(following=following)


def stretch_of(found: list[tuple[UUID, str]], size: int) -> ListWindow:
    last = found[-1][1] if found else None
    return ListWindow(found, len(found), last, last if len(found) == size else None)


def position_text(instant: datetime, task_id: UUID) -> str:
    return f"{instant.isoformat()}|{task_id}"


def instant_and_id(position: str) -> tuple[datetime, UUID]:
    instant, _, last = position.partition("|")
    return datetime.fromisoformat(instant).astimezone(UTC), UUID(last)


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
