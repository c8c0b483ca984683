"""Bulk operations in the tables: each task once, at the rate, whatever dies in between."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest

from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome, State
from duly.domain.task import Policy
from duly.environment import CrashPoint, Environment
from duly.store import bulk
from duly.store.bulk import (
    BulkAction,
    BulkFilter,
    BulkRecord,
    BulkRequest,
    BulkState,
    RunningBulk,
    continue_operation,
    create_operation,
    delete_old_operations,
    find_running,
    preview,
    read_operation,
    run_batch,
    stop_operation,
)
from tests.store.world import OTHER_TENANT, TENANT, World

ONCE = Policy(retry=RetryPolicy(max_attempts=1))
CANCEL_ALL = BulkRequest(BulkAction.CANCEL, BulkFilter(), rate_per_s=10_000.0)


async def start(world: World, asked: BulkRequest) -> BulkRecord:
    async with world.database.tenant(TENANT) as session:
        made = await create_operation(session, world.environment, TENANT, asked, "key:ops")
    assert made is not None
    return made


async def found(world: World, operation: BulkRecord) -> BulkRecord:
    seen = await read_operation(world.database, operation.tenant, operation.id)
    assert seen is not None
    return seen


async def due(world: World) -> RunningBulk:
    (running,) = await find_running(world.database, 10)
    return running


async def run_out(world: World, batches_max: int = 100) -> int:
    """Batches until none is running; how many."""
    for taken in range(batches_max):
        running = await find_running(world.database, 10)
        if not running:
            return taken
        world.advance(running[0].wait_s + 0.001)
        assert await run_batch(world.database, world.environment, running[0]) is not None
    raise AssertionError("the operation does not end")


async def states(world: World, ids: Sequence[UUID]) -> list[State]:
    return [(await world.read(task_id)).state for task_id in ids]


async def many(world: World, count: int, **fields: Any) -> list[UUID]:
    fields = {"delay_s": 3600.0} | fields
    return [(await world.submit(**fields)).id for _ in range(count)]


async def failed(world: World, count: int, **fields: Any) -> list[UUID]:
    ids = await many(world, count, delay_s=0.0, policy=ONCE, **fields)
    for task_id in ids:
        await world.run(task_id, Outcome.FAILED, error="boom")
    return ids


async def test_only_what_matches_is_cancelled_and_counted(world: World) -> None:
    """A filter that is dropped on the way cancels everything a tenant has."""
    meant = await many(world, 5, type="mail.send", tags={"env": "prod"})
    spared = await many(world, 2, type="mail.send", tags={"env": "test"})
    spared += await many(world, 2, type="other")
    foreign = await world.submit(tenant=OTHER_TENANT, type="mail.send", delay_s=60.0)
    wanted = BulkFilter(type="mail.send", tag="env:prod")
    operation = await start(world, BulkRequest(BulkAction.CANCEL, wanted))
    assert (operation.matched, operation.has_more, len(operation.sample)) == (5, False, 5)
    await run_out(world)
    seen = await found(world, operation)
    assert (seen.state, seen.matched, seen.done, seen.refused) == (BulkState.DONE, 5, 5, 0)
    assert await states(world, meant) == [State.CANCELLED] * 5
    assert set(await states(world, spared)) == {State.SCHEDULED}
    assert (await world.read(foreign.id, OTHER_TENANT)).state is State.SCHEDULED


async def test_a_preview_changes_nothing(world: World) -> None:
    """A look that acts is how a wrong filter is found out."""
    ids = await many(world, 3)
    seen = await preview(world.database, TENANT, CANCEL_ALL)
    assert (seen.matched, seen.has_more) == (3, False)
    assert {item.id for item in seen.sample} == set(ids)
    assert set(await states(world, ids)) == {State.SCHEDULED}
    assert await find_running(world.database, 10) == []


@pytest.mark.parametrize("point", [CrashPoint.BULK_BEFORE_COMMIT, CrashPoint.BULK_AFTER_COMMIT])
async def test_a_process_that_dies_in_a_batch_leaves_each_task_moved_once(
    world: World, point: CrashPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is counted without its moves, or not counted, is lost or done twice."""

    async def crash(reached: CrashPoint) -> None:
        if reached is point:
            raise RuntimeError("power cut")

    monkeypatch.setattr(bulk, "BATCH_MAX", 4)
    ids = await many(world, 10)
    asked = BulkRequest(BulkAction.RESCHEDULE, BulkFilter(), 10_000.0, delay_s=7200.0)
    operation = await start(world, asked)
    dying = Environment(clock=world.node_clock, random=Random(1), crash_point=crash)
    for _ in range(2):
        running = await due(world)
        world.advance(running.wait_s)
        with pytest.raises(RuntimeError):
            await run_batch(world.database, dying, running)
    await run_out(world)
    seen = await found(world, operation)
    assert (seen.state, seen.done, seen.refused) == (BulkState.DONE, 10, 0)
    assert [(await world.read(task_id)).fence for task_id in ids] == [1] * 10


async def test_two_processes_share_an_operation_and_move_each_task_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a moment two processes believe that they lead: neither may repeat the other's batch."""
    monkeypatch.setattr(bulk, "BATCH_MAX", 3)
    ids = await many(world, 20)
    asked = BulkRequest(BulkAction.RESCHEDULE, BulkFilter(), 10_000.0, delay_s=7200.0)
    operation = await start(world, asked)
    nodes = [world, world.node(2)]
    for _ in range(30):
        running = await find_running(world.database, 10)
        if not running:
            break
        world.advance(running[0].wait_s + 0.001)
        batches = [run_batch(node.database, node.environment, running[0]) for node in nodes]
        took = [batch for batch in await asyncio.gather(*batches) if batch is not None]
        assert len(took) == 1
    seen = await found(world, operation)
    assert (seen.state, seen.done) == (BulkState.DONE, 20)
    assert [(await world.read(task_id)).fence for task_id in ids] == [1] * 20


async def test_an_operation_that_was_found_and_stopped_changes_nothing(world: World) -> None:
    """The stop button must hold also for the process that was about to begin a batch."""
    ids = await many(world, 3)
    operation = await start(world, CANCEL_ALL)
    running = await due(world)
    assert await stop_operation(world.database, TENANT, operation.id)
    assert await run_batch(world.database, world.environment, running) is None
    assert set(await states(world, ids)) == {State.SCHEDULED}
    assert not await stop_operation(world.database, TENANT, operation.id)
    assert (await found(world, operation)).state is BulkState.STOPPED


async def test_a_canary_pauses_until_it_is_continued(world: World) -> None:
    """A canary that goes on by itself protects nothing."""
    ids = await many(world, 10)
    asked = CANCEL_ALL._replace(canary=3)
    operation = await start(world, asked)
    await run_out(world)
    seen = await found(world, operation)
    assert (seen.state, seen.done, seen.ended_at) == (BulkState.PAUSED_AFTER_CANARY, 3, None)
    assert (await states(world, ids)).count(State.CANCELLED) == 3
    assert await continue_operation(world.database, TENANT, operation.id)
    assert not await continue_operation(world.database, TENANT, operation.id)
    await run_out(world)
    seen = await found(world, operation)
    assert (seen.state, seen.done) == (BulkState.DONE, 10)


async def test_the_rate_holds_and_a_long_pause_is_not_caught_up(world: World) -> None:
    """A thousand replays a second, where a hundred were asked for, is the next incident."""
    await many(world, 35)
    operation = await start(world, CANCEL_ALL._replace(rate_per_s=10.0))
    began = world.now()
    assert (await due(world)).wait_s == 0
    assert await run_batch(world.database, world.environment, await due(world)) is not None
    assert (await found(world, operation)).done == 10
    assert await run_batch(world.database, world.environment, await due(world)) is None
    world.advance(60.0)
    assert await run_batch(world.database, world.environment, await due(world)) is not None
    # A second of room is left of the minute, and no more.
    assert await run_batch(world.database, world.environment, await due(world)) is not None
    assert (await due(world)).wait_s == pytest.approx(1.0)
    await run_out(world)
    assert (world.now() - began) >= timedelta(seconds=61)
    assert (await found(world, operation)).done == 35


async def test_tasks_submitted_later_are_not_matched(world: World) -> None:
    """An operation that follows its producers never ends, and takes what was never previewed."""
    ids = await many(world, 2)
    operation = await start(world, CANCEL_ALL)
    world.advance(1.0)
    later = await many(world, 2)
    await run_out(world)
    assert await states(world, ids) == [State.CANCELLED] * 2
    assert await states(world, later) == [State.SCHEDULED] * 2
    assert (await found(world, operation)).done == 2


async def test_a_running_task_is_refused_or_asked_to_stop(world: World) -> None:
    """What could not be changed must be told, not be counted as done."""
    stored = await world.submit()
    await world.lease(stored.id)
    operation = await start(world, BulkRequest(BulkAction.RUN_NOW, BulkFilter()))
    await run_out(world)
    seen = await found(world, operation)
    assert (seen.done, seen.refused) == (0, 1)
    cancelling = await start(world, CANCEL_ALL)
    await run_out(world)
    assert (await found(world, cancelling)).done == 1
    assert (await world.read(stored.id)).cancel_requested
    again = await start(world, CANCEL_ALL)
    assert (again.matched, again.has_more) == (0, False)


async def test_replays_that_fail_again_are_not_replayed_again(world: World) -> None:
    """A cause that still holds would turn one replay into an endless loop."""
    ids = await failed(world, 3, type="mail.send")
    await failed(world, 1, type="other")
    world.advance(1.0)
    asked = BulkRequest(BulkAction.REPLAY, BulkFilter(type="mail.send"), rate_per_s=2.0)
    operation = await start(world, asked)
    assert operation.matched == 3
    first = await run_batch(world.database, world.environment, await due(world))
    assert first is not None
    assert first.done == 2
    world.advance(0.5)
    for lease in await world.lease_all():
        await world.settle(lease, Outcome.FAILED, error="boom")
    await run_out(world)
    seen = await found(world, operation)
    assert (seen.state, seen.done, seen.refused) == (BulkState.DONE, 3, 0)
    rows = await world.database.fetch(
        "SELECT id FROM duly.dead_letters WHERE replayed_as IS NOT NULL"
    )
    assert {row["id"] for row in rows} == set(ids)


async def test_a_purge_erases_the_letters_of_a_cause(world: World) -> None:
    """Purged by the wrong filter, the evidence of another failure is gone for good."""
    ids = await failed(world, 3, tags={"env": "prod"})
    kept = await failed(world, 1, tags={"env": "test"})
    operation = await start(world, BulkRequest(BulkAction.PURGE, BulkFilter(tag="env:prod")))
    await run_out(world)
    assert (await found(world, operation)).done == 3
    rows = await world.database.fetch("SELECT id FROM duly.dead_letters")
    assert [row["id"] for row in rows] == kept
    assert all([(await world.read(task_id)).is_purged for task_id in ids])


async def test_its_end_is_audited_as_the_persons(world: World) -> None:
    """Who cancelled ten thousand tasks is asked weeks later."""
    await many(world, 2)
    operation = await start(world, CANCEL_ALL)
    await run_out(world)
    (row,) = await world.database.fetch("SELECT actor, action, subject, detail FROM duly.audit")
    assert (row["actor"], row["action"]) == ("key:ops", "bulk.cancel")
    assert row["subject"] == str(operation.id)
    assert '"done":2' in row["detail"]


async def test_a_batch_that_always_fails_ends_as_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One operation that is tried for ever costs every other its turn, and says nothing."""
    ids = await many(world, 1)
    operation = await start(world, CANCEL_ALL)

    async def refused(session: Any, *_: object) -> Any:
        await session.fetch("SELECT 1 / 0")

    monkeypatch.setitem(bulk.CHANGES, BulkAction.CANCEL, refused)
    assert await run_out(world) == bulk.FAILURES_MAX
    seen = await found(world, operation)
    assert (seen.state, seen.failures) == (BulkState.FAILED, bulk.FAILURES_MAX)
    assert seen.error is not None
    assert "division by zero" in seen.error
    assert await states(world, ids) == [State.SCHEDULED]


async def test_a_tenant_has_a_bounded_number_of_operations(world: World) -> None:
    """Each of them is looked at again and again until it ends."""
    for _ in range(bulk.LIVE_MAX):
        await start(world, CANCEL_ALL)
    async with world.database.tenant(TENANT) as session:
        made = await create_operation(session, world.environment, TENANT, CANCEL_ALL, "key:ops")
    assert made is None
    await run_out(world)
    await start(world, CANCEL_ALL)


async def test_ended_operations_are_deleted_in_time(world: World) -> None:
    """Nothing else deletes them."""
    await start(world, CANCEL_ALL)
    await run_out(world)
    paused = await start(world, CANCEL_ALL)
    world.advance(bulk.KEEP_S + 1.0)
    assert await delete_old_operations(world.database, 10) == 1
    assert (await found(world, paused)).state is BulkState.RUNNING
