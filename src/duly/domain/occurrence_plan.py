"""Decisions on the due occurrences of a schedule: one verdict each, and the next occurrence.

| policy | an occurrence that comes late, or several at once |
|---|---|
| misfire `fire_all` | fires if it is at most `misfire_window_s` late, oldest first |
| misfire `coalesce` | the newest fires, however late; those before it are folded into it |
| misfire `skip` | fires if it is at most `GRACE_S` late |
| overlap `allow` | fires while fewer than `max_running` of the schedule's tasks live |
| overlap `skip` | fires if none of them lives |
| overlap `queue_one` | fires if at most one lives; the new one waits for that one to end |
| overlap `cancel_previous` | fires, and those that live are cancelled |

Pure: nothing here reads a clock or stores. A later call goes on where this one's cursor stopped.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice, takewhile
from typing import Literal

from duly.domain.recurrence import (
    Occurrence,
    Recurrence,
    SkipReason,
    next_occurrences,
    occurrences,
)

Misfire = Literal["fire_all", "coalesce", "skip"]
Overlap = Literal["allow", "skip", "queue_one", "cancel_previous"]

# Up to here an occurrence counts as being on time.
GRACE_S = 60.0
# What one call decides, and how many tasks it makes: catching up goes in batches.
RULINGS_MAX = 500
FIRES_MAX = 20
# How many excluded occurrences are looked through for one that is not.
SEARCHED_MAX = 10_000


class OccurrenceDecision(StrEnum):
    FIRED = "FIRED"
    LATE = "LATE"
    COALESCED = "COALESCED"
    SKIPPED_MISFIRE = "SKIPPED_MISFIRE"
    SKIPPED_DST = "SKIPPED_DST"
    SKIPPED_OVERLAP = "SKIPPED_OVERLAP"
    SKIPPED_PAUSED = "SKIPPED_PAUSED"
    EXCLUDED = "EXCLUDED"
    # By hand: outside the rule, or for an occurrence that made no task.
    TRIGGERED = "TRIGGERED"
    BACKFILLED = "BACKFILLED"


# These made a task.
FIRING = frozenset(
    {
        OccurrenceDecision.FIRED,
        OccurrenceDecision.LATE,
        OccurrenceDecision.TRIGGERED,
        OccurrenceDecision.BACKFILLED,
    }
)


@dataclass(frozen=True, slots=True)
class Policies:
    misfire: Misfire = "coalesce"
    misfire_window_s: float = 3600.0
    overlap: Overlap = "allow"
    max_running: int | None = None
    max_fires: int | None = None


@dataclass(frozen=True, slots=True)
class ScheduleProgress:
    """Progress of a schedule: decided up to `cursor_at`, number of fires, and its live tasks."""

    cursor_at: datetime
    fires: int = 0
    live: int = 0
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class DecidedOccurrence:
    nominal_at: datetime
    verdict: OccurrenceDecision
    late_s: float

    @property
    def fires(self) -> bool:
        return self.verdict in FIRING


@dataclass(frozen=True, slots=True)
class FiringPlan:
    """`next_at` is the next nominal time, also when that is due already; None ends the schedule."""

    decisions: list[DecidedOccurrence]
    cursor_at: datetime
    next_at: datetime | None


def plan_firing(
    recurrence: Recurrence,
    policies: Policies,
    progress: ScheduleProgress,
    offset_s: float,
    now: datetime,
    *,
    with_held: bool = False,
) -> FiringPlan:
    """Decide what is due by `now`; each occurrence is due `offset_s` after its nominal time. With
    those that only the offset holds back, nothing up to `now` is left for another definition."""
    offset = timedelta(seconds=offset_s)
    decisions: list[DecidedOccurrence] = []
    fires, live, cursor_at = progress.fires, progress.live, progress.cursor_at
    for occurrence, is_newest in batch(recurrence, cursor_at, now if with_held else now - offset):
        if is_spent(policies, fires) or fires - progress.fires >= FIRES_MAX:
            break
        late_s = max((now - occurrence.at - offset).total_seconds(), 0.0)
        verdict = rule(policies, progress, occurrence, late_s, live, is_newest=is_newest)
        decisions.append(DecidedOccurrence(occurrence.at, verdict, late_s))
        cursor_at = occurrence.at
        if verdict in FIRING:
            fires += 1
            live = 1 if policies.overlap == "cancel_previous" else live + 1
    return FiringPlan(decisions, cursor_at, next_at(recurrence, policies, cursor_at, fires))


def is_spent(policies: Policies, fires: int) -> bool:
    return policies.max_fires is not None and fires >= policies.max_fires


def next_at(
    recurrence: Recurrence, policies: Policies, cursor_at: datetime, fires: int
) -> datetime | None:
    if is_spent(policies, fires):
        return None
    following = next_occurrences(recurrence, cursor_at, 1)
    return following[0].at if following else None


def batch(
    recurrence: Recurrence, cursor_at: datetime, until: datetime
) -> Iterator[tuple[Occurrence, bool]]:
    """The oldest that are due, each with whether it is the newest of all that could fire. Where
    more follow than fit, the newest of these is left for the next batch, which decides."""
    due = due_of(recurrence, cursor_at, until, RULINGS_MAX + 1)
    candidates = [index for index, each in enumerate(due) if each.verdict_hint is None]
    newest = candidates[-1] if candidates else None
    if len(due) > RULINGS_MAX and newest is not None:
        if newest > 0:
            due, newest = due[:newest], None
        elif has_candidate(recurrence, due[-1].at, until):
            newest = None
    for index, occurrence in enumerate(due[:RULINGS_MAX]):
        yield occurrence, index == newest


def due_of(
    recurrence: Recurrence, after: datetime, until: datetime, limit: int
) -> list[Occurrence]:
    few = islice(occurrences(recurrence, after), limit)
    return list(takewhile(lambda each: each.at <= until, few))


def has_candidate(recurrence: Recurrence, after: datetime, until: datetime) -> bool:
    """Whether a candidate follows a whole batch of excluded ones; searches `SEARCHED_MAX` at
    most."""
    found = due_of(recurrence, after, until, SEARCHED_MAX)
    return any(each.verdict_hint is None for each in found)


def rule(
    policies: Policies,
    progress: ScheduleProgress,
    occurrence: Occurrence,
    late_s: float,
    live: int,
    *,
    is_newest: bool,
) -> OccurrenceDecision:
    """The order of rules: the definition, a pause, the misfire policy, the overlap policy."""
    if occurrence.verdict_hint is SkipReason.EXCLUDED:
        return OccurrenceDecision.EXCLUDED
    if occurrence.verdict_hint is SkipReason.SKIPPED_DST:
        return OccurrenceDecision.SKIPPED_DST
    if progress.is_paused:
        return OccurrenceDecision.SKIPPED_PAUSED
    verdict = decide_misfire(policies, late_s, is_newest=is_newest)
    if verdict in FIRING and overlaps(policies, live):
        return OccurrenceDecision.SKIPPED_OVERLAP
    return verdict


def decide_misfire(policies: Policies, late_s: float, *, is_newest: bool) -> OccurrenceDecision:
    is_late = late_s > GRACE_S
    match policies.misfire:
        case "coalesce" if not is_newest:
            return OccurrenceDecision.COALESCED
        case "fire_all" if is_late and late_s > policies.misfire_window_s:
            return OccurrenceDecision.SKIPPED_MISFIRE
        case "skip" if is_late:
            return OccurrenceDecision.SKIPPED_MISFIRE
        case _:
            return OccurrenceDecision.LATE if is_late else OccurrenceDecision.FIRED


def overlaps(policies: Policies, live: int) -> bool:
    match policies.overlap:
        case "allow":
            return policies.max_running is not None and live >= policies.max_running
        case "skip":
            return live > 0
        case "queue_one":
            return live > 1
        case "cancel_previous":
            return False


def watches(policies: Policies) -> bool:
    """Whether it matters which of the schedule's tasks live."""
    return policies.overlap != "allow" or policies.max_running is not None
