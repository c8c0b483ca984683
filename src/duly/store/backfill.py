"""Ledger queries of a backfill. Its tasks are fired by `fire_schedules.py`."""

from collections.abc import Sequence
from datetime import datetime

from duly.store.database import Session
from duly.store.schedules import Schedule
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)


async def read_fired(
    session: Session, schedule: Schedule, times: Sequence[datetime]
) -> set[datetime]:
    """Of these nominal times, those that have a task."""
    rows = await session.fetch(
        SQL.read_fired, schedule.shard, schedule.id, schedule.tenant, list(times)
    )
    return {row["nominal_at"] for row in rows}
