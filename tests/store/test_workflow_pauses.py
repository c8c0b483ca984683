"""Pause of workflows in the tables: what is held, what goes on, and under which races."""

import asyncio

import pytest

from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome, State
from duly.domain.task import Policy
from duly.domain.workflow import WorkflowStop
from duly.store.control import ControlAnswer, reschedule_tasks, run_now
from duly.store.finish import Released
from duly.store.workflow_control import stop_workflow
from duly.store.workflow_pauses import (
    QUEUE,
    pause_workflow,
    queue_behind,
    unpause_workflow,
)
from duly.store.workflow_timers import find_due_timers
from tests.store.test_cancel_many import waiting_sessions
from tests.store.test_workflows import STEADY, Flow, begin, run_timers
from tests.store.world import HOLDER, TENANT, World

ACTOR = "key someone"
WAITING, READY, COMPLETED = State.WAITING, State.READY, State.COMPLETED


async def pause(flow: Flow) -> bool:
    return await pause_workflow(flow.world.database, TENANT, flow.id, ACTOR)


async def unpause(flow: Flow) -> Released:
    released = Released()
    assert await unpause_workflow(flow.world.database, TENANT, flow.id, released)
    return released


async def test_nothing_of_a_paused_workflow_starts_and_all_of_it_does_afterwards(
    world: World,
) -> None:
    """A pause that lets one node through has paused nothing; one that loses a node never ends."""
    flow = await begin(world, {"a": (), "b": (), "c": ("a", "b")})
    tickets = [await world.ticket(flow.ids[name]) for name in "ab"]
    assert await pause(flow)
    assert not await pause(flow)
    assert [await world.try_lease(each) for each in tickets] == [None, None]
    assert await world.lease_all() == []
    assert await flow.states() == {"a": WAITING, "b": WAITING, "c": WAITING}
    assert await flow.counts() == {"waiting": 3}
    seen = await flow.read()
    assert (seen.paused_by, seen.paused_at) == (ACTOR, seen.now)
    world.advance(30)
    released = await unpause(flow)
    assert {timer.id for timer in released.timers} == {flow.ids["a"], flow.ids["b"]}
    for name in "abc":
        await flow.end(name)
    assert (await flow.read()).state is COMPLETED


async def test_a_release_during_a_pause_is_held_and_keeps_its_delay(world: World) -> None:
    """A parent that runs at the pause would start its children in the middle of it."""
    flow = await begin(world, {"a": (), "b": ("a",)})
    (lease,) = await world.lease_all()
    await pause(flow)
    await world.settle(lease, Outcome.COMPLETED)
    assert await flow.states() == {"a": COMPLETED, "b": WAITING}
    timer = await world.timer(flow.ids["b"])
    assert timer is not None
    assert (timer["due_at"], timer["parents_pending"]) == (None, None)
    assert timer["held_due_at"] == world.now()
    await unpause(flow)
    assert (await flow.states())["b"] is READY


async def test_a_retry_during_a_pause_is_held(world: World) -> None:
    """A handler that fails while its workflow is paused would run again in the middle of it."""
    flow = await begin(world, {"a": ()}, policy=STEADY)
    (lease,) = await world.lease_all()
    await pause(flow)
    await world.settle(lease, Outcome.FAILED)
    timer = await world.timer(flow.ids["a"])
    assert timer is not None
    assert (timer["due_at"], timer["attempt"], timer["holder"]) == (None, 1, None)
    world.advance(3600)
    assert await world.lease_all() == []
    (again,) = (await unpause(flow)).timers
    assert again.id == flow.ids["a"]
    assert again.due_at < world.now()
    (lease,) = await world.lease_all()
    assert lease.id == flow.ids["a"]


async def test_a_lease_that_is_lost_during_a_pause_is_held(world: World) -> None:
    """The reaper retries as well."""
    flow = await begin(world, {"a": ()}, policy=STEADY)
    await world.lease_all(lease_s=10)
    await pause(flow)
    world.advance(60)
    await world.reap()
    world.advance(60)
    assert await world.lease_all() == []
    await unpause(flow)
    assert len(await world.lease_all()) == 1


async def test_a_held_node_is_neither_moved_nor_run_now(world: World) -> None:
    """Run-now of a node would break the pause of its workflow."""
    flow = await begin(world, {"a": ()})
    await pause(flow)
    answers = await reschedule_tasks(world.database, TENANT, [run_now(flow.ids["a"])])
    assert answers == {flow.ids["a"]: ControlAnswer.WAITING}


async def test_a_paused_workflow_can_be_cancelled(world: World) -> None:
    """What nobody unpauses must be able to end."""
    flow = await begin(world, {"a": (), "b": ("a",)})
    await pause(flow)
    released = Released()
    assert await stop_workflow(world.database, TENANT, flow.id, WorkflowStop.CANCELLED, released)
    assert (await flow.read()).state is State.CANCELLED
    assert not await pause(flow)
    assert not await unpause_workflow(world.database, TENANT, flow.id, released)


async def test_a_deadline_passes_during_a_pause(world: World) -> None:
    """A pause that stops the clock would keep a workflow for ever."""
    flow = await begin(world, {"a": ()}, deadline_s=60)
    await pause(flow)
    world.advance(61)
    assert await run_timers(world) == 1
    assert (await flow.read()).stop_reason is WorkflowStop.DEADLINE


async def test_a_step_that_comes_due_during_a_pause_waits_for_its_end(world: World) -> None:
    """A step starts nodes: a map would expand in the middle of a pause."""
    flow = await begin(world, {"a": ()})
    await pause(flow)
    await world.database.fetch(
        "INSERT INTO duly.workflow_timers (shard, tenant, workflow, kind, node, due_at)"
        " SELECT shard, tenant, id, 'step', 1, duly.now() FROM duly.workflows WHERE id = $1",
        flow.id,
    )
    assert await run_timers(world) == 1
    world.advance(3600)
    assert await find_due_timers(world.database, range(1024)) == []
    assert (await unpause(flow)).workflows == [flow.id]
    (timer,) = await find_due_timers(world.database, range(1024))
    assert (timer.kind, timer.fence) == ("step", 2)


@pytest.mark.parametrize("is_pause_first", [True, False])
async def test_a_pause_and_the_end_of_a_parent_meet_under_the_lock(
    world: World, is_pause_first: bool
) -> None:
    """A release that did not see the pause it waited for would leave one node running."""
    flow = await begin(world, {"a": (), "b": ("a",)}, policy=Policy(retry=RetryPolicy(1)))
    (lease,) = await world.lease_all()
    async with world.database.transaction() as session:
        if is_pause_first:
            await pause_workflow(session, TENANT, flow.id, ACTOR)
            other = asyncio.create_task(world.settle(lease, Outcome.COMPLETED))
        else:
            await session.fetch(
                "SELECT FROM duly.workflows WHERE id = $1 FOR NO KEY UPDATE", flow.id
            )
            other = asyncio.create_task(pause(flow))  # type: ignore[arg-type]
        await waiting_sessions(world, bool)
    await other
    if not is_pause_first:
        await world.settle(lease, Outcome.COMPLETED)
    assert await flow.states() == {"a": COMPLETED, "b": WAITING}
    timer = await world.timer(flow.ids["b"])
    assert timer is not None
    assert timer["held_due_at"] is not None


async def test_a_retry_that_waited_for_the_lock_of_a_pause_sees_it(world: World) -> None:
    """Its statement took its snapshot before the pause: it would make the node due all the same."""
    flow = await begin(world, {"a": ()}, policy=STEADY)
    (lease,) = await world.lease_all()
    async with world.database.transaction() as session:
        await pause_workflow(session, TENANT, flow.id, ACTOR)
        settling = asyncio.create_task(world.settle(lease, Outcome.FAILED))
        await waiting_sessions(world, bool)
    await settling
    timer = await world.timer(flow.ids["a"])
    assert timer is not None
    assert (timer["due_at"], timer["held_due_at"] is not None) == (None, True)


async def test_the_end_of_one_workflow_starts_the_one_behind_it(world: World) -> None:
    """`queue_one`: a run that is never started, or one beside the other."""
    first, second = await begin(world, {"a": ()}), await begin(world, {"a": ()})
    assert await queue_behind(world.database, TENANT, first.id, second.id)
    third = await begin(world, {"a": ()})
    assert not await queue_behind(world.database, TENANT, first.id, third.id)
    leases = await world.lease_all()
    assert {lease.id for lease in leases} == {first.ids["a"], third.ids["a"]}
    assert (await second.read()).paused_by == QUEUE
    for lease in leases:
        await world.settle(lease, Outcome.COMPLETED)
    assert await run_timers(world) == 1
    assert (await second.read()).paused_at is None
    (lease,) = await world.lease_all()
    assert lease.id == second.ids["a"]
    await world.settle(lease, Outcome.COMPLETED)
    assert not await queue_behind(world.database, TENANT, first.id, third.id)


async def test_an_owner_may_pause_what_is_queued_no_more(world: World) -> None:
    """The end of the run before would start what its owner holds back."""
    first, second = await begin(world, {"a": ()}), await begin(world, {"a": ()})
    await queue_behind(world.database, TENANT, first.id, second.id)
    await unpause(second)
    await pause(second)
    await first.end("a")
    await run_timers(world)
    assert (await second.read()).paused_by == ACTOR
    assert await world.lease_all(HOLDER) == []
