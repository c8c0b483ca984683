"""Wall-clock times that a cron expression names: bit masks, and the next match over them.

A wall time here is a number of seconds since 1970-01-01 00:00 on a clock that is never changed.
Nothing here knows a time zone (`recurrence.py`) or the text of an expression (`cron.py`).
"""

from dataclasses import dataclass
from datetime import date
from itertools import pairwise

DAY_S = 86400
EPOCH_DAY = date(1970, 1, 1).toordinal()
# Beyond this nothing is expected to fire; it keeps every sum below Python's last year, 9999.
YEAR_MAX = 8999
LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
LENGTH_MIN, LENGTH_MAX = 28, 31


@dataclass(frozen=True, slots=True)
class CronExpression:
    """Bit n of a mask says that n matches. `days` has one mask for each kind of month, by length
    and weekday of the first (`kind_of_month`): `L`, `LW` and `#` are settled when it is made."""

    text: str
    seconds: int
    minutes: int
    hours: int
    months: int
    days: tuple[int, ...]
    # The hour field starts with `*`: it asks for a rhythm, not for an hour of the day.
    keeps_real_time: bool
    # The first matching time of a day.
    first_s: int


def next_wall(expression: CronExpression, wall_s: int) -> int | None:
    """The first matching wall time at or after the given one."""
    day, second = divmod(wall_s, DAY_S)
    found_day = next_day(expression, day)
    if found_day == day:
        found_s = next_time(expression, second)
        if found_s is not None:
            return day * DAY_S + found_s
        found_day = next_day(expression, day + 1)
    return None if found_day is None else found_day * DAY_S + expression.first_s


def next_time(expression: CronExpression, second_of_day: int) -> int | None:
    hour, rest = divmod(second_of_day, 3600)
    minute, second = divmod(rest, 60)
    if expression.hours >> hour & 1:
        if expression.minutes >> minute & 1:
            later = expression.seconds >> second
            if later:
                return second_of_day + lowest_bit(later)
        later = expression.minutes >> minute + 1
        if later:
            minute += 1 + lowest_bit(later)
            return hour * 3600 + minute * 60 + lowest_bit(expression.seconds)
    later = expression.hours >> hour + 1
    if later:
        return (hour + 1 + lowest_bit(later)) * 3600 + expression.first_s % 3600
    return None


def next_day(expression: CronExpression, day: int) -> int | None:
    """Days are counted from 1970-01-01; the search ends with the last year."""
    start = date.fromordinal(day + EPOCH_DAY)
    year, month, earliest = start.year, start.month, start.day
    while year <= YEAR_MAX:
        later = expression.months >> month
        if later:
            if not later & 1:
                month, earliest = month + lowest_bit(later), 1
            first_of_month = date(year, month, 1).toordinal() - EPOCH_DAY
            kind = kind_of_month(month_length(year, month), (first_of_month + 3) % 7)
            later = expression.days[kind] >> earliest
            if later:
                return first_of_month + earliest + lowest_bit(later) - 1
            month += 1
        else:
            year, month = year + 1, 1
        earliest = 1
    return None


def closest_s(expression: CronExpression) -> int:
    """The least number of seconds between two matches, taking every day for a matching one."""
    second_span = highest_bit(expression.seconds) - lowest_bit(expression.seconds)
    minute_span = highest_bit(expression.minutes) - lowest_bit(expression.minutes)
    hour_span = highest_bit(expression.hours) - lowest_bit(expression.hours)
    gaps = [DAY_S - hour_span * 3600 - minute_span * 60 - second_span]
    if second_span:
        gaps.append(closest_bits(expression.seconds))
    if minute_span:
        gaps.append(closest_bits(expression.minutes) * 60 - second_span)
    if hour_span:
        gaps.append(closest_bits(expression.hours) * 3600 - minute_span * 60 - second_span)
    return min(gaps)


def month_length(year: int, month: int) -> int:
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        return 29
    return LENGTHS[month]


def kind_of_month(length: int, first_weekday: int) -> int:
    """Where `days` keeps the mask; Monday is weekday 0."""
    return (length - LENGTH_MIN) * 7 + first_weekday


def lowest_bit(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def highest_bit(mask: int) -> int:
    return mask.bit_length() - 1


def closest_bits(mask: int) -> int:
    bits = [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
    return min(later - earlier for earlier, later in pairwise(bits))
