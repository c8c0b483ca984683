"""Workflows within workflows in the tables: how a node starts one and ends with it, under which
races; and what a cancel, a resume, retention and the checker make of both."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest

from duly.domain.ids import shard_of
from duly.domain.node_spec import STAND_IN_TYPES, NodeKind, NodeSpec, WorkflowSpec
from duly.domain.states import Outcome, State
from duly.domain.task import Submission
from duly.domain.workflow import NESTED_MAX, OnFailure, WorkflowStop
from duly.domain.workflow_resume import ResumePlan, plan_resume
from duly.store.control import ControlAnswer, cancel_tasks
from duly.store.finish import Released, Settlement, finish_completed_nodes
from duly.store.subworkflows import RESULTS_MAX, NewPools, Subworkflows
from duly.store.templates import InnerStart, WorkflowTemplate, workflow_template_of
from duly.store.workflow_control import run_timer, stop_workflow
from duly.store.workflow_nodes import lock_workflow, read_live_node
from duly.store.workflow_pauses import pause_workflow
from duly.store.workflow_resumes import Resume, Resumed, read_earlier, resume_workflow
from duly.store.workflow_timers import WorkflowTimer, find_due_timers
from duly.store.workflow_types import put_workflow_type
from duly.store.workflows import (
    NodeStart,
    Started,
    Workflow,
    WorkflowNode,
    WorkflowStart,
    WorkflowStarter,
    delete_old_workflows,
    read_nodes,
    read_workflow,
)
from tests.store.test_verify_workflows import verified
from tests.store.test_workflow_maps import DyingDatabase, Killed
from tests.store.test_workflows import Edges, Flow, graph_of, run_timers
from tests.store.world import HOLDER, OTHER_TENANT, TENANT, World

COMPLETED, FAILED, SKIPPED = State.COMPLETED, State.FAILED, State.SKIPPED
CANCELLED, WAITING, READY, RUNNING = State.CANCELLED, State.WAITING, State.READY, State.RUNNING
STAND_IN = STAND_IN_TYPES[NodeKind.WORKFLOW]
AROUND = {"a": (), "close": ("a",), "after": ("close",)}
INSIDE = {"x": (), "y": ("x",)}
MONTH_S = 40 * 86400.0


def template_of(edges: Edges = INSIDE, **fields: object) -> WorkflowTemplate:
    start = WorkflowStart(TENANT, "invoice.close", graph_of(edges), **fields)  # type: ignore[arg-type]
    return workflow_template_of(start)


def inner(template: WorkflowTemplate, payload: str = "null") -> Submission:
    asked = InnerStart(msgspec.Raw(payload.encode()), template)
    return Submission(TENANT, STAND_IN, msgspec.json.encode(asked).decode())


def with_inner(
    edges: Edges, starts: Mapping[str, Submission], name: str = "invoice.close"
) -> list[NodeStart]:
    spec = NodeSpec(workflow=WorkflowSpec(name=name))
    return [
        replace(node, task=starts[node.name], spec=spec) if node.name in starts else node
        for node in graph_of(edges)
    ]


async def begin_all(
    world: World, nodes: list[NodeStart], names: list[str], **fields: object
) -> Flow:
    start = WorkflowStart(TENANT, "invoice.month", nodes, **fields)  # type: ignore[arg-type]
    (answer,) = await WorkflowStarter(world.database, world.submitter).start([start])
    assert isinstance(answer, Started)
    return Flow(world, answer.id, names)


async def begin(world: World, edges: Edges = AROUND, **fields: object) -> Flow:
    """One whose node `close` starts `x` and `y`."""
    template = fields.pop("template", None) or template_of()
    assert isinstance(template, WorkflowTemplate)
    nodes = with_inner(edges, {"close": inner(template)})
    await world.submitter.pools.resolve({(TENANT, "default")})
    return await begin_all(world, nodes, list(edges), **fields)


async def node_of(flow: Flow, name: str = "close") -> WorkflowNode:
    nodes = await read_nodes(flow.world.database, TENANT, flow.id, 0, 200)
    return next(node for node in nodes if node.name == name)


async def inside(flow: Flow, name: str = "close", names: Edges = INSIDE) -> Flow:
    """The workflow that this node stands for."""
    found = (await node_of(flow, name)).inside
    assert found is not None
    return Flow(flow.world, found.id, list(names))


async def begun(world: World, **fields: object) -> tuple[Flow, Flow]:
    """Both, with `close` under way."""
    flow = await begin(world, **fields)  # type: ignore[arg-type]
    await flow.end("a")
    await run_timers(world)
    return flow, await inside(flow)


async def stop(flow: Flow, reason: WorkflowStop = WorkflowStop.CANCELLED) -> Released:
    released = Released()
    async with flow.world.database.transaction() as session:
        await stop_workflow(session, TENANT, flow.id, reason, released)
    return released


async def resume(flow: Flow) -> Flow:
    async with flow.world.database.transaction() as session:
        earlier = await read_earlier(session, TENANT, flow.id)
        assert earlier is not None
        plan = plan_resume(earlier.nodes)
        assert isinstance(plan, ResumePlan)
        asked = Resume(flow.id, plan)
        answer = await resume_workflow(session, flow.world.environment, TENANT, asked, earlier)
    assert isinstance(answer, Resumed)
    return Flow(flow.world, answer.id, list(flow.ids))


async def due_timers(world: World) -> list[WorkflowTimer]:
    return await find_due_timers(world.database, range(1024))


async def no_callback(*_: object) -> object:
    raise AssertionError("no callback was asked for")


async def run(world: World, timer: WorkflowTimer, database: object = None) -> None:
    begin_inner = Subworkflows(world.submitter).begin
    await run_timer(database or world.database, timer, no_callback, begin_inner)  # type: ignore[arg-type]


async def test_a_node_starts_a_workflow_and_ends_with_it(world: World) -> None:
    """A node that ends before its workflow releases children that compute on nothing."""
    flow, within = await begun(world)
    assert shard_of(within.id) == shard_of(flow.id)
    assert await flow.states() == {"a": COMPLETED, "close": RUNNING, "after": WAITING}
    assert await flow.counts() == {"completed": 1, "running": 1, "waiting": 1}
    found = await within.read()
    assert (found.name, found.parent_node, found.parent_name) == (
        *("invoice.close", flow.ids["close"]),
        "close",
    )
    await within.end("x")
    lease = await world.lease(within.ids["y"])
    await world.settle(lease, Outcome.COMPLETED, result='{"total":7}')
    assert (await within.read()).state is COMPLETED
    assert (await flow.states())["close"] is RUNNING
    assert await run_timers(world) == 1
    assert await flow.states() == {"a": COMPLETED, "close": COMPLETED, "after": READY}
    assert await result_of(flow) == {
        "workflow": str(within.id),
        "state": "COMPLETED",
        "counts": {"completed": 2, "failed": 0, "skipped": 0, "cancelled": 0},
        "results": {"y": {"total": 7}},
    }
    await flow.end("after")
    assert (await flow.read()).state is COMPLETED


async def result_of(flow: Flow, name: str = "close") -> object:
    (row,) = await flow.world.database.fetch(
        "SELECT result FROM duly.attempts WHERE shard = $1 AND id = $2 AND state IS NOT NULL",
        *(shard_of(flow.id), flow.ids[name]),
    )
    return msgspec.json.decode(row["result"])


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_workflow_inside_that_fails_fails_its_node(world: World, is_stopped: bool) -> None:
    """The one around would go on as if nothing had happened."""
    how = OnFailure.STOP if is_stopped else OnFailure.FINISH_BRANCHES
    flow, within = await begun(world, template=template_of(on_failure=how))
    await within.end("x", Outcome.FAILED)
    await run_timers(world)
    assert (await within.read()).state is FAILED
    assert await flow.states() == {"a": COMPLETED, "close": FAILED, "after": SKIPPED}
    assert (await flow.read()).state is FAILED
    (letter,) = await world.database.fetch(
        "SELECT reason, error FROM duly.dead_letters WHERE id = $1", flow.ids["close"]
    )
    assert letter["reason"] == "workflow_failed"
    assert str(within.id) in letter["error"]


async def test_a_deadline_inside_fails_its_node_and_says_so(world: World) -> None:
    flow, _ = await begun(world, template=template_of(deadline_s=60.0))
    world.advance(60)
    await run_timers(world)
    assert (await flow.states())["close"] is FAILED
    (letter,) = await world.database.fetch("SELECT error FROM duly.dead_letters")
    assert "its deadline passed" in letter["error"]


@pytest.mark.parametrize("reason", list(WorkflowStop))
async def test_a_stop_around_stops_what_is_inside(world: World, reason: WorkflowStop) -> None:
    """What is inside would run on for a workflow that has ended."""
    flow, within = await begun(world)
    lease = await world.lease(within.ids["x"])
    released = await stop(flow, reason)
    assert within.id in released.workflows
    # The node waits for what runs inside, and its workflow for the node.
    await run_timers(world)
    assert await within.states() == {"x": RUNNING, "y": CANCELLED}
    assert (await flow.states())["close"] is RUNNING
    assert (await flow.read()).ended_at is None
    await world.settle(lease, Outcome.FAILED)
    await run_timers(world)
    assert (await within.read()).state is CANCELLED
    assert await flow.states() == {"a": COMPLETED, "close": CANCELLED, "after": CANCELLED}
    cancelled = reason is WorkflowStop.CANCELLED
    assert (await flow.read()).state is (CANCELLED if cancelled else FAILED)


async def test_a_deadline_around_ends_both(world: World) -> None:
    flow, within = await begun(world, deadline_s=60)
    world.advance(60)
    await run_timers(world)
    assert (await within.read()).state is CANCELLED
    assert (await flow.read()).state is FAILED


async def test_a_cancel_of_the_node_alone_stops_what_is_inside(world: World) -> None:
    flow, within = await begun(world)
    async with world.database.transaction() as session:
        answers = await cancel_tasks(session, TENANT, [flow.ids["close"]])
    assert answers == {flow.ids["close"]: ControlAnswer.CANCEL_REQUESTED}
    await run_timers(world)
    assert (await within.read()).state is CANCELLED
    assert await flow.states() == {"a": COMPLETED, "close": CANCELLED, "after": SKIPPED}
    assert (await flow.read()).state is CANCELLED


async def test_a_node_that_has_not_begun_is_cancelled_at_once(world: World) -> None:
    """Its step comes due after that, and must start nothing."""
    flow = await begin(world)
    await flow.end("a")
    await stop(flow)
    await run_timers(world)
    assert await flow.states() == {"a": COMPLETED, "close": CANCELLED, "after": CANCELLED}
    assert await world.count("workflows") == 1


async def test_what_completed_before_the_stop_came_stays_completed(world: World) -> None:
    """A terminal state never changes: the stop came too late (I4)."""
    flow, within = await begun(world)
    await within.end("x")
    await within.end("y")
    await stop(flow)
    await run_timers(world)
    assert (await within.read()).state is COMPLETED
    assert await flow.states() == {"a": COMPLETED, "close": COMPLETED, "after": CANCELLED}
    assert (await flow.read()).state is CANCELLED


async def test_a_cancel_sees_the_workflow_that_began_while_it_waited(world: World) -> None:
    """Its snapshot is older than the lock it waited for: it would end the node, and what is inside
    would run on for nothing."""
    flow = await begin(world)
    await flow.end("a")
    (timer,) = await due_timers(world)
    async with world.database.transaction() as session:
        row = await lock_workflow(session, flow.id)
        cancel = asyncio.create_task(cancelled(flow))
        await until_waiting(world)
        await session.fetch("DELETE FROM duly.workflow_timers WHERE workflow = $1", flow.id)
        node = await read_live_node(session, flow.ids["close"], timer.due_at)
        assert node is not None
        after = await Subworkflows(world.submitter).begin(session, node, row, Released())
        assert after is not None
    assert await cancel == ControlAnswer.CANCEL_REQUESTED
    await run_timers(world)
    assert await flow.states() == {"a": COMPLETED, "close": CANCELLED, "after": SKIPPED}
    assert (await (await inside(flow)).read()).state is CANCELLED


async def cancelled(flow: Flow) -> ControlAnswer:
    async with flow.world.database.transaction() as session:
        return (await cancel_tasks(session, TENANT, [flow.ids["close"]]))[flow.ids["close"]]


async def until_waiting(world: World) -> None:
    """Until a statement waits for a lock."""
    for _ in range(1000):
        rows = await world.database.fetch(
            "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND datname = current_database()"
        )
        if rows:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("nothing waits")


async def test_an_end_during_a_look_brings_another_look(world: World) -> None:
    """The look saw a workflow that lives and takes its timer away: the node would never end."""
    flow, within = await begun(world)
    await within.end("x")
    await world.database.fetch(
        "INSERT INTO duly.workflow_timers (shard, tenant, workflow, kind, node, due_at)"
        " VALUES ($1, $2, $3, 'child', 2, duly.now())",
        *(shard_of(flow.id), TENANT, flow.id),
    )
    (timer,) = await due_timers(world)
    lease = await world.lease(within.ids["y"])
    async with world.database.transaction() as session:
        settlement = Settlement(lease.id, lease.fence, HOLDER, Outcome.COMPLETED)
        assert await finish_completed_nodes(session, [(0, settlement)])
        look = asyncio.create_task(run(world, timer))
        await until_waiting(world)
    await look
    assert (await flow.states())["close"] is RUNNING
    assert await run_timers(world) == 1
    assert (await flow.states())["close"] is COMPLETED


async def test_two_processes_start_one_workflow(world: World) -> None:
    """The old owner of a slot and the new one both run the step."""
    flow = await begin(world)
    await flow.end("a")
    (timer,) = await due_timers(world)
    await asyncio.gather(run(world, timer), run(world, timer))
    assert await world.count("workflows") == 2


async def test_a_kill_between_any_two_statements_starts_one_workflow(world: World) -> None:
    """Half a start: a node that runs for ever, or a workflow that stands for nothing."""
    flow = await begin(world)
    await flow.end("a")
    kills = 0
    for ended in (False, True):
        if ended:
            within = await inside(flow)
            await within.end("x")
            await within.end("y")
        (timer,) = await due_timers(world)
        for fatal in range(1, 30):
            try:
                await run(world, timer, DyingDatabase(world, fatal))
            except Killed:
                kills += 1
                assert await due_timers(world) == [timer]
            else:
                break
    assert kills > 8
    assert await world.count("workflows") == 2
    assert await flow.states() == {"a": COMPLETED, "close": COMPLETED, "after": READY}


async def test_a_type_in_its_version_runs_with_the_payload_of_the_node(world: World) -> None:
    """A run follows a version that came after it, or the nodes inside have no input."""
    for edges, digest in ((INSIDE, b"1"), ({"x": ()}, b"2")):
        put = await put_workflow_type(world.database, TENANT, "{}", digest, template_of(edges))
        assert put is not None
    nodes = with_inner(AROUND, {"close": Submission(TENANT, STAND_IN, '{"payload":[7]}')})
    spec = NodeSpec(workflow=WorkflowSpec(name="invoice.close", version=1))
    nodes[1] = replace(nodes[1], spec=spec)
    flow = await begin_all(world, nodes, list(AROUND))
    await flow.end("a")
    await run_timers(world)
    within = await inside(flow)
    assert (await within.read()).type == "invoice.close@1"
    assert (await world.read(within.ids["x"])).payload == "[7]"


async def test_a_type_of_another_tenant_is_none(world: World) -> None:
    """A node would run what another tenant wrote (I9)."""
    assert await put_workflow_type(world.database, OTHER_TENANT, "{}", b"1", template_of())
    nodes = with_inner(AROUND, {"close": Submission(TENANT, STAND_IN, "{}")})
    nodes[1] = replace(
        nodes[1], spec=NodeSpec(workflow=WorkflowSpec(name="invoice.close", version=1))
    )
    flow = await begin_all(world, nodes, list(AROUND))
    await flow.end("a")
    await run_timers(world)
    assert (await flow.states())["close"] is FAILED
    (letter,) = await world.database.fetch("SELECT error FROM duly.dead_letters")
    assert letter["error"] == "no workflow type or version is invoice.close@1"


async def test_workflows_within_each_other_have_a_limit(world: World) -> None:
    """One that starts itself would go on for ever."""
    template = template_of({"x": ()})
    for _ in range(NESTED_MAX):
        start = WorkflowStart(
            TENANT, "invoice.close", with_inner({"close": ()}, {"close": inner(template)})
        )
        template = workflow_template_of(start)
    flow = await begin(world, {"close": ()}, template=template)
    await run_timers(world)
    assert await world.count("workflows") == NESTED_MAX
    assert (await flow.read()).state is FAILED
    rows = await world.database.fetch("SELECT error FROM duly.dead_letters")
    assert any(row["error"].startswith(f"more than {NESTED_MAX} workflows") for row in rows)


async def test_the_deepest_workflow_that_may_be_runs(world: World) -> None:
    template = template_of({"x": ()})
    for _ in range(NESTED_MAX - 2):
        start = WorkflowStart(
            TENANT, "invoice.close", with_inner({"close": ()}, {"close": inner(template)})
        )
        template = workflow_template_of(start)
    flow = await begin(world, {"close": ()}, template=template)
    await run_timers(world)
    assert await world.count("workflows") == NESTED_MAX
    (lease,) = await world.lease_all()
    await world.settle(lease, Outcome.COMPLETED)
    await run_timers(world)
    assert (await flow.read()).state is COMPLETED


async def test_a_pool_that_is_new_is_made_before_the_start(world: World) -> None:
    """The transaction of a start can make no pool: it would be put off for ever."""
    nodes = graph_of(INSIDE)
    nodes[0] = replace(nodes[0], task=nodes[0].task._replace(pool="rare"))
    template = workflow_template_of(WorkflowStart(TENANT, "invoice.close", nodes))
    flow = await begin(world, {"close": ()}, template=template)
    (timer,) = await due_timers(world)
    with pytest.raises(NewPools) as asked:
        await run(world, timer)
    await Subworkflows(world.submitter).make_pools(asked.value)
    await run(world, timer)
    assert await (await inside(flow)).states() == {"x": READY, "y": WAITING}


async def test_a_resume_around_resumes_what_failed_inside(world: World) -> None:
    """What completed inside would run a second time, under other execution keys."""
    flow, within = await begun(world)
    await within.end("x")
    await within.end("y", Outcome.FAILED)
    await run_timers(world)
    again = await resume(flow)
    await run_timers(world)
    inner_again = await inside(again)
    found = await inner_again.read()
    assert (found.resumed_from, found.parent_node) == (within.id, again.ids["close"])
    assert await inner_again.states() == {"x": COMPLETED, "y": READY}
    keys = [await world.read(each.ids["y"]) for each in (within, inner_again)]
    assert keys[0].execution_key == keys[1].execution_key == f"{within.id}:y"
    await inner_again.end("y")
    await run_timers(world)
    assert (await again.states())["close"] is COMPLETED


async def test_a_resume_finds_what_an_earlier_one_of_the_chain_started(world: World) -> None:
    flow, within = await begun(world)
    await within.end("x", Outcome.FAILED)
    await run_timers(world)
    second = await resume(flow)
    await stop(second)
    await run_timers(world)
    third = await resume(second)
    await run_timers(world)
    found = await (await inside(third)).read()
    assert found.resumed_from == within.id


async def test_a_workflow_inside_that_lives_on_its_own_is_not_resumed_twice(world: World) -> None:
    """Two that live would share the execution keys of their nodes."""
    flow, within = await begun(world)
    await within.end("x", Outcome.FAILED)
    await run_timers(world)
    alone = await resume(within)
    assert (await alone.read()).parent_node is None
    again = await resume(flow)
    await run_timers(world)
    assert (await again.states())["close"] is FAILED
    (letter,) = await world.database.fetch(
        "SELECT error FROM duly.dead_letters WHERE id = $1", again.ids["close"]
    )
    assert f"{alone.id} has not ended" in letter["error"]


async def test_results_are_handed_on_as_far_as_they_go(world: World) -> None:
    """A hundred results of 64 KiB would not go into one row."""
    edges: dict[str, tuple[str, ...]] = {f"n{number}": () for number in range(RESULTS_MAX + 1)}
    template = template_of(edges)
    flow = await begin(world, {"close": ()}, template=template)
    await run_timers(world)
    for lease in await world.lease_all():
        await world.settle(lease, Outcome.COMPLETED, result="1")
    await run_timers(world)
    result = await result_of(flow)
    assert isinstance(result, dict)
    assert (len(result["results"]), result["has_more"]) == (RESULTS_MAX, True)


async def test_results_that_are_large_are_left_out(world: World) -> None:
    flow = await begin(world, {"close": ()}, template=template_of({"p": (), "q": ()}))
    await run_timers(world)
    for lease in await world.lease_all():
        await world.settle(lease, Outcome.COMPLETED, result=f'"{"x" * 30_000}"')
    await run_timers(world)
    result = await result_of(flow)
    assert isinstance(result, dict)
    assert (list(result["results"]), result["has_more"]) == (["p"], True)


async def test_a_pause_around_holds_what_comes_after_the_node(world: World) -> None:
    """A pause of the one around is none of what runs inside; its end is heard all the same."""
    flow, within = await begun(world)
    async with world.database.transaction() as session:
        assert await pause_workflow(session, TENANT, flow.id, "owner")
    await within.end("x")
    await within.end("y")
    await run_timers(world)
    assert await flow.states() == {"a": COMPLETED, "close": COMPLETED, "after": WAITING}


async def test_both_are_kept_until_the_one_around_may_go(world: World) -> None:
    """A node whose workflow is deleted points to nothing."""
    flow, within = await begun(world)
    await within.end("x")
    await within.end("y")
    await run_timers(world)
    world.advance(MONTH_S)
    assert await delete_old_workflows(world.database, 1000) == 0
    await flow.end("after")
    world.advance(MONTH_S)
    assert await delete_old_workflows(world.database, 1000) == 3
    assert await read_workflow(world.database, TENANT, flow.id) is None
    assert isinstance(await within.read(), Workflow)
    assert await delete_old_workflows(world.database, 1000) == 2
    assert await world.count("workflows") == 0


async def test_the_checker_finds_a_node_whose_workflow_is_gone(
    world: World, engine_url: str
) -> None:
    """It would run for ever; one whose workflow runs, or has just ended, is as it should be."""
    await begun(world)
    flow, within = await begun(world)
    await within.end("x")
    await within.end("y")
    assert (await verified(engine_url)).counts["I7"] == 0
    await world.database.fetch("DELETE FROM duly.workflow_timers WHERE workflow = $1", flow.id)
    found = [each for each in (await verified(engine_url)).violations if each.invariant == "I7"]
    assert [(each.task, each.problem) for each in found] == [
        (flow.ids["close"], "waits for ever: nothing will decide what it does")
    ]
