"""Validation of a schedule's fields: a recurrence, or all their problems.

The API and the engine share it, so that an accepted definition is understood later.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

from duly.domain.cron import CronProblem, parse_cron
from duly.domain.limits import Problem
from duly.domain.recurrence import Gap, Interval, Recurrence, Repeat
from duly.domain.wall_times import CronExpression, closest_s
from duly.domain.zones import find_zone

EVERY_S_MIN, EVERY_S_MAX = 1, 366 * 86400
EXCLUDE_DATES_MAX = 1000
INSTANT_MIN = datetime(1970, 1, 1, tzinfo=UTC)
INSTANT_MAX = datetime(2500, 1, 1, tzinfo=UTC)
GAPS: dict[str, Gap] = {"shift": "shift", "skip": "skip"}
REPEATS: dict[str, Repeat] = {"first": "first", "second": "second", "both": "both"}


@dataclass(frozen=True, slots=True)
class RecurrenceFields:
    cron: str | None = None
    every_s: float | None = None
    timezone: str = "UTC"
    dst_gap: str = "shift"
    dst_repeat: str = "first"
    start_at: datetime | None = None
    end_at: datetime | None = None
    exclude_dates: tuple[date, ...] = ()


def read_recurrence(fields: RecurrenceFields, created_at: datetime) -> Recurrence | list[Problem]:
    """An interval is anchored at its start or, without one, at its creation."""
    problems: list[Problem] = []
    rule = read_rule(fields, fields.start_at or created_at, problems)
    zone = read_zone(fields.timezone, problems)
    dst_gap = GAPS.get(fields.dst_gap)
    if dst_gap is None:
        problems.append(Problem("/dst_gap", "must be shift or skip"))
    dst_repeat = REPEATS.get(fields.dst_repeat)
    if dst_repeat is None:
        problems.append(Problem("/dst_repeat", "must be first, second or both"))
    problems += bounds_problems(fields)
    if problems or rule is None or zone is None or dst_gap is None or dst_repeat is None:
        return problems
    return Recurrence(
        rule=rule,
        zone=zone,
        dst_gap=dst_gap,
        dst_repeat=dst_repeat,
        start_at=fields.start_at,
        end_at=fields.end_at,
        exclude_dates=frozenset(fields.exclude_dates),
    )


def read_rule(
    fields: RecurrenceFields, anchor_at: datetime, problems: list[Problem]
) -> CronExpression | Interval | None:
    if (fields.cron is None) == (fields.every_s is None):
        problems.append(Problem("/cron", "exactly one of cron and every_s is needed"))
        return None
    if fields.cron is not None:
        parsed = parse_cron(fields.cron)
        if isinstance(parsed, CronExpression):
            return parsed
        problems.append(Problem("/cron", cron_reason(parsed)))
        return None
    every_s = fields.every_s
    # Written so that NaN fails as well.
    if every_s is None or not EVERY_S_MIN <= every_s <= EVERY_S_MAX or every_s != int(every_s):
        reason = f"must be a whole number of seconds from {EVERY_S_MIN} to {EVERY_S_MAX}"
        problems.append(Problem("/every_s", reason))
        return None
    return Interval(int(every_s), anchor_at)


def cron_reason(problem: CronProblem) -> str:
    return f"{problem.field}: {problem.reason}"


def read_zone(name: str, problems: list[Problem]) -> ZoneInfo | None:
    zone = find_zone(name)
    if zone is None:
        problems.append(Problem("/timezone", "not the IANA name of a time zone"))
    return zone


def bounds_problems(fields: RecurrenceFields) -> list[Problem]:
    found = []
    for pointer, at in (("/start_at", fields.start_at), ("/end_at", fields.end_at)):
        if at is not None and at.tzinfo is None:
            found.append(Problem(pointer, "needs an offset"))
        elif at is not None and not INSTANT_MIN <= at < INSTANT_MAX:
            found.append(Problem(pointer, "must lie from 1970 to 2499"))
    if not found and fields.start_at and fields.end_at and fields.end_at < fields.start_at:
        found.append(Problem("/end_at", "lies before start_at"))
    if len(fields.exclude_dates) > EXCLUDE_DATES_MAX:
        found.append(Problem("/exclude_dates", f"more than {EXCLUDE_DATES_MAX} dates"))
    return found


def closest_fires_s(recurrence: Recurrence) -> int:
    """A lower bound for the seconds between two fires, for a tenant's limit on frequency. Clock
    changes aside: around them, two fires may be closer."""
    if isinstance(recurrence.rule, Interval):
        return recurrence.rule.every_s
    return closest_s(recurrence.rule)
