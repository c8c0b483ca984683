"""Firing a schedule: one verdict and at most one task for each occurrence (I6)."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from duly.domain.errors import StatementRefused
from duly.domain.occurrence_plan import RULINGS_MAX, OccurrenceDecision
from duly.domain.states import Outcome
from duly.environment import CrashPoint, Environment
from duly.store.fire_schedules import (
    RULINGS_PER_BATCH,
    START,
    ScheduleFirer,
    look_ahead,
    rebuild_timers,
    sweep,
)
from duly.store.schedules import edit_schedule, execution_key, lock_schedule, read_schedules
from duly.store.submit import Submitter
from tests.store.recurring import (
    definition,
    due_ids,
    fire_due,
    ledger,
    read,
    reckoned,
    schedule,
    verdicts,
)
from tests.store.world import HOLDER, TENANT, World

HOUR_S = 3600.0
DAY_S = 86400.0


class Crash(BaseException):
    """Not an Exception, like a kill: nothing may catch it and go on."""


async def test_an_occurrence_becomes_a_task_with_its_execution_key(world: World) -> None:
    """An occurrence without a stable name could not be told from its repetition."""
    schedule_id = await schedule(world, every_s=60)
    world.advance(60.0)
    await fire_due(world)
    (entry,) = await ledger(world, schedule_id)
    assert entry.verdict == OccurrenceDecision.FIRED
    assert entry.task is not None
    task = await world.read(entry.task)
    assert task.execution_key == execution_key(schedule_id, entry.nominal_at)
    assert task.run_at == entry.nominal_at
    assert (await read(world, schedule_id)).nominal_at == entry.nominal_at + timedelta(seconds=60)


async def test_a_schedule_does_not_fire_before_its_instant(world: World) -> None:
    """A node whose clock runs ahead must not make an early task."""
    schedule_id = await schedule(world, every_s=60)
    world.advance(59.0)
    assert await due_ids(world) == []
    (early,) = await read_schedules(world.database, [schedule_id])
    schedule_firer = ScheduleFirer(world.submitter, world.environment)
    plan = await schedule_firer.plan([(early, reckoned(early.definition, early.anchor_at))])
    assert await schedule_firer.fire(world.database, plan) == set()
    assert await ledger(world, schedule_id) == []


async def test_two_schedulers_make_one_task(world: World) -> None:
    """Two nodes that both believe to own the slot would double every run."""
    schedule_id = await schedule(world, every_s=60)
    world.advance(60.0)
    nodes = [world.node(seed) for seed in range(4)]
    firers = [ScheduleFirer(node.submitter, node.environment) for node in nodes]
    (seen,) = await read_schedules(world.database, [schedule_id])
    plans = [
        await schedule_firer.plan([(seen, reckoned(seen.definition, seen.anchor_at))])
        for schedule_firer in firers
    ]
    moved = await asyncio.gather(
        *(
            schedule_firer.fire(world.database, plan)
            for schedule_firer, plan in zip(firers, plans, strict=True)
        )
    )
    assert sorted(len(each) for each in moved) == [0, 0, 0, 1]
    assert len(await world.due()) == 1
    assert await verdicts(world, schedule_id) == ["FIRED"]


@pytest.mark.parametrize(
    "point", [CrashPoint.FIRE_BEFORE, CrashPoint.FIRE_BETWEEN, CrashPoint.FIRE_AFTER_COMMIT]
)
async def test_a_crash_within_a_firing_neither_loses_nor_doubles_it(
    world: World, point: CrashPoint
) -> None:
    """Half a firing would be a task without a ledger row, or a row without its task."""

    async def crash(reached: CrashPoint) -> None:
        if reached is point:
            raise Crash

    schedule_id = await schedule(world, every_s=60)
    world.advance(60.0)
    dying = world.node(7)
    environment = Environment(clock=dying.node_clock, random=dying.environment.random)
    dying.submitter.environment = environment
    schedule_firer = ScheduleFirer(
        dying.submitter, Environment(clock=dying.node_clock, crash_point=crash)
    )
    with pytest.raises(Crash):
        await fire_due(world, schedule_firer)
    await fire_due(world)
    assert await verdicts(world, schedule_id) == ["FIRED"]
    assert len(await world.due()) == 1


async def test_a_clock_set_back_fires_nothing_again(world: World) -> None:
    """An hour that comes twice for the server must not come twice for its users."""
    schedule_id = await schedule(world, every_s=60)
    world.advance(2 * HOUR_S)
    await fire_due(world)
    before = await ledger(world, schedule_id)
    world.clock.elapsed_s -= HOUR_S
    await fire_due(world)
    assert await ledger(world, schedule_id) == before
    world.clock.elapsed_s += HOUR_S + 60.0
    await fire_due(world)
    assert len(await ledger(world, schedule_id)) == len(before) + 1


async def test_three_days_away_with_fire_all_fires_the_window_and_accounts_for_the_rest(
    world: World,
) -> None:
    """Runs that were missed would vanish without a trace."""
    schedule_id = await schedule(world, every_s=600, misfire="fire_all", misfire_window_s=HOUR_S)
    world.advance(3 * DAY_S)
    await fire_due(world)
    found = await verdicts(world, schedule_id)
    assert len(found) == 432
    assert found.count("SKIPPED_MISFIRE") == 432 - 7
    assert found[-7:] == ["LATE"] * 6 + ["FIRED"]


async def test_three_days_away_with_coalesce_fires_once(world: World) -> None:
    """A herd of old runs after an outage helps nobody."""
    schedule_id = await schedule(world, every_s=7, misfire="coalesce")
    world.advance(3 * DAY_S)
    await fire_due(world)
    found = await verdicts(world, schedule_id)
    assert found == ["COALESCED"] * (len(found) - 1) + ["FIRED"]
    assert len(found) == int(3 * DAY_S // 7)


async def test_three_days_away_with_skip_goes_on_with_what_is_due_now(world: World) -> None:
    """`skip` promises that nothing old is run."""
    schedule_id = await schedule(world, every_s=600, misfire="skip")
    world.advance(3 * DAY_S + 300.0)
    await fire_due(world)
    assert await verdicts(world, schedule_id) == ["SKIPPED_MISFIRE"] * 432
    world.advance(300.0)
    await fire_due(world)
    assert (await verdicts(world, schedule_id))[-1] == "FIRED"


async def test_skip_leaves_out_what_would_overlap(world: World) -> None:
    """Two runs of a job that must not meet would meet."""
    schedule_id = await schedule(world, every_s=60, overlap="skip")
    world.advance(60.0)
    await fire_due(world)
    (lease,) = await world.lease_all(lease_s=1000.0)
    world.advance(60.0)
    await fire_due(world)
    assert await verdicts(world, schedule_id) == ["FIRED", "SKIPPED_OVERLAP"]
    await world.settle(lease, Outcome.COMPLETED)
    world.advance(60.0)
    await fire_due(world)
    assert await verdicts(world, schedule_id) == ["FIRED", "SKIPPED_OVERLAP", "FIRED"]


async def test_queue_one_keeps_one_waiting_and_makes_it_wait(world: World) -> None:
    """A queue without a bound grows while one run hangs."""
    schedule_id = await schedule(world, every_s=60, overlap="queue_one")
    for _ in range(4):
        world.advance(60.0)
        await fire_due(world)
    assert await verdicts(world, schedule_id) == ["FIRED"] * 2 + ["SKIPPED_OVERLAP"] * 2
    keys = {due.concurrency_key for due in await world.due()}
    assert keys == {f"schedule:{schedule_id}"}


async def test_cancel_previous_ends_what_still_runs(world: World) -> None:
    """The old run would go on beside the new one."""
    schedule_id = await schedule(world, every_s=60, overlap="cancel_previous")
    world.advance(60.0)
    await fire_due(world)
    (first,) = await world.lease_all(HOLDER, lease_s=1000.0)
    world.advance(60.0)
    await fire_due(world)
    world.advance(60.0)
    await fire_due(world)
    entries = await ledger(world, schedule_id)
    assert [entry.verdict for entry in entries] == ["FIRED"] * 3
    assert entries[1].task is not None
    assert (await world.read(first.id)).cancel_requested
    assert (await world.read(entries[1].task)).state == "CANCELLED"
    assert len((await read(world, schedule_id)).live) == 1


async def test_an_allowed_overlap_has_its_bound(world: World) -> None:
    """A worker that is away would let tasks pile up without end."""
    schedule_id = await schedule(world, every_s=60, overlap="allow", max_running=2)
    for _ in range(3):
        world.advance(60.0)
        await fire_due(world)
    assert await verdicts(world, schedule_id) == ["FIRED", "FIRED", "SKIPPED_OVERLAP"]


async def test_a_schedule_ends_after_its_last_fire(world: World) -> None:
    """One fire more than asked for is one too many."""
    schedule_id = await schedule(world, every_s=60, misfire="fire_all", max_fires=3)
    world.advance(HOUR_S)
    await fire_due(world)
    assert await verdicts(world, schedule_id) == ["LATE"] * 3
    assert (await read(world, schedule_id)).due_at is None


async def test_jitter_moves_the_task_and_never_its_name(world: World) -> None:
    """A smeared time in the ledger would let one occurrence exist under two names."""
    schedule_id = await schedule(world, cron="0 * * * *", jitter_s=600.0)
    offset_s = (await read(world, schedule_id)).offset_s
    assert 0 < offset_s < 600.0
    world.advance(HOUR_S + offset_s - 0.5)
    assert await fire_due(world) == 0
    world.advance(1.0)
    await fire_due(world)
    (entry,) = await ledger(world, schedule_id)
    assert entry.nominal_at.minute == 0
    assert entry.task is not None
    task = await world.read(entry.task)
    assert task.run_at == entry.nominal_at + timedelta(seconds=offset_s)


async def test_what_is_due_is_ruled_on_before_a_change(world: World) -> None:
    """An edit would take the verdict from what was due under the old definition."""
    schedule_id = await schedule(world, every_s=60, misfire="fire_all")
    world.advance(600.0)
    schedule_firer = ScheduleFirer(world.submitter, world.environment)
    async with world.database.tenant(TENANT) as session:
        locked = await lock_schedule(session, TENANT, schedule_id)
        assert locked is not None
        ruled = await schedule_firer.decide_due(session, locked)
        assert ruled is not None
    assert len(await ledger(world, schedule_id)) == 10
    assert ruled[0].due_at == world.now() + timedelta(seconds=60)
    assert len(ruled[1].made) == 10


async def change(world: World, schedule_id: UUID, **fields: Any) -> None:
    """As the door does it: rule on everything up to now, then edit."""
    schedule_firer = ScheduleFirer(world.submitter, world.environment)
    async with world.database.tenant(TENANT) as session:
        locked = await lock_schedule(session, TENANT, schedule_id)
        assert locked is not None
        ruled = await schedule_firer.decide_due(session, locked)
        assert ruled is not None
        wanted = definition(**fields)
        await edit_schedule(session, ruled[0], wanted, reckoned(wanted, ruled[0].anchor_at))


@pytest.mark.parametrize(
    "new", [{"jitter_s": 0.0, "misfire": "skip"}, {"cron": "30 * * * *"}, {"cron": "* * * * *"}]
)
async def test_an_edit_while_jitter_holds_an_occurrence_back_keeps_that_one(
    world: World, new: dict[str, Any]
) -> None:
    """It would be called late, lost without a verdict, or joined by others from before the edit."""
    schedule_id = await schedule(world, cron="0 * * * *", jitter_s=3500.0)
    offset_s = (await read(world, schedule_id)).offset_s
    assert offset_s > 120.0
    world.advance(HOUR_S + 60.0)
    await fire_due(world)
    await change(world, schedule_id, **{"cron": "0 * * * *", **new})
    entries = await ledger(world, schedule_id)
    assert [(entry.verdict, entry.late_s) for entry in entries] == [("FIRED", 0.0)]
    assert entries[0].task is not None
    task = await world.read(entries[0].task)
    assert task.run_at == entries[0].nominal_at + timedelta(seconds=offset_s)
    await fire_due(world)
    assert len(await ledger(world, schedule_id)) == 1


async def test_a_change_does_not_fire_a_long_backlog(world: World) -> None:
    """An edit of a schedule that is behind would make all its tasks at once."""
    schedule_id = await schedule(world, every_s=60, misfire="fire_all", misfire_window_s=DAY_S)
    world.advance(6 * HOUR_S)
    schedule_firer = ScheduleFirer(world.submitter, world.environment)
    async with world.database.tenant(TENANT) as session:
        locked = await lock_schedule(session, TENANT, schedule_id)
        assert locked is not None
        assert await schedule_firer.decide_due(session, locked) is None


async def test_a_firing_is_bounded_however_much_is_due(world: World) -> None:
    """Two hundred schedules that were away for days would stop the process for seconds."""
    ids = [await schedule(world, name=f"s-{n}", every_s=1, misfire="skip") for n in range(6)]
    world.advance(DAY_S)
    schedules = await read_schedules(world.database, ids)
    readable = [(each, reckoned(each.definition, each.anchor_at)) for each in schedules]
    firings = await ScheduleFirer(world.submitter, world.environment).plan(readable)
    assert 0 < len(firings) < len(ids)
    decisions = sum(len(firing.plan.decisions) for firing in firings)
    assert decisions < RULINGS_PER_BATCH + RULINGS_MAX


async def test_a_policy_that_begins_to_look_at_overlaps_sees_what_runs(world: World) -> None:
    """The run that began under `allow` would be joined by a second one under `skip`."""
    schedule_id = await schedule(world, every_s=60)
    world.advance(60.0)
    await fire_due(world)
    await change(world, schedule_id, every_s=60, overlap="skip")
    world.advance(60.0)
    await fire_due(world)
    assert await verdicts(world, schedule_id) == ["FIRED", "SKIPPED_OVERLAP"]


async def test_a_backfill_is_not_what_cancel_previous_means(world: World) -> None:
    """The next regular run would cancel everything that was made up for."""
    schedule_id = await schedule(world, every_s=60, overlap="cancel_previous", misfire="skip")
    world.advance(600.0)
    await fire_due(world)
    skipped = [entry for entry in await ledger(world, schedule_id) if entry.task is None]
    schedule_firer = ScheduleFirer(world.submitter, world.environment)
    async with world.database.tenant(TENANT) as session:
        locked = await lock_schedule(session, TENANT, schedule_id)
        assert locked is not None
        later = world.now() + timedelta(seconds=300)
        times = [(entry.nominal_at, later) for entry in skipped]
        written = await schedule_firer.fire_manually(
            session, locked, OccurrenceDecision.BACKFILLED, times
        )
    world.advance(60.0)
    await fire_due(world)
    states = {(await world.read(task_id)).state for task_id in written.made}
    assert states == {"SCHEDULED"}


@pytest.mark.parametrize("is_known", [True, False])
async def test_who_holds_a_connection_waits_for_no_second_one(
    world: World, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """Many calls at once, each on a connection and in need of another, would wait for each other.
    Here the pool came with an edit, after the caller had prepared itself."""
    schedule_id = await schedule(world, every_s=60)
    await world.database.fetch(
        """UPDATE duly.schedules SET template = '{"type": "x", "payload": "1", "pool": "p"}'"""
    )
    world.advance(60.0)
    if is_known:
        await world.submitter.pools.resolve([(TENANT, "p")])
    schedule_firer = ScheduleFirer(Submitter(world.database, world.environment), world.environment)

    async def refuse(*_: object) -> None:
        raise AssertionError("a second connection")

    refused = contextlib.nullcontext() if is_known else pytest.raises(StatementRefused)
    with refused, monkeypatch.context() as patched:
        async with world.database.tenant(TENANT) as session:
            locked = await lock_schedule(session, TENANT, schedule_id)
            assert locked is not None
            patched.setattr(world.database, "fetch", refuse)
            ruled = await schedule_firer.decide_due(session, locked)
            assert ruled is not None
            times = [(world.now() + timedelta(seconds=1), world.now())]
            await schedule_firer.fire_manually(
                session, ruled[0], OccurrenceDecision.TRIGGERED, times
            )
    assert len(await world.due()) == (2 if is_known else 0)


async def test_a_rebuilt_timer_knows_how_often_it_fired(world: World) -> None:
    """`max_fires` would be counted from the beginning again."""
    schedule_id = await schedule(world, every_s=60, max_fires=1)
    world.advance(60.0)
    await fire_due(world)
    await world.database.fetch("DELETE FROM duly.schedule_timers")
    (broken,) = await sweep(world.database, range(1024), (-1, START), 10)
    assert broken.is_broken
    assert await rebuild_timers(world.database, [broken.id]) == [schedule_id]
    rebuilt = await read(world, schedule_id)
    assert rebuilt.fires == 1
    assert rebuilt.cursor_at == world.now()


async def test_a_page_of_resting_schedules_hides_nobody(world: World) -> None:
    """What cannot fire would keep what can from being seen."""
    first = await schedule(world, name="first", every_s=60)
    second = await schedule(world, name="second", every_s=60)
    world.advance(600.0)
    soon = await look_ahead(world.database, range(1024), 15.0, 60.0, 1, 1, {first})
    assert [each.id for each in soon] == [second]
