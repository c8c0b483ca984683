"""Bulk operations on workflows: those that match, once, and what a change of each means."""

import pytest

from duly.domain.states import Outcome, State
from duly.store.bulk import BulkAction, BulkFilter, BulkRequest, BulkState, preview
from duly.store.bulk_workflows import WORKFLOWS_AT_ONCE
from duly.store.workflow_pauses import QUEUE, pause_workflow
from duly.store.workflows import WorkflowFilter, list_workflows
from tests.store.test_bulk import found, run_out, start
from tests.store.test_subworkflows import begun, resume
from tests.store.test_workflows import Flow, begin, run_timers
from tests.store.world import TENANT, World

MANY = WORKFLOWS_AT_ONCE + 2
EDGES = {"a": (), "b": ("a",)}
RATE = 10_000.0


async def states(world: World) -> list[State]:
    page = await list_workflows(world.database, TENANT, WorkflowFilter(), None, 200)
    return sorted(each.state for each in page.items)


async def apply(world: World, action: BulkAction, **wanted: object) -> tuple[int, int]:
    """How many were changed, and refused."""
    asked = BulkRequest(action, BulkFilter(**wanted), rate_per_s=RATE)  # type: ignore[arg-type]
    operation = await start(world, asked)
    await run_out(world)
    seen = await found(world, operation)
    assert seen.state is BulkState.DONE
    return seen.done, seen.refused


async def failed(world: World) -> Flow:
    flow = await begin(world, EDGES)
    await flow.end("a")
    await flow.end("b", Outcome.FAILED)
    return flow


async def test_only_what_matches_is_cancelled(world: World) -> None:
    """A filter that is dropped on the way cancels everything a tenant has."""
    meant = [await begin(world, EDGES, tags={"env": "prod"}) for _ in range(MANY)]
    spared = await begin(world, EDGES, tags={"env": "test"})
    asked = BulkRequest(BulkAction.CANCEL_WORKFLOWS, BulkFilter(tag="env:prod"))
    seen = await preview(world.database, TENANT, asked)
    assert (seen.matched, seen.has_more, seen.sample[0].type) == (MANY, False, "invoice.month")
    assert await apply(world, BulkAction.CANCEL_WORKFLOWS, tag="env:prod") == (MANY, 0)
    assert {(await flow.read()).state for flow in meant} == {State.CANCELLED}
    assert (await spared.read()).state is State.RUNNING


async def test_workflows_are_paused_and_go_on(world: World) -> None:
    """One that waits for the end of another is its schedule's, and would overtake it."""
    flows = [await begin(world, EDGES) for _ in range(MANY)]
    async with world.database.transaction() as session:
        assert await pause_workflow(session, TENANT, flows[0].id, QUEUE)
    assert await apply(world, BulkAction.PAUSE_WORKFLOWS, name="invoice.month") == (MANY - 1, 0)
    assert (await flows[1].read()).paused_by == "key:ops"
    assert await world.lease_all() == []
    assert await apply(world, BulkAction.UNPAUSE_WORKFLOWS) == (MANY - 1, 0)
    assert [(await flow.read()).paused_by for flow in flows[:2]] == [QUEUE, None]
    assert len(await world.lease_all()) == MANY - 1


async def test_what_failed_is_resumed_once(world: World) -> None:
    """A second operation would run again what a resume has finished since."""
    flows = [await failed(world) for _ in range(MANY)]
    completed = await begin(world, {"a": ()})
    await completed.end("a")
    assert await apply(world, BulkAction.RESUME_WORKFLOWS, state=State.CANCELLED) == (0, 0)
    assert await apply(world, BulkAction.RESUME_WORKFLOWS) == (MANY, 0)
    assert await apply(world, BulkAction.RESUME_WORKFLOWS) == (0, 0)
    page = await list_workflows(world.database, TENANT, WorkflowFilter(), None, 200)
    resumed = {each.resumed_from for each in page.items} - {None}
    assert resumed == {flow.id for flow in flows}
    assert len(await world.lease_all()) == MANY


async def test_one_inside_another_is_resumed_with_that(world: World) -> None:
    """Resumed by itself it would stand for no node, and its other half would run as well."""
    flow, within = await begun(world)
    await within.end("x", Outcome.FAILED)
    await run_timers(world)
    assert (await flow.read()).state is State.FAILED
    assert await apply(world, BulkAction.RESUME_WORKFLOWS) == (1, 0)
    await run_timers(world)
    assert await states(world) == [State.FAILED] * 2 + [State.RUNNING] * 2


async def test_a_resume_that_lives_refuses_another(world: World) -> None:
    """What was resumed after it was found."""
    flow = await failed(world)
    second = await resume(flow)
    await second.end("b", Outcome.FAILED)
    assert await apply(world, BulkAction.RESUME_WORKFLOWS) == (1, 0)


@pytest.mark.parametrize("action", [each for each in BulkAction if each.is_of_workflows])
async def test_a_look_at_nothing_ends(world: World, action: BulkAction) -> None:
    assert await apply(world, action) == (0, 0)
