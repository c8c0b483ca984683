"""What a tenant can be expected to fire: its schedules counted by rule, its tasks by minute.

Both are bounded in rows and in time. What the counts mean is in `domain/forecast.py`.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from duly.domain.forecast import MINUTE_S, RuleGroup
from duly.domain.recurrence import EPOCH, Recurrence
from duly.domain.recurrence_fields import read_recurrence
from duly.store.database import Session
from duly.store.schedules import fields_from
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
COUNTING_S_MAX = 10.0
SCHEDULES_MAX = 1_000_000
RULES_MAX = 20_000
TASKS_MAX = 1_000_000
PLACES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class CountedRules:
    """`schedules` and `rules` count all that were found; `groups` has the largest of them, but for
    those whose rule this server cannot read."""

    groups: list[RuleGroup]
    schedules: int
    rules: int
    unreadable: int


async def bound_counting(session: Session) -> None:
    """For the statements of this transaction that follow."""
    await session.fetch(SQL.bound_counting, f"{int(COUNTING_S_MAX * 1000)}ms")


async def count_rules(
    session: Session, tenant: int, first_at: datetime, end_at: datetime
) -> CountedRules:
    rows = await session.fetch(SQL.count_rules, tenant, first_at, end_at, SCHEDULES_MAX, RULES_MAX)
    read = [(row, recurrence_of(row)) for row in rows]
    groups = [group_of(row, found) for row, found in read if found is not None]
    return CountedRules(
        groups=groups,
        schedules=rows[0]["all_schedules"] if rows else 0,
        rules=rows[0]["all_rules"] if rows else 0,
        unreadable=sum(row["schedules"] for row, found in read if found is None),
    )


def recurrence_of(row: Any) -> Recurrence | None:
    found = read_recurrence(fields_from(row), EPOCH + timedelta(seconds=row["phase_s"] or 0))
    return found if isinstance(found, Recurrence) else None


def group_of(row: Any, recurrence: Recurrence) -> RuleGroup:
    return RuleGroup(
        recurrence=recurrence,
        rule=row["cron"] if row["cron"] is not None else f"every {row['every_s']} s",
        timezone=row["timezone"],
        jitter_s=row["jitter_s"],
        count=row["schedules"],
        name=row["name"],
        fires_left=row["fires_left"],
    )


async def count_waiting(
    session: Session, tenant: int, first_at: datetime, end_at: datetime
) -> list[int]:
    """Tasks that are due in each minute, from the first on."""
    counts = [0] * int((end_at - first_at).total_seconds() // MINUTE_S)
    rows = await session.fetch(SQL.count_waiting, tenant, first_at, end_at, PLACES_MAX, TASKS_MAX)
    for row in rows:
        counts[row["minute"]] = row["tasks"]
    return counts
