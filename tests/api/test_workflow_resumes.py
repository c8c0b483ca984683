"""Resume over HTTP: what runs again, what is reused, and what is refused."""

from typing import Any
from uuid import UUID

from duly.domain.ids import make_workflow_id, milliseconds, node_id_of, placement_time_of, shard_of
from tests.api.conftest import Front, Reply
from tests.api.test_workflows import get, lease, settle, start

NAMES = ("charge", "reserve", "invoice", "ship")


async def failed(front: Front, **more: Any) -> str:
    """The first of four has completed, the second failed, the third completed."""
    run = (await start(front, **more)).json
    (charge,) = await lease(front)
    await settle(front, charge, result={"receipt": 7})
    for task in await lease(front):
        is_reserve = task["type"] == "stock.reserve"
        await settle(front, task, "rejected" if is_reserve else "completed")
    at = f"/v1/workflows/{run['id']}"
    assert (await get(front, at, front.producer)).json["state"] == "FAILED"
    return at


async def resume(front: Front, at: str, body: Any = None, key: str = "", **more: Any) -> Reply:
    asked = {} if body is None else body
    return await front.call("POST", f"{at}/resume", asked, key=key or front.producer, **more)


async def test_a_workflow_is_resumed_from_what_failed(front: Front) -> None:
    """A workflow that failed at its last node begins anew, and charges twice."""
    at = await failed(front, tags={"env": "test"})
    seen = await resume(front, at, {"dry_run": True})
    wanted = {"again": 2, "reused": 2, "nodes": ["reserve", "ship"], "dry_run": True}
    assert (seen.status, seen.json) == (200, wanted)
    assert await lease(front) == []
    made = await resume(front, at)
    assert (made.status, made.json["state"]) == (201, "RUNNING")
    assert made.json["resumed_from"] == at.rpartition("/")[2]
    assert (made.json["tags"], made.json["counts"]["completed"]) == ({"env": "test"}, 2)
    (reserve,) = await lease(front)
    assert reserve["parents"] == {"charge": {"state": "COMPLETED", "result": {"receipt": 7}}}
    assert reserve["execution_key"] == f"{at.rpartition('/')[2]}:reserve"
    await settle(front, reserve)
    (ship,) = await lease(front)
    await settle(front, ship)
    new = f"/v1/workflows/{made.json['id']}"
    done = (await get(front, new, front.producer)).json
    assert (done["state"], done["counts"]["completed"]) == ("COMPLETED", 4)
    assert (await get(front, at, front.producer)).json["state"] == "FAILED"


async def test_a_reused_node_shows_whose_run_stands_for_it(front: Front) -> None:
    """A node without a task, of which nobody can tell what it answered."""
    at = await failed(front)
    made = UUID((await resume(front, at)).json["id"])
    nodes = (await get(front, f"/v1/workflows/{made}/nodes", front.producer)).json["items"]
    old = UUID(at.rpartition("/")[2])
    assert [node.get("source") for node in nodes] == [
        str(node_id_of(old, 1)),
        None,
        str(node_id_of(old, 3)),
        None,
    ]
    at_task = f"/v1/tasks/{node_id_of(made, 1)}"
    task = (await get(front, at_task, front.producer)).json
    assert (task["id"], task["result"]) == (str(node_id_of(old, 1)), {"receipt": 7})
    attempts = (await get(front, f"{at_task}/attempts", front.producer)).json["items"]
    assert [each["outcome"] for each in attempts] == ["completed"]
    graph = (await get(front, f"/v1/workflows/{made}/graph", front.producer)).json
    states = {node["name"]: node["state"] for node in graph["nodes"]}
    assert states == dict(zip(NAMES, ("COMPLETED", "READY", "COMPLETED", "WAITING"), strict=True))


async def test_named_nodes_run_again_with_new_payloads(front: Front) -> None:
    """The input was wrong: the same again would fail again."""
    at = await failed(front)
    asked = {"from": ["charge"], "payloads": {"charge": {"order": 2}}, "rate_per_s": 10}
    made = await resume(front, at, asked)
    assert (made.status, made.json["counts"]["completed"]) == (201, 0)
    (charge,) = await lease(front)
    assert charge["payload"] == {"order": 2}


async def test_the_same_key_is_the_same_resume(front: Front) -> None:
    """A call whose answer was lost is sent again, and is refused or runs everything twice."""
    at = await failed(front)
    headers = {"idempotency-key": "again-1"}
    first = await resume(front, at, headers=headers)
    again = await resume(front, at, headers=headers)
    assert (first.status, again.status) == (201, 201)
    assert again.json["id"] == first.json["id"]
    other = await resume(front, at, {"from": ["charge"]}, headers=headers)
    assert other.code == "idempotency_mismatch"
    refused = await resume(front, at)
    assert (refused.status, refused.code) == (409, "conflict")
    assert first.json["id"] in refused.json["detail"]
    assert (await resume(front, at, {"dry_run": True})).status == 409


async def test_what_cannot_be_resumed_says_why(front: Front) -> None:
    """Refused without a reason, it is tried for ever; of a foreign one nothing is said (I9)."""
    living = (await start(front)).json["id"]
    at = f"/v1/workflows/{living}"
    assert (await resume(front, at)).code == "running"
    assert (await resume(front, at, {"dry_run": True})).code == "running"
    assert (await resume(front, at, key=front.other_producer)).status == 404
    assert (await resume(front, at, key=front.worker)).status == 403
    done = (await start(front, {"name": "n", "nodes": {"a": {"type": "x"}}})).json["id"]
    for task in await lease(front):
        await settle(front, task)
    nothing = await resume(front, f"/v1/workflows/{done}")
    assert (nothing.status, nothing.code) == (409, "conflict")
    assert (await resume(front, f"/v1/workflows/{done}", {"from": ["a"]})).status == 201
    # Of a month that is over, nothing can be told any more.
    random = front.environment.random
    old_ms = milliseconds(placement_time_of(UUID(living))) - 90 * 86_400_000
    old = make_workflow_id(old_ms, shard_of(UUID(living)), random)
    gone = await resume(front, f"/v1/workflows/{old}")
    assert (gone.status, gone.code) == (410, "gone")
    never = make_workflow_id(milliseconds(placement_time_of(UUID(living))), 7, random)
    assert (await resume(front, f"/v1/workflows/{never}")).status == 404


async def test_what_is_wrong_with_a_resume_is_named(front: Front) -> None:
    """What is refused without a pointer is tried again as it was."""
    schema = {"type": "object", "required": ["order"]}
    path = "/v1/task-types/payment.charge"
    assert (await front.call("PUT", path, {"schema": schema}, key=front.admin)).status == 200
    at = await failed(front)
    long = "x" * 65_536
    for body, pointer in (
        ({"from": "all"}, "/from"),
        ({"from": []}, "/from"),
        ({"from": ["nope"]}, "/from/0"),
        ({"from": ["ship", "ship"]}, "/from/1"),
        ({"from": ["ship"]}, "/from/0"),
        ({"payloads": {"charge": {"order": 1}}}, "/payloads/charge"),
        ({"payloads": {"nope": 1}}, "/payloads/nope"),
        ({"payloads": {"ship": long}}, "/payloads/ship"),
        ({"from": ["charge"], "payloads": {"charge": {}}}, "/payloads/charge"),
        ({"rate_per_s": 0}, "/rate_per_s"),
        ({"rate_per_s": 10_001}, "/rate_per_s"),
        ({"x": 1}, "/x"),
    ):
        reply = await resume(front, at, body)
        assert (reply.status, reply.json["errors"][0]["pointer"]) == (422, pointer), body
    names = {f"n{number}": 1 for number in range(1001)}
    assert (await resume(front, at, {"payloads": names})).status == 422
    assert (await resume(front, at, {"from": list(names)})).status == 422
    most = await resume(front, at, {"payloads": {"ship": long[:-2]}, "rate_per_s": 10_000})
    assert most.status == 201
