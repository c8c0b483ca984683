"""Recurrence: the next occurrences of a cron expression or an interval.

| the hour field | in a gap (the clock jumps forward) | in a repeat (the clock goes back) |
|---|---|---|
| fixed (`2`, `1-5`, `0-23`) | `dst_gap`: all its times in the gap are one occurrence at the end of it, fired (shift) or not (skip) | `dst_repeat`: the first pass, the second, or both |
| starts with `*` | its times in the gap do not exist | both passes: every real minute that reads right fires |

Intervals count real seconds from their anchor. Nothing here reads a clock, stores or fires.
"""  # noqa: E501

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Literal
from uuid import UUID
from zoneinfo import ZoneInfo

from duly.domain.wall_times import DAY_S, EPOCH_DAY, YEAR_MAX, CronExpression, next_wall
from duly.domain.zones import Span, span_at

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WALL_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001
SECOND = timedelta(seconds=1)
LAST_S = (datetime(YEAR_MAX, 12, 1, tzinfo=UTC) - EPOCH) // SECOND
# No clock is further from UTC, and none is ever changed by more.
OFFSET_S_MAX = 26 * 3600

Gap = Literal["shift", "skip"]
Repeat = Literal["first", "second", "both"]


class SkipReason(StrEnum):
    """Why an expected occurrence does not fire."""

    SKIPPED_DST = "SKIPPED_DST"
    EXCLUDED = "EXCLUDED"


@dataclass(frozen=True, slots=True)
class Interval:
    every_s: int
    # An occurrence itself, if it lies in the future; fractions of a second are rounded up.
    anchor_at: datetime


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Fires from `start_at` to `end_at`, both included. An excluded date is a local one: neither
    the wall time that was asked for nor the one it is shifted to may fall on it."""

    rule: CronExpression | Interval
    zone: ZoneInfo
    dst_gap: Gap = "shift"
    dst_repeat: Repeat = "first"
    start_at: datetime | None = None
    end_at: datetime | None = None
    exclude_dates: frozenset[date] = frozenset()


@dataclass(frozen=True, slots=True)
class Occurrence:
    """`at` is the nominal instant, unique within the schedule. `wall` is the local time that was
    asked for: at the end of a gap the clock shows another."""

    at: datetime
    wall: datetime
    verdict_hint: SkipReason | None = None


def next_occurrences(recurrence: Recurrence, after: datetime, limit: int) -> list[Occurrence]:
    """The first `limit` occurrences strictly after an instant, in order; fewer if there are none.
    Those with a hint count: every one of them is owed a verdict."""
    return list(islice(occurrences(recurrence, after), limit))


def occurrences(recurrence: Recurrence, after: datetime) -> Iterator[Occurrence]:
    earliest_s = max((after - EPOCH) // SECOND + 1, 0)
    if recurrence.start_at is not None:
        earliest_s = max(earliest_s, whole_second_from(recurrence.start_at))
    latest_s = LAST_S
    if recurrence.end_at is not None:
        latest_s = min(latest_s, (recurrence.end_at - EPOCH) // SECOND)
    while earliest_s <= latest_s:
        fire = next_fire(recurrence, earliest_s)
        if fire is None or fire[0] > latest_s:
            return
        at_s, wall_s, hint = fire
        yield Occurrence(
            EPOCH + timedelta(seconds=at_s), WALL_EPOCH + timedelta(seconds=wall_s), hint
        )
        earliest_s = at_s + 1


# The instant, the wall time that was asked for, and why it is not to fire.
Fire = tuple[int, int, SkipReason | None]


def next_fire(recurrence: Recurrence, earliest_s: int) -> Fire | None:
    if isinstance(recurrence.rule, Interval):
        return next_of_interval(recurrence, recurrence.rule, earliest_s)
    return next_of_cron(recurrence, recurrence.rule, earliest_s)


def next_of_interval(recurrence: Recurrence, interval: Interval, earliest_s: int) -> Fire:
    anchor_s = whole_second_from(interval.anchor_at)
    steps = max(-((anchor_s - earliest_s) // interval.every_s), 0)
    at_s = anchor_s + steps * interval.every_s
    wall_s = at_s + span_at(recurrence.zone, at_s).offset_s
    return at_s, wall_s, exclusion(recurrence, wall_s)


def next_of_cron(
    recurrence: Recurrence, expression: CronExpression, earliest_s: int
) -> Fire | None:
    """Span by span: within one, wall time is real time moved by a constant."""
    while earliest_s <= LAST_S:
        span = span_at(recurrence.zone, earliest_s)
        gap = fire_after_gap(recurrence, expression, span) if earliest_s == span.start_s else None
        first_wall_s, end_wall_s = walls_of_span(recurrence, expression, span)
        wall_s = next_wall(expression, max(earliest_s + span.offset_s, first_wall_s))
        if wall_s is not None and wall_s < end_wall_s:
            return earlier_fire(
                gap, (wall_s - span.offset_s, wall_s, exclusion(recurrence, wall_s))
            )
        if gap is not None:
            return gap
        if wall_s is None:
            return None
        earliest_s = onward(span, earliest_s, wall_s)
    return None


def walls_of_span(
    recurrence: Recurrence, expression: CronExpression, span: Span
) -> tuple[int, int]:
    """The wall times that fire in this span: a repeat lies at the end of one and the start of the
    next, and the policy says which of them has it."""
    first_wall_s, end_wall_s = span.start_s + span.offset_s, span.end_s + span.offset_s
    if expression.keeps_real_time or recurrence.dst_repeat == "both":
        return first_wall_s, end_wall_s
    if recurrence.dst_repeat == "first":
        return max(first_wall_s, span.start_s + span.offset_before_s), end_wall_s
    return first_wall_s, min(end_wall_s, span.end_s + span.offset_after_s)


def fire_after_gap(recurrence: Recurrence, expression: CronExpression, span: Span) -> Fire | None:
    """What the gap before a span swallowed, as one fire at the start of the span. The first time in
    the gap stands for all of them."""
    if expression.keeps_real_time or span.offset_before_s >= span.offset_s:
        return None
    wall_s = next_wall(expression, span.start_s + span.offset_before_s)
    end_wall_s = span.start_s + span.offset_s
    if wall_s is None or wall_s >= end_wall_s:
        return None
    excluded = exclusion(recurrence, wall_s) or exclusion(recurrence, end_wall_s)
    skipped = SkipReason.SKIPPED_DST if recurrence.dst_gap == "skip" else None
    return span.start_s, wall_s, excluded or skipped


def earlier_fire(gap: Fire | None, plain: Fire) -> Fire:
    """At the same instant they are one occurrence, and the clock shows the plain one."""
    return plain if gap is None or plain[0] == gap[0] else gap


def onward(span: Span, earliest_s: int, wall_s: int) -> int:
    """The next span, or, where no repeat can bring back a wall time already passed, straight to
    before the match: a leap day must not cost a walk through eight years of spans."""
    if span.end_s - earliest_s <= 2 * OFFSET_S_MAX:
        return span.end_s
    return max(span.end_s, wall_s - OFFSET_S_MAX)


def exclusion(recurrence: Recurrence, wall_s: int) -> SkipReason | None:
    if not recurrence.exclude_dates:
        return None
    day = date.fromordinal(wall_s // DAY_S + EPOCH_DAY)
    return SkipReason.EXCLUDED if day in recurrence.exclude_dates else None


def whole_second_from(at: datetime) -> int:
    return -((EPOCH - at) // SECOND)


def stable_jitter_s(schedule_id: UUID, jitter_s: float) -> float:
    """How much later than its nominal time a schedule starts: always the same part of `jitter_s`,
    in milliseconds, so that its cadence is exact and a herd of schedules is spread evenly."""
    digest = hashlib.sha256(schedule_id.bytes).digest()
    share = int.from_bytes(digest[:6]) / 2**48
    return int(share * jitter_s * 1000) / 1000
