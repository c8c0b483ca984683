"""What should stand in the ledger, reckoned from the audit of every change, without any code of the
engine: intervals by arithmetic, cron by trying every second. And whether it stands there."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

import msgspec

from duly.verify.check import Violation
from duly.verify.history import Tables
from tests.domain.cron_model import ModelCron, Timeline, expected
from tests.simulation.database import Postgres

AUDIT = """SELECT action, subject, detail FROM duly.audit
            WHERE tenant = ANY($1::integer[]) ORDER BY id"""
LEDGER = """SELECT schedule, nominal_at, decided_at, verdict, task FROM duly.occurrences
             WHERE tenant = ANY($1::integer[]) ORDER BY schedule, decided_at, nominal_at"""
SECOND = timedelta(seconds=1)
NO_DATES: frozenset[date] = frozenset()
BY_RULE = ("FIRED", "LATE")
# How many tasks of a schedule may live when another one fires; None for any number.
LIVE_MAX: dict[str, int | None] = {"skip": 0, "queue_one": 1, "cancel_previous": None}


class Change(msgspec.Struct, frozen=True):
    """Written with the change, in one transaction: for nominal times after `at`, this is the
    definition; it holds each back by `offset_s`."""

    at: datetime
    cron: str | None
    every_s: int | None
    timezone: str
    end_at: datetime
    offset_s: float
    overlap: str
    max_running: int | None

    @property
    def offset(self) -> timedelta:
        return timedelta(seconds=self.offset_s)


class Era(NamedTuple):
    """Nominal times after `begin` and up to `end`, under one definition."""

    begin: datetime
    end: datetime
    rule: Change
    is_paused: bool


class Ruled(NamedTuple):
    schedule: UUID
    nominal_at: datetime
    decided_at: datetime
    verdict: str
    task: UUID | None


@dataclass(frozen=True)
class Model:
    """All schedules of a run, and all eras of each."""

    changes: dict[UUID, list[tuple[str, Change]]]
    now: datetime

    @property
    def expected(self) -> frozenset[tuple[UUID, datetime]]:
        return frozenset(
            (schedule, at)
            for schedule in self.changes
            for era in self.eras(schedule)
            for at in self.times(schedule, era)
        )

    def eras(self, schedule: UUID) -> Iterator[Era]:
        """A change takes over where the one before had ruled on everything due."""
        (_, rule), *rest = self.changes[schedule]
        begin, is_paused = rule.at, False
        for action, change in rest:
            end = max(begin, change.at)
            yield Era(begin, end, rule, is_paused)
            begin, rule = end, change
            is_paused = {"pause": True, "resume": False}.get(action, is_paused)
            if action == "delete":
                return
        yield Era(begin, max(begin, self.now - rule.offset), rule, is_paused)

    def times(self, schedule: UUID, era: Era) -> list[datetime]:
        end = min(era.end, era.rule.end_at)
        if era.rule.cron is not None:
            known = cron_times(era.rule.cron, era.rule.timezone, self.start, self.now)
            return [at for at in known if era.begin < at <= end]
        anchor = self.changes[schedule][0][1].at
        first = anchor.replace(microsecond=0) + (SECOND if anchor.microsecond else 0 * SECOND)
        steps = int((self.now - first) / (era.rule.every_s * SECOND)) + 1 if era.rule.every_s else 0
        times = [first + n * (era.rule.every_s or 0) * SECOND for n in range(steps)]
        return [at for at in times if era.begin < at <= end]

    @property
    def start(self) -> datetime:
        return min(changes[0][1].at for changes in self.changes.values())

    def is_paused_at(self, schedule: UUID, nominal_at: datetime) -> bool:
        return any(
            era.is_paused and era.begin < nominal_at <= era.end for era in self.eras(schedule)
        )


@lru_cache(maxsize=32)
def cron_times(cron: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    first, last = start.replace(microsecond=0), end.replace(microsecond=0) + SECOND
    found = expected(ModelCron(cron), timeline(zone, first, last), "shift", "first", NO_DATES)
    return [at for at, _, _ in found]


@lru_cache(maxsize=4)
def timeline(zone: str, start: datetime, end: datetime) -> Timeline:
    return Timeline(zone, start, end, 1)


def read_model(postgres: Postgres, now: datetime, tenants: Iterable[int]) -> Model:
    changes: dict[UUID, list[tuple[str, Change]]] = defaultdict(list)
    for action, subject, detail in postgres.fetch(now, AUDIT, list(tenants)):
        change = msgspec.json.decode(detail, type=Change)
        changes[UUID(subject)].append((action.removeprefix("schedule."), change))
    return Model(dict(changes), now.astimezone(UTC))


def read_ledger(postgres: Postgres, now: datetime, tenants: Iterable[int]) -> list[Ruled]:
    return [Ruled(*row) for row in postgres.fetch(now, LEDGER, list(tenants))]


def judge_rulings(model: Model, ledger: list[Ruled], tables: Tables) -> Iterator[Violation]:
    """Beyond who has a verdict at all: not early, paused exactly while paused, no overlap."""
    ends = {row.id: row.ended_at for row in tables.attempts if row.state is not None}
    made: dict[UUID, list[datetime | None]] = defaultdict(list)
    for row in ledger:
        if row.verdict != "TRIGGERED":
            yield from judge_one(model, row)
            live = sum(end is None or end > row.decided_at for end in made[row.schedule])
            if row.verdict in BY_RULE and live > most_live(model, row):
                told = f"{row.schedule} fired for {row.nominal_at} while {live} of its tasks lived"
                yield Violation("overlap", row.task, told)
        if row.task is not None:
            made[row.schedule].append(ends.get(row.task))


def judge_one(model: Model, row: Ruled) -> Iterator[Violation]:
    if row.decided_at < row.nominal_at:
        told = f"{row.schedule} was ruled on at {row.decided_at}, before {row.nominal_at}"
        yield Violation("I12", row.task, told)
    is_paused = model.is_paused_at(row.schedule, row.nominal_at)
    if is_paused != (row.verdict == "SKIPPED_PAUSED"):
        told = f"{row.schedule} for {row.nominal_at}: {row.verdict}, paused: {is_paused}"
        yield Violation("pause", row.task, told)


def most_live(model: Model, row: Ruled) -> float:
    rule = model.changes[row.schedule][0][1]
    if rule.overlap == "allow":
        return float("inf") if rule.max_running is None else rule.max_running - 1
    most = LIVE_MAX[rule.overlap]
    return float("inf") if most is None else most
