"""Occurrences equal those of the brute-force model, on random samples and in the hardest zones.

DULY_TEST_CRON_SAMPLES says how many samples (expression, zone, instant) there are: 100000.
"""

import os
from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Any
from zoneinfo import available_timezones

import pytest

from duly.domain.cron import parse_cron
from duly.domain.recurrence import Gap, Recurrence, Repeat, next_occurrences
from duly.domain.wall_times import CronExpression
from duly.domain.zones import find_zone
from tests.domain.cron_model import Expected, ModelCron, Timeline, days_of_change, expected
from tests.domain.cron_samples import random_expression

SAMPLES = int(os.environ.get("DULY_TEST_CRON_SAMPLES", "100000"))
BATCHES = 10
EXPRESSIONS_PER_WINDOW = 5
INSTANTS_PER_EXPRESSION = 40
FAR = 4
GAPS: tuple[Gap, ...] = ("shift", "skip")
REPEATS: tuple[Repeat, ...] = ("first", "second", "both")
# A zone, and the first of five years in which its clock did something unusual.
HARD_ZONES = [
    ("Australia/Lord_Howe", 2022),  # half an hour
    ("Pacific/Apia", 2009),  # 2011-12-30 does not exist
    ("Africa/Casablanca", 2022),  # back for Ramadan, at dates of the moon
    ("Antarctica/Troll", 2021),  # two hours
    ("Asia/Tehran", 2018),  # changes at midnight, until it stops
    ("America/Sao_Paulo", 2015),  # midnight does not exist
    ("Europe/Dublin", 2022),  # winter time is the exception
    ("Asia/Gaza", 2022),  # several changes a year
    ("America/Caracas", 2013),  # half an hour, for good
    ("Asia/Pyongyang", 2014),  # half an hour there and back
    ("Pacific/Kwajalein", 1991),  # 1993-08-21 does not exist
    ("Africa/Cairo", 2010),  # four changes a year
    ("America/Scoresbysund", 2022),  # another zone and another rule at once
    ("America/Santiago", 2014),  # a year of summer
]
FIVE_YEARS_OF = [
    "30 0 * * *",
    "0 0,2,3 * * *",
    "30 * * * *",
    "*/30 */2 * * 1-5",
    "0,30 1-3 L,LW * *",
    "0 23 13 * FRI",
    "30 0-23 * 3-5,8-12 SUN#5,6L",
]
ZONES = sorted(available_timezones() - {"localtime", "Factory"})


def random_window(random: Random) -> tuple[str, Timeline, bool]:
    """Three days by minutes or two hours by seconds, more often than not around a change."""
    zone = random.choice(HARD_ZONES)[0] if random.random() < 0.3 else random.choice(ZONES)
    year = random.randint(1975, 2045)
    by_seconds = random.random() < 0.05
    start = datetime(year, 1, 1, tzinfo=UTC) + timedelta(minutes=random.randrange(364 * 1440))
    days = days_of_change(zone, year)
    if days and random.random() < 0.8:
        earlier = timedelta(0) if by_seconds else timedelta(minutes=random.randint(0, 2 * 1440))
        start = random.choice(days) - earlier
        if by_seconds:
            start += timedelta(hours=random.randint(0, 22))
    length = timedelta(hours=2) if by_seconds else timedelta(days=3)
    return zone, Timeline(zone, start, start + length, 1 if by_seconds else 60), by_seconds


def recurrence_of(text: str, zone: str, **policies: Any) -> Recurrence:
    expression, info = parse_cron(text), find_zone(zone)
    assert isinstance(expression, CronExpression), (text, expression)
    assert info is not None
    return Recurrence(expression, info, **policies)


def answers(recurrence: Recurrence, after: datetime, limit: int) -> list[Expected]:
    return [
        (each.at, each.wall, each.verdict_hint and str(each.verdict_hint))
        for each in next_occurrences(recurrence, after, limit)
    ]


def check_window(random: Random) -> int:
    zone, timeline, by_seconds = random_window(random)
    for _ in range(EXPRESSIONS_PER_WINDOW):
        text = random_expression(random, by_seconds)
        gap, repeat = random.choice(GAPS), random.choice(REPEATS)
        excluded: frozenset[date] = frozenset()
        if random.random() < 0.2:
            excluded = frozenset({random.choice(timeline.walls).date()})
        if isinstance(parse_cron(text), CronExpression):
            recurrence = recurrence_of(
                text, zone, dst_gap=gap, dst_repeat=repeat, exclude_dates=excluded
            )
            model = expected(ModelCron(text), timeline, gap, repeat, excluded)
            check_instants(random, recurrence, timeline, model, (text, zone, gap, repeat))
    return EXPRESSIONS_PER_WINDOW * INSTANTS_PER_EXPRESSION


def check_instants(
    random: Random,
    recurrence: Recurrence,
    timeline: Timeline,
    model: list[Expected],
    case: tuple[str, ...],
) -> None:
    instants = [fire[0] for fire in model]
    seconds = int((timeline.end - timeline.start).total_seconds())
    for _ in range(INSTANTS_PER_EXPRESSION):
        if instants and random.random() < 0.5:
            # On an occurrence, or just before it: where "strictly after" is decided.
            after = random.choice(instants) - random.choice([0, 1]) * timedelta(microseconds=1)
        else:
            after = timeline.start + timedelta(seconds=random.randrange(seconds))
        after = max(after, timeline.start - timedelta(microseconds=1))
        limit = random.randint(1, FAR)
        wanted = model[bisect_right(instants, after) :][:limit]
        given = [fire for fire in answers(recurrence, after, limit) if fire[0] < timeline.end]
        assert given == wanted, (*case, after)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "batch", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, BATCHES))]
)
def test_random_samples_equal_the_model(batch: int) -> None:
    """A wrong minute in one zone, once a year, is a fault that nobody finds by looking."""
    random = Random(20260101 + batch)
    done = 0
    while done < SAMPLES / BATCHES:
        done += check_window(random)


@pytest.mark.parametrize(
    ("zone", "year"), [pytest.param(*each, marks=pytest.mark.slow) for each in HARD_ZONES]
)
def test_five_years_in_a_hard_zone_equal_the_model(zone: str, year: int) -> None:
    """Changes of half an hour, of a day, at midnight, by the moon: each has broken a scheduler."""
    start, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 5, 1, 1, tzinfo=UTC)
    timeline = Timeline(zone, start, end, 1800)
    for number, text in enumerate(FIVE_YEARS_OF):
        gap, repeat = GAPS[number % 2], REPEATS[number % 3]
        model = expected(ModelCron(text), timeline, gap, repeat, frozenset())
        recurrence = recurrence_of(text, zone, dst_gap=gap, dst_repeat=repeat)
        just_before = start - timedelta(microseconds=1)
        given = answers(recurrence, just_before, len(model) + 1)
        assert given[: len(model)] == model, text
        assert given[-1][0] >= end
