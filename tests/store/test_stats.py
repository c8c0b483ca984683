"""Per-minute statistics: added exactly, kept when a flush fails, bounded."""

import asyncio
import time
from datetime import timedelta

import asyncpg
import pytest

from duly.domain.errors import DatabaseUnavailable
from duly.domain.histogram import BUCKETS, index_of
from duly.environment import Environment
from duly.store import stats
from duly.store.database import Database
from duly.store.stats import (
    NO_TENANT,
    OTHER_TYPE,
    Ending,
    StatsBook,
    StatsRow,
    delete_old_stats,
    read_stats,
)
from duly.testing.clock import ManualClock
from tests.store.test_idempotency import wait_until_blocked
from tests.store.world import OTHER_TENANT, START, TENANT, World

TYPE = "mail.send"


@pytest.fixture
def book(world: World) -> StatsBook:
    return StatsBook(world.environment)


async def rows(world: World, tenant: int | None = None) -> list[StatsRow]:
    return await read_stats(world.database, tenant, START - timedelta(days=30))


def note_some(book: StatsBook) -> None:
    book.note_submitted(TENANT, TYPE, 5)
    book.note_started([(TENANT, TYPE, 0.003), (TENANT, TYPE, 2.0), (TENANT, TYPE, 2.0)])
    book.note_settled(
        [
            (TENANT, TYPE, Ending.COMPLETED, 0.5),
            (TENANT, TYPE, Ending.FAILED, 100_000.0),
            (TENANT, TYPE, Ending.RETRIED, 0.5),
            (TENANT, TYPE, Ending.OTHER, 0.5),
        ]
    )


async def test_what_was_noted_is_what_is_read(world: World, book: StatsBook) -> None:
    """A column that is swapped with its neighbour shows failures as successes."""
    note_some(book)
    assert await book.flush(world.database) == 1
    (row,) = await rows(world)
    assert row[:8] == (START, TENANT, TYPE, 5, 3, 1, 1, 1)
    assert {n: count for n, count in enumerate(row.lag) if count} == {
        index_of(0.003): 1,
        index_of(2.0): 2,
    }
    assert len(row.lag) == index_of(2.0) + 1
    assert {n: count for n, count in enumerate(row.run_time) if count} == {
        index_of(0.5): 3,
        BUCKETS - 1: 1,
    }


async def test_a_flush_with_nothing_to_say_says_nothing(book: StatsBook) -> None:
    """An idle installation counts its statements on one hand."""
    no_database: Database = None  # type: ignore[assignment]
    assert await book.flush(no_database) == 0


async def test_flushes_of_one_minute_add_up(world: World, book: StatsBook) -> None:
    """Set instead of added, a minute has only what its last flush had."""
    for _ in range(3):
        note_some(book)
        await book.flush(world.database)
    book.note_submitted(TENANT, TYPE, 1)
    await book.flush(world.database)
    (row,) = await rows(world)
    assert row[3:8] == (16, 9, 3, 3, 3)
    assert (sum(row.lag), sum(row.run_time), row.run_time[-1]) == (9, 12, 3)


async def test_two_sessions_that_flush_one_minute_at_once_lose_nothing(
    world: World, owner: asyncpg.Connection
) -> None:
    """The second waits for the first's row; summing from its old snapshot would lose the first."""
    first, second = StatsBook(world.environment), StatsBook(world.node(2).environment)
    first.note_started([(TENANT, TYPE, 0.003)] * 10)
    first.note_submitted(OTHER_TENANT, TYPE, 1)
    await first.flush(world.database)
    first.note_started([(TENANT, TYPE, 5.0)] * 100)
    second.note_started([(TENANT, TYPE, 0.003)] * 1000 + [(TENANT, "new", 1.0)] * 7)
    async with world.database.transaction() as session:
        await first.flush(session)  # type: ignore[arg-type]
        waiting = asyncio.create_task(second.flush(world.database))
        await wait_until_blocked(owner)
    await waiting
    row = next(row for row in await rows(world, TENANT) if row.type == TYPE)
    assert row.started == 1110
    assert {n: count for n, count in enumerate(row.lag) if count} == {
        index_of(0.003): 1010,
        index_of(5.0): 100,
    }


async def test_many_nodes_that_flush_many_keys_at_once_add_up(world: World) -> None:
    """Rows locked in different orders would deadlock, and the loser's minute would be late."""
    books = [StatsBook(world.node(seed).environment) for seed in range(6)]
    for turn in range(5):
        for position, book in enumerate(books):
            types = [f"t{number}" for number in range(40)]
            for name in types if position % 2 else reversed(types):
                book.note_submitted(TENANT, name, turn + 1)
                book.note_started([(TENANT, name, 0.01)])
        await asyncio.gather(*(book.flush(world.database) for book in books))
    found = await rows(world)
    assert len(found) == 40
    assert {(row.submitted, row.started, sum(row.lag)) for row in found} == {(90, 30, 30)}


class BrokenDatabase(Database):
    """Fails on demand; `hold` is set while a statement is in flight."""

    def __init__(self, world: World) -> None:
        super().__init__(world.database.url, world.database.connections)
        self.world = world
        self.answers: list[bool] = []
        self.in_flight = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def fetch(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        self.in_flight.set()
        await self.gate.wait()
        if self.answers and not self.answers.pop(0):
            raise DatabaseUnavailable(address="here", problem="gone")
        return await self.world.database.fetch(statement, *arguments)


async def test_what_a_failed_flush_took_is_kept_with_what_came_meanwhile(
    world: World, book: StatsBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that is away for a minute must not leave a hole or count one part twice."""
    monkeypatch.setattr(stats, "FLUSH_ROWS_MAX", 2)
    broken = BrokenDatabase(world)
    for name in ("a", "b", "c", "d", "e"):
        book.note_started([(TENANT, name, 0.01)])
    broken.answers, broken.gate = [True, False], asyncio.Event()
    flushing = asyncio.create_task(book.flush(broken))
    await broken.in_flight.wait()
    book.note_started([(TENANT, "a", 0.01), (TENANT, "e", 0.01)])
    broken.gate.set()
    with pytest.raises(DatabaseUnavailable):
        await flushing
    assert {row.type: row.started for row in await rows(world)} == {"a": 1, "b": 1}
    await book.flush(broken)
    assert {row.type: (row.started, sum(row.lag)) for row in await rows(world)} == {
        "a": (2, 2),
        "b": (1, 1),
        "c": (1, 1),
        "d": (1, 1),
        "e": (2, 2),
    }


async def test_a_cancelled_flush_keeps_its_numbers(world: World, book: StatsBook) -> None:
    """A tick that is cut off at its limit is a failure like any other."""
    broken = BrokenDatabase(world)
    broken.gate = asyncio.Event()
    note_some(book)
    flushing = asyncio.create_task(book.flush(broken))
    await broken.in_flight.wait()
    flushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flushing
    await book.flush(world.database)
    (row,) = await rows(world)
    assert row.submitted == 5


async def test_minutes_are_kept_apart_and_follow_the_databases_clock(world: World) -> None:
    """A node whose clock is an hour wrong would write into minutes that are long over."""
    world.node_clock.start = START + timedelta(hours=1)
    book = StatsBook(world.environment)
    book.note_submitted(TENANT, TYPE, 1)
    await book.flush(world.database)
    book.note_submitted(TENANT, TYPE, 2)
    world.advance(59.5)
    book.note_submitted(TENANT, TYPE, 4)
    world.advance(0.5)
    book.note_submitted(TENANT, TYPE, 8)
    await book.flush(world.database)
    assert [(row.minute - START, row.submitted) for row in await rows(world)] == [
        (timedelta(0), 6),
        (timedelta(minutes=1), 8),
        (timedelta(hours=1), 1),
    ]


async def test_a_minute_has_a_bounded_number_of_keys(world: World) -> None:
    """Types are named by submitters: one per task would be a row per task, for a week."""
    book = StatsBook(world.environment, keys_max=3)
    for number in range(5):
        book.note_submitted(TENANT, f"t{number}", 1)
        await book.flush(world.database)
    book.note_submitted(TENANT, "t0", 10)
    for tenant in range(100, 110):
        book.note_started([(tenant, "t", 0.1)])
    await book.flush(world.database)
    found = {(row.tenant, row.type): (row.submitted, row.started) for row in await rows(world)}
    assert found == {
        (TENANT, "t0"): (11, 0),
        (TENANT, "t1"): (1, 0),
        (TENANT, "t2"): (1, 0),
        (TENANT, OTHER_TYPE): (2, 0),
        (100, OTHER_TYPE): (0, 1),
        (101, OTHER_TYPE): (0, 1),
        (NO_TENANT, OTHER_TYPE): (0, 8),
    }
    world.advance(60)
    book.note_submitted(TENANT, "t4", 1)
    await book.flush(world.database)
    assert (await rows(world))[-1].type == "t4"


async def test_while_the_database_is_away_memory_is_bounded(world: World, book: StatsBook) -> None:
    """Hours of an outage must not become the outage of the node."""
    for number in range(stats.MINUTES_MAX + 5):
        book.note_submitted(TENANT, TYPE, number)
        world.advance(60)
    assert len(book.minutes) == stats.MINUTES_MAX
    assert book.minutes_lost == 5
    await book.flush(world.database)
    assert min(row.submitted for row in await rows(world)) == 5


async def test_a_page_of_statistics_goes_on_where_the_last_one_ended(
    world: World, book: StatsBook
) -> None:
    """A row on the edge of a page is easily read twice or never; strangers' rows never (I9)."""
    for _ in range(3):
        for tenant in (TENANT, OTHER_TENANT):
            for name in ("a", "b"):
                book.note_submitted(tenant, name, 1)
        await book.flush(world.database)
        world.advance(60)
    everything = await rows(world)
    assert len(everything) == 12
    read: list[StatsRow] = []
    while page := await read_stats(
        world.database, TENANT, START, read[-1][:3] if read else None, limit=2
    ):
        read += page
    assert read == [row for row in everything if row.tenant == TENANT]
    assert await read_stats(world.database, TENANT, START + timedelta(minutes=2)) == read[-2:]


async def test_old_minutes_are_deleted_in_bites(world: World, book: StatsBook) -> None:
    """One delete over a year of minutes would hold its locks, and its WAL, for minutes."""
    for _ in range(3):
        book.note_submitted(TENANT, TYPE, 1)
        await book.flush(world.database)
        world.advance(60)
    assert await delete_old_stats(world.database, 10) == 0
    world.advance(stats.RETENTION_S - 60)
    assert await delete_old_stats(world.database, 1) == 1
    assert [row.minute - START for row in await rows(world)] == [
        timedelta(minutes=1),
        timedelta(minutes=2),
    ]
    assert await delete_old_stats(world.database, 10) == 1
    assert await world.count("stats") == 1


def test_noting_a_task_costs_no_more_than_a_microsecond() -> None:
    """At 24,000 tasks a second, ten microseconds each would be a quarter of the process."""
    book = StatsBook(Environment(clock=ManualClock()))
    started = [(number % 7, f"type.{number % 5}", 0.004) for number in range(20_000)]
    settled = [(tenant, name, Ending.COMPLETED, 0.01) for tenant, name, _ in started]
    best_s = float("inf")
    for _ in range(5):
        before = time.process_time()
        book.note_started(started)
        book.note_settled(settled)
        best_s = min(best_s, time.process_time() - before)
    # Twice the figure, for machines that are slower or shared.
    assert best_s / len(started) < 2 * 2e-6
