"""Parser of cron expressions: text to bit masks, or the field that is wrong and why.

Fields: [second] minute hour day_of_month month day_of_week; names, lists, ranges, steps, `L`,
`LW`, `5L`, `MON#2`, and seven @macros. As in Vixie cron, both day fields must match if one of them
starts with `*`, else one match is enough; an hour field that starts with `*` keeps real time.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NoReturn

from duly.domain.wall_times import (
    LENGTH_MAX,
    LENGTH_MIN,
    LENGTHS,
    CronExpression,
    kind_of_month,
    lowest_bit,
)

CRON_CHARACTERS_MAX = 512
CACHE_MAX = 4096
MACROS = {
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
    "@MONTHLY": "0 0 1 * *",
    "@WEEKLY": "0 0 * * 0",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@HOURLY": "0 * * * *",
}
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
ITEM = re.compile(r"(?:\*|([0-9A-Z]+)(?:-([0-9A-Z]+))?)(?:/([0-9]+))?", re.ASCII)
NTH_WEEKDAY = re.compile(r"([0-9A-Z]+)#([0-9]+)", re.ASCII)
LAST_WEEKDAY = re.compile(r"([0-9]+)L", re.ASCII)
QUOTED_MAX = 20
# In `MON#n`: the last one of the month, written `1L`.
LAST = 0

FieldName = Literal[
    "expression", "second", "minute", "hour", "day_of_month", "month", "day_of_week"
]


@dataclass(frozen=True, slots=True)
class CronProblem:
    field: FieldName
    reason: str


@dataclass(frozen=True, slots=True)
class Field:
    name: FieldName
    low: int
    high: int
    names: tuple[str, ...] = ()
    steps_max: int = 60


SECOND = Field("second", 0, 59)
MINUTE = Field("minute", 0, 59)
HOUR = Field("hour", 0, 23, steps_max=24)
DAY_OF_MONTH = Field("day_of_month", 1, 31, steps_max=31)
MONTH = Field("month", 1, 12, MONTHS, steps_max=12)
# Sunday is both 0 and 7.
DAY_OF_WEEK = Field("day_of_week", 0, 7, WEEKDAYS, steps_max=7)


class CronSyntaxError(Exception):
    """Carries a CronProblem out of the parser; never leaves this module."""

    def __init__(self, problem: CronProblem) -> None:
        self.problem = problem


@lru_cache(maxsize=CACHE_MAX)
def parse_cron(text: str) -> CronExpression | CronProblem:
    try:
        return read_fields(text, split_fields(text))
    except CronSyntaxError as refusal:
        return refusal.problem


def split_fields(text: str) -> list[str]:
    """Six fields in upper case, or a refusal of the text as a whole."""
    if len(text) > CRON_CHARACTERS_MAX:
        refuse("expression", f"longer than {CRON_CHARACTERS_MAX} characters")
    if not text.isascii() or not text.replace("\t", " ").isprintable():
        refuse("expression", "only printable ASCII characters are allowed")
    fields = text.upper().split()
    if not fields:
        refuse("expression", "empty")
    if fields[0].startswith("@"):
        if len(fields) > 1 or fields[0] not in MACROS:
            known = " ".join(MACROS).lower()
            refuse("expression", f"{quote(text)} is not one of {known}")
        fields = MACROS[fields[0]].split()
    if len(fields) not in (5, 6):
        refuse("expression", f"5 or 6 fields are needed, not {len(fields)}")
    return ["0", *fields] if len(fields) == 5 else fields


def read_fields(text: str, fields: list[str]) -> CronExpression:
    second, minute, hour, day_of_month, month, day_of_week = fields
    seconds = read_list(SECOND, second)
    minutes = read_list(MINUTE, minute)
    hours = read_list(HOUR, hour)
    calendar = read_days_of_month(day_of_month)
    months = read_list(MONTH, month)
    weekly = read_days_of_week(day_of_week)
    both = day_of_month.startswith("*") or day_of_week.startswith("*")
    days = tuple(
        (calendar.mask(length, first) & weekly.mask(length, first))
        if both
        else (calendar.mask(length, first) | weekly.mask(length, first))
        for length in range(LENGTH_MIN, LENGTH_MAX + 1)
        for first in range(7)
    )
    if not ever_fires(months, days):
        refuse("day_of_month", "never fires: none of its months has such a day")
    return CronExpression(
        text=text,
        seconds=seconds,
        minutes=minutes,
        hours=hours,
        months=months,
        days=days,
        keeps_real_time=hour.startswith("*"),
        first_s=lowest_bit(hours) * 3600 + lowest_bit(minutes) * 60 + lowest_bit(seconds),
    )


def ever_fires(months: int, days: tuple[int, ...]) -> bool:
    """Every month begins on every weekday at some time in 400 years, February in both lengths."""
    lengths = {LENGTHS[month] for month in range(1, 13) if months >> month & 1}
    if months >> 2 & 1:
        lengths.add(29)
    return any(days[kind_of_month(length, first)] for length in lengths for first in range(7))


@dataclass(frozen=True, slots=True)
class DaysOfMonth:
    days: int
    last: bool
    last_workday: bool

    def mask(self, length: int, first_weekday: int) -> int:
        mask = self.days & (1 << length + 1) - 1
        if self.last:
            mask |= 1 << length
        if self.last_workday:
            past_friday = max((first_weekday + length - 1) % 7 - 4, 0)
            mask |= 1 << length - past_friday
        return mask


@dataclass(frozen=True, slots=True)
class DaysOfWeek:
    """Monday is weekday 0 here, as in Python; `numbered` has pairs (weekday, which one)."""

    weekdays: frozenset[int]
    numbered: frozenset[tuple[int, int]]

    def mask(self, length: int, first_weekday: int) -> int:
        mask = 0
        for weekday in self.weekdays:
            for day in days_on(weekday, length, first_weekday):
                mask |= 1 << day
        for weekday, number in self.numbered:
            days = days_on(weekday, length, first_weekday)
            if number <= len(days):
                mask |= 1 << days[number - 1]  # LAST counts from the end
        return mask


def days_on(weekday: int, length: int, first_weekday: int) -> range:
    return range((weekday - first_weekday) % 7 + 1, length + 1, 7)


def read_days_of_month(text: str) -> DaysOfMonth:
    days, last, last_workday = 0, False, False
    for item in text.split(","):
        if item == "L":
            last = True
        elif item == "LW":
            last_workday = True
        else:
            days |= read_item(DAY_OF_MONTH, item)
    return DaysOfMonth(days, last, last_workday)


def read_days_of_week(text: str) -> DaysOfWeek:
    days = 0
    numbered = set()
    for item in text.split(","):
        if match := NTH_WEEKDAY.fullmatch(item):
            number = read_number(DAY_OF_WEEK, match[2], 1, 5)
            numbered.add((python_weekday(read_value(DAY_OF_WEEK, match[1])), number))
        elif match := LAST_WEEKDAY.fullmatch(item):
            numbered.add((python_weekday(read_value(DAY_OF_WEEK, match[1])), LAST))
        else:
            days |= read_item(DAY_OF_WEEK, item)
    weekdays = frozenset(python_weekday(day) for day in range(8) if days >> day & 1)
    return DaysOfWeek(weekdays, frozenset(numbered))


def python_weekday(day: int) -> int:
    return (day + 6) % 7


def read_list(field: Field, text: str) -> int:
    mask = 0
    for item in text.split(","):
        mask |= read_item(field, item)
    return mask


def read_item(field: Field, item: str) -> int:
    """`*`, a value, or a range, each with an optional step; `5/10` runs from 5 to the end."""
    match = ITEM.fullmatch(item)
    if match is None:
        refuse(field.name, oddity(item))
    first, last, step_text = match.groups()
    low = field.low if first is None else read_value(field, first)
    if last is not None:
        high = read_value(field, last)
    else:
        high = field.high if first is None or step_text is not None else low
    if high < low:
        refuse(field.name, f"the range {quote(item)} runs backwards")
    step = 1 if step_text is None else read_number(field, step_text, 1, field.steps_max, "the step")
    mask = 0
    for value in range(low, high + 1, step):
        mask |= 1 << value
    return mask


def oddity(item: str) -> str:
    if item == "":
        return "an empty item"
    if item == "?":
        return "? is not supported, write *"
    return f"{quote(item)} is not a value, range or step"


def read_value(field: Field, text: str) -> int:
    if text in field.names:
        return field.names.index(text) + (1 if field is MONTH else 0)
    if not text.isdigit():
        refuse(field.name, f"{quote(text)} is not a value")
    return read_number(field, text, field.low, field.high)


def read_number(field: Field, text: str, low: int, high: int, what: str = "") -> int:
    # The length is looked at first: a number of 500 digits is not worth converting.
    if len(text) > 4 or not low <= int(text) <= high:
        refuse(field.name, f"{what} {quote(text)} is not within {low} to {high}".strip())
    return int(text)


def quote(text: str) -> str:
    return text if len(text) <= QUOTED_MAX else text[:QUOTED_MAX] + "..."


def refuse(field: FieldName, reason: str) -> NoReturn:
    raise CronSyntaxError(CronProblem(field, reason))
