"""Nodes that are added over HTTP: with a settlement, from outside, and when they are refused."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from duly.domain.ids import node_id_of
from duly.store.tenants import TenantLimits, update_tenant
from tests.api.conftest import Front, Reply
from tests.api.test_workflows import WORKER, get, lease, post, settle, start

ONE: dict[str, Any] = {"name": "crawl", "nodes": {"root": {"type": "page.read"}}}


def ending(task: dict[str, Any], nodes: dict[str, Any], **words: Any) -> dict[str, Any]:
    end = {"id": task["id"], "fence": task["fence"], "outcome": "completed"}
    return end | {"append": {"nodes": nodes}} | words


async def settle_all(front: Front, *ends: dict[str, Any]) -> Reply:
    body = {"worker_id": WORKER, "settlements": list(ends)}
    return await post(front, "/v1/worker/settle", front.worker, body)


async def settle_one(front: Front, end: dict[str, Any]) -> dict[str, Any]:
    reply = await settle_all(front, end)
    assert reply.status == 200, reply.body
    (item,) = reply.json["items"]
    found: dict[str, Any] = item
    return found


async def states(front: Front, workflow_id: str) -> dict[str, str]:
    reply = await get(front, f"/v1/workflows/{workflow_id}/nodes?limit=200", front.producer)
    return {node["name"]: node["state"] for node in reply.json["items"]}


async def test_a_handler_adds_nodes_with_its_settlement(front: Front) -> None:
    """The whole way: new nodes get the result of the one that added them, and join the graph."""
    workflow_id = (await start(front, ONE)).json["id"]
    (task,) = await lease(front)
    assert task["node"] == "root"
    nodes = {
        "left": {"type": "page.read", "after": ["root"], "payload": {"at": 1}},
        "right": {"type": "page.read", "after": ["root"], "target": {"pool": "default"}},
        "sum": {"type": "page.sum", "after": ["left", "right"]},
    }
    end = ending(task, nodes, result={"links": 2})
    assert (await settle_one(front, end))["status"] == "settled"
    assert (await settle_one(front, end))["status"] == "replay"
    assert await states(front, workflow_id) == {
        "root": "COMPLETED",
        "left": "READY",
        "right": "READY",
        "sum": "WAITING",
    }
    left, right = await lease(front)
    assert left["parents"] == {"root": {"state": "COMPLETED", "result": {"links": 2}}}
    assert {left["node"], right["node"]} == {"left", "right"}
    for each in (left, right):
        await settle(front, each)
    (last,) = await lease(front)
    await settle(front, last)
    done = (await get(front, f"/v1/workflows/{workflow_id}", front.producer)).json
    assert (done["state"], done["nodes"], done["edges"]) == ("COMPLETED", 4, 4)
    graph = (await get(front, f"/v1/workflows/{workflow_id}/graph", front.producer)).json
    assert graph["nodes"][3]["after"] == ["left", "right"]


BAD = [
    ({}, "/nodes"),
    ({f"n{number}": {"type": "t"} for number in range(1001)}, "/nodes"),
    ({"a": {"type": "t", "after": ["b"]}, "b": {"type": "t", "after": ["a"]}}, "/nodes/"),
    ({"a": {"type": "t", "after": ["a"]}}, "/nodes/a/after/0"),
    ({"root": {"type": "t"}}, "/nodes/root"),
    ({"a": {"type": "t", "after": ["root", "nowhere"]}}, "/nodes/a/after/1"),
    ({"a b": {"type": "t"}}, "/nodes"),
    ({"a": {"type": "T!"}}, "/nodes/"),
    ({"a": {"type": "t", "payload": "x" * 70_000}}, "/nodes/a/payload"),
    ({"a": {"type": "t", "concurrency_key": "elsewhere"}}, "/nodes/a/concurrency_key"),
    ({"a": {"type": "t", "if": {"node": "root", "gt": 1}}}, "/nodes/a/if"),
]


async def rows_of(front: Front) -> list[int]:
    counts = []
    for table in ("workflow_nodes", "timers", "tasks", "attempts", "workflow_timers"):
        (row,) = await front.database.fetch(f"SELECT count(*) AS rows FROM duly.{table}")
        counts.append(row["rows"])
    (row,) = await front.database.fetch("SELECT nodes, live, edges FROM duly.workflows")
    return [*counts, *row]


@pytest.mark.parametrize(("nodes", "pointer"), BAD)
async def test_what_is_wrong_is_pointed_at_and_nothing_is_stored(
    front: Front, nodes: dict[str, Any], pointer: str
) -> None:
    """Half of an append waits for ever; a node that ended without it cannot be mended."""
    workflow_id = (await start(front, ONE)).json["id"]
    (task,) = await lease(front)
    before = await rows_of(front)
    reply = await settle_all(front, ending(task, nodes))
    if reply.status == 200:
        (item,) = reply.json["items"]
        assert item["status"] == "refused"
        problem = item["problem"]
    else:
        problem = reply.json
    assert problem["status"] in (400, 422), problem
    at = problem["errors"][0]["pointer"]
    assert at.startswith(f"/settlements/0/append{pointer}"), at
    path = f"/v1/workflows/{workflow_id}/nodes"
    reply = await post(front, path, front.producer, {"nodes": nodes})
    assert reply.status in (400, 422)
    assert reply.json["errors"][0]["pointer"].startswith(pointer), reply.body
    assert await rows_of(front) == before
    item = await settle_one(front, ending(task, {"a": {"type": "t", "after": ["root"]}}))
    assert item["status"] == "settled"


async def test_only_a_completed_node_of_a_workflow_adds_nodes(front: Front) -> None:
    """A failed attempt is tried again, and would add them again; a plain task has no workflow."""
    await start(front, ONE)
    (task,) = await lease(front)
    nodes = {"a": {"type": "t"}}
    reply = await settle_all(front, ending(task, nodes, outcome="failed"))
    assert (reply.status, reply.json["errors"][0]["pointer"]) == (422, "/settlements/0/append")
    await post(front, "/v1/tasks", front.producer, {"type": "plain"})
    (plain,) = await lease(front)
    item = await settle_one(front, ending(plain, nodes))
    assert item["status"] == "refused"
    assert item["problem"]["errors"][0]["pointer"] == "/settlements/0/append"


async def test_one_refused_append_refuses_no_neighbour(front: Front) -> None:
    """A worker settles many tasks in a call: one handler's mistake would keep all of them."""
    first = (await start(front, ONE)).json["id"]
    second = (await start(front, ONE)).json["id"]
    await post(front, "/v1/tasks", front.producer, {"type": "plain"})
    tasks = {task.get("execution_key", ""): task for task in await lease(front)}
    good, bad = tasks[f"{first}:root"], tasks[f"{second}:root"]
    (plain,) = [task for task in tasks.values() if task["type"] == "plain"]
    ends = [
        ending(bad, {"root": {"type": "t"}}),
        {"id": plain["id"], "fence": plain["fence"], "outcome": "completed"},
        ending(good, {"more": {"type": "t"}}),
    ]
    reply = await settle_all(front, *ends)
    assert [item["status"] for item in reply.json["items"]] == ["refused", "settled", "settled"]
    assert reply.json["items"][0]["problem"]["errors"][0]["pointer"] == (
        "/settlements/0/append/nodes/root"
    )
    assert await states(front, first) == {"root": "COMPLETED", "more": "READY"}
    assert await states(front, second) == {"root": "RUNNING"}


async def test_a_stale_worker_adds_nothing(front: Front) -> None:
    """A worker that lost its lease would add nodes beside those of the next attempt (I3)."""
    workflow_id = (await start(front, ONE)).json["id"]
    (task,) = await lease(front)
    nodes = {"a": {"type": "t"}}
    before = await rows_of(front)
    stale = ending(task | {"fence": task["fence"] + 1}, nodes)
    assert (await settle_one(front, stale))["status"] == "stale"
    body = {"worker_id": "another", "settlements": [ending(task, nodes)]}
    reply = await post(front, "/v1/worker/settle", front.worker, body)
    assert reply.json["items"][0]["status"] == "stale"
    assert await rows_of(front) == before
    assert await states(front, workflow_id) == {"root": "RUNNING"}


async def test_nodes_are_added_from_outside_once_for_each_key(front: Front) -> None:
    """A caller whose connection broke sends again; twice the nodes would do twice the work."""
    workflow_id = (await start(front, ONE)).json["id"]
    path = f"/v1/workflows/{workflow_id}/nodes"
    body = {
        "defaults": {"target": {"pool": "slow"}},
        "nodes": {"a": {"type": "t", "after": ["root"]}, "b": {"type": "t"}},
    }
    headers = {"idempotency-key": "one"}
    reply = await front.call("POST", path, body, key=front.producer, headers=headers)
    assert reply.status == 201, reply.body
    assert [node["name"] for node in reply.json["nodes"]] == ["a", "b"]
    again = await front.call("POST", path, body, key=front.producer, headers=headers)
    assert (again.status, again.json) == (201, reply.json)
    other = await front.call(
        "POST", path, {"nodes": {"c": {"type": "t"}}}, key=front.producer, headers=headers
    )
    assert (other.status, other.code) == (409, "idempotency_mismatch")
    found = await states(front, workflow_id)
    assert found == {"root": "READY", "a": "WAITING", "b": "READY"}
    task = (await get(front, f"/v1/tasks/{reply.json['nodes'][1]['id']}", front.producer)).json
    assert (task["node"], task["target"]) == ("b", {"pool": "slow"})


async def test_an_ended_workflow_takes_no_nodes(front: Front) -> None:
    """An end that was told to others would not be one (I4)."""
    workflow_id = (await start(front, ONE)).json["id"]
    path = f"/v1/workflows/{workflow_id}/nodes"
    (task,) = await lease(front)
    await post(front, f"/v1/workflows/{workflow_id}/cancel", front.producer, None)
    stopped = await post(front, path, front.producer, {"nodes": {"a": {"type": "t"}}})
    assert (stopped.status, stopped.code) == (409, "conflict")
    assert (await settle_one(front, ending(task, {"a": {"type": "t"}})))["status"] == "settled"
    assert await states(front, workflow_id) == {"root": "COMPLETED", "a": "CANCELLED"}
    late = await post(front, path, front.producer, {"nodes": {"b": {"type": "t"}}})
    assert (late.status, late.code) == (409, "already_terminal")


async def test_another_tenants_workflow_is_as_one_that_never_was(front: Front) -> None:
    """Whether an id exists elsewhere must not show (I9)."""
    workflow_id = (await start(front, ONE)).json["id"]
    body = {"nodes": {"a": {"type": "t", "after": ["root"]}}}
    replies = [
        await post(front, f"/v1/workflows/{each}/nodes", front.other_producer, body)
        for each in (workflow_id, node_id_of(UUID(workflow_id), 1))
    ]
    assert [reply.status for reply in replies] == [404, 404]
    assert await states(front, workflow_id) == {"root": "READY"}


async def test_the_quota_of_a_tenant_counts_nodes_that_are_added(front: Front) -> None:
    """A tenant past its quota would go on by adding to a workflow that lives."""
    await update_tenant(front.database, front.tenant.id, TenantLimits(stored_max=3))
    workflow_id = (await start(front, ONE)).json["id"]
    (task,) = await lease(front)
    nodes = {f"n{number}": {"type": "t"} for number in range(4)}
    item = await settle_one(front, ending(task, nodes))
    assert (item["status"], item["problem"]["code"]) == ("refused", "quota_exceeded")
    path = f"/v1/workflows/{workflow_id}/nodes"
    reply = await post(front, path, front.producer, {"nodes": nodes})
    assert (reply.status, reply.code) == (429, "quota_exceeded")


async def test_appends_and_the_end_at_once_leave_no_node_behind(front: Front) -> None:
    """The last node ends while another is added: one of the two is first, never half of each."""
    for _ in range(5):
        workflow_id = (await start(front, ONE)).json["id"]
        (task,) = await lease(front)
        path = f"/v1/workflows/{workflow_id}/nodes"
        body = {"nodes": {"late": {"type": "t", "after": ["root"]}}}
        reply, _ = await asyncio.gather(
            post(front, path, front.producer, body), settle(front, task)
        )
        found = await states(front, workflow_id)
        if reply.status == 201:
            assert found == {"root": "COMPLETED", "late": "READY"}
            (late,) = await lease(front)
            await settle(front, late)
        else:
            assert (reply.status, reply.code) == (409, "already_terminal")
        done = (await get(front, f"/v1/workflows/{workflow_id}", front.producer)).json
        assert done["state"] == "COMPLETED"
