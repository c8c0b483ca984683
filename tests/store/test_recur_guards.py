"""Each guard of a firing, taken out once: the scenario that needs it must then fail (I6)."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from duly.domain.occurrence_plan import OccurrenceDecision
from duly.store import fire_schedules
from duly.store.fire_schedules import ScheduleFirer
from duly.store.schedules import edit_schedule, lock_schedule, read_schedules
from tests.store.recurring import definition, fire_due, ledger, read, reckoned, schedule
from tests.store.world import TENANT, World
from tests.teeth.planted import Bug, with_edits, without

Scenario = Callable[[World], Awaitable[None]]


async def a_plan_from_an_old_definition_writes_nothing(world: World) -> None:
    """A firing that was planned before an edit and arrives after it."""
    schedule_id = await schedule(world, every_s=60)
    world.advance(60.0)
    schedule_firer = ScheduleFirer(world.submitter, world.environment)
    (old,) = await read_schedules(world.database, [schedule_id])
    stale = await schedule_firer.plan([(old, reckoned(old.definition, old.anchor_at))])
    async with world.database.tenant(TENANT) as session:
        locked = await lock_schedule(session, TENANT, schedule_id)
        assert locked is not None
        ruled = await schedule_firer.decide_due(session, locked)
        assert ruled is not None
        wanted = definition(every_s=3600)
        await edit_schedule(session, ruled[0], wanted, reckoned(wanted, ruled[0].anchor_at))
    after = await read(world, schedule_id)
    world.clock.elapsed_s += 3600.0
    await schedule_firer.fire(world.database, stale)
    world.clock.elapsed_s -= 3600.0
    assert (await read(world, schedule_id)).due_at == after.due_at


async def nothing_fires_early(world: World) -> None:
    """A node whose clock runs ahead plans what is not due yet."""
    schedule_id = await schedule(world, every_s=60)
    ahead = await read(world, schedule_id)
    world.clock.elapsed_s += 60.0
    planned = await read(world, schedule_id)
    schedule_firer = ScheduleFirer(world.submitter, world.environment)
    plan = await schedule_firer.plan([(planned, reckoned(planned.definition, planned.anchor_at))])
    world.clock.elapsed_s -= 60.0
    await schedule_firer.fire(world.database, plan)
    assert await ledger(world, schedule_id) == []
    assert (await read(world, schedule_id)).due_at == ahead.due_at


async def an_occurrence_that_made_its_task_makes_no_other(world: World) -> None:
    """A backfill over a range that has fired already."""
    schedule_id = await schedule(world, every_s=60)
    world.advance(60.0)
    await fire_due(world)
    before = await ledger(world, schedule_id)
    schedule_firer = ScheduleFirer(world.submitter, world.environment)
    async with world.database.tenant(TENANT) as session:
        locked = await lock_schedule(session, TENANT, schedule_id)
        assert locked is not None
        times = [(entry.nominal_at, world.now()) for entry in before]
        await schedule_firer.fire_manually(session, locked, OccurrenceDecision.BACKFILLED, times)
    assert await ledger(world, schedule_id) == before
    assert len(await world.due()) == 1


async def a_known_occurrence_gets_no_second_task(world: World) -> None:
    """The timer was rebuilt from too early a cursor: the ledger is the last wall."""
    schedule_id = await schedule(world, every_s=60)
    world.advance(60.0)
    await fire_due(world)
    await world.database.fetch(
        "UPDATE duly.schedule_timers SET cursor_at = cursor_at - interval '60 seconds', "
        "nominal_at = cursor_at, due_at = cursor_at, fence = fence + 1"
    )
    await fire_due(world)
    assert len(await ledger(world, schedule_id)) == 1
    assert len(await world.due()) == 1
    assert (await read(world, schedule_id)).due_at == world.now() + timedelta(seconds=60)


TEETH: list[tuple[Scenario, Bug]] = [
    (
        a_plan_from_an_old_definition_writes_nothing,
        without(fire_schedules, "move_schedules", "   AND timer.fence = asked.fence\n"),
    ),
    (
        nothing_fires_early,
        with_edits(
            "whatever the clock says",
            fire_schedules,
            "move_schedules",
            ("timer.due_at <= duly.now() OR $10", "true OR $10"),
        ),
    ),
    (
        an_occurrence_that_made_its_task_makes_no_other,
        without(fire_schedules, "record_manual", " WHERE known.task IS NULL\n"),
    ),
    (
        a_known_occurrence_gets_no_second_task,
        with_edits(
            "that takes the newer verdict",
            fire_schedules,
            "record_occurrences",
            ("DO NOTHING", "DO UPDATE SET task = excluded.task, verdict = excluded.verdict"),
        ),
    ),
]


@pytest.mark.parametrize("scenario", [scenario for scenario, _ in TEETH])
async def test_the_invariant_holds(world: World, scenario: Scenario) -> None:
    """The scenarios themselves must pass before their failing says anything."""
    await scenario(world)


@pytest.mark.parametrize(("scenario", "mutant"), TEETH, ids=[mutant.name for _, mutant in TEETH])
async def test_the_guard_is_needed(world: World, scenario: Scenario, mutant: Bug) -> None:
    """A guard that no test misses is a guard that the next edit may delete."""
    with mutant.planted(), pytest.raises(AssertionError):
        await scenario(world)
