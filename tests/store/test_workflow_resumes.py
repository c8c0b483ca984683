"""Resume in the tables: what runs again, what is reused, and under which races."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from duly.domain.limits import Problem
from duly.domain.states import Outcome, State
from duly.domain.workflow import OnFailure, WaitRule, WorkflowStop
from duly.domain.workflow_resume import ResumePlan, plan_resume
from duly.environment import CrashPoint, Environment
from duly.store.finish import Released
from duly.store.purge import purge_tasks
from duly.store.workflow_control import stop_workflow
from duly.store.workflow_resumes import (
    AlreadyResumed,
    NotResumable,
    Resume,
    ResumeAnswer,
    Resumed,
    read_earlier,
    resume_workflow,
)
from duly.store.workflows import delete_old_workflows, read_nodes, read_parents
from tests.store.maps import AROUND, over_pages
from tests.store.maps import begin as begin_mapped
from tests.store.test_cancel_many import waiting_sessions
from tests.store.test_fire_schedules import Crash
from tests.store.test_workflow_steps import IF_FAILED, waiting
from tests.store.test_workflow_steps import begin as begin_steps
from tests.store.test_workflows import Flow, begin, run_timers
from tests.store.world import OTHER_TENANT, TENANT, World

COMPLETED, FAILED, SKIPPED = State.COMPLETED, State.FAILED, State.SKIPPED
CANCELLED, WAITING, READY = State.CANCELLED, State.WAITING, State.READY
DIAMOND = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


async def ask(
    flow: Flow,
    names: Sequence[str] | None = None,
    *,
    payloads: dict[int, str] | None = None,
    rate_per_s: float | None = None,
    environment: Environment | None = None,
) -> ResumeAnswer:
    world = flow.world
    earlier = await read_earlier(world.database, TENANT, flow.id)
    if earlier is None:
        return NotResumable.GONE
    plan = plan_resume(earlier.nodes, names)
    assert isinstance(plan, ResumePlan)
    asked = Resume(flow.id, plan, payloads or {}, rate_per_s)
    async with world.database.transaction() as session:
        return await resume_workflow(
            session, environment or world.environment, TENANT, asked, earlier
        )


async def resume(flow: Flow, names: Sequence[str] | None = None, **fields: object) -> Flow:
    answer = await ask(flow, names, **fields)  # type: ignore[arg-type]
    assert isinstance(answer, Resumed)
    return Flow(flow.world, answer.id, list(flow.ids))


async def failed_diamond(world: World) -> Flow:
    """`a` and `b` completed, `c` failed, `d` was skipped."""
    flow = await begin(world, DIAMOND)
    await world.run(flow.ids["a"], Outcome.COMPLETED, result='{"ids": [1]}')
    await flow.end("b")
    await flow.end("c", Outcome.FAILED)
    assert (await flow.read()).state is FAILED
    return flow


async def test_what_failed_and_what_follows_it_runs_again_and_the_rest_is_reused(
    world: World,
) -> None:
    """A resume that runs too much charges twice; one that runs too little never ends."""
    flow = await failed_diamond(world)
    world.advance(60)
    again = await resume(flow)
    assert await again.states() == {"a": COMPLETED, "b": COMPLETED, "c": READY, "d": WAITING}
    assert await again.counts() == {"completed": 2, "ready": 1, "waiting": 1}
    (lease,) = await world.lease_all()
    assert lease.id == again.ids["c"]
    assert lease.execution_key == f"{flow.id}:c", "the receiver would charge twice"
    assert (lease.attempt, lease.lag_s) == (1, 0.0)
    found = await read_parents(world.database, [lease.id], limit=10, is_paged=False)
    assert [(each.name, each.state, each.result) for each in found[lease.id]] == [
        ("a", COMPLETED, '{"ids": [1]}')
    ]
    await world.settle(lease, Outcome.COMPLETED)
    await again.end("d")
    done = await again.read()
    assert (done.state, done.resumed_from) == (COMPLETED, flow.id)
    before = await flow.read()
    assert (before.state, before.counts["failed"]) == (FAILED, 1)
    assert await flow.states() == {"a": COMPLETED, "b": COMPLETED, "c": FAILED, "d": SKIPPED}


async def test_a_chain_of_resumes_reads_what_ran_first(world: World) -> None:
    """The third run would find no result of the first, or run it again under another key."""
    first = await failed_diamond(world)
    second = await resume(first)
    await second.end("c", Outcome.FAILED)
    assert (await second.read()).state is FAILED
    third = await resume(second)
    nodes = {n.name: n for n in await read_nodes(world.database, TENANT, third.id, 0, 10)}
    assert (nodes["a"].source, nodes["c"].source) == (first.ids["a"], None)
    found = await read_parents(world.database, [third.ids["c"]], limit=10, is_paged=False)
    assert found[third.ids["c"]][0].result == '{"ids": [1]}'
    lease = await world.lease(third.ids["c"])
    assert lease.execution_key == f"{first.id}:c"
    await world.settle(lease, Outcome.COMPLETED)
    await third.end("d")
    assert (await third.read()).state is COMPLETED
    fourth = await resume(third, ["d"])
    nodes = {n.name: n for n in await read_nodes(world.database, TENANT, fourth.id, 0, 10)}
    assert nodes["c"].source == third.ids["c"]
    assert (await world.lease(fourth.ids["d"])).execution_key == f"{first.id}:d"


async def test_named_nodes_run_again_with_all_that_follows_them(world: World) -> None:
    """A wrong input is mended by hand: what was computed from it must not stay."""
    flow = await begin(world, DIAMOND)
    for name in "abcd":
        await flow.end(name)
    again = await resume(flow, ["b"], payloads={2: "[7]"})
    assert await again.states() == {"a": COMPLETED, "b": READY, "c": COMPLETED, "d": WAITING}
    assert (await world.read(again.ids["b"])).payload == "[7]"
    await again.end("b")
    timer = await world.timer(again.ids["d"])
    assert timer is not None
    assert (timer["parents_pending"], timer["due_at"]) == (None, world.now())
    await again.end("d")
    assert (await again.read()).state is COMPLETED


async def test_a_node_that_stays_failed_counts_for_its_children_and_the_end(world: World) -> None:
    """Named nodes alone run again: what failed elsewhere is no success now."""
    flow = await begin(
        world,
        {"a": (), "b": (), "join": ("a", "b"), "mend": ("a", "b")},
        rules={"mend": WaitRule.ANY_FAILED},
    )
    await flow.end("a")
    await flow.end("b", Outcome.FAILED)
    await flow.end("mend")
    again = await resume(flow, ["a"])
    # `join` is skipped at once, `mend` released at once: `b` decides both.
    states = {"a": READY, "b": FAILED, "join": SKIPPED, "mend": READY}
    assert await again.states() == states
    await again.end("a")
    await again.end("mend")
    assert (await again.read()).state is FAILED


async def test_a_cancelled_workflow_goes_on_where_it_was(world: World) -> None:
    """What never ran has nothing to be reused, and no parent that ends."""
    flow = await begin(world, DIAMOND)
    await flow.end("a")
    await stop_workflow(world.database, TENANT, flow.id, WorkflowStop.CANCELLED, Released())
    assert (await flow.read()).state is CANCELLED
    again = await resume(flow)
    assert await again.states() == {"a": COMPLETED, "b": READY, "c": READY, "d": WAITING}
    for name in "bcd":
        await again.end(name)
    assert (await again.read()).state is COMPLETED


async def test_what_ended_a_workflow_early_holds_again(world: World) -> None:
    """A resumed workflow without its deadline, or one that does not stop any more."""
    flow = await begin(world, {"a": (), "b": ()}, on_failure=OnFailure.STOP, deadline_s=60)
    world.advance(30)
    await flow.end("a", Outcome.FAILED)
    await run_timers(world)
    again = await resume(flow)
    done = await again.read()
    assert done.deadline_at is not None
    assert (done.deadline_at - world.now()).total_seconds() == 60
    await again.end("b")
    await again.end("a", Outcome.FAILED)
    assert (await again.read()).stop_reason is WorkflowStop.FAILURE
    last = await resume(again)
    world.advance(61)
    await run_timers(world)
    assert (await last.read()).state is FAILED


async def test_what_runs_first_begins_at_the_rate(world: World) -> None:
    """A thousand failed calls that come back at once fail at once."""
    names = [f"n{number}" for number in range(5)]
    flow = await begin(world, {**dict.fromkeys(names, ()), "join": names})
    for name in names:
        await flow.end(name, Outcome.FAILED)
    again = await resume(flow, rate_per_s=0.5)
    due = [await world.timer(again.ids[name]) for name in names]
    waits = [(timer["due_at"] - world.now()).total_seconds() for timer in due if timer]
    assert waits == [0, 2, 4, 6, 8]
    assert len(await world.lease_all()) == 1
    world.advance(8)
    leases = await world.lease_all()
    assert [lease.lag_s for lease in leases] == [6.0, 4.0, 2.0, 0.0]


async def test_a_delay_is_not_waited_for_a_second_time(world: World) -> None:
    """A day after its parent, which ended last week."""
    flow = await begin(world, {"a": (), "b": ("a",)})
    await world.database.fetch(
        "UPDATE duly.workflow_nodes SET delay_ms = 86400000 WHERE id = $1", flow.ids["b"]
    )
    await flow.end("a")
    world.advance(86_400)
    await flow.end("b", Outcome.FAILED)
    again = await resume(flow)
    assert (await again.states())["b"] is READY


async def test_only_what_has_ended_is_resumed_and_once_at_a_time(world: World) -> None:
    """Two runs of one chain share execution keys: their effects would be each other's."""
    living = await begin(world, {"a": ()})
    (row,) = await world.database.fetch(
        "SELECT count(*) AS n FROM duly.workflows WHERE resumed_at IS NOT NULL"
    )
    asked = Resume(living.id, ResumePlan([1], []))
    earlier = await read_earlier(world.database, TENANT, (await failed_diamond(world)).id)
    assert earlier is not None
    answer = await resume_workflow(world.database, world.environment, TENANT, asked, earlier)
    assert (answer, row["n"]) == (NotResumable.LIVES, 0)
    flow = await failed_diamond(world)
    first = await resume(flow)
    assert await ask(flow) == AlreadyResumed(first.id)
    await first.end("c", Outcome.FAILED)
    second = await resume(first)
    # Not of the first one either, as long as one that came of it lives.
    assert await ask(flow) == AlreadyResumed(second.id)
    await second.end("c", Outcome.FAILED)
    assert isinstance(await ask(flow), Resumed)


async def test_a_foreign_workflow_is_as_gone_as_one_that_never_was(world: World) -> None:
    """Its nodes and payloads are another tenant's (I9)."""
    flow = await failed_diamond(world)
    assert await read_earlier(world.database, OTHER_TENANT, flow.id) is None
    earlier = await read_earlier(world.database, TENANT, flow.id)
    assert earlier is not None
    asked = Resume(flow.id, ResumePlan([3, 4], [1, 2]))
    answer = await resume_workflow(world.database, world.environment, OTHER_TENANT, asked, earlier)
    assert answer is NotResumable.GONE
    assert await world.count("workflows") == 1


async def test_two_resumes_at_once_are_one_workflow(world: World) -> None:
    """Both would find no living one, and each would run the failed node."""
    for _ in range(10):
        flow = await failed_diamond(world)
        answers = await asyncio.gather(*(ask(flow) for _ in range(3)))
        (won,) = [each for each in answers if isinstance(each, Resumed)]
        assert answers.count(AlreadyResumed(won.id)) == 2


async def test_two_resumes_of_two_links_of_a_chain_are_one_workflow(world: World) -> None:
    """They lock different rows: the index of the root decides."""
    first = await failed_diamond(world)
    second = await resume(first)
    await second.end("c", Outcome.FAILED)
    answers = await asyncio.gather(ask(first), ask(second))
    (won,) = [each for each in answers if isinstance(each, Resumed)]
    assert AlreadyResumed(won.id) in answers


async def test_a_resume_beside_the_last_end_finds_a_living_workflow(world: World) -> None:
    """Decided from half an end, a node whose result is being stored would be copied without it."""
    flow = await begin(world, {"a": ()})
    lease = await world.lease(flow.ids["a"])
    other = await failed_diamond(world)
    earlier = await read_earlier(world.database, TENANT, other.id)
    assert earlier is not None
    asked = Resume(flow.id, ResumePlan([1], []))
    async with world.database.transaction() as session:
        await session.fetch("SELECT FROM duly.workflows WHERE id = $1 FOR UPDATE", flow.id)
        ending = asyncio.create_task(world.settle(lease, Outcome.FAILED))
        await waiting_sessions(world, bool)
        answer = await resume_workflow(world.database, world.environment, TENANT, asked, earlier)
    assert answer is NotResumable.LIVES
    await ending
    assert isinstance(await ask(flow), Resumed)


async def test_what_another_one_reuses_is_kept_for_it(world: World) -> None:
    """Retention would take the results that a running node is about to read."""
    flow = await failed_diamond(world)
    month_s = 40 * 86_400
    world.advance(month_s)
    again = await resume(flow)
    await again.end("c", Outcome.FAILED)
    assert await delete_old_workflows(world.database, 1000) == 0
    last = await resume(again)
    world.advance(month_s)
    assert await delete_old_workflows(world.database, 1000) == 0
    await last.end("c")
    await last.end("d")
    world.advance(month_s)
    gone = [await delete_old_workflows(world.database, 1000) for _ in range(4)]
    assert gone == [4, 4, 4, 0]
    assert await world.count("workflow_nodes") == 0
    assert await ask(flow) is NotResumable.GONE


@pytest.mark.parametrize("is_delete_first", [True, False])
async def test_a_resume_and_retention_meet_on_the_row(world: World, is_delete_first: bool) -> None:
    """A copy of nodes whose results are being deleted."""
    flow = await failed_diamond(world)
    earlier = await read_earlier(world.database, TENANT, flow.id)
    assert earlier is not None
    plan = plan_resume(earlier.nodes)
    assert isinstance(plan, ResumePlan)
    world.advance(40 * 86_400)

    async def resuming() -> ResumeAnswer:
        async with world.database.transaction() as session:
            asked = Resume(flow.id, plan)
            return await resume_workflow(session, world.environment, TENANT, asked, earlier)

    deleting = partial(delete_old_workflows, world.database, 1000)
    calls: list[Callable[[], Coroutine[Any, Any, object]]] = [resuming, deleting]
    if is_delete_first:
        calls.reverse()
    async with world.database.transaction() as session:
        await session.fetch("SELECT FROM duly.workflows WHERE id = $1 FOR UPDATE", flow.id)
        tasks: list[asyncio.Task[object]] = []
        for count, call in enumerate(calls, 1):
            tasks.append(asyncio.create_task(call()))
            await waiting_sessions(world, count.__eq__)
    answers = await asyncio.gather(*tasks)
    if is_delete_first:
        assert answers == [4, NotResumable.GONE]
    else:
        assert isinstance(answers[0], Resumed)
        assert answers[1] == 0
        assert await flow.states() == {"a": COMPLETED, "b": COMPLETED, "c": FAILED, "d": SKIPPED}


async def test_what_was_erased_is_not_resumed(world: World) -> None:
    """A node without its payload, or whose parent has no result any more."""
    flow = await failed_diamond(world)
    assert await purge_tasks(world.database, TENANT, [flow.ids["a"]], "key someone")
    assert await ask(flow) is NotResumable.GONE


async def test_a_kill_within_a_resume_leaves_nothing(world: World) -> None:
    """Half a copy: a workflow that waits for nodes which are not there."""
    flow = await failed_diamond(world)

    async def crash(at: CrashPoint) -> None:
        if at is CrashPoint.RESUME_BETWEEN:
            raise Crash

    with pytest.raises(Crash):
        await ask(flow, environment=replace(world.environment, crash_point=crash))
    assert await world.count("workflows") == 1
    assert isinstance(await ask(flow), Resumed)


def names_of(problems: list[Problem] | ResumePlan) -> list[str]:
    assert isinstance(problems, list)
    return [each.pointer for each in problems]


async def test_what_is_wrong_with_the_names_is_said(world: World) -> None:
    """A name that is skipped again without a word."""
    flow = await failed_diamond(world)
    earlier = await read_earlier(world.database, TENANT, flow.id)
    assert earlier is not None
    assert names_of(plan_resume(earlier.nodes, ["a", "x", "a"])) == ["/from/1", "/from/2"]
    assert names_of(plan_resume(earlier.nodes, ["b", "d"])) == ["/from/1"]
    plan = plan_resume(earlier.nodes, ["c", "d"])
    assert isinstance(plan, ResumePlan)
    assert (plan.again, plan.reused) == ([3, 4], [1, 2])


async def test_every_node_ends_in_a_workflow_of_which_all_runs_again(world: World) -> None:
    """The largest plan: nothing is reused, and nothing is told."""
    flow = await begin(world, DIAMOND)
    await flow.end("a", Outcome.FAILED)
    again = await resume(flow)
    ids: dict[str, UUID] = again.ids
    for name in ids:
        await again.end(name)
    assert (await again.read()).state is COMPLETED


async def test_steps_decide_again_on_what_is_reused(world: World) -> None:
    """A node with an `if` would run without being asked, or find no result to be asked about."""
    edges = {"a": (), "b": ("a",), "wait": (), "c": ("a", "b", "wait")}
    specs = {"b": IF_FAILED, "wait": waiting(delay_s=30.0)}
    flow = await begin_steps(world, edges, specs)
    await world.run(flow.ids["a"], Outcome.COMPLETED, result='{"failed": 1}')
    await run_timers(world)
    await flow.end("b", Outcome.FAILED)
    await stop_workflow(world.database, TENANT, flow.id, WorkflowStop.CANCELLED, Released())
    again = await resume(flow, rate_per_s=1)
    states = {"a": COMPLETED, "b": WAITING, "wait": WAITING, "c": WAITING}
    assert await again.states() == states
    # `b` decides at once, `wait` begins a second later, and lasts as long as before.
    assert await run_timers(world) == 1
    assert (await again.states())["b"] is READY
    world.advance(1)
    assert await run_timers(world) == 1
    await again.end("b")
    world.advance(30)
    assert await run_timers(world) == 1
    await again.end("c")
    assert (await again.read()).state is COMPLETED


async def test_what_hands_over_items_runs_again_with_its_map(world: World) -> None:
    """The pages are gone with the first run: the map would be empty, and complete."""
    mapped = await begin_mapped(world, over_pages(), AROUND)
    lease = await world.lease(mapped.ids["list"])
    await mapped.hand(lease, 0, ["a", "b"])
    await world.settle(lease, Outcome.COMPLETED)
    await mapped.run_all(Outcome.FAILED)
    assert await mapped.states() == {"list": COMPLETED, "charge": FAILED, "report": SKIPPED}
    for names in (None, ["charge"]):
        earlier = await read_earlier(world.database, TENANT, mapped.id)
        assert earlier is not None
        plan = plan_resume(earlier.nodes, names)
        assert isinstance(plan, ResumePlan)
        assert plan == ResumePlan([1, 2, 3], [])
    again = await resume(mapped)
    assert await again.states() == {"list": READY, "charge": WAITING, "report": WAITING}
