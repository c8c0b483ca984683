"""Nodes that are added to a workflow that lives: where they join it, and when nothing is stored."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from duly.domain.ids import node_id_of
from duly.domain.node_spec import NodeSpec
from duly.domain.states import Outcome, State
from duly.domain.task import Policy
from duly.domain.workflow import APPENDED_MAX, NODES_MAX, WaitRule, WorkflowStop
from duly.events import TasksFinished, TasksStored
from duly.store.finish import REPLAY, STALE, Released, SettleAnswer, Settlement, SettleStatus
from duly.store.workflow_appends import Added, Append, AppendRefusal, RefusedAppend, WorkflowAppends
from duly.store.workflow_control import stop_workflow
from duly.store.workflow_pauses import pause_workflow, unpause_workflow
from duly.store.workflows import NodeStart, read_nodes
from tests.store.test_workflows import (
    CANCELLED,
    COMPLETED,
    ONCE,
    READY,
    SKIPPED,
    WAITING,
    Flow,
    begin,
    run_timers,
)
from tests.store.world import HOLDER, OTHER_HOLDER, OTHER_TENANT, TENANT, World, wish

Edges = Mapping[str, Sequence[str]]


def append_of(
    after: Edges, rules: Mapping[str, WaitRule] | None = None, tenant: int = TENANT
) -> Append:
    """As the checks of the API make it: edges among the new nodes are numbered."""
    names = list(after)
    nodes = [
        NodeStart(
            name,
            wish(policy=ONCE)._replace(tenant=tenant),
            [names.index(parent) + 1 for parent in parents if parent in names],
            [number for number, child in enumerate(names, 1) if name in after[child]],
            (rules or {}).get(name, WaitRule.ALL_COMPLETED),
        )
        for name, parents in after.items()
    ]
    return Append(tenant, nodes, list(after.values()))


def appends_of(world: World) -> WorkflowAppends:
    return WorkflowAppends(world.submitter, world.settler)


async def add(world: World, flow: Flow, append: Append) -> Added | RefusedAppend:
    """From outside."""
    appends = appends_of(world)
    await appends.prepare(append)
    async with world.database.transaction() as session:
        added = await appends.append(session, flow.id, append)
    if isinstance(added, Added):
        appends.publish(append.tenant, added)
        flow.ids |= dict(
            zip([n.name for n in append.nodes], [row.id for row in added.rows], strict=True)
        )
    return added


async def settle(
    world: World, flow: Flow, name: str, append: Append, holder: UUID = HOLDER, fence: int = 1
) -> SettleAnswer | RefusedAppend:
    settlement = Settlement(flow.ids[name], fence, holder, Outcome.COMPLETED)
    answer = await appends_of(world).settle(settlement, append)
    if isinstance(answer, SettleAnswer) and answer.status is SettleStatus.SETTLED:
        nodes = await read_nodes(world.database, TENANT, flow.id, 0, 200)
        flow.ids |= {node.name: node.id for node in nodes}
    return answer


async def finish(world: World, settlement: Settlement) -> None:
    (answer,) = await world.settler.settle([settlement])
    assert answer.status is SettleStatus.SETTLED


async def test_nodes_join_the_settling_node_ended_ones_live_ones_and_each_other(
    world: World,
) -> None:
    """A parent that is counted twice, or never, strands its child (I7)."""
    flow = await begin(world, {"done": (), "split": ("done",), "busy": (), "tail": ("split",)})
    await flow.end("done")
    await world.lease_all()
    asked = append_of(
        {
            "after_split": ("split",),
            "after_done": ("done",),
            "after_busy": ("busy", "done"),
            "last": ("after_split", "after_busy"),
            "loose": (),
        }
    )
    answer = await settle(world, flow, "split", asked)
    assert isinstance(answer, SettleAnswer)
    assert (answer.status, answer.state) == (SettleStatus.SETTLED, State.COMPLETED)
    assert await flow.states() == {
        "done": COMPLETED,
        "split": COMPLETED,
        "busy": State.RUNNING,
        "tail": READY,
        "after_split": READY,
        "after_done": READY,
        "after_busy": WAITING,
        "last": WAITING,
        "loose": READY,
    }
    workflow = await flow.read()
    assert (workflow.nodes, workflow.edges) == (9, 8)
    nodes = {n.name: n for n in await read_nodes(world.database, TENANT, flow.id, 0, 200)}
    assert [node.number for node in nodes.values()] == list(range(1, 10))
    assert nodes["split"].children == [4, 5]
    assert nodes["done"].children == [2, 6, 7]
    assert nodes["last"].parents == [5, 7]
    await finish(world, Settlement(flow.ids["busy"], 1, HOLDER, Outcome.COMPLETED))
    for name in ("tail", "after_split", "after_done", "after_busy", "loose", "last"):
        await flow.end(name)
    assert (await flow.read()).state is COMPLETED


async def test_a_settlement_that_is_repeated_adds_nothing_twice(world: World) -> None:
    """An answer that was lost on its way would double the rest of the workflow."""
    flow = await begin(world, {"a": ()})
    await world.lease_all()
    asked = append_of({"b": ("a",)})
    answer = await settle(world, flow, "a", asked)
    assert isinstance(answer, SettleAnswer)
    assert await settle(world, flow, "a", asked) == REPLAY
    assert await flow.states() == {"a": COMPLETED, "b": READY}


@pytest.mark.parametrize(("holder", "fence"), [(OTHER_HOLDER, 1), (HOLDER, 2), (HOLDER, 0)])
async def test_a_stale_settlement_adds_nothing(world: World, holder: UUID, fence: int) -> None:
    """A worker that was taken over would add nodes for an attempt that no longer counts (I3)."""
    flow = await begin(world, {"a": ()})
    await world.lease_all()
    assert await settle(world, flow, "a", append_of({"b": ("a",)}), holder, fence) == STALE
    assert await flow.states() == {"a": State.RUNNING}
    assert (await flow.read()).nodes == 1


@pytest.mark.parametrize(
    ("after", "pointer"),
    [
        ({"b": ()}, "/nodes/b"),
        ({"c": ("x",)}, "/nodes/c/after/0"),
        ({"c": ("b", "y"), "d": ("c",)}, "/nodes/c/after/1"),
    ],
)
async def test_a_refused_append_leaves_the_lease_for_a_corrected_one(
    world: World, after: dict[str, Sequence[str]], pointer: str
) -> None:
    """Half of an append, or a node that ended without it, could not be mended by its handler."""
    flow = await begin(world, {"a": (), "b": ("a",)})
    await world.lease_all()
    before = await flow.read()
    answer = await settle(world, flow, "a", append_of(after))
    assert isinstance(answer, RefusedAppend)
    assert (answer.why, [each.pointer for each in answer.problems]) == (
        AppendRefusal.INVALID,
        [pointer],
    )
    assert await flow.states() == {"a": State.RUNNING, "b": WAITING}
    assert (await flow.read()) == before
    answer = await settle(world, flow, "a", append_of({"c": ("a",)}))
    assert isinstance(answer, SettleAnswer)
    assert await flow.states() == {"a": COMPLETED, "b": READY, "c": READY}


async def test_ended_parents_count_by_how_they_ended(world: World) -> None:
    """A new node would run after a failure, or wait for a parent that has nothing more to say."""
    flow = await begin(world, {"good": (), "bad": (), "busy": ()})
    await flow.end("good")
    await flow.end("bad", Outcome.REJECTED)
    rules = {
        "all": WaitRule.ALL_COMPLETED,
        "any_good": WaitRule.ANY_COMPLETED,
        "any_bad": WaitRule.ANY_FAILED,
        "done": WaitRule.ALL_DONE,
    }
    asked = append_of(
        {
            "all": ("good", "bad", "busy"),
            "after_all": ("all",),
            "any_good": ("good", "busy"),
            "any_bad": ("bad", "busy"),
            "done": ("good", "bad", "busy"),
        },
        rules,
    )
    assert isinstance(await add(world, flow, asked), Added)
    assert await flow.states() == {
        "good": COMPLETED,
        "bad": State.FAILED,
        "busy": READY,
        "all": SKIPPED,
        "after_all": SKIPPED,
        "any_good": READY,
        "any_bad": READY,
        "done": WAITING,
    }
    await flow.end("busy")
    assert (await flow.states())["done"] is READY


async def test_an_ended_a_stopped_and_a_foreign_workflow_take_no_nodes(world: World) -> None:
    """A node of an ended workflow is never counted; a foreign one would show that it is there."""
    flow = await begin(world, {"a": (), "b": ()})
    foreign = append_of({"x": ("a",)}, tenant=OTHER_TENANT)
    assert await add(world, flow, foreign) == RefusedAppend(AppendRefusal.UNKNOWN)
    await world.lease_all()
    async with world.database.transaction() as session:
        await stop_workflow(session, TENANT, flow.id, WorkflowStop.CANCELLED, Released())
    assert await add(world, flow, append_of({"x": ("a",)})) == RefusedAppend(AppendRefusal.STOPPED)
    for name in ("a", "b"):
        await finish(world, Settlement(flow.ids[name], 1, HOLDER, Outcome.COMPLETED))
    assert await add(world, flow, append_of({"x": ("a",)})) == RefusedAppend(AppendRefusal.ENDED)
    assert (await flow.read()).nodes == 2


async def test_what_a_node_adds_to_a_stopped_workflow_is_cancelled_with_it(world: World) -> None:
    """A handler that did its work would fail for it, or its nodes would start after a cancel."""
    flow = await begin(world, {"a": (), "b": ()})
    await world.lease_all()
    async with world.database.transaction() as session:
        await stop_workflow(session, TENANT, flow.id, WorkflowStop.CANCELLED, Released())
    answer = await settle(world, flow, "a", append_of({"x": (), "y": ("a",), "z": ("x",)}))
    assert isinstance(answer, SettleAnswer)
    assert await flow.states() == {
        "a": COMPLETED,
        "b": State.RUNNING,
        "x": CANCELLED,
        "y": CANCELLED,
        "z": CANCELLED,
    }
    await finish(world, Settlement(flow.ids["b"], 1, HOLDER, Outcome.CANCELLED))
    assert (await flow.read()).state is CANCELLED


async def test_nodes_of_a_paused_workflow_are_held(world: World) -> None:
    """A pause that new nodes walk past stops nothing."""
    flow = await begin(world, {"a": (), "b": ("a",)})
    await world.lease_all()
    async with world.database.transaction() as session:
        await pause_workflow(session, TENANT, flow.id, "test")
    answer = await settle(world, flow, "a", append_of({"x": (), "y": ("a",), "z": ("b",)}))
    assert isinstance(answer, SettleAnswer)
    assert isinstance(await add(world, flow, append_of({"w": ("a",)})), Added)
    states = await flow.states()
    assert {states[name] for name in ("b", "x", "y", "z", "w")} == {WAITING}
    released = Released()
    async with world.database.transaction() as session:
        await unpause_workflow(session, TENANT, flow.id, released)
    states = await flow.states()
    assert {states[name] for name in ("b", "x", "y", "w")} == {READY}
    assert states["z"] is WAITING


async def test_the_last_node_that_adds_others_does_not_end_the_workflow(world: World) -> None:
    """Ended first and added after that, the new nodes would belong to an ended workflow (I7)."""
    flow = await begin(world, {"a": ()})
    name = "a"
    for step in range(5):
        following = f"step-{step}"
        await world.lease_all()
        answer = await settle(world, flow, name, append_of({following: (name,)}))
        assert isinstance(answer, SettleAnswer)
        name = following
    assert (await flow.read()).state is State.RUNNING
    await flow.end(name)
    assert ((await flow.read()).state, (await flow.read()).nodes) == (COMPLETED, 6)


async def test_limits_hold_for_the_whole_workflow(world: World) -> None:
    """Graphs that grow by a thousand nodes at a time would have no bound."""
    flow = await begin(world, {"a": ()})
    await world.database.fetch(
        "UPDATE duly.workflows SET nodes = $2, live = $2, edges = 99998 WHERE id = $1",
        flow.id,
        NODES_MAX - APPENDED_MAX,
    )
    too_many = {f"n{number}": () for number in range(APPENDED_MAX + 1)}
    answer = await add(world, flow, append_of(too_many))
    assert isinstance(answer, RefusedAppend)
    assert [each.pointer for each in answer.problems] == ["/nodes"]
    answer = await add(world, flow, append_of({"x": ("a",), "y": ("a",), "z": ("x",)}))
    assert isinstance(answer, RefusedAppend)
    assert "edges" in answer.problems[0].reason
    del too_many["n0"]
    assert isinstance(await add(world, flow, append_of(too_many)), Added)
    assert (await flow.read()).nodes == NODES_MAX
    assert isinstance(await add(world, flow, append_of({"x": ()})), RefusedAppend)


async def test_a_concurrency_key_of_another_shard_is_refused(world: World) -> None:
    """Its limit is counted on one shard; a node elsewhere would not be counted (I10)."""
    flow = await begin(world, {"a": ()}, policy=Policy(concurrency_key="mine"))
    assert isinstance(await add(world, flow, with_key(append_of({"b": ()}), "mine")), Added)
    answer = await add(world, flow, with_key(append_of({"c": ()}), "theirs"))
    assert isinstance(answer, RefusedAppend)
    assert answer.problems[0].pointer == "/nodes/c/concurrency_key"


def with_key(append: Append, key: str) -> Append:
    policy = Policy(concurrency_key=key)
    nodes = [replace(node, task=node.task._replace(policy=policy)) for node in append.nodes]
    return replace(append, nodes=nodes)


async def test_a_step_can_be_added(world: World) -> None:
    """A node with an `if` that no step decides waits for ever."""
    flow = await begin(world, {"a": ()})
    asked = append_of({"root": (), "later": ("a",), "skipped": ("a",)})
    holds = NodeSpec(predicate='{"all": []}')
    nodes = [
        NodeStart("root", wish(policy=ONCE), spec=holds),
        NodeStart("later", wish(policy=ONCE), spec=holds),
        NodeStart("skipped", wish(policy=ONCE), spec=NodeSpec(predicate='{"any": []}')),
    ]
    assert isinstance(await add(world, flow, Append(TENANT, nodes, asked.after)), Added)
    await flow.end("a")
    await run_timers(world)
    assert await flow.states() == {
        "a": COMPLETED,
        "root": READY,
        "later": READY,
        "skipped": SKIPPED,
    }


async def test_an_append_and_the_end_of_a_parent_at_once(world: World) -> None:
    """Between the look at a parent and its edge, its end would count for nobody (I7)."""
    for _ in range(10):
        flow = await begin(world, {"a": (), "b": ()})
        await world.lease_all()
        end = finish(world, Settlement(flow.ids["a"], 1, HOLDER, Outcome.COMPLETED))
        added, _ = await asyncio.gather(add(world, flow, append_of({"c": ("a",)})), end)
        assert isinstance(added, Added)
        assert (await flow.states())["c"] is READY


async def test_a_node_added_behind_a_cascade_under_way_counts_each_parent_once(
    world: World,
) -> None:
    """The rest of a cascade tells the skipped node's children, also those that came meanwhile: told
    of it twice, the new one would run before its other parent has ended (I7)."""
    first, second = [f"x{n}" for n in range(600)], [f"y{n}" for n in range(600)]
    after = {"a": (), "busy": (), **dict.fromkeys(first, ("a",))}
    after |= {y: (x,) for x, y in zip(first, second, strict=True)}
    flow = await begin(world, after, policy=ONCE)
    await world.run(flow.ids["a"], Outcome.FAILED)
    assert (await world.read(flow.ids["y0"])).state is SKIPPED
    added = await add(
        world, flow, append_of({"late": ("y0", "busy")}, {"late": WaitRule.NONE_FAILED})
    )
    assert isinstance(added, Added)
    assert await run_timers(world) == 1
    assert (await world.read(flow.ids["late"])).state is WAITING
    await flow.end("busy")
    assert (await world.read(flow.ids["late"])).state is READY


async def test_what_was_added_is_told_after_the_commit(world: World) -> None:
    """Unheard, a node that is due waits for the next look at the database."""
    stored: list[TasksStored] = []
    finished: list[TasksFinished] = []
    world.events.subscribe(TasksStored, stored.append)
    world.events.subscribe(TasksFinished, finished.append)
    flow = await begin(world, {"a": ()})
    await world.lease_all()
    stored.clear()
    await settle(world, flow, "a", append_of({"b": (), "c": ("a",)}))
    assert [row.id for row in stored[0].rows] == [node_id_of(flow.id, 2), node_id_of(flow.id, 3)]
    assert [timer.id for timer in stored[0].timers] == [flow.ids["b"]]
    (answer,) = finished[0].answers
    assert [timer.id for timer in answer.released] == [flow.ids["c"]]
