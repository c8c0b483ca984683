"""Nodes that start a workflow, in the builder: what is written, refused, and run."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from duly import AsyncClient, Context, InvalidWorkflow, TaskRegistry, Worker, WorkflowDefinition
from duly.client.workflow_builder import GraphBuilder
from tests.client.conftest import at_work
from tests.story.duly_up import RunningDuly

WAIT_S = 30.0


@pytest.fixture
def tasks(duly: RunningDuly, pool: str) -> TaskRegistry:
    return TaskRegistry(pool=pool, url=duly.url, api_key=duly.ready["api_key"])


async def test_a_workflow_within_another_hands_its_results_on(
    tasks: TaskRegistry, make_worker: Callable[..., Worker], client: AsyncClient
) -> None:
    """The whole way with a real server: a graph, a type, and what comes after them."""

    @tasks.task("invoice.sum")
    async def add_up(ctx: Context, month: int) -> int:
        return month * 100

    @tasks.task("invoice.report")
    async def report(ctx: Context) -> Any:
        return {name: parent.value["results"] for name, parent in ctx.parents.items()}

    close = WorkflowDefinition()
    close.add(add_up.node(month=11))
    open_close = WorkflowDefinition(defaults={"pool": tasks.pool})
    open_close.task("invoice.sum")
    made = await client.workflow_types.put("invoice.close", open_close)
    worker = make_worker()
    worker.include(tasks)
    async with at_work(worker):
        async with tasks.workflow("invoice.month") as flow:
            graph = flow.workflow(close, name="close")
            typed = flow.workflow(f"invoice.close@{made.version}", {"month": 12})
            last = flow.add(report.node(), after=[graph, typed], if_=graph["state"] == "COMPLETED")
        started = flow.started
        results = await started.result(last, WAIT_S)
        assert results == {
            "close": {"invoice.sum": 1100},
            "invoice.close": {"invoice.sum": 1200},
        }
        told = await started.result(graph)
        assert (told.state, told.counts["completed"], told.has_more) == ("COMPLETED", 1, False)
        nodes = {node.name: node async for node in client.workflows.nodes(started.id)}
        inside = nodes["close"].workflow
        assert inside is not None
        assert inside.id == told.workflow
        around = (await client.workflows.get(inside.id)).parent
        assert around is not None
        assert (around.workflow, around.node) == (started.id, "close")


def test_what_is_written(tasks: TaskRegistry) -> None:
    """Names and members as the API has them, or every start is refused."""
    flow = GraphBuilder("a.flow", {})
    inside = WorkflowDefinition(on_failure="stop")
    inside.task("x")
    first = flow.workflow("invoice.close@3", [1], delay_s=5)
    flow.workflow(inside, name="own", after=first, when="all_done", if_=first["state"] == "FAILED")
    nodes = msgspec.json.decode(flow.body())["nodes"]
    assert nodes == {
        "invoice.close": {"payload": [1], "workflow": "invoice.close@3", "delay_s": 5},
        "own": {
            "payload": None,
            "workflow": {
                "name": "own",
                "on_failure": "stop",
                "nodes": {"x": {"type": "x", "payload": None}},
            },
            "after": ["invoice.close"],
            "when": "all_done",
            "if": {"node": "invoice.close", "path": "/state", "eq": "FAILED"},
        },
    }


def test_a_graph_of_its_own_needs_a_name() -> None:
    inside = WorkflowDefinition()
    inside.task("x")
    with pytest.raises(InvalidWorkflow, match="has a name"):
        GraphBuilder("a.flow", {}).workflow(inside)
