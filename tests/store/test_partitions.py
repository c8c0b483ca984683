"""Months of tasks and attempts: made ahead without blocking, dropped behind without losing."""

import asyncio
from datetime import UTC, date, datetime, timedelta

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.domain.errors import StatementRefused
from duly.domain.ids import placement_time_of
from duly.domain.states import Outcome, State
from duly.store.partitions import (
    PlacementRange,
    create_partitions,
    drop_month,
    following_month,
    list_months,
    month_start,
    placement_range,
)
from duly.store.read import read_task
from tests.store.test_idempotency import wait_until_blocked
from tests.store.world import OTHER_TENANT, START, TENANT, World, wish

JANUARY = date(2026, 1, 1)


async def partitions(world: World) -> list[str]:
    rows = await world.database.fetch(
        "SELECT relname FROM pg_class JOIN pg_inherits ON inhrelid = oid AND relkind = 'r'"
        " ORDER BY relname"
    )
    return [row["relname"] for row in rows]


async def test_this_month_and_three_more_are_made_once(world: World) -> None:
    """A month that does not exist when it begins stops every submit."""
    months = [date(2026, month, 1) for month in (1, 2, 3, 4)]
    assert await list_months(world.database) == months
    assert len(await partitions(world)) == 8
    assert await create_partitions(world.database) == []
    world.advance(31 * 86400)
    assert await create_partitions(world.database) == ["attempts_2026_05", "tasks_2026_05"]
    assert await list_months(world.database) == [*months, date(2026, 5, 1)]


async def test_many_makers_at_once_make_each_month_once(world: World) -> None:
    """Every node runs maintenance when it starts; none of them may fail for it."""
    world.advance(200 * 86400)
    made = await asyncio.gather(*(create_partitions(world.database) for _ in range(6)))
    names = [name for names in made for name in names]
    assert sorted(names) == sorted(set(names))
    assert len(names) == 8
    assert len(await list_months(world.database)) == 8


async def test_a_month_is_made_while_a_transaction_is_open_and_queues_nobody(
    world: World, owner: asyncpg.Connection
) -> None:
    """CREATE ... PARTITION OF waited for the open transaction, and every insert behind it."""
    stored = await world.submit()
    transaction = owner.transaction()
    await transaction.start()
    await owner.execute("LOCK TABLE duly.tasks, duly.attempts IN ROW EXCLUSIVE MODE")
    await owner.fetch("SELECT FROM duly.tasks WHERE id = $1", stored.id)
    async with asyncio.timeout(5):
        assert len(await create_partitions(world.database, 6)) == 6
        await world.submit()
    await transaction.rollback()


async def test_inserts_go_on_while_a_month_is_being_made(
    world: World, owner: asyncpg.Connection
) -> None:
    """The maker holds its locks until its commit; hot inserts must not wait for that."""
    transaction = owner.transaction()
    await transaction.start()
    assert await owner.fetchval("SELECT duly.create_partition('tasks', '2026-07-01')")
    async with asyncio.timeout(5):
        stored = await world.submit()
        await world.run(stored.id, Outcome.COMPLETED)
    await transaction.rollback()


async def test_only_the_two_tables_have_partitions(world: World) -> None:
    """The function runs with its owner's rights: it must not make what it is told to."""
    with pytest.raises(asyncpg.PostgresError, match="has no partitions"):
        await world.database.fetch("SELECT duly.create_partition('timers', '2026-07-01')")


async def test_the_range_is_from_this_month_to_the_end_of_the_last(world: World) -> None:
    """Nothing new is placed in old months, so that they only ever empty."""
    world.advance(31 * 86400)
    found = await placement_range(world.database)
    assert found == PlacementRange(
        datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 5, 1, tzinfo=UTC)
    )


months = st.dates(date(1970, 1, 1), date(9998, 12, 1)).map(lambda day: day.replace(day=1))
instants = st.datetimes(timezones=st.just(UTC))


@given(months)
def test_the_following_month_is_the_next_first(month: date) -> None:
    """December must lead to January of the next year."""
    after = following_month(month)
    assert after.day == 1
    assert timedelta(days=28) <= after - month <= timedelta(days=31)
    assert month_start(after) == datetime(after.year, after.month, 1, tzinfo=UTC)


@given(instants)
def test_a_clamped_instant_lies_in_its_range(instant: datetime) -> None:
    """One millisecond past the last partition is an insert that fails."""
    bounds = PlacementRange(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 5, 1, tzinfo=UTC))
    clamped = bounds.clamp(instant)
    assert bounds.first <= clamped < bounds.last
    if bounds.first <= instant <= bounds.last - timedelta(milliseconds=1):
        assert clamped == instant


async def test_an_old_finished_month_is_dropped_whole(world: World) -> None:
    """Both tables go together: a task without its end would be neither live nor ended (I1)."""
    stored = await world.submit()
    await world.run(stored.id, Outcome.COMPLETED)
    world.advance(50 * 86400)
    assert await drop_month(world.database, JANUARY) is None
    assert "2026_01" not in " ".join(await partitions(world))
    assert await read_task(world.database, TENANT, stored.id) is None
    world.node_clock.start = START
    await world.submit()


async def test_a_month_is_kept_until_it_is_over(world: World) -> None:
    """The current month is empty on its first day, and needed."""
    assert await drop_month(world.database, JANUARY, retention_s=0.0) == "current"
    assert await drop_month(world.database, date(2026, 4, 1), retention_s=0.0) == "current"
    world.clock.start = datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)
    assert await drop_month(world.database, JANUARY, retention_s=0.0) == "current"
    world.advance(1)
    assert await drop_month(world.database, JANUARY, retention_s=0.0) is None


async def test_the_retention_counts_from_the_newest_finish(world: World) -> None:
    """A task placed in January and finished in March is a month old in April, not in February."""
    stored = await world.submit()
    world.advance(50 * 86400)
    await world.run(stored.id, Outcome.COMPLETED)
    world.advance(30 * 86400)
    assert await drop_month(world.database, JANUARY) == "recent"
    world.advance(1)
    assert await drop_month(world.database, JANUARY) is None


@pytest.mark.parametrize("is_leased", [True, False])
async def test_a_month_is_kept_while_a_timer_points_into_it(world: World, is_leased: bool) -> None:
    """The survivor's payload is in it: a dropped month would be an acknowledged task lost (I1)."""
    done = await world.submit()
    await world.run(done.id, Outcome.COMPLETED)
    survivor = await world.submit(tenant=OTHER_TENANT)
    if is_leased:
        await world.lease(survivor.id, tenant=OTHER_TENANT)
    world.advance(200 * 86400)
    assert await drop_month(world.database, JANUARY) == "live"
    assert (await world.read(survivor.id, OTHER_TENANT)).payload == "null"
    await world.reap()
    world.advance(86400)
    await world.run(survivor.id, Outcome.COMPLETED, OTHER_TENANT)
    assert await drop_month(world.database, JANUARY) == "recent"


async def test_a_timer_of_another_month_pins_nothing(world: World) -> None:
    """The bound is the month's own, to the millisecond."""
    await world.submit(run_at=datetime(2026, 2, 1, tzinfo=UTC))
    world.advance(100 * 86400)
    assert await drop_month(world.database, JANUARY) is None
    assert await drop_month(world.database, date(2026, 2, 1)) == "live"


async def test_a_submit_that_commits_late_is_respected(
    world: World, owner: asyncpg.Connection
) -> None:
    """Looked at without a lock, the month seems empty, and the task is lost at its commit (I1)."""
    (entry,) = await world.submitter.assign_ids([wish()])
    world.advance(100 * 86400)
    async with world.database.transaction() as late:
        await world.submitter.store(late, [entry])
        with pytest.raises(StatementRefused) as refused:
            await drop_month(world.database, JANUARY)
        assert refused.value.facts["code"] == "55P03"
        dropping = asyncio.create_task(drop_month(world.database, JANUARY))
        await wait_until_blocked(owner)
    assert await dropping == "live"
    assert (await world.read(entry.id)).state is State.READY


async def test_a_months_drop_waits_for_nobody_for_long(
    world: World, owner: asyncpg.Connection
) -> None:
    """A drop that queues for the parent's lock holds up every insert behind it."""
    world.advance(100 * 86400)
    transaction = owner.transaction()
    await transaction.start()
    await owner.execute("LOCK TABLE duly.tasks IN ROW EXCLUSIVE MODE")
    async with asyncio.timeout(5):
        with pytest.raises(StatementRefused):
            await drop_month(world.database, JANUARY)
        await world.submit()
    await transaction.rollback()
    assert await drop_month(world.database, JANUARY) is None


async def test_a_task_placed_in_the_last_millisecond_belongs_to_its_month(world: World) -> None:
    """The edge between two months is where a bound off by one loses a task."""
    last = datetime(2026, 2, 1, tzinfo=UTC) - timedelta(milliseconds=1)
    edge = await world.submit(run_at=last)
    assert placement_time_of(edge.id) == last
    (row,) = await world.database.fetch(
        "SELECT tableoid::regclass::text AS month FROM duly.tasks WHERE id = $1", edge.id
    )
    assert row["month"] == "duly.tasks_2026_01"
