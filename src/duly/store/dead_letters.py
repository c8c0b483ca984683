"""Dead letters: list, group by cause, replay as new tasks. Purging one erases its task, in
`purge.py`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from duly.domain.ids import CALLBACK_BIT, make_task_id, milliseconds, shard_of
from duly.domain.task import Policy
from duly.environment import Environment
from duly.store.database import Session
from duly.store.load import BEGINNING, FIRST_ID, Hint, TimerQueue
from duly.store.partitions import placement_range
from duly.store.policies import decode_policy
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)
LAST_ID = UUID(int=2**128 - 1)
GROUPED_MAX = 100_000
GROUPS_MAX = 200
# Above every count, so that no group comes before it.
FIRST_GROUP = (2**62, "", "", "")


class DeadLetter(NamedTuple):
    """`payload` is read only with a letter of its own; it is None in a list."""

    id: UUID
    tenant: int
    type: str
    reason: str
    fingerprint: str
    error: str | None
    attempts: int
    priority: int
    created_at: datetime
    run_at: datetime
    failed_at: datetime
    execution_key: str
    replayed_as: UUID | None
    url: str | None
    pool: str | None
    tags: dict[str, str] | None
    policy: Policy
    payload: str | None = None


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

    @property
    def columns(self) -> tuple[str | None, str | None, str | None, bool | None]:
        return self.type, self.reason, self.fingerprint, self.is_replayed


UNREPLAYED = LetterFilter(is_replayed=False)


class LetterSpan(NamedTuple):
    """Letters behind a position, not newer than an instant, with a tag."""

    position: str | None = None
    until: datetime = END_OF_TIME
    tag: tuple[str, str] | None = None


WHOLE_SPAN = LetterSpan()


class ReplayRate(NamedTuple):
    """How replays are spread: so many a second, the first at `start_at` or now, if that is later.

    Without a rate they are all due at the start.
    """

    rate_per_s: float | None = None
    start_at: datetime | None = None

    def delays_s(self, count: int) -> list[float]:
        return [number / self.rate_per_s if self.rate_per_s else 0.0 for number in range(count)]


AT_ONCE = ReplayRate()


async def list_dead_letters(
    session: Session,
    tenant: int,
    wanted: LetterFilter,
    cursor: str | None = None,
    limit: int = 50,
) -> tuple[list[DeadLetter], str | None]:
    """Newest first, without their payloads."""
    before = letter_cursor(cursor) if cursor else (END_OF_TIME, LAST_ID)
    rows = await session.fetch(SQL.list_dead_letters, tenant, *before, *wanted.columns, limit)
    letters = [letter_from(row) for row in rows]
    if len(letters) < limit:
        return letters, None
    return letters, letter_position(letters[-1])


def letter_position(letter: DeadLetter) -> str:
    return f"{letter.failed_at.isoformat()}~{letter.id}"


def letter_cursor(text: str) -> tuple[datetime, UUID]:
    instant, _, last = text.partition("~")
    return datetime.fromisoformat(instant), UUID(last)


def letter_from(row: Any) -> DeadLetter:
    """The columns are named as the fields are."""
    tags = row["tags"]
    facts = dict(row) | {
        "tags": None if tags is None else msgspec.json.decode(tags, type=dict[str, str]),
        "policy": decode_policy(row["policy"]),
    }
    return DeadLetter(**facts)


async def read_dead_letter(session: Session, tenant: int, letter_id: UUID) -> DeadLetter | None:
    """With its payload."""
    rows = await session.fetch(SQL.read_dead_letter, tenant, shard_of(letter_id), letter_id)
    return letter_from(rows[0]) if rows else None


async def list_failed(
    session: Session, tenant: int, cursor: str | None, limit: int
) -> list[tuple[UUID, str]]:
    """Ids of failed tasks, each with its own place in the list."""
    letters, _ = await list_dead_letters(session, tenant, LetterFilter(), cursor, limit)
    return [(letter.id, letter_position(letter)) for letter in letters]


async def match_dead_letters(
    session: Session, tenant: int, wanted: LetterFilter, limit: int, *, with_nodes: bool = True
) -> list[UUID]:
    """The oldest that match; replay and purge by filter go on from these. No replay has nodes."""
    rows = await fetch_matching(session, tenant, wanted, WHOLE_SPAN, limit, with_nodes=with_nodes)
    return [row["id"] for row in rows]


async def walk_dead_letters(
    session: Session,
    tenant: int,
    wanted: LetterFilter,
    span: LetterSpan,
    limit: int,
    *,
    with_nodes: bool = True,
) -> tuple[list[tuple[UUID, str]], str | None]:
    """Ids and types of those that match, oldest first, and the position of the last; None: no more
    match."""
    rows = await fetch_matching(session, tenant, wanted, span, limit, with_nodes=with_nodes)
    found = [(row["id"], row["type"]) for row in rows]
    if len(rows) < limit:
        return found, None
    return found, f"{rows[-1]['failed_at'].isoformat()}~{rows[-1]['id']}"


async def fetch_matching(
    session: Session,
    tenant: int,
    wanted: LetterFilter,
    span: LetterSpan,
    limit: int,
    *,
    with_nodes: bool,
) -> list[Any]:
    after = letter_cursor(span.position) if span.position else (BEGINNING, FIRST_ID)
    return await session.fetch(
        SQL.match_dead_letters,
        *(tenant, *wanted.columns, limit, with_nodes, *after, span.until),
        *(span.tag or (None, None)),
    )


async def find_dead_letters(
    session: Session, tenant: int, ids: Sequence[UUID], is_replayed: bool | None = None
) -> list[UUID]:
    """Those of the ids that are letters of this tenant."""
    rows = await session.fetch(
        SQL.find_dead_letters, tenant, [shard_of(i) for i in ids], list(ids), is_replayed
    )
    return [row["id"] for row in rows]


async def read_letter_types(session: Session, tenant: int, ids: Sequence[UUID]) -> list[str]:
    """The task types of those of the ids that are letters of this tenant."""
    rows = await session.fetch(
        SQL.find_dead_letters, tenant, [shard_of(i) for i in ids], list(ids), None
    )
    return sorted({row["type"] for row in rows})


async def group_dead_letters(
    session: Session,
    tenant: int,
    wanted: LetterFilter = UNREPLAYED,
    cursor: str | None = None,
    limit: int = GROUPS_MAX,
) -> tuple[list[Group], str | None]:
    """The newest failures by fingerprint, most frequent first."""
    after = group_cursor(cursor) if cursor else FIRST_GROUP
    rows = await session.fetch(
        SQL.group_dead_letters, tenant, *wanted.columns, GROUPED_MAX, *after, limit
    )
    groups = [Group(*row) for row in rows]
    if len(groups) < limit:
        return groups, None
    last = groups[-1]
    return groups, f"{last.letters}~{last.fingerprint}~{last.type}~{last.reason}"


def group_cursor(text: str) -> tuple[int, str, str, str]:
    letters, fingerprint, task_type, reason = text.split("~")
    return int(letters), fingerprint, task_type, reason


async def replay_dead_letters(
    session: Session,
    environment: Environment,
    tenant: int,
    ids: Sequence[UUID],
    hints: list[Hint] | None = None,
    pace: ReplayRate = AT_ONCE,
) -> dict[UUID, UUID]:
    """Old id to new id, for those that this call replayed; `hints` learns when they are due.

    The oldest go first.
    """
    placement = await placement_range(session)
    ordered = sorted(set(ids), key=lambda task_id: task_id.int)
    shards = [shard_of(task_id) for task_id in ordered]
    delays_s = pace.delays_s(len(ordered))
    now = environment.clock.now()
    start_at = max(now, pace.start_at or now)
    new_ids = [
        make_task_id(
            milliseconds(placement.clamp(start_at + timedelta(seconds=delay_s))),
            shard,
            environment.random,
            # Whether they have a callback is seen where their letters are read.
            CALLBACK_BIT,
        )
        for shard, delay_s in zip(shards, delays_s, strict=True)
    ]
    rows = await session.fetch(
        SQL.replay_dead_letters, tenant, shards, ordered, new_ids, delays_s, pace.start_at
    )
    if hints is not None:
        hints.extend((TimerQueue(*row[2:5]), row["run_at"]) for row in rows)
    return {row["id"]: row["new_id"] for row in rows}
