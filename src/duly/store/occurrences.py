"""Read recorded occurrences: the verdict of each, and whether a schedule fires on time.

Nothing is written here: verdicts are `fire_schedules.py`'s and `backfill.py`'s.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from duly.domain.ids import shard_of
from duly.store.database import Session
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
# How many of a schedule's newest occurrences tell whether it keeps its cadence.
CADENCE_WINDOW = 50


class Cadence(NamedTuple):
    """Of the newest occurrences that were to fire, how many did so on time."""

    expected: int
    fired: int


class RecordedOccurrence(NamedTuple):
    """One row of the ledger."""

    nominal_at: datetime
    decided_at: datetime
    late_s: float
    verdict: str
    task: UUID | None


async def list_occurrences(
    session: Session,
    tenant: int,
    schedule_id: UUID,
    *,
    before: datetime,
    verdict: str | None = None,
    since: datetime | None = None,
    limit: int = 50,
) -> list[RecordedOccurrence]:
    rows = await session.fetch(
        SQL.list_occurrences,
        shard_of(schedule_id),
        tenant,
        schedule_id,
        before,
        verdict,
        since,
        limit,
    )
    return [RecordedOccurrence(*row) for row in rows]


async def read_cadences(session: Session, ids: Sequence[UUID]) -> dict[UUID, Cadence]:
    shards = [shard_of(each) for each in ids]
    rows = await session.fetch(SQL.read_cadence, shards, list(ids), CADENCE_WINDOW)
    return {row["id"]: Cadence(row["expected"], row["fired"]) for row in rows}
