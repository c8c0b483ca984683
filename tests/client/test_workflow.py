"""The builder of workflows: graphs of typed handles, started at the end of their block."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

import duly as duly_package
from duly import AsyncClient, Client, Context, InvalidWorkflow, TaskRegistry, Worker, chain, chord
from duly import group as group_of
from duly.client.workflow_builder import GraphBuilder
from duly.client.workflow_nodes import NodeCall
from duly.domain.workflow import EDGES_MAX, NODES_MAX
from tests.client.conftest import at_work
from tests.story.duly_up import RunningDuly

WAIT_S = 30.0


class Order(msgspec.Struct):
    number: str
    cents: int = 0


@pytest.fixture
def tasks(duly: RunningDuly, pool: str) -> TaskRegistry:
    return TaskRegistry(pool=pool, url=duly.url, api_key=duly.ready["api_key"])


@pytest.fixture
def plain(duly: RunningDuly) -> Iterator[Client]:
    with Client(duly.url, duly.ready["api_key"]) as client:
        yield client


@pytest.fixture
def flow() -> GraphBuilder:
    return GraphBuilder("a.flow", {})


def nodes_of(flow: GraphBuilder) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(flow.body())["nodes"]
    return found


def edges_of(flow: GraphBuilder) -> dict[str, list[str]]:
    return {name: node.get("after", []) for name, node in nodes_of(flow).items()}


@pytest.fixture
def send() -> Any:
    @TaskRegistry(pool="mail").task("email.send", priority=7)
    def send(ctx: Context, to: str) -> str:
        return to

    return send


async def test_a_graph_of_typed_handles_runs_and_gives_typed_results(
    tasks: TaskRegistry, make_worker: Callable[..., Worker]
) -> None:
    """What is wrong with a graph of strings shows only when it runs."""

    @tasks.task("order.charge")
    async def charge(ctx: Context, order: Order) -> Order:
        return Order(order.number, 300)

    @tasks.task("order.ship")
    async def ship(ctx: Context, street: str) -> list[str]:
        return [street, *ctx.parents]

    worker = make_worker()
    worker.include(tasks)
    async with at_work(worker):
        async with tasks.workflow("order.fulfil", deadline_s=60, tags={"shop": "a"}) as flow:
            charged = flow.add(charge.node(Order("7")))
            shipped = flow.add(ship.node(street="s"), after=charged, name="ship")
        done = await flow.started.wait(WAIT_S)
        assert (done.state, done.name, done.tags) == ("COMPLETED", "order.fulfil", {"shop": "a"})
        assert await flow.started.result(charged) == Order("7", 300)
        assert await flow.started.result(shipped, WAIT_S) == ["s", "order.charge"]
        assert [each.name async for each in done.nodes()] == ["order.charge", "ship"]
        assert [each.after for each in (await done.graph()).nodes] == [[], ["order.charge"]]
        assert (await flow.started.status()).counts["completed"] == 2
        assert (await flow.started.refresh()).ended_at == done.ended_at


async def test_a_failed_workflow_is_resumed_paused_and_made_a_type(
    tasks: TaskRegistry, client: AsyncClient, make_worker: Callable[..., Worker]
) -> None:
    """What can only be said over HTTP is said wrongly, in every program again."""
    broken = threading.Event()
    broken.set()

    @tasks.task("order.charge", retry={"max_attempts": 1})
    async def charge(ctx: Context, cents: int) -> int:
        if broken.is_set() and ctx.parents:
            raise ValueError("the bank is away")
        return cents

    name = "resumed.flow"
    flow = duly_package.WorkflowDefinition(on_failure="stop")
    first = flow.add(charge.node(cents=1), name="first")
    flow.add(charge.node(cents=2), name="second", after=first)
    made = await client.workflow_types.put(name, flow)
    assert (made.version, (await client.workflow_types.put(name, flow.definition())).version) == (
        1,
        1,
    )
    assert [each.version async for each in client.workflow_types.versions(name)] == [1]
    found = await client.workflow_types.get(f"{name}@1")
    assert found.definition is not None
    assert list(found.definition["nodes"]) == ["first", "second"]
    assert name in [each.name async for each in client.workflow_types.list()]
    worker = make_worker()
    worker.include(tasks)
    async with at_work(worker):
        run = await client.workflows.start({"type": name})
        failed = await client.workflows.wait(run.id, WAIT_S)
        assert (failed.state, failed.type) == ("FAILED", f"{name}@1")
        preview = await client.workflows.preview_resume(run.id)
        assert (preview.again, preview.reused, preview.nodes) == (1, 1, ["second"])
        broken.clear()
        again = await client.workflows.resume(run.id, payloads={"second": {"cents": 5}})
        done = await client.workflows.wait(again.id, WAIT_S)
        assert (done.state, done.resumed_from) == ("COMPLETED", run.id)
        nodes = {each.name: each async for each in client.workflows.nodes(again.id)}
        assert nodes["first"].source is not None
        assert (await client.get(nodes["first"].id)).output == 1
        assert (await client.get(nodes["second"].id)).output == 5
    held = await client.workflows.start({"type": name})
    assert (await client.workflows.pause(held.id)).paused_by is not None
    assert (await client.workflows.unpause(held.id)).paused_at is None
    scheduled = await client.schedules.upsert(name, workflow={"type": name}, every_s=3600)
    assert scheduled.workflow == {"type": name}
    assert (
        await client.schedules.plan(name, workflow={"type": name}, every_s=3600)
    ).action == "unchanged"
    changed = await client.schedules.plan(name, workflow={"type": f"{name}@1"}, every_s=3600)
    assert [each.field for each in changed.changes] == ["workflow.type"]
    triggered = await client.schedules.trigger(scheduled.id)
    assert triggered.tags is not None
    assert triggered.tags["schedule"] == name
    with pytest.raises(TypeError):
        await client.schedules.plan(name)


async def test_a_client_without_an_event_loop_can_do_the_same(
    plain: Client, pool: str, tasks: TaskRegistry
) -> None:
    """Most programs that start workflows have no event loop."""

    def start() -> None:
        with plain.workflow("a.waiting", defaults={"pool": pool}) as flow:
            first = flow.task("first", {"n": 1}, priority=3)
            flow.task("second", after=first, when="all_done")
        assert flow.started.state == "RUNNING"
        explained = flow.started.explain("second")
        assert [each.name for each in explained.nodes[0].parents] == ["first"]
        assert flow.started.explain(first).nodes[0].name == "first"
        assert flow.started.task(first).payload == {"n": 1}
        assert flow.started.task(first).target == {"pool": pool}
        with pytest.raises(duly_package.WaitTimedOut, match=r"workflow .* is RUNNING"):
            flow.started.wait(0)
        assert flow.started.cancel().state == "CANCELLED"
        assert [each.state for each in flow.started.nodes(state="CANCELLED")] == ["CANCELLED"] * 2
        assert [each.id for each in plain.workflows.list(name="a.waiting")] == [flow.started.id]
        with tasks.workflow("a.waiting") as other:
            other.task("first", pool=pool)
        plain.workflows.cancel(other.started.id)
        assert [each.state for each in plain.workflows.list(name="a.waiting")] == ["CANCELLED"] * 2

    await asyncio.to_thread(start)


async def test_nothing_is_stored_when_the_block_raises(
    plain: Client, client: AsyncClient, pool: str
) -> None:
    """Half of a graph is worse than none."""
    with pytest.raises(ZeroDivisionError), plain.workflow("a.broken") as flow:  # noqa: PT012
        flow.task("first", pool=pool)
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with client.workflow("a.broken") as awaited:
            awaited.task("first", pool=pool)
            raise ZeroDivisionError
    assert [each async for each in client.workflows.list(name="a.broken")] == []
    with pytest.raises(InvalidWorkflow, match="starts at the end of its block"):
        flow.started  # noqa: B018
    with pytest.raises(InvalidWorkflow, match="has ended"):
        flow.task("second")


async def test_a_key_starts_a_workflow_once(client: AsyncClient, pool: str) -> None:
    """A program that starts again after a crash must not ship an order twice."""
    ids = set()
    for _ in range(2):
        async with client.workflow("a.keyed", idempotency_key=pool) as flow:
            flow.task("first", {"n": 1}, pool=pool)
        ids.add(flow.started.id)
    assert len(ids) == 1
    with pytest.raises(duly_package.IdempotencyMismatch):
        async with client.workflow("a.keyed", idempotency_key=pool) as flow:
            flow.task("first", {"n": 2}, pool=pool)
    await client.workflows.cancel(ids.pop())
    written = {"name": "a.written", "idempotency_key": pool, "nodes": {"a": {"type": "a"}}}
    starts = [await client.workflows.start(written) for _ in range(2)]
    assert starts[0].id == starts[1].id
    await client.workflows.cancel(starts[0].id)


async def test_the_end_of_a_workflow_is_told_to_a_handle(
    tasks: TaskRegistry, make_worker: Callable[..., Worker]
) -> None:
    """The names of the callback's payload are found out by its first failure."""
    told: list[tuple[str, str, str]] = []
    is_told = threading.Event()

    @tasks.task("order.ended")
    def ended(ctx: Context, workflow: str, name: str, state: str, counts: dict[str, int]) -> None:
        told.append((workflow, name, state))
        is_told.set()

    @tasks.task("order.reject")
    def reject(ctx: Context) -> None:
        raise duly_package.Reject("no")

    worker = make_worker()
    worker.include(tasks)
    async with at_work(worker):
        async with tasks.workflow("order.refuse", callback=ended, on_failure="stop") as flow:
            node = flow.add(reject.node())
        assert await asyncio.to_thread(is_told.wait, WAIT_S)
        assert told == [(flow.started.id, "order.refuse", "FAILED")]
        with pytest.raises(duly_package.TaskFailed, match="no"):
            await flow.started.result(node)


def test_names_are_given_or_made_of_the_type(flow: GraphBuilder, send: Any) -> None:
    """Two nodes of one name are one node."""
    long = "a" * 70
    names = [flow.add(send.node(to="a")).name for _ in range(3)]
    names += [flow.task(long).name, flow.task(long).name, flow.task("x", name="email.send-4").name]
    names.append(flow.add(send.node(to="a")).name)
    assert names[:3] == ["email.send", "email.send-2", "email.send-3"]
    assert names[3:5] == ["a" * 64, "a" * 62 + "-2"]
    assert names[5:] == ["email.send-4", "email.send-5"]
    node = nodes_of(flow)["email.send"]
    options = {"target": {"pool": "mail"}, "priority": 7}
    assert node == {"type": "email.send", "payload": {"to": "a"}, **options}


def test_chains_and_groups_become_edges(flow: GraphBuilder, send: Any) -> None:
    """An empty group in the middle must not start what comes after it at once."""
    first = flow.task("first")
    a, b, c = (send.node(to=each).options(name=each) for each in "abc")
    stage = flow.add(chain(a, group_of(b, chain(c, send.node("d").options(name="d")))), after=first)
    assert [each.name for each in stage.nodes] == ["a", "b", "c", "d"]
    flow.add(chord([], send.node("x").options(name="join")), after=stage)
    flow.add(send.node("x"), after=[flow.add(group_of([])), "first"], name="after-none")
    tail = flow.add(chain([send.node("x").options(name="tail")]), after=["join"])
    flow.task("last", after=[tail, "first", "first"])
    assert edges_of(flow) == {
        "first": [],
        "a": ["first"],
        "b": ["a"],
        "c": ["a"],
        "d": ["c"],
        "join": ["b", "d"],
        "after-none": ["first"],
        "tail": ["join"],
        "last": ["tail", "first"],
    }


def test_what_is_wrong_is_said_where_it_is_written(flow: GraphBuilder, send: Any) -> None:
    """At the end of the block the line that is wrong is not to be seen any more."""
    other = GraphBuilder("b.flow", {}).task("first")
    flow.task("first", name="first")
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("'second', which is no node yet", lambda: flow.task("a", after="second")),
        ("a node of another workflow", lambda: flow.task("a", after=other)),
        ("two nodes named 'first'", lambda: flow.task("a", name="first")),
        ("the name 'a b' is not", lambda: flow.task("a", name="a b")),
        ("when is 'never'", lambda: flow.task("a", when="never")),  # type: ignore[arg-type]
        ("3, which is no node", lambda: flow.task("a", after=[3])),  # type: ignore[list-item]
        ("is no node; a handle", lambda: flow.add("email.send")),  # type: ignore[call-overload]
        ("is no node; a handle", lambda: chain(send.node("a"), "b")),  # type: ignore[arg-type]
        ("is no node; a handle", lambda: flow.add(send.call("a"))),
        ("when: for each node", lambda: flow.add(chain(), when="all_done")),  # type: ignore[call-overload]
        ("a node has no run_at", lambda: send.at(0).node("a")),
        ("the node 'a': .*object", lambda: flow.task("a", object())),
    ]
    for problem, add in wrong:
        with pytest.raises(InvalidWorkflow, match=problem):
            add()
    with pytest.raises(TypeError, match="missing"):
        send.node()
    with pytest.raises(duly_package.InvalidPayload, match="payload/to"):
        send.node(to=3)
    assert list(nodes_of(flow)) == ["first"]
    with pytest.raises(InvalidWorkflow, match="no nodes"):
        GraphBuilder("a.flow", {}).body()


def test_graphs_are_bounded_where_they_are_written() -> None:
    """A loop that never ends is stopped by the memory of the machine."""
    flow = GraphBuilder("a.flow", {})
    wide = flow.add(group_of(node_calls(317)))
    flow.add(group_of(node_calls(315)), after=wide)
    assert flow.edges <= EDGES_MAX
    with pytest.raises(InvalidWorkflow, match=f"{EDGES_MAX} edges"):
        flow.add(group_of(node_calls(2)), after=wide)
    many = GraphBuilder("a.flow", {})
    for _ in range(NODES_MAX):
        many.task("a")
    with pytest.raises(InvalidWorkflow, match=f"more than {NODES_MAX} nodes"):
        many.task("a")


def node_calls(count: int) -> list[Any]:
    return [NodeCall("a", None, {}) for _ in range(count)]
