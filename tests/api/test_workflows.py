"""Workflows over HTTP: what may be asked for, what is answered, and what nothing is stored of."""

import asyncio
import time
from typing import Any
from uuid import UUID

import msgspec
import pytest

from duly.domain.ids import node_id_of
from tests.api.conftest import Front, Reply

WORKER = "worker-1"
DIAMOND: dict[str, Any] = {
    "name": "order.fulfil",
    "nodes": {
        "charge": {"type": "payment.charge", "payload": {"order": 1}},
        "reserve": {"type": "stock.reserve", "after": ["charge"]},
        "invoice": {"type": "invoice.write", "after": ["charge"]},
        "ship": {"type": "parcel.ship", "after": ["reserve", "invoice"]},
    },
}


async def get(front: Front, path: str, key: str) -> Reply:
    return await front.call("GET", path, key=key)


async def post(
    front: Front, path: str, key: str, body: Any = None, raw: bytes | None = None
) -> Reply:
    return await front.call("POST", path, body, key=key, raw=raw)


async def start(front: Front, body: dict[str, Any] | None = None, **more: Any) -> Reply:
    return await post(front, "/v1/workflows", front.producer, (body or DIAMOND) | more)


async def lease(front: Front) -> list[dict[str, Any]]:
    await front.make_ready()
    asked = {"worker_id": WORKER, "wait_s": 0, "max": 100}
    reply = await post(front, "/v1/worker/lease", front.worker, asked)
    assert reply.status == 200, reply.body
    found: list[dict[str, Any]] = reply.json["tasks"]
    return found


async def settle(
    front: Front, task: dict[str, Any], outcome: str = "completed", **words: Any
) -> None:
    end = {"id": task["id"], "fence": task["fence"], "outcome": outcome, **words}
    body = {"worker_id": WORKER, "settlements": [end]}
    reply = await post(front, "/v1/worker/settle", front.worker, body)
    assert reply.json["items"][0]["status"] == "settled", reply.body


async def test_a_workflow_runs_from_its_start_to_its_end(front: Front) -> None:
    """The whole way: each node with the results of those before it, and an honest end."""
    reply = await start(front, tags={"env": "test"})
    assert reply.status == 201
    assert (reply.json["state"], reply.json["nodes"], reply.json["edges"]) == ("RUNNING", 4, 4)
    assert reply.json["counts"] | {"ready": 1, "waiting": 3} == reply.json["counts"]
    at = f"/v1/workflows/{reply.json['id']}"
    (charge,) = await lease(front)
    assert (charge["type"], charge.get("parents")) == ("payment.charge", None)
    await settle(front, charge, result={"receipt": 7})
    reserve, invoice = sorted(await lease(front), key=lambda task: task["type"], reverse=True)
    assert reserve["parents"] == {"charge": {"state": "COMPLETED", "result": {"receipt": 7}}}
    await settle(front, reserve)
    assert await lease(front) == []
    status = (await get(front, f"{at}/status", front.producer)).json
    assert (status["counts"]["waiting"], status["counts"]["running"]) == (1, 1)
    await settle(front, invoice, result=[1])
    (ship,) = await lease(front)
    assert set(ship["parents"]) == {"reserve", "invoice"}
    await settle(front, ship)
    done = (await get(front, at, front.producer)).json
    assert (done["state"], done["counts"]["completed"]) == ("COMPLETED", 4)
    assert done["critical_path"][0] == "charge"
    task = (await get(front, f"/v1/tasks/{ship['id']}", front.producer)).json
    assert (task["workflow"], task["node"]) == (done["id"], "ship")


async def test_the_graph_and_its_nodes_are_read(front: Front) -> None:
    """What cannot be seen cannot be mended."""
    workflow_id = (await start(front)).json["id"]
    at = f"/v1/workflows/{workflow_id}"
    graph = (await get(front, f"{at}/graph", front.producer)).json
    assert {node["name"]: node.get("after", []) for node in graph["nodes"]} == {
        "charge": [],
        "reserve": ["charge"],
        "invoice": ["charge"],
        "ship": ["reserve", "invoice"],
    }
    first = (await get(front, f"{at}/nodes?limit=3", front.producer)).json
    assert [node["name"] for node in first["items"]] == ["charge", "reserve", "invoice"]
    rest = (
        await get(front, f"{at}/nodes?limit=3&cursor={first['next_cursor']}", front.producer)
    ).json
    assert [node["name"] for node in rest["items"]] == ["ship"]
    assert rest["next_cursor"] is None
    waiting = (await get(front, f"{at}/nodes?state=WAITING&limit=2", front.producer)).json
    assert [node["name"] for node in waiting["items"]] == ["reserve", "invoice"]
    assert waiting["items"][0]["parents_pending"] == 1
    reply = await get(front, f"{at}/explain?node=ship", front.producer)
    (why,) = reply.json["nodes"]
    assert why["detail"] == "waits for all parents to complete: 2 have not ended"
    assert [each["name"] for each in why["parents"]] == ["reserve", "invoice"]
    assert [each["name"] for each in why["blocked_by"]] == ["charge"]
    parents = (await get(front, f"{at}/nodes/4/parents", front.producer)).json
    assert [each["state"] for each in parents["items"]] == ["WAITING", "WAITING"]


async def test_a_list_is_filtered_and_paged(front: Front) -> None:
    """A filter that is ignored cancels the wrong ones."""
    one = {"name": "a", "nodes": {"x": {"type": "t"}}}
    ids = [(await start(front, one)).json["id"] for _ in range(3)]
    other = (await start(front, one, name="b", tags={"env": "prod"})).json["id"]
    await post(front, f"/v1/workflows/{ids[0]}/cancel", front.producer, None)

    async def listed(query: str) -> list[str]:
        reply = await get(front, f"/v1/workflows?{query}", front.producer)
        return [item["id"] for item in reply.json["items"]]

    assert set(await listed("")) == {*ids, other}
    assert await listed("name=b") == await listed("tag=env:prod") == [other]
    assert await listed("state=CANCELLED") == ids[:1]
    assert set(await listed("state=RUNNING&name=a")) == set(ids[1:])
    page = (await get(front, "/v1/workflows?limit=3", front.producer)).json
    rest = (
        await get(front, f"/v1/workflows?limit=3&cursor={page['next_cursor']}", front.producer)
    ).json
    assert {item["id"] for item in page["items"] + rest["items"]} == {*ids, other}
    assert len(rest["items"]) == 1


async def test_a_key_starts_one_workflow(front: Front) -> None:
    """Sent again after a lost answer, the month's invoices would go out twice (I8)."""
    first = await start(front, idempotency_key="2026-11")
    again = await start(front, idempotency_key="2026-11")
    assert (first.status, again.status, again.json["id"]) == (201, 200, first.json["id"])
    assert again.headers["Idempotent-Replay"] == "true"
    other = await start(front, idempotency_key="2026-11", deadline_s=60)
    assert (other.status, other.code) == (409, "idempotency_mismatch")


async def test_cancel_ends_a_workflow_once(front: Front) -> None:
    """A cancel that is repeated, or comes too late, must say what is true."""
    workflow_id = (await start(front)).json["id"]
    at = f"/v1/workflows/{workflow_id}"
    reply = await post(front, f"{at}/cancel", front.producer, None)
    assert (reply.status, reply.json["state"]) == (200, "CANCELLED")
    assert (await post(front, f"{at}/cancel", front.producer, None)).status == 200
    assert await lease(front) == []
    done = (await start(front, {"name": "a", "nodes": {"x": {"type": "t"}}})).json["id"]
    (task,) = await lease(front)
    await settle(front, task)
    late = await post(front, f"/v1/workflows/{done}/cancel", front.producer, None)
    assert (late.status, late.code) == (409, "already_terminal")


async def test_a_cancel_asks_what_runs_to_stop(front: Front) -> None:
    """What runs cannot be ended from outside; its worker is told at its next heartbeat (I13)."""
    workflow_id = (await start(front)).json["id"]
    (task,) = await lease(front)
    reply = await post(front, f"/v1/workflows/{workflow_id}/cancel", front.producer, None)
    assert (reply.status, reply.json["state"]) == (202, "RUNNING")
    beat = {"worker_id": WORKER, "leases": [{"id": task["id"], "fence": task["fence"]}]}
    answer = await post(front, "/v1/worker/heartbeat", front.worker, beat)
    assert answer.json["items"][0]["status"] == "cancel"
    await settle(front, task, "cancelled")
    done = (await get(front, f"/v1/workflows/{workflow_id}", front.producer)).json
    assert done["state"] == "CANCELLED"


async def test_a_caller_waits_for_the_end(front: Front) -> None:
    """Polling callers would ask a thousand times for one answer."""
    workflow_id = (await start(front, {"name": "a", "nodes": {"x": {"type": "t"}}})).json["id"]
    at = f"/v1/workflows/{workflow_id}/wait?timeout_s=20"
    waiting = asyncio.create_task(get(front, at, front.producer))
    (task,) = await lease(front)
    await settle(front, task)
    assert (await waiting).json["state"] == "COMPLETED"


async def test_a_dead_letter_knows_its_workflow_and_is_not_replayed(front: Front) -> None:
    """A replay would run a node whose children were told of its failure (I4, I7)."""
    body = {"name": "a", "nodes": {"x": {"type": "t", "retry": {"max_attempts": 1}}}}
    workflow_id = (await start(front, body)).json["id"]
    (task,) = await lease(front)
    await settle(front, task, "failed", error="no")
    (letter,) = (await get(front, "/v1/dead-letters", front.operator)).json["items"]
    assert (letter["workflow"], letter["node"]) == (workflow_id, "x")
    reply = await post(front, f"/v1/dead-letters/{letter['id']}/replay", front.operator, None)
    assert (reply.status, reply.code) == (409, "conflict")
    assert workflow_id in reply.json["detail"]
    asked: list[dict[str, Any]] = [{"filter": {}}, {"ids": [letter["id"]]}]
    for which in asked:
        many = await post(front, "/v1/dead-letters/replay", front.operator, which)
        assert (many.json["matched"], many.json["has_more"]) == (0, False)


BAD = [
    ({"nodes": {}}, "/nodes"),
    ({"nodes": {"a": {"type": "t", "after": ["a"]}}}, "/nodes/a/after/0"),
    ({"nodes": {"a": {"type": "t", "after": ["b"]}}}, "/nodes/a/after/0"),
    (
        {"nodes": {"a": {"type": "t", "after": ["b"]}, "b": {"type": "t", "after": ["a"]}}},
        "/nodes/",
    ),
    ({"nodes": {"a": {"type": "T!"}}}, "/nodes/"),
    ({"nodes": {"a": {}}}, "/nodes/"),
    ({"nodes": {"a b": {"type": "t"}}}, "/nodes"),
    ({"nodes": {"a": {"type": "t", "when": "sometimes"}}}, "/nodes/"),
    ({"nodes": {"a": {"type": "t", "run_at": "2026-01-01T00:00:00Z"}}}, "/nodes/"),
    ({"nodes": {"a": {"type": "t", "envelope": True}}}, "/nodes/a/envelope"),
    ({"nodes": {"a": {"type": "t", "payload": "x" * 70_000}}}, "/nodes/a/payload"),
    ({"nodes": {"a": {"type": "t", "concurrency_limit": 2}}}, "/nodes/a/concurrency_limit"),
    (
        {
            "nodes": {
                "a": {"type": "t", "concurrency_key": "x"},
                "b": {"type": "t", "concurrency_key": "y"},
            }
        },
        "/nodes/b/concurrency_key",
    ),
    ({"nodes": {"a": {"type": "t"}}, "deadline_s": 0}, "/deadline_s"),
    ({"nodes": {"a": {"type": "t"}}, "on_failure": "shrug"}, "/on_failure"),
    ({"nodes": {"a": {"type": "t"}}, "callback": {"type": "t", "target": {}}}, "/callback/target"),
    (
        {"nodes": {"a": {"type": "t"}}, "callback": {"type": "t", "target": {"url": "ftp://x"}}},
        "/callback/target/url",
    ),
    ({"nodes": {"a": {"type": "t"}}, "idempotency_key": "a b"}, "/idempotency_key"),
    ({"nodes": {"a": {"type": "t"}}, "tags": {"": "x"}}, "/tags"),
]


@pytest.mark.parametrize(("body", "pointer"), BAD)
async def test_what_is_wrong_is_pointed_at_and_nothing_is_stored(
    front: Front, body: dict[str, Any], pointer: str
) -> None:
    """Half a graph that is stored waits for ever; a 500 says nothing of what to mend."""
    reply = await start(front, {"name": "a"} | body)
    assert reply.status in (400, 422), reply.body
    assert reply.json["errors"][0]["pointer"].startswith(pointer), reply.body
    for table in ("workflows", "workflow_nodes", "timers", "tasks"):
        (row,) = await front.database.fetch(f"SELECT count(*) AS rows FROM duly.{table}")
        assert row["rows"] == 0


async def test_a_name_that_is_there_twice_is_refused(front: Front) -> None:
    """The first of two nodes of one name would silently be gone. In a short body and a long one."""
    for padding in (0, 300_000):
        text = '{"name":"a","nodes":{"x":{"type":"t"},"y":{"type":"t","payload":"%s"},'
        text += '"x":{"type":"u"}}}'
        filler = '"},"z%d":{"type":"t","payload":"'
        pad = "".join("x" * 60_000 + filler % number for number in range(padding // 60_000))
        reply = await post(front, "/v1/workflows", front.producer, raw=(text % pad).encode())
        assert (reply.status, reply.code) == (400, "malformed_body")
        assert "'x'" in reply.json["detail"]


async def test_another_tenants_workflow_is_as_missing_as_none(front: Front) -> None:
    """Whether an id exists must not show (I9)."""
    workflow_id = (await start(front)).json["id"]
    never = node_id_of(UUID(workflow_id), 1)
    for path in ("", "/status", "/nodes", "/graph", "/explain", "/wait", "/nodes/1/parents"):
        for wanted, key in ((workflow_id, front.other_producer), (never, front.producer)):
            reply = await get(front, f"/v1/workflows/{wanted}{path}", key)
            assert (reply.status, reply.code) == (404, "not_found")
    foreign = await post(front, f"/v1/workflows/{workflow_id}/cancel", front.other_producer, None)
    assert foreign.status == 404
    assert (await get(front, "/v1/workflows", front.other_producer)).json["items"] == []


async def test_one_node_past_the_bound_is_refused_quickly(front: Front) -> None:
    """Bodies of a million nodes must cost little, whatever is in them."""
    body = {"name": "a", "nodes": {f"n{number}": {"type": "t"} for number in range(10_001)}}
    raw = msgspec.json.encode(body)
    began = time.monotonic()
    reply = await post(front, "/v1/workflows", front.producer, raw=raw)
    assert (reply.status, time.monotonic() - began < 5.0) == (422, True)
    assert reply.json["errors"][0]["pointer"] == "/nodes"


async def test_a_webhook_node_can_ask_for_its_parents_beside_its_payload(front: Front) -> None:
    """Without the option the body is the payload as it was given, signed as ever."""
    target = {"url": "https://example.org/hook"}
    body = {
        "name": "a",
        "nodes": {
            "x": {"type": "t"},
            "y": {"type": "t", "after": ["x"], "target": target, "envelope": True},
        },
    }
    reply = await start(front, body)
    assert reply.status == 201, reply.body
    (row,) = await front.database.fetch("SELECT policy FROM duly.tasks WHERE url IS NOT NULL")
    assert msgspec.json.decode(row["policy"]) == {"envelope": True}
