"""An independent model of schedules: it tries every tick of real time and every missing one.

It shares no code with `duly.domain`: its own reading of expressions, `zoneinfo` for the clock, and
no arithmetic on offsets. Slow and plain on purpose; the expressions it gets are well formed.
"""

import calendar
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]

MARGIN = timedelta(hours=3)
# (instant, wall time that was asked for, hint)
Expected = tuple[datetime, datetime, str | None]
RANK = {None: 0, "SKIPPED_DST": 1, "EXCLUDED": 2}


def numbers(text: str, low: int, high: int, names: list[str], first_name: int) -> set[int]:
    def number(word: str) -> int:
        return names.index(word) + first_name if word in names else int(word)

    found: set[int] = set()
    for item in text.split(","):
        body, _, step = item.partition("/")
        if body == "*":
            start, stop = low, high
        elif "-" in body:
            start, stop = (number(word) for word in body.split("-"))
        else:
            start = number(body)
            stop = high if step else start
        found |= {n for n in range(start, stop + 1) if (n - start) % int(step or 1) == 0}
    return found


@dataclass
class ModelCron:
    text: str
    days_known: dict[date, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fields = self.text.upper().split()
        if len(fields) == 5:
            fields = ["0", *fields]
        self.second = numbers(fields[0], 0, 59, [], 0)
        self.minute = numbers(fields[1], 0, 59, [], 0)
        self.hour = numbers(fields[2], 0, 23, [], 0)
        self.dom, self.dow = fields[3], fields[5]
        self.month = numbers(fields[4], 1, 12, MONTHS, 1)
        self.is_rhythm = fields[2][0] == "*"

    def matches(self, wall: datetime) -> bool:
        return (
            wall.minute in self.minute
            and wall.hour in self.hour
            and wall.second in self.second
            and self.on_day(wall.date())
        )

    def on_day(self, day: date) -> bool:
        if day not in self.days_known:
            self.days_known[day] = self.decide_day(day)
        return self.days_known[day]

    def decide_day(self, day: date) -> bool:
        if day.month not in self.month:
            return False
        by_date = any(date_fits(item, day) for item in self.dom.split(","))
        by_weekday = any(weekday_fits(item, day) for item in self.dow.split(","))
        if self.dom[0] == "*" or self.dow[0] == "*":
            return by_date and by_weekday
        return by_date or by_weekday


def date_fits(item: str, day: date) -> bool:
    tomorrow = day + timedelta(days=1)
    if item == "L":
        return tomorrow.month != day.month
    if item == "LW":
        rest = [day + timedelta(days=n) for n in range(1, 8)]
        left = [each for each in rest if each.month == day.month and each.weekday() < 5]
        return day.weekday() < 5 and not left
    return day.day in numbers(item, 1, 31, [], 0)


def weekday_fits(item: str, day: date) -> bool:
    name = WEEKDAYS[(day.weekday() + 1) % 7]
    if item.endswith("L"):
        is_last = day.day + 7 > calendar.monthrange(day.year, day.month)[1]
        return WEEKDAYS[int(item[:-1]) % 7] == name and is_last
    if "#" in item:
        word, _, which = item.partition("#")
        wanted = word if word in WEEKDAYS else WEEKDAYS[int(word) % 7]
        return wanted == name and (day.day - 1) // 7 + 1 == int(which)
    return any(WEEKDAYS[n % 7] == name for n in numbers(item, 0, 7, WEEKDAYS, 0))


class Timeline:
    """Every tick of real time between two instants, with what the clock on the wall shows."""

    def __init__(self, zone: str, start: datetime, end: datetime, step_s: int) -> None:
        self.start, self.end = start, end
        step = timedelta(seconds=step_s)
        info = ZoneInfo(zone)
        # A repeat at either edge is seen whole.
        at, stop = start - MARGIN, end + MARGIN
        self.instants: list[datetime] = []
        self.walls: list[datetime] = []
        while at < stop:
            self.instants.append(at)
            self.walls.append(at.astimezone(info).replace(tzinfo=None, fold=0))
            at += step
        # By wall time: the ticks that show it.
        self.passes: dict[datetime, list[int]] = {}
        # By tick: the wall times that a jump of the clock just before it left out.
        self.lost: dict[int, list[datetime]] = {}
        for tick, wall in enumerate(self.walls):
            self.passes.setdefault(wall, []).append(tick)
            jumped = wall - self.walls[max(tick - 1, 0)]
            if jumped > step:
                self.lost[tick] = [wall - n * step for n in range(jumped // step - 1, 0, -1)]
        edge = MARGIN // step
        self.inside = range(edge, len(self.instants) - edge)


def expected(
    cron: ModelCron, timeline: Timeline, gap: str, repeat: str, excluded: frozenset[date]
) -> list[Expected]:
    found = []
    for tick in timeline.inside:
        at, wall = timeline.instants[tick], timeline.walls[tick]
        claims: list[Expected] = []
        if cron.matches(wall) and (
            cron.is_rhythm or is_chosen(timeline.passes[wall], tick, repeat)
        ):
            claims.append((at, wall, "EXCLUDED" if wall.date() in excluded else None))
        if tick in timeline.lost and not cron.is_rhythm:
            claims += [
                (at, lost, hint_for_lost(lost, wall, gap, excluded))
                for lost in timeline.lost[tick]
                if cron.matches(lost)
            ]
        if claims:
            # The first of equals: the one that the clock really shows, then the earliest.
            found.append(min(claims, key=lambda claim: RANK[claim[2]]))
    return found


def is_chosen(passes: list[int], tick: int, repeat: str) -> bool:
    return repeat == "both" or tick == (passes[0] if repeat == "first" else passes[-1])


def hint_for_lost(
    lost: datetime, shown: datetime, gap: str, excluded: frozenset[date]
) -> str | None:
    if lost.date() in excluded or shown.date() in excluded:
        return "EXCLUDED"
    return "SKIPPED_DST" if gap == "skip" else None


def days_of_change(zone: str, year: int) -> list[datetime]:
    """The UTC days of a year on which the clock is changed, by looking at both ends of each."""
    info = ZoneInfo(zone)
    start = datetime(year, 1, 1, tzinfo=UTC)
    midnights = [start + timedelta(days=n) for n in range(366)]
    offsets = [midnight.astimezone(info).utcoffset() for midnight in midnights]
    return [midnights[n] for n in range(365) if offsets[n] != offsets[n + 1]]
