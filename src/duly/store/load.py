"""What is due, place by place: the one question behind future work, retries and herds."""

from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from duly.store.database import Database
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_ID = UUID(int=0)
PLACEMENTS_PAGE = 1000


class Place(NamedTuple):
    tenant: int
    shard: int
    lane: int


BEFORE_ALL = Place(-1, -1, -1)


class Cursor(NamedTuple):
    """How far a place has been read; the beginning means a full sweep."""

    due_at: datetime = BEGINNING
    id: UUID = FIRST_ID


class Due(NamedTuple):
    """A timer that fires soon, as far as dispatch needs it."""

    tenant: int
    shard: int
    lane: int
    id: UUID
    fence: int
    due_at: datetime
    priority: int
    start_by: datetime | None
    type: str
    concurrency_key: str | None
    concurrency_limit: int | None
    host: str | None

    @property
    def place(self) -> Place:
        return Place(self.tenant, self.shard, self.lane)


async def load_due(
    database: Database, cursors: dict[Place, Cursor], horizon_s: float, limit: int
) -> list[Due]:
    """At most `limit` timers of each place, after its cursor, due within the horizon."""
    places = sorted(cursors)
    rows = await database.fetch(
        SQL.load_due,
        [place.tenant for place in places],
        [place.shard for place in places],
        [place.lane for place in places],
        [cursors[place].due_at for place in places],
        [cursors[place].id for place in places],
        horizon_s,
        limit,
    )
    return [Due(*row) for row in rows]


async def list_placements(
    database: Database, first_shard: int, last_shard: int, after: Place = BEFORE_ALL
) -> list[Place]:
    """One page of the places of a range of shards, after `after`."""
    rows = await database.fetch(
        SQL.list_placements, *after, first_shard, last_shard, PLACEMENTS_PAGE
    )
    return [Place(*row) for row in rows]
