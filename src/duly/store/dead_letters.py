"""Tasks that failed for good: listed, grouped by cause, replayed as new tasks, or purged."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from duly.domain.ids import make_task_id, milliseconds, shard_of
from duly.environment import Environment
from duly.store.database import Session
from duly.store.load import Hint, Place
from duly.store.partitions import placement_range
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)
LAST_ID = UUID(int=2**128 - 1)
GROUPED_MAX = 100_000
GROUPS_MAX = 200


class DeadLetter(NamedTuple):
    id: UUID
    tenant: int
    type: str
    reason: str
    fingerprint: str
    error: str | None
    attempts: int
    created_at: datetime
    run_at: datetime
    failed_at: datetime
    payload: str | None
    execution_key: str
    replayed_as: UUID | None


class Group(NamedTuple):
    fingerprint: str
    type: str
    reason: str
    letters: int
    first_at: datetime
    last_at: datetime
    example: str | None


@dataclass(frozen=True, slots=True)
class LetterFilter:
    type: str | None = None
    reason: str | None = None
    fingerprint: str | None = None
    is_replayed: bool | None = None


async def list_dead_letters(
    session: Session,
    tenant: int,
    wanted: LetterFilter,
    cursor: str | None = None,
    limit: int = 50,
) -> tuple[list[DeadLetter], str | None]:
    """Newest first. Replay and purge by filter walk these pages, so both stay bounded."""
    before_at, before_id = END_OF_TIME, LAST_ID
    if cursor:
        instant, _, last = cursor.partition("|")
        before_at, before_id = datetime.fromisoformat(instant), UUID(last)
    rows = await session.fetch(
        SQL.list_dead_letters,
        tenant,
        before_at,
        before_id,
        wanted.type,
        wanted.reason,
        wanted.fingerprint,
        wanted.is_replayed,
        limit,
    )
    letters = [DeadLetter(*row) for row in rows]
    if len(letters) < limit:
        return letters, None
    return letters, f"{letters[-1].failed_at.isoformat()}|{letters[-1].id}"


async def list_failed_ids(
    session: Session, tenant: int, cursor: str | None, limit: int
) -> tuple[list[UUID], str | None]:
    letters, following = await list_dead_letters(session, tenant, LetterFilter(), cursor, limit)
    return [letter.id for letter in letters], following


async def group_dead_letters(session: Session, tenant: int) -> list[Group]:
    """The newest failures by fingerprint, most frequent first."""
    rows = await session.fetch(SQL.group_dead_letters, tenant, GROUPED_MAX, GROUPS_MAX)
    return [Group(*row) for row in rows]


async def replay_dead_letters(
    session: Session,
    environment: Environment,
    tenant: int,
    ids: Sequence[UUID],
    hints: list[Hint] | None = None,
) -> dict[UUID, UUID]:
    """Old id to new id, for those that this call replayed; `hints` learns where they are due."""
    placement = await placement_range(session)
    placed_ms = milliseconds(placement.clamp(environment.clock.now()))
    ordered = sorted(set(ids), key=lambda task_id: task_id.int)
    shards = [shard_of(task_id) for task_id in ordered]
    new_ids = [make_task_id(placed_ms, shard, environment.random) for shard in shards]
    rows = await session.fetch(SQL.replay_dead_letters, tenant, shards, ordered, new_ids)
    if hints is not None:
        hints.extend((Place(*row[2:5]), row["run_at"]) for row in rows)
    return {row["id"]: row["new_id"] for row in rows}


async def purge_dead_letters(session: Session, tenant: int, ids: Sequence[UUID]) -> int:
    ordered = sorted(set(ids), key=lambda task_id: task_id.int)
    shards = [shard_of(task_id) for task_id in ordered]
    return len(await session.fetch(SQL.purge_dead_letters, tenant, shards, ordered))
