"""Workflows within workflows over HTTP: what may be asked for, and what each says of the other."""

from typing import Any

import pytest

from duly.domain.workflow import NESTED_MAX, NODES_MAX
from duly.environment import Environment
from duly.store.submit import Submitter
from duly.store.subworkflows import Subworkflows
from duly.store.workflow_control import run_timer
from duly.store.workflow_timers import find_due_timers
from tests.api.conftest import Front
from tests.api.test_workflows import get, lease, post, settle, start

CLOSE: dict[str, Any] = {
    "nodes": {"sum": {"type": "invoice.sum"}, "mail": {"type": "mail.send", "after": ["sum"]}}
}
GRAPH: dict[str, Any] = {"name": "invoice.close"} | CLOSE
INVALID = 422


def month(workflow: object, **fields: Any) -> dict[str, Any]:
    close = {"workflow": workflow, "after": ["list"]} | fields
    nodes = {
        "list": {"type": "invoice.list"},
        "close": close,
        "report": {"type": "invoice.report", "after": ["close"]},
    }
    return {"name": "invoice.month", "nodes": nodes}


async def define(front: Front, body: dict[str, Any] = CLOSE, name: str = "invoice.close") -> None:
    reply = await front.call("PUT", f"/v1/workflow-types/{name}", body, key=front.operator)
    assert reply.status in (200, 201), reply.body


async def step(front: Front) -> None:
    """What a scheduler does for workflows."""

    async def no_callback(*_: object) -> Any:
        raise AssertionError("no callback was asked for")

    submitter = Submitter(front.database, Environment())
    await submitter.pools.resolve({(front.tenant.id, "default")})
    begin_inner = Subworkflows(submitter).begin
    while timers := await find_due_timers(front.database, range(1024)):
        for timer in timers:
            await run_timer(front.database, timer, no_callback, begin_inner)


async def begun(front: Front, body: dict[str, Any]) -> tuple[str, str]:
    """Where each is found, once the node has begun."""
    reply = await start(front, body)
    assert reply.status == 201, reply.body
    at = f"/v1/workflows/{reply.json['id']}"
    (task,) = await lease(front)
    await settle(front, task)
    await step(front)
    nodes = (await get(front, f"{at}/nodes", front.producer)).json["items"]
    return at, f"/v1/workflows/{nodes[1]['workflow']['id']}"


async def problems(front: Front, body: dict[str, Any]) -> dict[str, str]:
    reply = await start(front, body)
    assert reply.status == INVALID, reply.body
    return {each["pointer"]: each["detail"] for each in reply.json["errors"]}


async def test_each_of_two_workflows_names_the_other(front: Front) -> None:
    """The whole way: a type in its latest version, its payload, and its result in the next node."""
    await define(front)
    at, inside = await begun(front, month("invoice.close", payload={"month": 11}))
    found = (await get(front, inside, front.producer)).json
    around = at.rpartition("/")[2]
    assert (found["name"], found["type"]) == ("invoice.close", "invoice.close@1")
    assert found["parent"] == {"workflow": around, "node": "close"}
    listed = (await get(front, "/v1/workflows?name=invoice.close", front.producer)).json
    assert listed["items"][0]["parent"] == found["parent"]
    graph = (await get(front, f"{at}/graph", front.producer)).json["nodes"]
    assert (graph[1]["kind"], graph[1]["workflow"]["id"]) == ("workflow", found["id"])
    (told,) = (await get(front, f"{at}/explain?node=close", front.producer)).json["nodes"]
    assert told["workflow"] == {"id": found["id"], "name": "invoice.close", "state": "RUNNING"}
    assert found["id"] in told["detail"]
    (task,) = await lease(front)
    assert (task["type"], task["payload"]) == ("invoice.sum", {"month": 11})
    await settle(front, task)
    (task,) = await lease(front)
    assert task["payload"] == {"month": 11}
    await settle(front, task, result={"sent": 3})
    await step(front)
    (task,) = await lease(front)
    assert task["parents"]["close"]["result"]["results"] == {"mail": {"sent": 3}}
    await settle(front, task)
    assert (await get(front, at, front.producer)).json["state"] == "COMPLETED"
    (node,) = (await get(front, f"{at}/nodes?state=COMPLETED", front.producer)).json["items"][1:2]
    assert node["workflow"]["state"] == "COMPLETED"


async def test_a_graph_of_its_own_is_started_by_its_node(front: Front) -> None:
    """And its nodes have the payload of the whole, where there is none between."""
    at, inside = await begun(front, month(GRAPH) | {"payload": [1]})
    (task,) = await lease(front)
    assert (task["type"], task["payload"]) == ("invoice.sum", [1])
    found = (await get(front, inside, front.producer)).json
    assert "type" not in found
    cancelled = await post(front, f"{at}/cancel", front.producer)
    assert (cancelled.status, cancelled.json["state"]) == (202, "RUNNING")
    await step(front)
    await settle(front, task, outcome="failed", error="stopped")
    await step(front)
    for each in (at, inside):
        assert (await get(front, each, front.producer)).json["state"] == "CANCELLED"


async def test_a_type_starts_types_in_versions_that_it_names(front: Front) -> None:
    """A definition that named no version would change after all."""
    await define(front)
    body = {"nodes": month("invoice.close@1")["nodes"]}
    await define(front, body, "invoice.month")
    open_body = {"nodes": month("invoice.close")["nodes"]}
    at = "/v1/workflow-types/invoice.month"
    refused = await front.call("PUT", at, open_body, key=front.operator)
    assert refused.json["errors"][0]["pointer"] == "/nodes/close/workflow"
    _, inside = await begun(front, {"type": "invoice.month", "payload": {"x": 1}})
    assert (await get(front, inside, front.producer)).json["type"] == "invoice.close@1"
    (task,) = await lease(front)
    assert task["payload"] == {"x": 1}


async def test_the_latest_version_is_pinned_when_the_one_around_starts(front: Front) -> None:
    await define(front)
    reply = await start(front, month("invoice.close"))
    await define(front, {"nodes": {"other": {"type": "x"}}})
    (task,) = await lease(front)
    await settle(front, task)
    await step(front)
    at = f"/v1/workflows/{reply.json['id']}/nodes"
    inside = (await get(front, at, front.producer)).json["items"][1]["workflow"]["id"]
    found = (await get(front, f"/v1/workflows/{inside}", front.producer)).json
    assert found["type"] == "invoice.close@1"


def nested(levels: int) -> dict[str, Any]:
    graph: dict[str, Any] = GRAPH
    for _ in range(levels - 2):
        graph = {"name": "around", "nodes": {"in": {"workflow": graph}}}
    return {"name": "around", "nodes": {"in": {"workflow": graph}}}


KEYED: dict[str, Any] = {
    "name": "keyed",
    "nodes": {"a": {"type": "x", "concurrency_key": "k", "concurrency_limit": 1}},
}


@pytest.mark.parametrize(
    ("body", "pointer", "reason"),
    [
        (month("no.such"), "/nodes/close/workflow", "no workflow type or version is no.such"),
        (month("no.such@7"), "/nodes/close/workflow", "no workflow type or version is no.such@7"),
        (month(GRAPH, retry={"max_attempts": 2}), "/nodes/close/retry", "does not belong"),
        (month(GRAPH, type="x"), "/nodes/close", "give one of"),
        (
            month({"name": "g", "nodes": {"a": {"type": "x", "after": ["b"]}}}),
            "/nodes/close/workflow/nodes/a/after/0",
            "'b'",
        ),
        (nested(NESTED_MAX + 1), "/nodes", f"more than {NESTED_MAX} workflows"),
        (
            {
                "name": "g",
                "nodes": {
                    "a": {"workflow": KEYED},
                    "b": {"type": "x", "concurrency_key": "other", "concurrency_limit": 1},
                },
            },
            "/nodes/b/concurrency_key",
            "differs from that of 'a'",
        ),
        (
            month(
                {
                    "name": "g",
                    "nodes": {
                        "a": {"type": "x", "concurrency_key": "k", "concurrency_limit": 1},
                        "b": {"type": "x", "concurrency_key": "l", "concurrency_limit": 1},
                    },
                }
            ),
            "/nodes/close/workflow/nodes/b/concurrency_key",
            "differs",
        ),
    ],
)
async def test_what_is_wrong_is_pointed_at(
    front: Front, body: dict[str, Any], pointer: str, reason: str
) -> None:
    """A node that cannot start its workflow would fail when all before it is done."""
    found = await problems(front, body)
    assert reason in found[pointer], found


async def test_the_most_levels_and_nodes_that_may_be(front: Front) -> None:
    assert (await start(front, nested(NESTED_MAX))).status == 201
    half = {f"n{number}": {"type": "x"} for number in range(NODES_MAX // 2)}
    body = {"name": "g", "nodes": {"in": {"workflow": {"name": "h", "nodes": half}}}}
    body["nodes"] |= {f"m{n}": {"type": "x"} for n in range(NODES_MAX // 2 - 1)}  # type: ignore[operator]
    assert (await start(front, body)).status == 201
    body["nodes"]["more"] = {"type": "x"}  # type: ignore[index]
    assert "10001 nodes" in (await problems(front, body))["/nodes"]


async def test_a_keyed_workflow_inside_places_the_one_around(front: Front) -> None:
    """Its limit is counted on one shard: on another, two of the same key would run."""
    reply = await start(front, {"name": "g", "nodes": {"in": {"workflow": KEYED}}})
    assert reply.status == 201
    await step(front)
    (task,) = await lease(front)
    assert task["type"] == "x"


async def test_another_tenants_type_is_as_missing_as_none(front: Front) -> None:
    """(I9)"""
    await define(front)
    reply = await post(front, "/v1/workflows", front.other_producer, month("invoice.close@1"))
    assert reply.status == INVALID


async def test_a_limited_key_starts_no_other_types_within(front: Front) -> None:
    """A workflow within would be the way round the limits of a credential."""
    await define(front)
    key = await front.make_key(front.tenant, "producer", types=["invoice.list", "invoice.report"])
    for workflow in ("invoice.close", GRAPH):
        reply = await post(front, "/v1/workflows", key, month(workflow))
        assert reply.status == 403, reply.body


async def test_a_running_task_appends_a_workflow(front: Front) -> None:
    """With the version of now."""
    await define(front)
    reply = await start(front, {"name": "g", "nodes": {"a": {"type": "x"}}})
    (task,) = await lease(front)
    append = {"nodes": {"close": {"workflow": "invoice.close", "after": ["a"]}}}
    await settle(front, task, append=append)
    await step(front)
    at = f"/v1/workflows/{reply.json['id']}/nodes"
    node = (await get(front, at, front.producer)).json["items"][1]
    assert (node["name"], node["state"], node["kind"]) == ("close", "RUNNING", "workflow")
    (task,) = await lease(front)
    assert task["type"] == "invoice.sum"
