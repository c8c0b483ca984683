"""Emptying a pinned month: what ended long ago goes, and nothing that lives or is recent."""

from datetime import date

import asyncpg
import pytest

from duly.domain.states import Outcome, State
from duly.store.breakers import open_breaker
from duly.store.partitions import RETENTION_S, drop_month
from duly.store.read import read_task
from duly.store.retention import DeletedBatch, MonthCursor, delete_closed_breakers, delete_finished
from duly.store.stats import RETENTION_S as STATS_RETENTION_S
from duly.store.tenants import create_tenant
from tests.store.world import OTHER_TENANT, TENANT, World

JANUARY = date(2026, 1, 1)
DAY_S = 86400.0


async def batch(world: World, month: date = JANUARY, examine_max: int = 1000) -> DeletedBatch:
    return await delete_finished(world.database, month, MonthCursor(), examine_max)


async def test_finished_rows_go_and_survivors_stay(world: World) -> None:
    """Deleting a live task's payload is an acknowledged task lost (I1)."""
    done = await world.submit()
    await world.run(done.id, Outcome.FAILED)
    waiting = await world.submit(delay_s=300 * DAY_S)
    running = await world.submit(tenant=OTHER_TENANT)
    await world.lease(running.id, tenant=OTHER_TENANT)
    retried = await world.submit()
    await world.run(retried.id, Outcome.FAILED)
    world.advance(3600)
    await world.run(done.id, Outcome.COMPLETED)
    world.advance(40 * DAY_S)
    assert await drop_month(world.database, JANUARY) == "live"
    found = await batch(world)
    assert (found.examined, found.deleted) == (3, 1)
    assert await read_task(world.database, TENANT, done.id) is None
    assert await world.count("attempts") == 1
    assert (await world.read(running.id, OTHER_TENANT)).state is State.RUNNING
    assert (await world.read(retried.id)).state is State.READY
    assert len(await world.attempts(retried.id)) == 1
    assert (await world.read(waiting.id)).state is State.SCHEDULED
    assert (await batch(world)).deleted == 0


async def test_what_ended_within_the_retention_stays(world: World) -> None:
    """The clock of a row starts at its end, not at the end of its month."""
    done = await world.submit()
    await world.submit()
    world.advance(50 * DAY_S)
    await world.run(done.id, Outcome.COMPLETED)
    world.advance(RETENTION_S)
    assert (await batch(world)).deleted == 0
    world.advance(0.001)
    assert (await batch(world)).deleted == 1


async def test_a_cancelled_task_that_never_ran_is_finished_too(
    world: World, owner: asyncpg.Connection
) -> None:
    """Its only record is an attempt 0; without it the row would stay for ever."""
    stored = await world.submit()
    await owner.execute("DELETE FROM duly.timers WHERE id = $1", stored.id)
    await owner.execute(
        "INSERT INTO duly.attempts (shard, charged, fence, tenant, id, ended_at, outcome, state)"
        " SELECT shard, 0, 1, tenant, id, created_at, 'cancelled', 'CANCELLED' FROM duly.tasks"
    )
    world.advance(50 * DAY_S)
    assert (await batch(world)).deleted == 1


@pytest.mark.parametrize("has_run", [True, False])
async def test_a_row_without_timer_and_without_an_end_is_left_alone(
    world: World, owner: asyncpg.Connection, has_run: bool
) -> None:
    """That is damage (I1), and the evidence must not be tidied away."""
    stored = await world.submit()
    if has_run:
        await world.run(stored.id, Outcome.FAILED)
    await owner.execute("DELETE FROM duly.timers WHERE id = $1", stored.id)
    world.advance(50 * DAY_S)
    found = await batch(world)
    assert (found.examined, found.deleted) == (1, 0)


async def test_a_row_with_an_end_and_a_timer_is_left_alone(
    world: World, owner: asyncpg.Connection
) -> None:
    """That is damage too (I4): whoever leases it must find what was asked."""
    stored = await world.submit()
    await owner.execute("CREATE TEMPORARY TABLE kept AS SELECT * FROM duly.timers")
    await world.run(stored.id, Outcome.COMPLETED)
    await owner.execute("INSERT INTO duly.timers SELECT * FROM kept")
    world.advance(50 * DAY_S)
    found = await batch(world)
    assert (found.examined, found.deleted) == (1, 0)


async def test_the_current_month_is_never_touched(world: World) -> None:
    """A caller with a wrong month must not be able to delete what is new."""
    done = await world.submit()
    await world.run(done.id, Outcome.COMPLETED)
    world.advance(10)
    for month in (JANUARY, date(2026, 2, 1), date(2020, 1, 1)):
        found = await delete_finished(world.database, month, MonthCursor(), 1000, 0.0)
        assert (found.examined, found.deleted) == (0, 0)
    assert (await world.read(done.id)).state is State.COMPLETED


@pytest.mark.parametrize("examine_max", [1, 2, 3, 7])
async def test_bites_walk_a_whole_month_past_its_survivors(world: World, examine_max: int) -> None:
    """Starting each batch at the beginning, a few survivors would hide all that is behind them."""
    done = []
    for number in range(9):
        stored = await world.submit(idempotency_key=str(number), tenant=number + 1)
        if number % 3:
            await world.run(stored.id, Outcome.COMPLETED, number + 1)
            done.append(stored.id)
    world.advance(50 * DAY_S)
    cursor, deleted, batches = MonthCursor(), 0, 0
    while True:
        found = await delete_finished(world.database, JANUARY, cursor, examine_max)
        cursor, deleted, batches = found.cursor, deleted + found.deleted, batches + 1
        assert found.examined <= examine_max
        if found.examined < examine_max:
            break
    assert deleted == len(done) == 6
    assert batches == 9 // examine_max + 1
    assert await world.count("tasks") == 3


async def test_only_the_engine_may_call_it(owner: asyncpg.Connection) -> None:
    """A function that runs with the owner's rights is a door: it opens for one role only."""
    for role, may in (("duly_engine", True), ("duly_tenant", False), ("public", False)):
        assert may is await owner.fetchval(
            "SELECT has_function_privilege($1,"
            " 'duly.delete_finished(date, timestamptz, smallint, uuid, integer)', 'execute')",
            role,
        )


async def test_breakers_are_forgotten_long_after_they_closed(world: World) -> None:
    """An open breaker that is tidied away sends everything to a dead host."""
    acme = await create_tenant(world.database, "acme")
    assert acme is not None
    await open_breaker(world.database, acme.id, "old", 60.0, "x")
    await open_breaker(world.database, acme.id, "open", 2 * STATS_RETENTION_S, "x")
    world.advance(60 + 3600)
    assert await delete_closed_breakers(world.database, 10) == 0
    world.advance(0.001)
    assert await delete_closed_breakers(world.database, 10) == 1
    rows = await world.database.fetch("SELECT host FROM duly.breakers")
    assert [row["host"] for row in rows] == ["open"]
