"""Forecast: expected fires per minute, hotspots, and the jitter that would spread them.

Rules are reckoned with to the minute and by groups: of schedules that share a rule and a jitter,
each has its own fixed moment within the jitter, so together they are taken as spread evenly over
it. Pure: nothing here reads a clock, counts in a database or changes a schedule.
"""

import heapq
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from duly.domain.recurrence import Interval, Recurrence, next_fire
from duly.domain.recurrence_fields import closest_fires_s

MINUTE_S = 60
# About a second of reckoning; the rules that most schedules share come first. What is excluded
# costs as much as what fires.
FIRES_MAX = 200_000
WORST_MAX = 10
TOP_MAX = 5
ADVICE_MAX = 5
# Hotspots with fewer fires are noise.
HOTSPOT_MIN = 10.0
HOTSPOT_MAX = 20
JITTERS_S = (60, 120, 300, 600, 900, 1800, 3600)
# The least jitter is advised that takes away this share of what any jitter could.
GAIN_SHARE = 0.9
# Nothing is advised that leaves more than this share of the peak.
PEAK_SHARE_MAX = 0.9


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Schedules with one rule and one jitter; `name` is that of one of them. With `fires_left`,
    each of them ends after so many fires."""

    recurrence: Recurrence
    rule: str
    timezone: str
    jitter_s: float
    count: int
    name: str
    fires_left: int | None = None


@dataclass(frozen=True, slots=True)
class Fires:
    """When a group fires, each time with so many fires of all its schedules."""

    group: RuleGroup
    times_s: list[int]
    weight: float
    # What it cost to know: instants that were looked at.
    seen: int = 0

    def in_minute(self, start_s: int) -> float:
        """How many are expected from an instant on, for a minute."""
        jitter_s, end_s = self.group.jitter_s, start_s + MINUTE_S
        first = bisect_left(self.times_s, start_s - jitter_s)
        last = bisect_left(self.times_s, end_s)
        if not jitter_s:
            return (last - first) * self.weight
        overlaps_s = (
            min(end_s, at_s + jitter_s) - max(start_s, at_s) for at_s in self.times_s[first:last]
        )
        return sum(overlaps_s) / jitter_s * self.weight


@dataclass(frozen=True, slots=True)
class Share:
    group: RuleGroup
    expected: float


@dataclass(frozen=True, slots=True)
class Hotspot:
    """The rules that fire most in a minute, the largest share first."""

    minute: int
    start_s: int
    fires: list[Fires]
    shares: list[Share]


@dataclass(frozen=True, slots=True)
class WorstMinute:
    minute: int
    schedules: float
    tasks: int
    top: list[Share]

    @property
    def expected(self) -> float:
        return self.schedules + self.tasks


@dataclass(frozen=True, slots=True)
class Advice:
    """With `jitter_s` on these rules (less where two fires of one are closer), no minute from this
    one until the end of the jitter would expect more than `peak_after`."""

    minute: int
    jitter_s: int
    peak_before: float
    peak_after: float
    groups: list[RuleGroup]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Minutes count from `first_s`. `skipped` are groups that were beyond what is reckoned with."""

    first_s: int
    schedules: list[float]
    tasks: list[int]
    worst: list[WorstMinute]
    advice: list[Advice]
    skipped: list[RuleGroup]


class Curve:
    """A number for each minute, to which spans of time are added."""

    def __init__(self, first_s: int, minutes: int) -> None:
        self.first_s = first_s
        self.minutes = minutes
        self.alone = [0.0] * minutes
        # What begins (or, negative, ends) with a minute and holds from there on.
        self.steps = [0.0] * (minutes + 1)

    def add(self, at_s: float, jitter_s: float, weight: float) -> None:
        """`weight` spread evenly from an instant over the jitter."""
        start = (at_s - self.first_s) / MINUTE_S
        end = start + jitter_s / MINUTE_S
        first, last = math.floor(start), math.floor(end)
        if first == last:
            self.put(first, weight)
            return
        rate = weight / (end - start)
        self.put(first, rate * (first + 1 - start))
        self.put(last, rate * (end - last))
        self.steps[min(max(first + 1, 0), self.minutes)] += rate
        self.steps[min(max(last, 0), self.minutes)] -= rate

    def put(self, minute: int, weight: float) -> None:
        if 0 <= minute < self.minutes:
            self.alone[minute] += weight

    def totals(self) -> list[float]:
        # What was added and taken away again may leave a trace below zero.
        held = accumulate(self.steps)
        return [max(one + more, 0.0) for one, more in zip(self.alone, held, strict=False)]


def make_forecast(groups: Sequence[RuleGroup], tasks: Sequence[int], first_s: int) -> Forecast:
    """For as many minutes as `tasks` has counts; those of the schedules are reckoned here."""
    reckoned, skipped = reckon_fires(groups, first_s, first_s + len(tasks) * MINUTE_S)
    curve = Curve(first_s, len(tasks))
    for fires in reckoned:
        for at_s in fires.times_s:
            curve.add(at_s, fires.group.jitter_s, fires.weight)
    schedules = curve.totals()
    expected = [mine + due for mine, due in zip(schedules, tasks, strict=True)]
    hotspots = [hotspot_of(reckoned, first_s, minute) for minute in worst_minutes(expected)]
    worst = [
        WorstMinute(each.minute, schedules[each.minute], tasks[each.minute], each.shares[:TOP_MAX])
        for each in hotspots
    ]
    return Forecast(
        first_s=first_s,
        schedules=schedules,
        tasks=list(tasks),
        worst=worst,
        advice=advise(
            [each for each in hotspots if schedules[each.minute] >= HOTSPOT_MIN], expected
        ),
        skipped=skipped,
    )


def reckon_fires(
    groups: Sequence[RuleGroup], first_s: int, end_s: int
) -> tuple[list[Fires], list[RuleGroup]]:
    """The fires of each group, the larger groups first, until the bound is reached."""
    reckoned: list[Fires] = []
    skipped: list[RuleGroup] = []
    budget = FIRES_MAX
    for group in sorted(groups, key=lambda each: -each.count):
        fires = fires_of(group, first_s, end_s, budget) if budget else None
        if fires is None:
            # No smaller group is tried: each try could cost as much as is left.
            budget = 0
            skipped.append(group)
            continue
        budget -= fires.seen
        reckoned.append(fires)
    return reckoned, skipped


def fires_of(group: RuleGroup, first_s: int, end_s: int, budget: int) -> Fires | None:
    """None: it fires more often than the budget has room for."""
    recurrence, a_minute = once_a_minute(group.recurrence)
    times_s: list[int] = []
    seen = 0
    left = math.inf if group.fires_left is None else math.ceil(group.fires_left / a_minute)
    for at_s, is_to_fire in instants(recurrence, first_s - math.ceil(group.jitter_s), end_s):
        if len(times_s) >= left:
            break
        if seen >= budget:
            return None
        seen += 1
        if is_to_fire:
            times_s.append(at_s)
    # A rule that never fires cost a look all the same.
    return Fires(group, times_s, group.count * a_minute, max(seen, 1))


def once_a_minute(recurrence: Recurrence) -> tuple[Recurrence, float]:
    """What fires several times in a minute, as one fire with so much weight."""
    rule = recurrence.rule
    if isinstance(rule, Interval):
        if rule.every_s >= MINUTE_S:
            return recurrence, 1.0
        return replace(recurrence, rule=replace(rule, every_s=MINUTE_S)), MINUTE_S / rule.every_s
    whole = replace(rule, seconds=1, first_s=rule.first_s - rule.first_s % MINUTE_S)
    return replace(recurrence, rule=whole), float(rule.seconds.bit_count())


def instants(recurrence: Recurrence, earliest_s: int, end_s: int) -> Iterator[tuple[int, bool]]:
    """Each instant of the rule before the end, and whether it is one that fires."""
    if recurrence.start_at is not None:
        earliest_s = max(earliest_s, math.ceil(recurrence.start_at.timestamp()))
    if recurrence.end_at is not None:
        end_s = min(end_s, math.floor(recurrence.end_at.timestamp()) + 1)
    while earliest_s < end_s:
        fire = next_fire(recurrence, max(earliest_s, 0))
        if fire is None or fire[0] >= end_s:
            return
        yield fire[0], fire[2] is None
        earliest_s = fire[0] + 1


def worst_minutes(expected: Sequence[float]) -> list[int]:
    """Of equal ones, the earlier."""
    found = heapq.nsmallest(WORST_MAX, range(len(expected)), key=lambda each: -expected[each])
    return [minute for minute in found if expected[minute] > 0]


def hotspot_of(reckoned: Sequence[Fires], first_s: int, minute: int) -> Hotspot:
    start_s = first_s + minute * MINUTE_S
    shares = [(fires.in_minute(start_s), place) for place, fires in enumerate(reckoned)]
    most = [(share, place) for share, place in heapq.nlargest(HOTSPOT_MAX, shares) if share > 0]
    return Hotspot(
        minute=minute,
        start_s=start_s,
        fires=[reckoned[place] for _, place in most],
        shares=[Share(reckoned[place].group, share) for share, place in most],
    )


def advise(hotspots: Sequence[Hotspot], expected: Sequence[float]) -> list[Advice]:
    """For each herd once, though it comes at every full hour."""
    found: list[Advice] = []
    known: set[frozenset[int]] = set()
    for hotspot in hotspots:
        herd = frozenset(id(fires) for fires in hotspot.fires)
        if herd in known:
            continue
        known.add(herd)
        advice = advise_hotspot(hotspot, expected)
        if advice is not None:
            found.append(advice)
    return found[:ADVICE_MAX]


def advise_hotspot(hotspot: Hotspot, expected: Sequence[float]) -> Advice | None:
    before = expected[hotspot.minute]
    peaks = [peak_with(jitter_s, hotspot, expected) for jitter_s in JITTERS_S]
    best = min(peaks)
    if best > before * PEAK_SHARE_MAX:
        return None
    enough = before - GAIN_SHARE * (before - best)
    chosen = next(place for place, peak in enumerate(peaks) if peak <= max(enough, best))
    return Advice(
        minute=hotspot.minute,
        jitter_s=JITTERS_S[chosen],
        peak_before=before,
        peak_after=peaks[chosen],
        groups=[share.group for share in hotspot.shares],
    )


def peak_with(jitter_s: int, hotspot: Hotspot, expected: Sequence[float]) -> float:
    """The worst minute from the crowd's own until the end of the jitter, if its rules had it."""
    minutes = min(jitter_s // MINUTE_S + 1, len(expected) - hotspot.minute)
    spread = Curve(hotspot.start_s, minutes)
    for fires in hotspot.fires:
        wide_s = max(fires.group.jitter_s, min(jitter_s, allowed_jitter_s(fires.group)))
        first = bisect_left(fires.times_s, hotspot.start_s - wide_s)
        last = bisect_left(fires.times_s, hotspot.start_s + minutes * MINUTE_S)
        for at_s in fires.times_s[first:last]:
            spread.add(at_s, wide_s, fires.weight)
    peak = 0.0
    for place, moved in enumerate(spread.totals()):
        at_s = hotspot.start_s + place * MINUTE_S
        moving = sum(fires.in_minute(at_s) for fires in hotspot.fires)
        peak = max(peak, expected[hotspot.minute + place] - moving + moved)
    return peak


def allowed_jitter_s(group: RuleGroup) -> int:
    """Two fires of one schedule may not change places."""
    return closest_fires_s(group.recurrence) - 1
