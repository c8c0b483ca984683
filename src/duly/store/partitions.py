"""Months of `tasks` and `attempts`: made ahead, dropped behind, and the range an id may lie in."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from duly.store.database import Session
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
MONTHS_AHEAD = 3
RETENTION_S = 30 * 86400.0


@dataclass(frozen=True)
class PlacementRange:
    """From the start of the database's current month to the end of the last partition."""

    first: datetime
    last: datetime

    def clamp(self, instant: datetime) -> datetime:
        latest = self.last - timedelta(milliseconds=1)
        return min(max(instant, self.first), latest)


def month_start(month: date) -> datetime:
    return datetime(month.year, month.month, 1, tzinfo=UTC)


def following_month(month: date) -> date:
    return date(month.year + month.month // 12, month.month % 12 + 1, 1)


async def create_partitions(session: Session, months_ahead: int = MONTHS_AHEAD) -> list[str]:
    rows = await session.fetch(SQL.create_ahead, months_ahead)
    return [row["created"] for row in rows if row["created"] is not None]


async def list_months(session: Session) -> list[date]:
    return [row["month"] for row in await session.fetch(SQL.list_partitions)]


async def placement_range(session: Session) -> PlacementRange:
    (row,) = await session.fetch(SQL.placement_range)
    first, last = row["first_month"], row["last_month"]
    assert last is not None, "create_partitions runs before anything is submitted"
    return PlacementRange(month_start(first), month_start(following_month(last)))


async def drop_month(session: Session, month: date, retention_s: float = RETENTION_S) -> str | None:
    """None when it is gone, else why it stays: current, live or recent."""
    (row,) = await session.fetch(SQL.drop_behind, month, retention_s)
    kept: str | None = row["kept_because"]
    return kept
