"""Statistics per minute, tenant and type: gathered in memory, added to the table by `flush`.

| event | what happens |
|---|---|
| a node is killed | what it had not flushed is missing: these numbers decide nothing |
| a flush fails | its numbers are kept and go with the next one |
| the outcome of a flush is unknown | the same, so that part may be counted twice |
| two nodes flush one minute | both parts are added, in any order |
| the node's clock is wrong | minutes follow the database's clock from the first flush on |
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from itertools import zip_longest
from typing import NamedTuple
from uuid import UUID

from duly.domain.histogram import BUCKETS, index_of, trimmed
from duly.domain.ids import EPOCH, shard_of
from duly.domain.states import Outcome, State
from duly.environment import Environment
from duly.events import TasksStored
from duly.store.database import Database, Session
from duly.store.statements import statements_beside
from duly.telemetry import Metrics

SQL = statements_beside(__file__)
# Distinct (tenant, type) of one minute and node. What comes later is counted as OTHER_TYPE of its
# tenant; past twice this, as OTHER_TYPE without a tenant.
STATS_KEYS_MAX = 2000
OTHER_TYPE = "(other)"
NO_TENANT = 0
# While the database is away, minutes pile up; past this the oldest are given up.
MINUTES_MAX = 60
FLUSH_ROWS_MAX = 2000
RETENTION_S = 7 * 86400.0
READ_ROWS_MAX = 10_000
# Rows that one look over time adds up: a week of some twenty types.
ADDED_ROWS_MAX = 250_000
MINUTE = timedelta(minutes=1)


class Ending(IntEnum):
    """What the settlement of an attempt meant for its task."""

    COMPLETED = 0
    FAILED = 1
    RETRIED = 2
    # Released, snoozed, cancelled: it ran, and is neither a success nor a failure.
    OTHER = 3


def ending_of(outcome: Outcome, state: State | None) -> Ending:
    """What an attempt's end meant for its task."""
    if state is State.COMPLETED:
        return Ending.COMPLETED
    if state is State.FAILED:
        return Ending.FAILED
    if state is None and outcome is Outcome.FAILED:
        return Ending.RETRIED
    return Ending.OTHER


class Cell:
    """The numbers of one minute, tenant and type. Plain lists: this is touched for every task."""

    __slots__ = ("endings", "lag", "run_time", "started", "submitted")

    def __init__(self) -> None:
        self.submitted = 0
        self.started = 0
        self.endings = [0] * len(Ending)
        self.lag = [0] * BUCKETS
        self.run_time = [0] * BUCKETS

    def add(self, other: "Cell") -> None:
        self.submitted += other.submitted
        self.started += other.started
        for mine, theirs in (
            (self.endings, other.endings),
            (self.lag, other.lag),
            (self.run_time, other.run_time),
        ):
            for position, count in enumerate(theirs):
                mine[position] += count


class StatsRow(NamedTuple):
    minute: datetime
    tenant: int
    type: str
    submitted: int
    started: int
    completed: int
    failed: int
    retried: int
    lag: list[int]
    run_time: list[int]


class TaskCounts(NamedTuple):
    submitted: int = 0
    started: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0


class Point(NamedTuple):
    """Some minutes of a tenant together; `at` is when they begin. Times are counts by bucket."""

    at: datetime
    counts: TaskCounts = TaskCounts()
    lag: Sequence[int] = ()
    run_time: Sequence[int] = ()


class SettledAttempt(NamedTuple):
    tenant: int
    type: str
    holder: UUID
    outcome: Outcome
    state: State | None
    run_s: float


Key = tuple[int, str]
Cells = dict[Key, Cell]


class StatsBook:
    """One for each process. The note methods take batches: well under a microsecond a row."""

    def __init__(
        self,
        environment: Environment,
        keys_max: int = STATS_KEYS_MAX,
        metrics: Metrics | None = None,
    ) -> None:
        self.environment = environment
        self.metrics = metrics
        self.keys_max = keys_max
        self.minutes: dict[int, Cells] = {}
        self.minute = -1
        # Keys admitted in the current minute; they outlive a flush, or each flush would admit more.
        self.admitted: set[Key] = set()
        self.minutes_lost = 0
        clock = environment.clock
        self.offset_s = (clock.now() - EPOCH).total_seconds() - clock.monotonic()

    def on_stored(self, event: TasksStored) -> None:
        tasks = [row.task for row in event.rows]
        tenants, types = {task.tenant for task in tasks}, {task.type for task in tasks}
        if len(tenants) == len(types) == 1:
            self.note_submitted(tenants.pop(), types.pop(), len(tasks))
            return
        kinds = Counter([(task.tenant, task.type) for task in tasks])
        for (tenant, task_type), count in kinds.items():
            self.note_submitted(tenant, task_type, count)

    def note_submitted(self, tenant: int, task_type: str, count: int) -> None:
        cell = self.cells_now().get((tenant, task_type))
        if cell is None:
            cell = self.admit(tenant, task_type)
        cell.submitted += count
        if self.metrics is not None:
            self.metrics.submitted.add(count)

    def note_started(self, rows: Iterable[tuple[int, str, float | None]]) -> None:
        """Each row: tenant, type, seconds from the fire time to the start (None: a retry)."""
        cells = self.cells_now()
        for tenant, task_type, lag_s in rows:
            cell = cells.get((tenant, task_type))
            if cell is None:
                cell = self.admit(tenant, task_type)
            cell.started += 1
            if lag_s is not None:
                cell.lag[index_of(lag_s)] += 1

    def note_settled(self, rows: Iterable[tuple[int, str, Ending, float]], count: int = 1) -> None:
        """Each row: tenant, type, how the attempt ended, seconds that it ran; so often."""
        cells = self.cells_now()
        for tenant, task_type, ending, run_s in rows:
            cell = cells.get((tenant, task_type))
            if cell is None:
                cell = self.admit(tenant, task_type)
            cell.endings[ending] += count
            cell.run_time[index_of(run_s)] += count

    def cells_now(self) -> Cells:
        minute = int((self.environment.clock.monotonic() + self.offset_s) // 60)
        if minute != self.minute:
            self.minute = minute
            self.admitted = set()
        cells = self.minutes.get(minute)
        if cells is None:
            cells = self.minutes[minute] = {}
            self.give_up_oldest()
        return cells

    def give_up_oldest(self) -> None:
        while len(self.minutes) > MINUTES_MAX:
            del self.minutes[min(self.minutes)]
            self.minutes_lost += 1

    def admit(self, tenant: int, task_type: str) -> Cell:
        """The cell of a key that has none yet in this minute, or the one it must share."""
        key = (tenant, task_type)
        if key not in self.admitted:
            if len(self.admitted) >= self.keys_max:
                key = (tenant, OTHER_TYPE)
            if key not in self.admitted and len(self.admitted) >= 2 * self.keys_max:
                key = (NO_TENANT, OTHER_TYPE)
            self.admitted.add(key)
        cells = self.minutes[self.minute]
        cell = cells.get(key)
        if cell is None:
            cell = cells[key] = Cell()
        return cell

    async def flush(self, database: Database) -> int:
        """Add what was gathered, also of the minute that still runs; answers the rows it took."""
        if not self.minutes:
            return 0
        taken, self.minutes = self.minutes, {}
        # By key, so that two nodes that flush the same minute lock its rows in one order.
        remaining = sorted(
            ((tenant, task_type, minute), cell)
            for minute, cells in taken.items()
            for (tenant, task_type), cell in cells.items()
        )
        total = len(remaining)
        try:
            while remaining:
                (row,) = await database.fetch(SQL.add_stats, *columns(remaining[:FLUSH_ROWS_MAX]))
                del remaining[:FLUSH_ROWS_MAX]
                clock = self.environment.clock
                self.offset_s = (row["now"] - EPOCH).total_seconds() - clock.monotonic()
        except BaseException:
            self.take_back(remaining)
            raise
        return total

    def take_back(self, remaining: list[tuple[tuple[int, str, int], Cell]]) -> None:
        for (tenant, task_type, minute), cell in remaining:
            cells = self.minutes.setdefault(minute, {})
            cells.setdefault((tenant, task_type), Cell()).add(cell)
        self.give_up_oldest()


def columns(rows: list[tuple[tuple[int, str, int], Cell]]) -> list[list[object]]:
    lags = [trimmed(cell.lag) for _, cell in rows]
    run_times = [trimmed(cell.run_time) for _, cell in rows]
    return [
        [EPOCH + minute * MINUTE for (_, _, minute), _ in rows],
        [tenant for (tenant, _, _), _ in rows],
        [task_type for (_, task_type, _), _ in rows],
        [cell.submitted for _, cell in rows],
        [cell.started for _, cell in rows],
        [cell.endings[Ending.COMPLETED] for _, cell in rows],
        [cell.endings[Ending.FAILED] for _, cell in rows],
        [cell.endings[Ending.RETRIED] for _, cell in rows],
        *flattened(lags),
        *flattened(run_times),
    ]


def flattened(lists: list[list[int]]) -> tuple[list[object], list[object], list[object]]:
    """All numbers in one list, and where each row's part begins and ends, counted from one."""
    numbers: list[object] = []
    begins: list[object] = []
    ends: list[object] = []
    for counts in lists:
        begins.append(len(numbers) + 1)
        numbers.extend(counts)
        ends.append(len(numbers))
    return numbers, begins, ends


async def read_stats(
    database: Database,
    tenant: int | None,
    since: datetime,
    after: tuple[datetime, int, str] | None = None,
    limit: int = READ_ROWS_MAX,
) -> list[StatsRow]:
    """One page, oldest minute first; `after` is (minute, tenant, type) of the page before."""
    minute, after_tenant, after_type = after or (datetime(1970, 1, 1, tzinfo=UTC), -1, "")
    rows = await database.fetch(
        SQL.read_stats, tenant, since, minute, after_tenant, after_type, min(limit, READ_ROWS_MAX)
    )
    return [StatsRow(*row) for row in rows]


async def read_points(
    session: Session,
    tenant: int,
    first: datetime,
    last: datetime,
    step_s: int,
    task_type: str | None = None,
    rows_max: int = ADDED_ROWS_MAX,
) -> list[Point] | None:
    """The minutes from `first` up to `last`, added up to steps; a step without any is left out.

    None: there are too many of them.
    """
    points: dict[int, Point] = {}
    rows_left = rows_max
    rows = await session.fetch(
        SQL.read_points, tenant, first, last, task_type, step_s, rows_max + 1
    )
    for step, counts, lag, run_time in rows:
        point = points.get(step) or Point(EPOCH + timedelta(seconds=step * step_s))
        if counts is None:
            points[step] = point._replace(lag=lag, run_time=run_time)
        else:
            points[step] = point._replace(counts=TaskCounts(*counts[:-1]))
            rows_left -= counts[-1]
    return [points[step] for step in sorted(points)] if rows_left >= 0 else None


class TenantCounts(NamedTuple):
    """What one tenant did since an instant; `lag` as a histogram."""

    tenant: str
    counts: TaskCounts
    lag: Sequence[int]


async def read_tenant_stats(
    session: Session, since: datetime, rows_max: int = ADDED_ROWS_MAX
) -> list[TenantCounts]:
    """Of every tenant that did anything."""
    rows = await session.fetch(SQL.read_tenant_stats, since, rows_max)
    return [TenantCounts(tenant, TaskCounts(*counts), lag) for tenant, *counts, lag in rows]


def added_up(points: Iterable[Point], at: datetime) -> Point:
    total = Point(at)
    for point in points:
        total = Point(
            at,
            TaskCounts(*summed(total.counts, point.counts)),
            summed(total.lag, point.lag),
            summed(total.run_time, point.run_time),
        )
    return total


def summed(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [mine + theirs for mine, theirs in zip_longest(one, other, fillvalue=0)]


async def delete_old_stats(database: Database, limit: int, retention_s: float = RETENTION_S) -> int:
    return len(await database.fetch(SQL.delete_old_stats, retention_s, limit))


async def read_endings(
    database: Database, keys: Sequence[tuple[UUID, int]]
) -> list[SettledAttempt]:
    """Of attempts by task and fence, as their records have it."""
    ids = [task_id for task_id, _ in keys]
    rows = await database.fetch(
        SQL.read_endings, [shard_of(each) for each in ids], ids, [fence for _, fence in keys]
    )
    return [
        SettledAttempt(
            row["tenant"],
            row["type"],
            row["holder"],
            Outcome(row["outcome"]),
            State(row["state"]) if row["state"] else None,
            row["run_s"],
        )
        for row in rows
    ]
