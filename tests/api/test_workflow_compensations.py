"""Compensation over HTTP: what may be asked for, what is shown meanwhile, and what is told."""

from typing import Any

import msgspec
import pytest

from tests.api.conftest import Front
from tests.api.test_workflow_signals import do_steps, states
from tests.api.test_workflows import get, lease, post, settle, start

ORDER: dict[str, Any] = {
    "name": "order.fulfil",
    "on_failure": "compensate",
    "nodes": {
        "reserve": {
            "type": "stock.reserve",
            "payload": {"sku": "teapot"},
            "compensate": {"type": "stock.release"},
        },
        "charge": {
            "type": "card.charge",
            "after": ["reserve"],
            "compensate": {
                "type": "card.refund",
                "payload": {"why": "order"},
                "priority": 9,
                "retry": {"max_attempts": 1},
            },
        },
        "ship": {"type": "parcel.ship", "after": ["charge"], "retry": {"max_attempts": 1}},
    },
}


async def failed(front: Front) -> str:
    """An order that was paid and cannot be shipped."""
    reply = await start(front, ORDER)
    assert reply.status == 201, reply.body
    for result in ({"bin": 4}, {"receipt": 7}):
        (task,) = await lease(front)
        await settle(front, task, result=result)
    (ship,) = await lease(front)
    await settle(front, ship, "failed", error="the road is closed")
    await do_steps(front)
    return f"/v1/workflows/{reply.json['id']}"


async def run_next(front: Front, outcome: str = "completed") -> dict[str, Any]:
    (task,) = await lease(front)
    await settle(front, task, outcome)
    await do_steps(front)
    return task


async def test_an_order_that_cannot_be_shipped_is_undone(front: Front) -> None:
    """The whole way: what is undone with what, what is seen of it, and an honest end."""
    at = await failed(front)
    status = (await get(front, f"{at}/status", front.producer)).json
    assert (status["state"], status["compensation"]["state"]) == ("RUNNING", "RUNNING")
    explained = (await get(front, f"{at}/explain", front.producer)).json["nodes"]
    assert [node["detail"] for node in explained] == [
        "undoes charge: GET /v1/tasks/{id}/explain says more",
        "undoes reserve: once what is undone before it has ended",
    ]
    graph = (await get(front, f"{at}/graph", front.producer)).json["nodes"]
    assert [node.get("compensation") for node in graph] == ["WAITING", "READY", None]
    (refund,) = await lease(front)
    assert (refund["type"], refund["payload"]) == ("card.refund", {"why": "order"})
    task = (await get(front, f"/v1/tasks/{refund['id']}", front.producer)).json
    assert (task["node"], task["priority"]) == ("charge:compensate", 9)
    assert refund["parents"] == {"charge": {"state": "COMPLETED", "result": {"receipt": 7}}}
    await settle(front, refund)
    release = await run_next(front)
    assert (release["type"], release["payload"]) == ("stock.release", {"sku": "teapot"})
    done = (await get(front, at, front.producer)).json
    assert (done["state"], done["stop_reason"]) == ("FAILED", "failure")
    told = done["compensation"]
    assert (told["state"], told["completed"], told["failed"]) == ("COMPLETED", 2, 0)
    assert "not_undone" not in told
    nodes = (await get(front, f"{at}/nodes", front.producer)).json["items"]
    assert [(node["name"], node.get("compensates")) for node in nodes] == [
        *(("reserve", None), ("charge", None), ("ship", None)),
        *(("charge:compensate", "charge"), ("reserve:compensate", "reserve")),
    ]
    resumed = await post(front, f"{at}/resume", front.producer, {})
    assert resumed.status == 409, "what it would go on from is undone"


async def test_what_could_not_be_undone_is_named(front: Front) -> None:
    """A refund that failed, and that nothing tells of, is money lost."""
    at = await failed(front)
    await run_next(front, "failed")
    await run_next(front)
    found = (await get(front, at, front.producer)).json
    told = found["compensation"]
    assert (found["state"], told["state"]) == ("FAILED", "FAILED")
    assert (told["completed"], told["failed"], told["not_undone"]) == (1, 1, ["charge"])
    graph = (await get(front, f"{at}/graph", front.producer)).json["nodes"]
    assert [node.get("compensation") for node in graph] == ["COMPLETED", "FAILED", None]
    listed = (await get(front, "/v1/workflows", front.producer)).json["items"]
    assert "not_undone" not in listed[0]["compensation"]


async def test_a_cancel_tells_what_stays_done(front: Front) -> None:
    """Of what it never came to as well."""
    at = await failed(front)
    (refund,) = await lease(front)
    cancelled = await post(front, f"{at}/cancel", front.producer)
    assert cancelled.status == 202
    await settle(front, refund)
    await do_steps(front)
    found = (await get(front, at, front.producer)).json
    assert (found["state"], found["compensation"]["state"]) == ("CANCELLED", "CANCELLED")
    assert found["compensation"]["not_undone"] == ["reserve"]


async def test_what_a_cancel_never_came_to_is_named(front: Front) -> None:
    """Between the failure and the first compensation, nothing of them is stored yet."""
    nodes = ORDER["nodes"]
    over = {"map": {"over": {"count": 2}}, "type": "card.charge", "after": ["reserve"]}
    charge = over | {"compensate": {"type": "card.refund"}}
    reply = await start(front, ORDER | {"nodes": nodes | {"charge": charge}})
    assert reply.status == 201, reply.body
    at = f"/v1/workflows/{reply.json['id']}"
    for _ in range(2):
        for task in await lease(front):
            await settle(front, task)
        await do_steps(front)
    (ship,) = await lease(front)
    await settle(front, ship, "failed")
    cancelled = await post(front, f"{at}/cancel", front.producer)
    assert (cancelled.status, cancelled.json["state"]) == (200, "CANCELLED")
    found = (await get(front, at, front.producer)).json
    assert found["compensation"]["not_undone"] == ["charge", "reserve"]


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"on_failure": "stop"}, {"type": "t", "compensate": {"type": "u"}}, "/nodes/a/compensate"),
    ({}, {"type": "t", "compensate": {}}, "/nodes/a/compensate/type"),
    ({}, {"type": "t", "compensate": {"type": "u", "delay_s": 1}}, "/nodes/a/compensate/delay_s"),
    (
        {},
        {"type": "t", "compensate": {"type": "u", "target": {"url": "ftp://x"}}},
        "/nodes/a/compensate/target/url",
    ),
    (
        {},
        {"type": "t", "compensate": {"type": "u", "envelope": True}},
        "/nodes/a/compensate/envelope",
    ),
    (
        {},
        {"wait": {"signal": "s"}, "compensate": {"type": "u"}},
        "/nodes/a/compensate",
    ),
    (
        {},
        {"type": "t", "map": {"over": {"count": 1}}, "compensate": {"type": "u", "payload": {}}},
        "/nodes/a/compensate/payload",
    ),
]


@pytest.mark.parametrize(("fields", "node", "pointer"), REFUSED)
async def test_what_cannot_be_is_refused_with_its_place(
    front: Front, fields: dict[str, Any], node: dict[str, Any], pointer: str
) -> None:
    """What is only found out when something has to be undone, is found out too late."""
    reply = await start(
        front, {"name": "x", "on_failure": "compensate", "nodes": {"a": node}} | fields
    )
    assert reply.status == 422, reply.body
    assert [problem["pointer"] for problem in reply.json["errors"]] == [pointer]


async def test_a_schema_holds_for_what_undoes(front: Front) -> None:
    """With a payload of its own, which is known before anything runs."""
    schema = {"schema": {"type": "object", "required": ["receipt"]}}
    put = await front.call("PUT", "/v1/task-types/card.refund", schema, key=front.admin)
    assert put.status in (200, 201), put.body
    reply = await start(front, ORDER)
    assert reply.status == 422, reply.body
    assert reply.json["errors"][0]["pointer"].startswith("/nodes/charge/compensate")
    own = ORDER["nodes"]["charge"] | {"compensate": {"type": "card.refund"}}
    assert (await start(front, ORDER | {"nodes": {"charge": own | {"after": []}}})).status == 201


async def test_a_webhook_that_undoes_is_handed_what_it_undoes(front: Front) -> None:
    """Asked for with its envelope, like any webhook of a node."""
    node = ORDER["nodes"]["reserve"] | {
        "compensate": {
            "type": "stock.release",
            "target": {"url": "https://example.org/release"},
            "envelope": True,
        }
    }
    nodes = {"reserve": node, "fail": ORDER["nodes"]["ship"] | {"after": ["reserve"]}}
    assert (await start(front, ORDER | {"nodes": nodes})).status == 201
    for outcome in ("completed", "failed"):
        (task,) = await lease(front)
        await settle(front, task, outcome)
    await do_steps(front)
    (made,) = await front.database.fetch(
        "SELECT url, policy FROM duly.tasks WHERE type = 'stock.release'"
    )
    assert made["url"] == "https://example.org/release"
    assert msgspec.json.decode(made["policy"]) == {"envelope": True}


async def test_nodes_that_are_added_can_be_undone_as_well(front: Front) -> None:
    """And not in a workflow that undoes nothing: that would never be seen."""
    node = {"more": {"type": "t", "compensate": {"type": "u"}}}
    plain = await start(front)
    at = f"/v1/workflows/{plain.json['id']}/nodes"
    refused = await post(front, at, front.producer, {"nodes": node})
    assert (refused.status, refused.json["errors"][0]["pointer"]) == (422, "/nodes/more/compensate")
    undone = await start(front, ORDER)
    at = f"/v1/workflows/{undone.json['id']}/nodes"
    assert (await post(front, at, front.producer, {"nodes": node})).status == 201
    assert (await states(front, at.removesuffix("/nodes")))["more"] == "READY"
