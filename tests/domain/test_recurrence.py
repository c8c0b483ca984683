"""Occurrences: the policies by example, their properties, bounds, intervals, jitter, speed."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from random import Random
from time import process_time
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from duly.domain.cron import parse_cron
from duly.domain.recurrence import (
    Interval,
    Recurrence,
    SkipReason,
    next_occurrences,
    stable_jitter_s,
)
from duly.domain.wall_times import CronExpression
from tests.domain.cron_model import days_of_change
from tests.domain.cron_samples import CRONSIM_DIFFERS, random_expression

BERLIN = ZoneInfo("Europe/Berlin")
SPRING = datetime(2026, 3, 28, 12, tzinfo=UTC)  # the gap is 29 March, 02:00 to 03:00
AUTUMN = datetime(2026, 10, 24, 12, tzinfo=UTC)  # 25 October, 02:00 to 03:00 comes twice
MICROSECOND = timedelta(microseconds=1)
EXPRESSIONS = [
    *("30 2 * * *", "0 2,3 * * *", "*/20 * * * *", "0 */2 * * *", "*/7 1-3 * * SUN", "0 0 L * *"),
    *("0,30 0-23 * * *", "*/10 30 2 * * *", "59 59 1,2 * * *"),
]
ZONES = ["Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia", "UTC", "America/Sao_Paulo"]
recurrences = st.builds(
    lambda text, zone, gap, repeat, excluded: cron(
        text,
        zone=ZoneInfo(zone),
        dst_gap=gap,
        dst_repeat=repeat,
        exclude_dates=frozenset(excluded),
    ),
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(ZONES),
    st.sampled_from(["shift", "skip"]),
    st.sampled_from(["first", "second", "both"]),
    st.sets(st.dates(date(2011, 1, 1), date(2011, 12, 31)), max_size=30),
)
naive = datetime.fromisoformat
instants = st.one_of(
    st.datetimes(naive("2011-01-01"), naive("2012-01-10")),
    # Around the last hours of 29 December in Apia, and the two changes in Berlin.
    st.datetimes(naive("2011-12-29"), naive("2012-01-01")),
    st.datetimes(naive("2011-03-26"), naive("2011-03-28")),
    st.datetimes(naive("2011-10-29"), naive("2011-10-31")),
).map(lambda wall: wall.replace(tzinfo=UTC))


def cron(text: str, **policies: Any) -> Recurrence:
    expression = parse_cron(text)
    assert isinstance(expression, CronExpression), expression
    return Recurrence(expression, **{"zone": BERLIN, **policies})


def every(seconds: int, anchor_at: datetime, **policies: Any) -> Recurrence:
    return Recurrence(Interval(seconds, anchor_at), **{"zone": BERLIN, **policies})


def shown(recurrence: Recurrence, after: datetime, limit: int) -> list[str]:
    """Instant, wall time if the clock shows another, and hint, to be read at a glance."""
    lines = []
    for each in next_occurrences(recurrence, after, limit):
        real = each.at.astimezone(recurrence.zone)
        line = f"{real:%dT%H:%M%z}"
        if real.replace(tzinfo=None) != each.wall:
            line += f" for {each.wall:%H:%M}"
        lines.append(line + (f" {each.verdict_hint}" if each.verdict_hint else ""))
    return lines


@pytest.mark.parametrize(
    ("text", "gap", "fires"),
    [
        ("30 2 * * *", "shift", ["29T03:00+0200 for 02:30", "30T02:30+0200"]),
        ("30 2 * * *", "skip", ["29T03:00+0200 for 02:30 SKIPPED_DST", "30T02:30+0200"]),
        # Several times in one gap are one occurrence; one that really exists there is the same one.
        ("0,30 2 * * *", "shift", ["29T03:00+0200 for 02:00", "30T02:00+0200"]),
        ("0 2,3 * * *", "shift", ["29T03:00+0200", "30T02:00+0200"]),
        ("0 2,3 * * *", "skip", ["29T03:00+0200", "30T02:00+0200"]),
        ("15 2,3 * * *", "skip", ["29T03:00+0200 for 02:15 SKIPPED_DST", "29T03:15+0200"]),
        ("0 */2 * * *", "shift", ["28T14:00+0100", "28T16:00+0100"]),
        ("30 2 29 3 *", "shift", ["29T03:00+0200 for 02:30", "29T02:30+0200"]),
    ],
)
def test_a_time_in_the_gap_follows_the_policy(text: str, gap: str, fires: list[str]) -> None:
    """The nightly run that did not happen in the night of the change."""
    assert shown(cron(text, dst_gap=gap), SPRING, 2) == fires


@pytest.mark.parametrize(
    ("repeat", "fires"),
    [
        ("first", ["25T02:30+0200", "26T02:30+0100"]),
        ("second", ["25T02:30+0100", "26T02:30+0100"]),
        ("both", ["25T02:30+0200", "25T02:30+0100", "26T02:30+0100"]),
    ],
)
def test_a_time_that_comes_twice_follows_the_policy(repeat: str, fires: list[str]) -> None:
    """Customers charged twice, once a year."""
    assert shown(cron("30 2 * * *", dst_repeat=repeat), AUTUMN, len(fires)) == fires


@pytest.mark.parametrize("repeat", ["first", "second", "both"])
@pytest.mark.parametrize("gap", ["shift", "skip"])
def test_a_wildcard_hour_keeps_real_time_through_both_changes(gap: str, repeat: str) -> None:
    """Something that runs every ten minutes must not pause for an hour, nor run twice at once."""
    each = cron("*/10 * * * *", dst_gap=gap, dst_repeat=repeat)
    for start in (SPRING, AUTUMN):
        fires = next_occurrences(each, start, 200)
        steps = {later.at - earlier.at for earlier, later in pairwise(fires)}
        assert steps == {timedelta(minutes=10)}
        assert {fire.verdict_hint for fire in fires} == {None}


def test_stepped_hours_fire_whenever_the_clock_shows_them() -> None:
    """Documented as in Vixie cron: 02:00 is missing once a year and comes twice once a year."""
    two_hourly = cron("0 */2 * * *")
    after = SPRING.replace(day=28, hour=22)
    assert shown(two_hourly, after, 3) == ["29T00:00+0100", "29T04:00+0200", "29T06:00+0200"]
    after = AUTUMN.replace(day=24, hour=21)
    wanted = ["25T00:00+0200", "25T02:00+0200", "25T02:00+0100", "25T04:00+0100"]
    assert shown(two_hourly, after, 4) == wanted


def test_a_second_pass_is_not_overlooked_from_within_the_first() -> None:
    """The next match by the wall is a year away, and yet the same hour comes again."""
    rare = cron("10 */2 25 10 *")
    after = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)  # 02:30, the first time
    assert shown(rare, after, 2) == ["25T02:10+0100", "25T04:10+0100"]
    last = cron("10 2 25 10 *", dst_repeat="second")
    assert shown(last, after, 1) == ["25T02:10+0100"]


def test_a_day_that_does_not_exist_fires_once_after_it_or_is_skipped() -> None:
    """Samoa went from 29 to 31 December 2011."""
    after = datetime(2011, 12, 29, 22, tzinfo=UTC)  # noon of the 29th
    noon = cron("0 8,20 * * *", zone=ZoneInfo("Pacific/Apia"))
    assert shown(noon, after, 3) == ["29T20:00-1000", "31T00:00+1400 for 08:00", "31T08:00+1400"]
    skipping = replace(noon, dst_gap="skip")
    assert shown(skipping, after, 2)[1] == "31T00:00+1400 for 08:00 SKIPPED_DST"
    for day in (30, 31):
        excluding = replace(noon, exclude_dates=frozenset({date(2011, 12, day)}))
        assert shown(excluding, after, 2)[1] == "31T00:00+1400 for 08:00 EXCLUDED"


def test_an_excluded_date_is_a_local_one_and_is_accounted_for() -> None:
    """A holiday is a day in the schedule's own zone; a missing row looks like a lost fire."""
    tokyo = ZoneInfo("Asia/Tokyo")
    holiday = cron("0 1 * * *", zone=tokyo, exclude_dates=frozenset({date(2026, 5, 5)}))
    fires = next_occurrences(holiday, datetime(2026, 5, 3, tzinfo=UTC), 3)
    assert [fire.at.isoformat() for fire in fires] == [
        f"2026-05-0{day}T16:00:00+00:00" for day in (3, 4, 5)
    ]
    assert [fire.verdict_hint for fire in fires] == [None, SkipReason.EXCLUDED, None]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Europe/Dublin"])
def test_the_defaults_are_those_of_cronsim(zone: str) -> None:
    """Another author's reading of Vixie cron. It differs where only the minute has a star, inside a
    repeat, and it errs where a gap begins at midnight or is half an hour long."""
    random = Random(zone)
    for day in (change for year in range(2010, 2040) for change in days_of_change(zone, year)):
        text = random_expression(random, with_seconds=False)
        minute, hour = text.split()[:2]
        if CRONSIM_DIFFERS.search(text) or (minute[0] == "*" and hour[0] != "*"):
            continue
        start = (day - timedelta(hours=random.randint(24, 48))).astimezone(ZoneInfo(zone))
        simulated = CronSim(text, start)
        wanted = [next(simulated).astimezone(UTC) for _ in range(60)]
        fires = next_occurrences(cron(text, zone=ZoneInfo(zone)), start, 60)
        assert [each.at for each in fires] == wanted, (text, start)


@given(recurrences, instants)
def test_occurrences_rise_and_resume_anywhere(recurrence: Recurrence, after: datetime) -> None:
    """Two schedulers that continue from different points must write the same ledger."""
    whole = next_occurrences(recurrence, after, 80)
    assert all(after < each.at for each in whole)
    assert all(earlier.at < later.at for earlier, later in pairwise(whole))
    for index in (0, 1, 17, 40, 78):
        resumed = next_occurrences(recurrence, whole[index].at, 80 - index - 1)
        assert resumed == whole[index + 1 :]
        again = next_occurrences(recurrence, whole[index].at - MICROSECOND, 1)
        assert again == [whole[index]]


@given(recurrences, instants, st.timedeltas(timedelta(0), timedelta(days=40)))
def test_start_and_end_only_cut(
    recurrence: Recurrence, start_at: datetime, length: timedelta
) -> None:
    """Bounds that moved the rhythm would change the nominal times of an edited schedule."""
    end_at = start_at + length
    bounded = replace(recurrence, start_at=start_at, end_at=end_at)
    whole = next_occurrences(recurrence, start_at - MICROSECOND, 60)
    cut = next_occurrences(bounded, start_at - timedelta(days=3), 60)
    assert cut == [each for each in whole if each.at <= end_at]


def test_both_bounds_are_included() -> None:
    """An end at 18:00 includes the fire at 18:00."""
    at = datetime(2026, 5, 5, 16, tzinfo=UTC)
    daily = cron("0 18 * * *", start_at=at, end_at=at)
    assert [each.at for each in next_occurrences(daily, SPRING, 5)] == [at]
    late = replace(daily, start_at=at + MICROSECOND, end_at=at + timedelta(days=1) - MICROSECOND)
    assert next_occurrences(late, SPRING, 5) == []


@given(
    st.integers(1, 10**6),
    st.datetimes(naive("2020-01-01"), naive("2030-01-01")),
    st.timedeltas(-timedelta(days=400), timedelta(days=400)),
)
def test_an_interval_counts_real_seconds_from_its_anchor(
    seconds: int, anchor: datetime, distance: timedelta
) -> None:
    """An interval that is counted from the last fire drifts with every delay."""
    anchor_at = anchor.replace(tzinfo=UTC)
    after = anchor_at + distance
    fires = next_occurrences(every(seconds, anchor_at), after, 4)
    steps = [fire.at - anchor_at for fire in fires]
    assert all(after < fire.at for fire in fires)
    assert all(step // MICROSECOND % (seconds * 10**6) < 10**6 for step in steps)
    assert fires[0].at - after <= timedelta(seconds=seconds) or distance < timedelta(0)
    assert steps[0] >= timedelta(0)
    assert [later.at - one.at for one, later in pairwise(fires)] == [timedelta(seconds=seconds)] * 3


def test_the_anchor_is_the_first_fire_of_an_interval_that_has_not_begun() -> None:
    """Started at noon means at noon, not an interval later."""
    noon = datetime(2026, 5, 5, 12, tzinfo=UTC)
    hourly = every(3600, noon, start_at=noon)
    assert next_occurrences(hourly, SPRING, 2)[0].at == noon
    assert next_occurrences(hourly, noon, 1)[0].at == noon + timedelta(hours=1)


@pytest.mark.parametrize("year", [1, 1899, 1970, 2499, 8999, 9999])
def test_the_ends_of_time_give_an_answer(year: int) -> None:
    """An overflow in one schedule must not stop the loop that fires all of them."""
    after = datetime(year, 12, 31, tzinfo=UTC)
    for each in (cron("0 0 29 2 *"), cron("* * * * * *"), every(86400, SPRING)):
        fires = next_occurrences(each, after, 3)
        assert len(fires) == (3 if year < 8999 else 0)


def test_a_fire_forty_years_ahead_is_found() -> None:
    """Around 2100, which is no leap year, leap days on a Sunday are forty years apart."""
    rare = cron("0 0 29 2 */7", zone=ZoneInfo("UTC"))
    fires = next_occurrences(rare, datetime(2088, 1, 1, tzinfo=UTC), 2)
    assert [fire.wall.isoformat()[:10] for fire in fires] == ["2088-02-29", "2128-02-29"]
    assert [fire.wall.weekday() for fire in fires] == [6, 6]


@pytest.mark.parametrize(("year", "leap"), [(1999, 2000), (2024, 2028), (2096, 2104)])
def test_leap_days_follow_the_calendar(year: int, leap: int) -> None:
    """2000 had one and 2100 has none."""
    fires = next_occurrences(cron("0 12 29 2 *"), datetime(year, 3, 1, tzinfo=UTC), 1)
    assert fires[0].wall.year == leap


@given(st.uuids(), st.floats(0, 86400))
def test_jitter_is_stable_and_within_its_bound(schedule_id: UUID, jitter_s: float) -> None:
    """A jitter drawn anew at each fire would make the cadence of a schedule uneven."""
    given_s = stable_jitter_s(schedule_id, jitter_s)
    assert given_s == stable_jitter_s(UUID(str(schedule_id)), jitter_s)
    assert 0 <= given_s <= jitter_s
    assert stable_jitter_s(schedule_id, 0) == 0


def test_jitter_spreads_a_herd_evenly() -> None:
    """Ids made in the same millisecond differ in few bits, and must not fire together."""
    herd = [stable_jitter_s(UUID(int=(0x0199 << 112) + n), 60) for n in range(6000)]
    seconds = [sum(int(each) == second for each in herd) for second in range(60)]
    assert min(seconds) > 60
    assert max(seconds) < 150
    assert stable_jitter_s(UUID("01990000-0000-7000-8000-000000000001"), 60) == PINNED_JITTER_S


# A value of this release: another one would move every schedule of every installation.
PINNED_JITTER_S = 20.22


@pytest.mark.slow
@pytest.mark.parametrize("text", ["30 2 * * *", "*/15 9-17 * * MON-FRI", "0 0 L * *"])
def test_forty_thousand_fires_a_second(text: str) -> None:
    """The first minute after an outage of a million schedules."""
    each = cron(text)
    rates = []
    for _ in range(5):
        after, started = SPRING, process_time()
        for _ in range(4000):
            after = next_occurrences(each, after, 1)[0].at
        rates.append(4000 / (process_time() - started))
    assert max(rates) > 40_000
