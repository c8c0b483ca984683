"""The next clock changes of a zone and their effect on a schedule, for previews.

Nothing is decided here; the occurrences are those that `recurrence.py` will give.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Literal
from zoneinfo import ZoneInfo

from duly.domain.recurrence import (
    EPOCH,
    SECOND,
    WALL_EPOCH,
    Gap,
    Interval,
    Occurrence,
    Recurrence,
    Repeat,
    SkipReason,
    next_occurrences,
    occurrences,
)
from duly.domain.wall_times import CronExpression, next_wall
from duly.domain.zones import Span, span_at

CHANGES_MAX = 2
SEARCHED_S = 3 * 366 * 86400
TOUCHED_MAX = 10


@dataclass(frozen=True, slots=True)
class ClockChange:
    """At `at` the clock goes from `wall_before` to `wall_after`. `touched` are the first of the
    occurrences that the change moves, drops or repeats."""

    at: datetime
    kind: Literal["gap", "repeat"]
    wall_before: datetime
    wall_after: datetime
    touched: tuple[Occurrence, ...]
    effect: str


def describe_changes(recurrence: Recurrence, after: datetime) -> list[ClockChange]:
    """The next two changes of the zone within three years."""
    starts = islice(changed_spans(recurrence.zone, (after - EPOCH) // SECOND), CHANGES_MAX)
    return [describe(recurrence, span) for span in starts]


def changed_spans(zone: ZoneInfo, after_s: int) -> Iterator[Span]:
    """The spans that begin after an instant with another offset than the one before."""
    span = span_at(zone, max(after_s, 0))
    while span.end_s <= after_s + SEARCHED_S:
        span = span_at(zone, span.end_s)
        if span.offset_s != span.offset_before_s:
            yield span


def describe(recurrence: Recurrence, span: Span) -> ClockChange:
    kind: Literal["gap", "repeat"] = "gap" if span.offset_s > span.offset_before_s else "repeat"
    wall_before = WALL_EPOCH + timedelta(seconds=span.start_s + span.offset_before_s)
    wall_after = WALL_EPOCH + timedelta(seconds=span.start_s + span.offset_s)
    at = EPOCH + timedelta(seconds=span.start_s)
    touched: tuple[Occurrence, ...] = ()
    if isinstance(recurrence.rule, Interval):
        effect = "none: an interval counts real seconds"
    elif kind == "gap":
        if not recurrence.rule.keeps_real_time and swallows(recurrence.rule, span):
            touched = touched_by_gap(recurrence, at)
        missing = f"{wall_before} to before {wall_after} does not exist"
        effect = effect_of_gap(recurrence.rule, recurrence.dst_gap, touched, missing)
    else:
        touched = touched_by_repeat(recurrence, at, wall_before - wall_after)
        twice = f"{wall_after} to before {wall_before} comes twice"
        effect = effect_of_repeat(recurrence.rule, recurrence.dst_repeat, touched, twice)
    return ClockChange(at, kind, wall_before, wall_after, touched, effect)


def swallows(expression: CronExpression, span: Span) -> bool:
    wall_s = next_wall(expression, span.start_s + span.offset_before_s)
    return wall_s is not None and wall_s < span.start_s + span.offset_s


def touched_by_gap(recurrence: Recurrence, at: datetime) -> tuple[Occurrence, ...]:
    return tuple(each for each in next_occurrences(recurrence, at - SECOND, 1) if each.at == at)


def touched_by_repeat(
    recurrence: Recurrence, at: datetime, repeated: timedelta
) -> tuple[Occurrence, ...]:
    within = takewhile(
        lambda each: each.at < at + repeated, occurrences(recurrence, at - repeated - SECOND)
    )
    return tuple(islice(within, TOUCHED_MAX))


def effect_of_gap(
    expression: CronExpression, policy: Gap, touched: tuple[Occurrence, ...], missing: str
) -> str:
    if expression.keeps_real_time:
        return f"{missing}; real-time spacing is kept"
    if not touched:
        return f"none: {missing}, and nothing falls in it"
    if touched[0].verdict_hint is SkipReason.EXCLUDED:
        return f"{missing}; what falls in it is excluded"
    if policy == "skip":
        return f"{missing}; what falls in it is skipped"
    return f"{missing}; what falls in it fires once, at the end of it"


def effect_of_repeat(
    expression: CronExpression, policy: Repeat, touched: tuple[Occurrence, ...], twice: str
) -> str:
    if not touched:
        return f"none: {twice}, and nothing falls in it"
    if expression.keeps_real_time:
        return f"{twice}; real-time spacing is kept, so both passes fire"
    return f"{twice}; " + ("both passes fire" if policy == "both" else f"the {policy} pass fires")
