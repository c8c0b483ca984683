"""Workflows in the tables: what is started, released, skipped and ended, and under which races."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from duly.domain.ids import is_node, node_id_of, node_number, workflow_of
from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome, State
from duly.domain.task import Policy
from duly.domain.workflow import OnFailure, WaitRule, WorkflowStop
from duly.store.control import cancel_tasks
from duly.store.finish import Released, Settlement, SettleStatus
from duly.store.submit import Mismatch, Replayed
from duly.store.subworkflows import Subworkflows
from duly.store.workflow_control import run_timer, stop_workflow
from duly.store.workflow_timers import find_due_timers
from duly.store.workflows import (
    NodeStart,
    Started,
    Workflow,
    WorkflowStart,
    WorkflowStarter,
    read_nodes,
    read_workflow,
)
from tests.store.world import HOLDER, TENANT, World, wish

ONCE = Policy(retry=RetryPolicy(max_attempts=1))
STEADY = Policy(retry=RetryPolicy(max_attempts=3, jitter=False, initial_s=10.0))
COMPLETED, FAILED, SKIPPED = State.COMPLETED, State.FAILED, State.SKIPPED
CANCELLED, WAITING, READY = State.CANCELLED, State.WAITING, State.READY

Edges = Mapping[str, Sequence[str]]


def graph_of(
    after: Edges, rules: dict[str, WaitRule] | None = None, policy: Policy = ONCE
) -> list[NodeStart]:
    names = list(after)
    numbers = {name: number for number, name in enumerate(names, 1)}
    return [
        NodeStart(
            name,
            wish(policy=policy),
            [numbers[parent] for parent in parents],
            [numbers[child] for child in names if name in after[child]],
            (rules or {}).get(name, WaitRule.ALL_COMPLETED),
        )
        for name, parents in after.items()
    ]


class Flow:
    """One workflow under test, its nodes by name."""

    def __init__(self, world: World, workflow_id: UUID, names: list[str]) -> None:
        self.world = world
        self.id = workflow_id
        self.ids = {name: node_id_of(workflow_id, number) for number, name in enumerate(names, 1)}

    async def end(self, name: str, outcome: Outcome = Outcome.COMPLETED) -> None:
        await self.world.run(self.ids[name], outcome)

    async def states(self) -> dict[str, State]:
        nodes = await read_nodes(self.world.database, TENANT, self.id, 0, 200)
        return {node.name: node.state for node in nodes}

    async def read(self) -> Workflow:
        found = await read_workflow(self.world.database, TENANT, self.id)
        assert found is not None
        return found

    async def counts(self) -> dict[str, int]:
        return {name: count for name, count in (await self.read()).counts.items() if count}


async def begin(world: World, after: Edges, **fields: object) -> Flow:
    rules = fields.pop("rules", None)
    policy = fields.pop("policy", ONCE)
    start = WorkflowStart(TENANT, "invoice.month", graph_of(after, rules, policy), **fields)  # type: ignore[arg-type]
    (answer,) = await WorkflowStarter(world.database, world.submitter).start([start])
    assert isinstance(answer, Started)
    return Flow(world, answer.id, list(after))


async def run_timers(world: World) -> int:
    """All that workflows have to do by now."""

    async def no_callback(*_: object) -> object:
        raise AssertionError("no callback was asked for")

    done = 0
    while timers := await find_due_timers(world.database, range(1024)):
        for timer in timers:
            begin_inner = Subworkflows(world.submitter).begin
            await run_timer(world.database, timer, no_callback, begin_inner)  # type: ignore[arg-type]
            done += 1
    return done


async def test_roots_are_due_at_once_and_the_others_wait(world: World) -> None:
    """A node that is due before its parents ended computes on nothing (I7)."""
    flow = await begin(world, {"a": (), "b": (), "c": ("a", "b")})
    assert await flow.states() == {"a": READY, "b": READY, "c": WAITING}
    assert [lease.id for lease in await world.lease_all()] == [flow.ids["a"], flow.ids["b"]]
    timer = await world.timer(flow.ids["c"])
    assert timer is not None
    assert (timer["due_at"], timer["parents_pending"]) == (None, 2)
    assert await flow.counts() == {"waiting": 1, "running": 2}


async def test_an_id_says_whether_a_task_is_a_node_and_of_which_workflow(world: World) -> None:
    """Plain settlements would pay a look-up to know that they are plain."""
    flow = await begin(world, {"a": (), "b": ("a",)})
    plain = [(await world.submit()).id for _ in range(50)]
    assert not any(map(is_node, plain))
    assert [is_node(i) for i in flow.ids.values()] == [True, True]
    assert {workflow_of(i) for i in flow.ids.values()} == {flow.id}
    assert [node_number(i) for i in flow.ids.values()] == [1, 2]
    rows = await world.database.fetch(
        "SELECT duly.is_node(id) AS node, duly.workflow_of(id) AS workflow,"
        "       duly.node_number(id) AS number, duly.node_id(id, 77) AS other"
        "  FROM unnest($1::uuid[]) AS asked(id)",
        [*flow.ids.values(), *plain],
    )
    assert [row["node"] for row in rows] == [True] * 2 + [False] * 50
    assert {row["workflow"] for row in rows[:2]} == {flow.id}
    assert [row["number"] for row in rows[:2]] == [1, 2]
    assert rows[0]["other"] == node_id_of(flow.id, 77)


async def test_the_last_parent_releases_a_join(world: World) -> None:
    """A join that is released by its first parent runs on half of its input (I7)."""
    flow = await begin(world, {"a": (), "b": (), "c": ("a", "b")})
    await flow.end("a")
    assert await flow.states() == {"a": COMPLETED, "b": READY, "c": WAITING}
    world.advance(7)
    await flow.end("b")
    assert (await flow.states())["c"] is READY
    lease = await world.lease(flow.ids["c"])
    assert lease.scheduled_for == world.now(), "the parents' time is no lag of the child"
    assert lease.lag_s == 0.0
    assert lease.execution_key == f"{flow.id}:c"
    await world.settle(lease, Outcome.COMPLETED)
    done = await flow.read()
    assert (done.state, done.ended_at) == (COMPLETED, world.now())
    assert await flow.counts() == {"completed": 3}


async def test_two_last_parents_that_end_at_once_do_not_strand_their_child(world: World) -> None:
    """Each of two overlapping transactions takes the other's parent for live: the child waits for
    ever. Here the second waits for the lock of the workflow, and then counts the first (I7)."""
    for _ in range(20):
        flow = await begin(world, {"a": (), "b": (), "c": ("a", "b")})
        leases = {lease.id: lease for lease in await world.lease_all()}
        settlers = [world.node(seed).settler for seed in (1, 2)]
        ends = [
            Settlement(flow.ids[name], leases[flow.ids[name]].fence, HOLDER, Outcome.COMPLETED)
            for name in ("a", "b")
        ]
        answers = await asyncio.gather(
            *(settler.settle([end]) for settler, end in zip(settlers, ends, strict=True))
        )
        assert [len(answer[0].released) for answer in answers].count(1) == 1
        assert (await flow.states())["c"] is READY
        await flow.end("c")


async def test_the_lock_is_taken_before_the_first_row_of_an_end(world: World) -> None:
    """Reproduced: with the count outside of the lock, the second of two commits does not see the
    first. An end must wait until the other has committed."""
    flow = await begin(world, {"a": (), "b": (), "c": ("a", "b")})
    lease = await world.lease(flow.ids["a"])
    async with world.database.transaction() as session:
        await session.fetch("SELECT duly.lock_workflows($1)", [flow.ids["b"]])
        ending = asyncio.create_task(world.settle(lease, Outcome.COMPLETED))
        done, _ = await asyncio.wait([ending], timeout=0.3)
        assert not done
        held = await session.fetch(
            "SELECT id FROM duly.timers WHERE id = $1 FOR UPDATE NOWAIT", flow.ids["a"]
        )
        assert len(held) == 1, "the row of the ended node was touched before the lock"
    assert (await ending).state is COMPLETED


async def test_a_stale_settlement_is_not_counted(world: World) -> None:
    """Counted from what was sent instead of what was deleted, a parent that ends twice releases a
    child whose other parent still runs."""
    flow = await begin(world, {"a": (), "b": (), "c": ("a", "b")})
    lease = await world.lease(flow.ids["a"])
    for _ in range(2):
        answer = await world.settle(lease, Outcome.COMPLETED)
    assert answer.status is SettleStatus.REPLAY
    timer = await world.timer(flow.ids["c"])
    assert timer is not None
    assert timer["parents_pending"] == 1
    assert await flow.counts() == {"waiting": 1, "ready": 1, "completed": 1}


async def test_many_parents_of_one_child_in_one_batch_all_count(world: World) -> None:
    """UPDATE ... FROM applies one of several matches of a row: the child would wait for others."""
    names = [f"p{number}" for number in range(30)]
    flow = await begin(world, {**dict.fromkeys(names, ()), "join": names})
    leases = await world.lease_all()
    assert len(leases) == 30
    ends = [Settlement(each.id, each.fence, HOLDER, Outcome.COMPLETED) for each in leases]
    answers = await world.settler.settle(ends)
    (released,) = [due for answer in answers for due in answer.released]
    assert released.id == flow.ids["join"]
    assert await flow.counts() == {"ready": 1, "completed": 30}


RULES = [
    (WaitRule.ALL_COMPLETED, {"a": COMPLETED, "b": COMPLETED}, READY),
    (WaitRule.ALL_COMPLETED, {"a": COMPLETED, "b": FAILED}, SKIPPED),
    (WaitRule.ALL_COMPLETED, {"a": FAILED}, SKIPPED),
    (WaitRule.ALL_COMPLETED, {"a": CANCELLED}, SKIPPED),
    (WaitRule.NONE_FAILED, {"a": COMPLETED, "b": COMPLETED}, READY),
    (WaitRule.NONE_FAILED, {"a": FAILED}, SKIPPED),
    (WaitRule.ALL_DONE, {"a": FAILED}, WAITING),
    (WaitRule.ALL_DONE, {"a": FAILED, "b": CANCELLED}, READY),
    (WaitRule.ANY_COMPLETED, {"a": COMPLETED}, READY),
    (WaitRule.ANY_COMPLETED, {"a": FAILED}, WAITING),
    (WaitRule.ANY_COMPLETED, {"a": FAILED, "b": FAILED}, SKIPPED),
    (WaitRule.ANY_FAILED, {"a": COMPLETED}, WAITING),
    (WaitRule.ANY_FAILED, {"a": FAILED}, READY),
    (WaitRule.ANY_FAILED, {"a": COMPLETED, "b": COMPLETED}, SKIPPED),
]


@pytest.mark.parametrize(("rule", "ends", "expected"), RULES)
async def test_a_wait_rule_decides_by_how_parents_ended(
    world: World, rule: WaitRule, ends: dict[str, State], expected: State
) -> None:
    """A rule read the wrong way runs a refund for an order that was delivered (I7)."""
    flow = await begin(world, {"a": (), "b": (), "c": ("a", "b")}, rules={"c": rule})
    for name, state in ends.items():
        if state is CANCELLED:
            await cancel_tasks(world.database, TENANT, [flow.ids[name]])
        else:
            await flow.end(name, Outcome.COMPLETED if state is COMPLETED else Outcome.FAILED)
    assert (await flow.states())["c"] is expected


async def test_a_skip_is_an_end_of_its_own_and_cascades(world: World) -> None:
    """Nodes behind a skipped one that wait on keep their workflow alive for ever (I7)."""
    after = {"a": (), "b": ("a",), "c": ("b",), "d": ("c",), "clean": ("d",)}
    flow = await begin(world, after, rules={"clean": WaitRule.ALL_DONE})
    await flow.end("a", Outcome.FAILED)
    assert await flow.states() == {
        "a": FAILED,
        **dict.fromkeys("bcd", SKIPPED),
        "clean": READY,
    }
    (attempt,) = await world.attempts(flow.ids["c"])
    assert (attempt.outcome, attempt.state, attempt.charged, attempt.started_at) == (
        "skipped",
        "SKIPPED",
        0,
        None,
    )
    assert (await world.read(flow.ids["c"])).state is SKIPPED
    await flow.end("clean")
    done = await flow.read()
    assert (done.state, done.counts["skipped"], done.counts["failed"]) == (FAILED, 3, 1)


async def test_none_failed_takes_a_skipped_parent_for_none(world: World) -> None:
    """A branch that was not taken would stop what comes after both branches."""
    after = {"a": (), "on_error": ("a",), "report": ("a", "on_error")}
    rules = {"on_error": WaitRule.ANY_FAILED, "report": WaitRule.NONE_FAILED}
    flow = await begin(world, after, rules=rules)
    await flow.end("a")
    assert await flow.states() == {"a": COMPLETED, "on_error": SKIPPED, "report": READY}
    await flow.end("report")
    assert (await flow.read()).state is COMPLETED, "skipped is not failed"


async def test_a_long_cascade_goes_on_by_a_timer(world: World) -> None:
    """Ten thousand skips in one commit hold up every settlement beside them; forgotten, they strand
    what comes after."""
    width = 600
    first = [f"x{n}" for n in range(width)]
    second = [f"y{n}" for n in range(width)]
    after: Edges = {
        "a": (),
        **dict.fromkeys(first, ("a",)),
        **{y: (x,) for x, y in zip(first, second, strict=True)},
        "z": second,
        "clean": ("z",),
    }
    flow = await begin(world, after, rules={"clean": WaitRule.ALL_DONE})
    answer = await world.run(flow.ids["a"], Outcome.FAILED)
    assert answer.workflows_due == (flow.id,)
    assert (await flow.read()).counts["waiting"] == 2
    assert await run_timers(world) == 1
    assert (await world.read(flow.ids["clean"])).state is READY
    assert (await flow.read()).counts["skipped"] == 2 * width + 1


async def test_a_retry_releases_nothing(world: World) -> None:
    """A parent that will run again has not ended (I7)."""
    flow = await begin(world, {"a": (), "b": ("a",)}, policy=STEADY)
    await flow.end("a", Outcome.FAILED)
    assert await flow.states() == {"a": State.SCHEDULED, "b": WAITING}
    world.advance(10)
    await flow.end("a")
    assert await flow.states() == {"a": COMPLETED, "b": READY}


async def test_a_lost_lease_ends_a_node_like_any_other_failure(world: World) -> None:
    """A parent whose worker died on its last attempt would strand its children (I7, I11)."""
    flow = await begin(world, {"a": (), "b": ("a",)}, rules={"b": WaitRule.ANY_FAILED})
    await world.lease(flow.ids["a"], lease_s=1.0)
    world.advance(20)
    ((_, answer),) = (await world.reap()).lost
    assert [due.id for due in answer.released] == [flow.ids["b"]]
    assert await flow.states() == {"a": FAILED, "b": READY}


async def test_stop_cancels_what_does_not_run_yet(world: World) -> None:
    """After a failure that is to stop everything, the other branches go on and charge customers."""
    after = {"a": (), "b": (), "c": (), "d": ("b",)}
    flow = await begin(world, after, on_failure=OnFailure.STOP)
    running = await world.lease(flow.ids["b"])
    answer = await world.run(flow.ids["a"], Outcome.FAILED)
    assert answer.workflows_due == (flow.id,)
    assert await run_timers(world) == 1
    assert await flow.states() == {
        "a": FAILED,
        "b": State.RUNNING,
        "c": CANCELLED,
        "d": CANCELLED,
    }
    assert (await world.settle(running, Outcome.COMPLETED)).state is COMPLETED
    done = await flow.read()
    assert (done.state, done.stop_reason) == (FAILED, WorkflowStop.FAILURE)
    assert await world.count("workflow_timers") == 0


async def test_nothing_is_released_between_a_stop_and_its_cancel(world: World) -> None:
    """The cancel of a wide workflow takes several commits; a parent that ends between two of them
    would start a child that nothing cancels any more."""
    flow = await begin(world, {"a": (), "b": (), "c": ("b",)}, on_failure=OnFailure.STOP)
    running = await world.lease(flow.ids["b"])
    await flow.end("a", Outcome.FAILED)
    answer = await world.settle(running, Outcome.COMPLETED)
    assert answer.released == ()
    assert (await flow.states())["c"] is WAITING
    await run_timers(world)
    assert (await flow.states())["c"] is CANCELLED
    assert (await flow.read()).state is FAILED


async def test_cancel_ends_what_waits_and_asks_what_runs(world: World) -> None:
    """A cancelled workflow of which one node starts afterwards was not cancelled (I13)."""
    flow = await begin(world, {"a": (), "b": (), "c": ("a", "b")})
    running = await world.lease(flow.ids["a"])
    released = Released()
    async with world.database.tenant(TENANT) as session:
        reason = WorkflowStop.CANCELLED
        assert await stop_workflow(session, TENANT, flow.id, reason, released)
    states = await flow.states()
    assert states == {"a": State.RUNNING, "b": CANCELLED, "c": CANCELLED}
    await world.settle(running, Outcome.FAILED)
    done = await flow.read()
    assert (done.state, done.counts["cancelled"]) == (CANCELLED, 3)
    assert await world.lease_all() == []
    async with world.database.tenant(TENANT) as session:
        assert not await stop_workflow(session, TENANT, flow.id, reason, released)


async def test_a_large_cancel_goes_on_in_bites(world: World) -> None:
    """A cancel that stops after its first thousand leaves nodes that run for nobody."""
    names = [f"n{number}" for number in range(2500)]
    flow = await begin(world, dict.fromkeys(names, ()))
    released = Released()
    async with world.database.tenant(TENANT) as session:
        await stop_workflow(session, TENANT, flow.id, WorkflowStop.CANCELLED, released)
    assert (await flow.read()).counts["cancelled"] == 1000
    assert released.workflows == [flow.id]
    assert await run_timers(world) == 2
    assert ((await flow.read()).state, await world.count("timers")) == (CANCELLED, 0)


async def test_a_deadline_stops_a_workflow(world: World) -> None:
    """A workflow that hangs is noticed by nobody unless something looks (I7)."""
    flow = await begin(world, {"a": (), "b": ("a",)}, deadline_s=60.0)
    world.advance(59)
    assert await run_timers(world) == 0
    world.advance(1)
    assert await run_timers(world) == 1
    done = await flow.read()
    assert (done.state, done.stop_reason) == (FAILED, WorkflowStop.DEADLINE)


async def test_an_end_takes_its_deadline_with_it(world: World) -> None:
    """Timers of ended workflows would pile up and be looked at for ever."""
    flow = await begin(world, {"a": ()}, deadline_s=60.0)
    await flow.end("a")
    assert await world.count("workflow_timers") == 0


async def test_a_delayed_node_is_due_so_long_after_its_parents(world: World) -> None:
    """A delay from the start of the workflow would be over before the parents are."""
    nodes = graph_of({"a": (), "b": ("a",)})
    nodes[1] = replace(nodes[1], task=nodes[1].task._replace(delay_s=30.0))
    start = WorkflowStart(TENANT, "late", nodes)
    (answer,) = await WorkflowStarter(world.database, world.submitter).start([start])
    assert isinstance(answer, Started)
    flow = Flow(world, answer.id, ["a", "b"])
    world.advance(100)
    await flow.end("a")
    assert (await flow.states())["b"] is State.SCHEDULED
    world.advance(30)
    lease = await world.lease(flow.ids["b"])
    assert (lease.scheduled_for, lease.lag_s) == (world.now(), 0.0)


async def test_a_key_makes_one_workflow(world: World) -> None:
    """A start that is sent again after a lost answer must not run twice (I8)."""
    starter = WorkflowStarter(world.database, world.submitter)
    start = WorkflowStart(
        TENANT, "month", graph_of({"a": (), "b": ("a",)}), idempotency_key="2026-11", asked=b"1"
    )
    (first,) = await starter.start([start])
    assert isinstance(first, Started)
    assert await starter.start([start]) == [Replayed(first.id)]
    assert await starter.start([replace(start, asked=b"2")]) == [Mismatch(first.id)]
    (other,) = await starter.start([replace(start, name="quarter", asked=b"3")])
    assert isinstance(other, Started), "a key belongs to its workflow's name"
    assert (await world.count("workflows"), await world.count("workflow_nodes")) == (2, 4)
    assert await world.count("timers") == 4


async def test_a_batch_of_starts_keeps_each_graph_apart(world: World) -> None:
    """Numbers of nodes are the same in every workflow: a child must be looked for in its own."""
    starter = WorkflowStarter(world.database, world.submitter)
    nodes = graph_of({"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")})
    answers = await starter.start([WorkflowStart(TENANT, "diamond", nodes)] * 20)
    flows = [Flow(world, each.id, list("abcd")) for each in answers if isinstance(each, Started)]
    assert len(flows) == 20
    while leases := await world.lease_all():
        ends = [Settlement(each.id, each.fence, HOLDER, Outcome.COMPLETED) for each in leases]
        await world.settler.settle(ends)
    for flow in flows:
        assert await flow.counts() == {"completed": 4}
        assert (await flow.read()).state is COMPLETED


async def test_a_mixed_batch_settles_nodes_and_plain_tasks(world: World) -> None:
    """Nodes take a lock that plain tasks never wait for; each gets its own answer all the same."""
    flow = await begin(world, {"a": (), "b": ("a",)})
    plain = (await world.submit()).id
    leases = await world.lease_all()
    ends = [Settlement(each.id, each.fence, HOLDER, Outcome.COMPLETED) for each in leases]
    answers = await world.settler.settle(ends)
    assert [answer.state for answer in answers] == [COMPLETED] * 2
    assert (await world.read(plain)).state is COMPLETED
    assert (await flow.states())["b"] is READY
