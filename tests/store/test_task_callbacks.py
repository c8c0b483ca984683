"""Callbacks of single tasks: each end is told once, and a task without a callback pays nothing."""

import asyncio
from uuid import UUID

import msgspec
import pytest

from duly.domain.ids import has_callback, is_node, node_id_of
from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome, State
from duly.domain.task import Callback, Policy
from duly.store.control import cancel_tasks
from duly.store.dead_letters import replay_dead_letters
from duly.store.finish import Released, finish_unstarted
from duly.store.policies import encode_callback
from duly.store.purge import purge_tasks
from duly.store.read import Task
from duly.store.task_callbacks import DueCallback, store_callbacks
from duly.store.workflow_callbacks import WorkflowCallbacks
from duly.store.workflow_control import run_timer
from duly.store.workflow_timers import find_due_timers
from duly.store.workflows import NodeStart, WorkflowStart, WorkflowStarter
from tests.store.world import START, TENANT, World, wish

TOLD = Callback("order.told", pool="told")
ONCE = RetryPolicy(max_attempts=1)


async def submit(world: World, callback: Callback = TOLD, **fields: object) -> UUID:
    policy = Policy(callback=callback, retry=ONCE, **fields)  # type: ignore[arg-type]
    return (await world.submit(policy=policy)).id


async def due(world: World) -> list[DueCallback]:
    found = await find_due_timers(world.database, range(1024))
    return [DueCallback(timer.shard, timer.workflow, timer.fence) for timer in found]


async def told(world: World) -> list[Task]:
    """All that is to be told by now, told; what tells of it."""
    if callbacks := await due(world):
        await (await store_callbacks(world.database, world.submitter, callbacks))()
    rows = await world.database.fetch(
        "SELECT id FROM duly.tasks WHERE type = 'order.told' ORDER BY created_at, id"
    )
    return [await world.read(row["id"]) for row in rows]


def payload_of(task: Task) -> dict[str, object]:
    assert task.payload is not None
    found: dict[str, object] = msgspec.json.decode(task.payload)
    return found


async def test_a_completion_is_told_with_its_result(world: World) -> None:
    """A caller that waits for its callback would wait for ever."""
    task = await submit(world)
    await world.run(task, Outcome.COMPLETED, result='{"n": 1}')
    (callback,) = await told(world)
    assert payload_of(callback) == {
        "task": str(task),
        "type": "mail.send",
        "state": "COMPLETED",
        "result": {"n": 1},
    }
    assert (callback.pool, callback.execution_key) == ("told", f"{task}:end")
    assert callback.policy == Policy()


async def test_nothing_is_told_before_the_end(world: World) -> None:
    """A failure that is tried again is no end: told of it, a caller gives up on a live task."""
    retry = RetryPolicy(max_attempts=2, jitter=False, initial_s=10.0)
    stored = await world.submit(policy=Policy(callback=TOLD, retry=retry))
    assert await told(world) == []
    await world.run(stored.id, Outcome.FAILED, error="boom")
    assert await told(world) == []
    world.advance(10)
    await world.run(stored.id, Outcome.FAILED, error="boom")
    (callback,) = await told(world)
    end = payload_of(callback)
    assert (end["state"], end["reason"], end["error"]) == ("FAILED", "exhausted", "boom")


async def test_a_cancel_is_told_leased_or_not(world: World) -> None:
    """A cancel ends a task without any settlement: nothing else would tell of it."""
    waiting, running = await submit(world), await submit(world)
    lease = await world.lease(running)
    async with world.database.transaction() as session:
        await cancel_tasks(session, TENANT, [waiting, running], Released())
    assert [payload_of(each)["task"] for each in await told(world)] == [str(waiting)]
    await world.settle(lease, Outcome.FAILED)
    states = {payload_of(each)["task"]: payload_of(each)["state"] for each in await told(world)}
    assert states == {str(waiting): "CANCELLED", str(running): "CANCELLED"}


async def test_a_start_that_came_too_late_is_told(world: World) -> None:
    """It expires without an attempt, by a statement of its own."""
    task = await submit(world, start_by=START.replace(second=5))
    world.advance(10)
    assert await finish_unstarted(world.database, [await world.ticket(task)]) == [task]
    (callback,) = await told(world)
    end = payload_of(callback)
    assert (end["state"], end["reason"]) == ("FAILED", "expired")


async def test_a_lost_lease_that_ends_a_task_is_told(world: World) -> None:
    """A worker that was killed settles nothing: the reaper ends the task."""
    task = await submit(world)
    await world.lease(task)
    world.advance(60)
    await world.reap()
    assert (await world.read(task)).state is State.FAILED
    assert [payload_of(each)["state"] for each in await told(world)] == ["FAILED"]


async def test_an_end_is_told_once_by_two_processes(world: World) -> None:
    """Both find the same row due. Told twice, a receiver without a key acts twice."""
    task = await submit(world)
    await world.run(task, Outcome.COMPLETED)
    found = await due(world)
    other = world.node(2)
    done = await asyncio.gather(
        store_callbacks(world.database, world.submitter, found),
        store_callbacks(world.database, other.submitter, found),
    )
    for after in done:
        await after()
    assert len(await told(world)) == 1


async def test_the_row_goes_with_the_end_or_stays_with_it(world: World) -> None:
    """The end and its callback are one commit: a settlement that is refused leaves it unarmed."""
    task = await submit(world)
    lease = await world.lease(task)
    world.advance(60)
    await world.reap()
    await world.settle(lease, Outcome.COMPLETED)
    (callback,) = await told(world)
    assert payload_of(callback)["state"] == "FAILED"
    assert await world.count("workflow_timers") == 0


async def test_tasks_without_a_callback_leave_no_row_and_carry_no_mark(world: World) -> None:
    """The mark in the id sends a settlement to another statement; most tasks must not go there."""
    plain = [(await world.submit()).id for _ in range(50)]
    marked = await submit(world)
    assert not any(map(has_callback, plain))
    assert has_callback(marked)
    assert not is_node(marked)
    assert await world.count("workflow_timers") == 1
    await world.run(plain[0], Outcome.COMPLETED)
    assert await due(world) == []


async def test_a_mark_without_a_callback_means_nothing(world: World) -> None:
    """Ids of before there were callbacks carry it by chance, and must settle as ever."""
    (row,) = await world.database.fetch("SELECT duly.has_callback($1) AS it", await submit(world))
    assert row["it"]
    stored = await world.submit(policy=Policy(callback=TOLD))
    await world.database.fetch("DELETE FROM duly.workflow_timers")
    answer = await world.run(stored.id, Outcome.COMPLETED)
    assert answer.state is State.COMPLETED
    assert await told(world) == []


async def test_a_mixed_batch_tells_only_what_asked_for_it(world: World) -> None:
    """Plain tasks, tasks with keys and tasks with callbacks travel in one batch."""
    key = await world.submit(policy=Policy(callback=TOLD), idempotency_key="k")
    again = await world.ask(policy=Policy(callback=TOLD), idempotency_key="k")
    assert again.id == key.id
    await world.submit()
    for lease in await world.lease_all():
        await world.settle(lease, Outcome.COMPLETED)
    assert [payload_of(each)["task"] for each in await told(world)] == [str(key.id)]


async def test_a_replayed_dead_letter_tells_of_its_own_end(world: World) -> None:
    """Told of the failure, the caller would never learn that the replay came through."""
    task, plain = await submit(world), (await world.submit(policy=Policy(retry=ONCE))).id
    for each in (task, plain):
        await world.run(each, Outcome.FAILED)
    assert len(await told(world)) == 1
    async with world.database.transaction() as session:
        new = await replay_dead_letters(session, world.environment, TENANT, [task, plain])
    for each in new.values():
        await world.run(each, Outcome.COMPLETED)
    first, second = await told(world)
    assert payload_of(first)["task"] == str(task)
    assert (payload_of(second)["task"], payload_of(second)["state"]) == (
        str(new[task]),
        "COMPLETED",
    )


@pytest.mark.parametrize("size", [64 * 1024])
async def test_the_largest_result_is_carried(world: World, size: int) -> None:
    """A result of the greatest length is one that its callback must be able to carry."""
    task = await submit(world)
    result = msgspec.json.encode("x" * (size - 2)).decode()
    await world.run(task, Outcome.COMPLETED, result=result)
    (callback,) = await told(world)
    assert payload_of(callback)["result"] == "x" * (size - 2)
    assert [lease.id for lease in await world.lease_all()] == [callback.id]


async def test_the_erasure_of_a_task_erases_what_would_tell_of_it(world: World) -> None:
    """A callback's address may name whom the task was about."""
    task = await submit(world)
    await world.run(task, Outcome.COMPLETED, result='"Ada"')
    await purge_tasks(world.database, TENANT, [task], "tester")
    assert (await world.read(task)).policy.callback is None
    assert await told(world) == []
    assert await due(world) == []


async def test_the_end_of_a_workflow_is_told_to_a_pool_that_nobody_has_used(world: World) -> None:
    """A transaction cannot make a pool: the callback failed every 5 s for as long as no worker of
    its pool had come."""
    node = NodeStart("a", wish(policy=Policy(retry=ONCE)))
    start = WorkflowStart(TENANT, "f", [node], callback=encode_callback(TOLD))
    (answer,) = await WorkflowStarter(world.database, world.submitter).start([start])
    await world.run(node_id_of(answer.id, 1), Outcome.COMPLETED)
    (timer,) = await find_due_timers(world.database, range(1024))
    _, after = await run_timer(
        world.database, timer, WorkflowCallbacks(world.node(2).submitter).store
    )
    assert after is not None
    (callback,) = await told(world)
    assert (callback.pool, payload_of(callback)["state"]) == ("told", "COMPLETED")


async def test_ids_say_in_sql_and_in_python_whether_there_may_be_a_callback(world: World) -> None:
    """Where they disagree, an end is never told."""
    marked, plain = await submit(world), (await world.submit()).id
    start = WorkflowStart(TENANT, "f", [NodeStart("a", wish())])
    starter = WorkflowStarter(world.database, world.submitter)
    flows = [answer.id for _ in range(20) for answer in await starter.start([start])]
    asked = [marked, plain, *flows, *(node_id_of(flow, 1) for flow in flows)]
    rows = await world.database.fetch(
        "SELECT duly.has_callback(id) AS it FROM unnest($1::uuid[]) AS asked(id)", asked
    )
    assert [row["it"] for row in rows] == [has_callback(task_id) for task_id in asked]
    assert [row["it"] for row in rows].count(True) == 1
