"""The forecast against hand-counted days, and against every single occurrence."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest

from duly.domain import forecast
from duly.domain.forecast import RuleGroup, make_forecast
from duly.domain.recurrence import EPOCH, Recurrence, occurrences, stable_jitter_s
from duly.domain.recurrence_fields import RecurrenceFields, read_recurrence

FIRST = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
FIRST_S = int(FIRST.timestamp())
DAY = 24 * 60
NO_TASKS = [0] * DAY


def group(count: int = 1, jitter_s: float = 0.0, left: int | None = None, **rule: Any) -> RuleGroup:
    recurrence = read_recurrence(RecurrenceFields(**rule), EPOCH)
    assert isinstance(recurrence, Recurrence), recurrence
    text = rule.get("cron") or f"every {rule['every_s']} s"
    zone = rule.get("timezone", "UTC")
    return RuleGroup(recurrence, text, zone, jitter_s, count, "one of them", left)


def test_a_herd_stands_in_its_own_minute() -> None:
    """A herd in the wrong minute sends somebody to smear the wrong schedules."""
    found = make_forecast([group(500, cron="0 2 * * *")], NO_TASKS, FIRST_S)
    assert found.schedules[14 * 60] == 500
    assert sum(found.schedules) == 500
    (worst,) = found.worst
    assert (worst.minute, worst.schedules, worst.tasks) == (14 * 60, 500, 0)
    assert [share.expected for share in worst.top] == [500]


@pytest.mark.parametrize(
    ("rule", "a_day"),
    [
        ({"cron": "*/15 * * * *"}, 96),
        ({"cron": "*/10 * * * * *"}, 6 * DAY),
        ({"cron": "0,30 30 2 * * *"}, 2),
        ({"every_s": 3600}, 24),
        ({"every_s": 1}, 86400),
        ({"every_s": 7}, 86400 / 7),
        ({"cron": "0 2 * * *", "exclude_dates": (date(2026, 11, 17),)}, 0),
        ({"cron": "0 * * * *", "end_at": FIRST + timedelta(hours=3)}, 4),
        ({"cron": "0 * * * *", "start_at": FIRST + timedelta(hours=20, seconds=1)}, 3),
        ({"every_s": 3600, "start_at": FIRST + timedelta(hours=20, minutes=7)}, 4),
        ({"cron": "0 0 29 2 *"}, 0),
    ],
)
def test_a_day_has_as_many_fires_as_the_rule_gives(rule: dict[str, Any], a_day: float) -> None:
    """A rule that is left out, or counted where it has ended, makes the picture a wrong one."""
    found = make_forecast([group(**rule)], NO_TASKS, FIRST_S)
    assert sum(found.schedules) == pytest.approx(a_day)


def test_what_may_fire_once_more_is_counted_once() -> None:
    """A schedule with an end would otherwise be expected for ever."""
    found = make_forecast([group(10, left=2, cron="0 * * * *")], NO_TASKS, FIRST_S)
    assert [minute for minute, count in enumerate(found.schedules) if count] == [0, 60]
    every_second = make_forecast([group(1, left=60, every_s=1)], NO_TASKS, FIRST_S)
    assert sum(every_second.schedules) == pytest.approx(60)


def test_a_jitter_spreads_its_group_evenly_and_loses_none() -> None:
    """Half a herd lost at the edge of a minute is a peak that was not seen."""
    found = make_forecast([group(600, 90.0, cron="30 0 2 * * *")], NO_TASKS, FIRST_S)
    # Reckoned to the minute: from 02:00 on.
    assert found.schedules[14 * 60] == pytest.approx(400)
    assert found.schedules[14 * 60 + 1] == pytest.approx(200)
    assert sum(found.schedules) == pytest.approx(600)
    (first, second) = found.worst
    assert (first.minute, second.minute) == (14 * 60, 14 * 60 + 1)
    assert second.top[0].expected == pytest.approx(200)


def test_a_spread_that_began_before_the_first_minute_is_seen_from_there() -> None:
    """An hour of smeared work is not over because somebody looks at it."""
    found = make_forecast([group(3600, 3600.0, cron="30 11 * * *")], NO_TASKS, FIRST_S)
    assert found.schedules[:31] == pytest.approx([60.0] * 30 + [0.0])
    late = [0.0] * (DAY - 30) + [60.0] * 30
    assert found.schedules[31:] == pytest.approx(late[31:])


def test_the_expectation_is_the_mean_of_real_schedules() -> None:
    """Each schedule has its own moment in the jitter; the even spread is what they add up to."""
    random = Random(5)
    rules = [("*/20 * * * *", 0.0), ("0 * * * *", 600.0), ("15 3 * * *", 3000.0)]
    expected: Counter[int] = Counter()
    groups = []
    for text, jitter_s in rules:
        made = group(400, jitter_s, cron=text, timezone="Europe/Berlin")
        groups.append(made)
        for _ in range(400):
            offset = timedelta(seconds=stable_jitter_s(UUID(int=random.getrandbits(128)), jitter_s))
            for each in occurrences(made.recurrence, FIRST - timedelta(hours=1, seconds=1)):
                if each.at >= FIRST + timedelta(days=1):
                    break
                expected[(each.at + offset - FIRST) // timedelta(minutes=1)] += 1
    found = make_forecast(groups, NO_TASKS, FIRST_S)
    for hour in range(24):
        minutes = range(hour * 60, hour * 60 + 60)
        counted = sum(expected[minute] for minute in minutes)
        assert sum(found.schedules[minute] for minute in minutes) == pytest.approx(
            counted, rel=0.1, abs=5
        )


def test_tasks_and_schedules_are_told_apart() -> None:
    """A herd of tasks is not mended by the jitter of a schedule."""
    tasks = [0] * DAY
    tasks[5], tasks[14 * 60] = 50, 7
    found = make_forecast([group(20, cron="0 2 * * *")], tasks, FIRST_S)
    assert [(each.minute, each.schedules, each.tasks) for each in found.worst] == [
        (5, 0, 50),
        (14 * 60, 20, 7),
    ]
    assert found.worst[0].top == []
    assert [each.minute for each in found.advice] == [14 * 60]


def test_the_advised_jitter_has_the_effect_that_was_promised() -> None:
    """Advice that is wrong moves the herd, or does nothing, and nobody looks at it again."""
    herd = group(6000, cron="0 2 * * *")
    tasks = [3] * DAY
    (advice,) = make_forecast([herd], tasks, FIRST_S).advice
    assert advice.peak_before == 6003
    assert advice.jitter_s == 600
    taken = group(6000, float(advice.jitter_s), cron="0 2 * * *")
    after = make_forecast([taken], tasks, FIRST_S)
    assert after.worst[0].expected == pytest.approx(advice.peak_after)
    assert after.worst[0].expected == pytest.approx(603)


def test_no_jitter_is_advised_beyond_the_spacing_of_a_rule() -> None:
    """It would be refused, or occurrences would change places."""
    (advice,) = make_forecast([group(9000, cron="*/5 * * * *")], NO_TASKS, FIRST_S).advice
    assert advice.jitter_s == 300
    # At most 299 s are allowed: the last minute of each five is a little emptier.
    assert advice.peak_after == pytest.approx(9000 * 60 / 299)


def test_a_herd_of_every_hour_is_one_piece_of_advice() -> None:
    """Five times the same sentence hides the second herd."""
    hourly = group(1000, cron="0 * * * *")
    nightly = group(500, cron="30 3 * * *")
    found = make_forecast([hourly, nightly], NO_TASKS, FIRST_S)
    assert len(found.worst) == forecast.WORST_MAX
    assert len(found.advice) == 1
    assert found.advice[0].groups == [hourly]


def test_what_is_small_or_flat_already_is_left_in_peace() -> None:
    """A schedule alone is not spread by a jitter, only moved."""
    alone = make_forecast([group(1, cron="0 2 * * *")], NO_TASKS, FIRST_S)
    assert alone.advice == []
    flat = make_forecast([group(1000, 59.0, cron="* * * * *")], NO_TASKS, FIRST_S)
    assert flat.advice == []


def test_no_jitter_is_advised_into_a_larger_herd() -> None:
    """Spread into the minutes of another herd, it would make that one worse."""
    tasks = [0] * DAY
    for minute in range(14 * 60 + 1, 15 * 60 + 2):
        tasks[minute] = 495
    found = make_forecast([group(500, cron="0 2 * * *")], tasks, FIRST_S)
    assert (found.worst[0].minute, found.advice) == (14 * 60, [])


def test_beyond_the_bound_the_larger_groups_are_reckoned_with_and_the_rest_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A forecast that leaves something out without a word is worse than none."""
    monkeypatch.setattr(forecast, "FIRES_MAX", 30)
    small, large = group(1, every_s=60), group(100, cron="0 * * * *")
    found = make_forecast([small, large], NO_TASKS, FIRST_S)
    assert found.skipped == [small]
    assert sum(found.schedules) == 2400
    # Once the bound is met nothing smaller is tried, though one fire would have fitted.
    tiny = group(0, cron="0 2 * * *")
    assert make_forecast([tiny, small, large], NO_TASKS, FIRST_S).skipped == [small, tiny]
    monkeypatch.setattr(forecast, "FIRES_MAX", 24)
    assert make_forecast([large], NO_TASKS, FIRST_S).skipped == []
    monkeypatch.setattr(forecast, "FIRES_MAX", 23)
    assert make_forecast([large], NO_TASKS, FIRST_S).skipped == [large]


def test_both_passes_of_a_repeated_hour_are_expected_as_the_policy_says() -> None:
    """The night of the change is when a forecast is looked at."""
    night = int(datetime(2026, 10, 24, 12, tzinfo=UTC).timestamp())
    zone: dict[str, Any] = {"timezone": "Europe/Berlin", "cron": "30 2 * * *"}
    for policy, fires in (("first", 1), ("both", 2)):
        found = make_forecast([group(dst_repeat=policy, **zone)], NO_TASKS, night)
        assert sum(found.schedules) == fires


def test_what_is_excluded_costs_as_much_as_what_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that never fire would be reckoned with for minutes, in a thread that nobody can end."""
    monkeypatch.setattr(forecast, "FIRES_MAX", 2 * DAY)
    days = tuple((FIRST + timedelta(days=n)).date() for n in range(-1, 3))
    groups = [group(cron="* * * * *", exclude_dates=days, jitter_s=float(n)) for n in range(5)]
    found = make_forecast(groups, NO_TASKS, FIRST_S)
    assert len(found.skipped) == 3
