"""Compensation in the builder of workflows: what is written, and what is undone."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from duly import Context, Reject, TaskRegistry, Worker
from duly.client.workflow_builder import GraphBuilder
from tests.client.conftest import at_work
from tests.story.duly_up import RunningDuly

WAIT_S = 30.0


@pytest.fixture
def tasks(duly: RunningDuly, pool: str) -> TaskRegistry:
    return TaskRegistry(pool=pool, url=duly.url, api_key=duly.ready["api_key"])


def test_compensations_are_written(tasks: TaskRegistry) -> None:
    """What undoes a node in the wrong pool is never run."""

    @tasks.task("card.refund", retry={"max_attempts": 9})
    def refund(ctx: Context, cents: int = 0) -> None: ...

    flow = GraphBuilder("a.flow", {})
    flow.task("a", compensate="undo")
    flow.task("b", compensate={"type": "undo", "timeout_s": 5})
    flow.task("c", compensate=refund)
    flow.task("d", compensate=refund.options(priority=8).node(cents=7))
    flow.map("e", over=3, name="e", compensate="undo")
    nodes = msgspec.json.decode(flow.body())["nodes"]
    found = {name: node["compensate"] for name, node in nodes.items()}
    place = {"target": {"pool": tasks.pool}, "retry": {"max_attempts": 9}}
    assert found == {
        "a": {"type": "undo"},
        "b": {"type": "undo", "timeout_s": 5},
        "e": {"type": "undo"},
        "c": {"type": "card.refund", **place},
        "d": {"type": "card.refund", "payload": {"cents": 7}, "priority": 8, **place},
    }


async def test_a_failed_workflow_is_undone_by_its_handlers(
    tasks: TaskRegistry, make_worker: Callable[..., Worker]
) -> None:
    """The whole way: the last that completed first, with what it answered."""
    undone: list[Any] = []

    @tasks.task("book")
    def book(_ctx: Context, name: str) -> str:
        return f"{name}-1"

    @tasks.task("unbook")
    def unbook(ctx: Context, name: str) -> None:
        undone.append((ctx.execution_key.partition(":")[2], ctx.parents[name].value))

    @tasks.task("fail")
    def fail(_ctx: Context) -> None:
        raise Reject("no")

    worker = make_worker()
    worker.include(tasks)
    async with at_work(worker):
        async with tasks.workflow("trip", on_failure="compensate") as flow:
            first = flow.add(book.node(name="flight"), name="flight", compensate=unbook)
            second = flow.add(book.node(name="hotel"), name="hotel", after=first, compensate=unbook)
            flow.add(fail.node(), after=second)
        ended = await asyncio.wait_for(flow.started.wait(), WAIT_S)
    assert undone == [
        ("hotel:compensate", "hotel-1"),
        ("flight:compensate", "flight-1"),
    ]
    assert ended.state == "FAILED"
    assert ended.compensation is not None
    assert (ended.compensation.state, ended.compensation.completed) == ("COMPLETED", 2)
