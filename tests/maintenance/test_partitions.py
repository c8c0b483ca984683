"""Months ahead are made, months behind dropped, and each month that stays says why."""

from datetime import date

import asyncpg

from duly.domain.states import Outcome
from duly.maintenance.partitions import Partitions
from duly.store.partitions import list_months
from tests.store.world import World

DAY_S = 86400.0


async def test_months_are_made_ahead_and_dropped_behind(world: World) -> None:
    """Without it submits stop at the end of the third month, and disks fill before that."""
    service = Partitions(world.database)
    assert (await service.run_once()).changed == 0
    done = await world.submit()
    await world.run(done.id, Outcome.COMPLETED)
    world.advance(31 * DAY_S)
    report = await service.run_once()
    assert (report.changed, service.pinned) == (3, [])
    assert report.note == "2026-01:dropped 2026-02:current"
    assert date(2026, 5, 1) in await list_months(world.database)


async def test_a_finished_month_is_dropped_and_a_live_one_pinned(world: World) -> None:
    """A pinned month that is not named is never emptied."""
    service = Partitions(world.database)
    done = await world.submit()
    await world.run(done.id, Outcome.COMPLETED)
    world.advance(28 * DAY_S)
    await world.submit()
    world.advance(60 * DAY_S)
    report = await service.run_once()
    assert service.pinned == [date(2026, 2, 1)]
    assert report.note == "2026-01:dropped 2026-02:live 2026-03:dropped 2026-04:current"
    assert date(2026, 1, 1) not in await list_months(world.database)


async def test_a_month_that_somebody_locks_does_not_stop_the_others(
    world: World, owner: asyncpg.Connection
) -> None:
    """One forgotten transaction in January would keep every later month for ever."""
    service = Partitions(world.database)
    world.advance(80 * DAY_S)
    transaction = owner.transaction()
    await transaction.start()
    await owner.execute("LOCK TABLE duly.tasks_2026_01 IN ROW EXCLUSIVE MODE")
    report = await service.run_once()
    await transaction.rollback()
    assert report.note.startswith("2026-01:locked 2026-02:dropped")
    assert not report.has_more
    assert (await service.run_once()).note.startswith("2026-01:dropped")
