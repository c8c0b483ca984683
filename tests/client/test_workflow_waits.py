"""Conditions and waits in the builder of workflows: what is written, refused, and run."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from duly import Client, Context, InvalidWorkflow, TaskRegistry, Worker
from duly.client.workflow_builder import GraphBuilder
from duly.domain.predicate import parse_predicate
from tests.client.conftest import at_work
from tests.story.duly_up import RunningDuly

WAIT_S = 30.0


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


def test_conditions_are_written_as_predicates(flow: GraphBuilder) -> None:
    """A condition that Python evaluates while the graph is written says nothing of its run."""
    a, b = flow.task("a"), flow.task("b")
    conditions = {
        "more": (a["failed"] > 0, {"node": "a", "path": "/failed", "gt": 0}),
        "deep": (a["x/y"][0]["~"] <= "m", {"node": "a", "path": "/x~1y/0/~0", "le": "m"}),
        "whole": (a.result == [1], {"node": "a", "path": "", "eq": [1]}),
        "other": (a["n"] != None, {"node": "a", "path": "/n", "ne": None}),  # noqa: E711
        "state": (b.state == "FAILED", {"node": "b", "of": "state", "eq": "FAILED"}),
        "some": (b["kind"].one_of("xy"), {"node": "b", "path": "/kind", "in": ["x", "y"]}),
        "there": (a["n"].exists(), {"node": "a", "path": "/n", "exists": True}),
        "none": (a["n"].exists(is_there=False), {"node": "a", "path": "/n", "exists": False}),
    }
    for name, (condition, _) in conditions.items():
        flow.task("t", name=name, after=[a, b], if_=condition)
    more, less = a["failed"] > 0, a["failed"] < 9
    flow.task("t", name="all", after=a, if_=more & less & ~(a["x"] >= 1))
    flow.task("t", name="raw", after=a, if_={"node": "a", "eq": 1})
    nodes = nodes_of(flow)
    assert {name: nodes[name]["if"] for name in conditions} == {
        name: written for name, (_, written) in conditions.items()
    }
    assert [list(each) for each in nodes["all"]["if"]["all"]] == [
        *(["node", "path", "gt"], ["node", "path", "lt"], ["not"]),
    ]
    assert nodes["raw"]["if"] == {"node": "a", "eq": 1}
    for name, node in nodes.items():
        if "if" in node:
            parse_predicate(msgspec.json.encode(node["if"]).decode(), node["after"])
            assert name in (*conditions, "all", "raw")


def test_what_is_not_known_yet_has_no_truth(flow: GraphBuilder) -> None:
    """`a and b` would keep only the second condition, without a word."""
    a = flow.task("a")
    for use in (
        lambda: (a["x"] > 0) and (a["y"] > 0),
        lambda: not a["x"],
        lambda: (a["x"] > 0) & a["y"],  # type: ignore[operator]
    ):
        with pytest.raises(InvalidWorkflow):
            use()
    with pytest.raises(TypeError):
        list(a)
    with pytest.raises(TypeError):
        "x" in a["y"]  # noqa: B015


def test_waits_are_written(flow: GraphBuilder) -> None:
    """A wait that forgets its timeout waits for ever."""
    a = flow.task("a")
    ok = flow.wait("approved", after=a, timeout_s=60, on_timeout="skip", role="operator")
    flow.wait("approved", after=ok, if_=a["n"] > 1, when="none_failed")
    flow.sleep(5, after=a)
    flow.sleep(until=datetime(2027, 1, 1, tzinfo=UTC), name="new-year")
    assert nodes_of(flow) | {"a": None} == {
        "a": None,
        "approved": {
            "after": ["a"],
            "wait": {
                "signal": "approved",
                "role": "operator",
                "timeout_s": 60,
                "on_timeout": "skip",
            },
        },
        "approved-2": {
            "after": ["approved"],
            "when": "none_failed",
            "if": {"node": "a", "path": "/n", "gt": 1},
            "wait": {"signal": "approved", "role": "producer"},
        },
        "sleep": {"after": ["a"], "wait": {"delay_s": 5}},
        "new-year": {"wait": {"until": "2027-01-01T00:00:00Z"}},
    }
    for wrong in ({}, {"delay_s": 1, "until": datetime.now(UTC)}):
        with pytest.raises(InvalidWorkflow):
            GraphBuilder("b", {}).sleep(**wrong)  # type: ignore[arg-type]


async def test_an_approval_is_asked_for_given_and_read(
    tasks: TaskRegistry, make_worker: Callable[..., Worker], plain: Client
) -> None:
    """The whole way, as a program has it: a refund that a person must allow."""

    @tasks.task("order.charge")
    async def charge(ctx: Context, cents: int) -> dict[str, int]:
        return {"cents": cents}

    @tasks.task("order.refund")
    async def refund(ctx: Context) -> str:
        return str(ctx.parents["approved"].value["payload"]["by"])

    worker = make_worker()
    worker.include(tasks)
    async with at_work(worker):
        async with tasks.workflow("order.refund") as flow:
            charged = flow.add(charge.node(cents=900))
            large = flow.wait("approved", after=charged, if_=charged["cents"] > 500)
            done = flow.add(refund.node(), after=large)
            small = flow.task("order.none", after=charged, if_=charged["cents"] < 500)
        sent = await flow.started.signal("approved", {"by": "jane"}, idempotency_key="once")
        assert await flow.started.result(done, WAIT_S) == "jane"
        ended = await flow.started.wait(WAIT_S)
        assert ended.counts["skipped"] == 1
        assert (await flow.started.task(small)).state == "SKIPPED"
        result = await flow.started.result(large)
        assert (result.payload, result.sender, result.timed_out) == (
            {"by": "jane"},
            sent.sender,
            False,
        )

    def read() -> None:
        (kept,) = plain.workflows.signals(ended.id)
        assert (kept.name, kept.node, kept.payload) == ("approved", "approved", {"by": "jane"})
        again = plain.workflows.signal(ended.id, "approved", {"by": "jane"}, idempotency_key="once")
        assert again.number == kept.number == 1

    await asyncio.to_thread(read)


async def test_a_client_without_an_event_loop_waits_and_signals(plain: Client, pool: str) -> None:
    """The same for programs that block."""

    def go() -> None:
        with plain.workflow("a.waiting", defaults={"pool": pool}) as flow:
            go_on = flow.wait("go", role="operator")
            flow.sleep(3600, after=go_on)
        plain.workflows.signal(flow.started.id, "go", [1])
        result = flow.started.result(go_on, WAIT_S)
        assert (result.payload, result.role) == ([1], "admin")
        (why,) = flow.started.explain("sleep").nodes
        assert why.state == "WAITING"
        assert {each.name: each.kind for each in flow.started.graph().nodes} == {
            "go": "wait",
            "sleep": "wait",
        }
        assert flow.started.cancel().state == "CANCELLED"

    await asyncio.to_thread(go)
