"""Waits and signals over HTTP: what may be asked for, who may send, and what is shown meanwhile."""

from typing import Any

import pytest

from duly.store.workflow_control import run_timer
from duly.store.workflow_signals import PAYLOAD_BYTES_MAX
from duly.store.workflow_timers import find_due_timers
from tests.api.conftest import Front, Reply
from tests.api.test_workflows import get, lease, post, settle, start

REVIEWED: dict[str, Any] = {
    "name": "invoice.month",
    "nodes": {
        "charge": {"type": "invoice.charge"},
        "review": {
            "after": ["charge"],
            "if": {"node": "charge", "path": "/failed", "gt": 0},
            "wait": {"signal": "approved", "role": "operator", "timeout_s": 3600},
        },
        "report": {"type": "invoice.report", "after": ["review"], "when": "none_failed"},
    },
}


async def do_steps(front: Front) -> None:
    """What the role of workflows does."""
    while timers := await find_due_timers(front.database, range(1024)):
        for timer in timers:
            await run_timer(front.database, timer, None)  # type: ignore[arg-type]


async def reviewed(front: Front, failed: int = 1, **wait: Any) -> str:
    """A workflow whose review waits for its signal, unless nothing failed."""
    nodes = REVIEWED["nodes"]
    review = nodes["review"] | {"wait": nodes["review"]["wait"] | wait}
    reply = await start(front, REVIEWED, nodes=nodes | {"review": review})
    assert reply.status == 201, reply.body
    (charge,) = await lease(front)
    await settle(front, charge, result={"failed": failed})
    await do_steps(front)
    return f"/v1/workflows/{reply.json['id']}"


async def send(front: Front, at: str, key: str, **body: Any) -> Reply:
    return await post(front, f"{at}/signals", key, {"name": "approved"} | body)


async def states(front: Front, at: str) -> dict[str, str]:
    graph = (await get(front, f"{at}/graph", front.producer)).json
    return {node["name"]: node["state"] for node in graph["nodes"]}


async def test_an_approval_lets_a_workflow_go_on_with_what_it_said(front: Front) -> None:
    """The whole way of an approval: asked for, shown, given, and read by the next handler."""
    at = await reviewed(front)
    assert await states(front, at) == {
        "charge": "COMPLETED",
        "review": "WAITING",
        "report": "WAITING",
    }
    sent = await send(front, at, front.operator, payload={"note": "fine"})
    assert sent.status == 201, sent.body
    assert (sent.json["number"], sent.json["node"], sent.json["role"]) == (1, "review", "operator")
    assert "payload" not in sent.json
    (report,) = await lease(front)
    told = report["parents"]["review"]
    assert (told["state"], told["result"]["payload"]) == ("COMPLETED", {"note": "fine"})
    assert told["result"]["sender"] == sent.json["sender"]
    listed = (await get(front, f"{at}/signals", front.producer)).json
    assert [each["payload"] for each in listed["items"]] == [{"note": "fine"}]
    assert listed["next_cursor"] is None
    await settle(front, report)
    late = await send(front, at, front.operator)
    assert (late.status, late.code) == (409, "already_terminal")


async def test_a_workflow_says_what_it_waits_for(front: Front) -> None:
    """An approver must see what is asked for, and until when; all others that nothing hangs."""
    at = await reviewed(front)
    (review,) = (await get(front, f"{at}/explain?node=review", front.producer)).json["nodes"]
    assert review["waits_for"]["signal"] == "approved"
    assert review["waits_for"]["role"] == "operator"
    assert review["detail"].startswith("waits for the signal approved from the role admin or ")
    until = review["waits_for"]["until"]
    (report,) = (await get(front, f"{at}/explain?node=report", front.producer)).json["nodes"]
    assert report["blocked_by"] == [{"name": "review", "state": "WAITING", "next_at": until}]
    nodes = (await get(front, f"{at}/nodes", front.producer)).json["items"]
    assert [node.get("kind", "task") for node in nodes] == ["task", "wait", "task"]
    assert (nodes[1].get("type"), nodes[1]["next_at"]) == (None, until)
    counts = (await get(front, f"{at}/status", front.producer)).json["counts"]
    assert (counts["waiting"], counts["completed"]) == (2, 1)
    task = await get(front, f"/v1/tasks/{nodes[1]['id']}", front.producer)
    assert (task.status, task.json["state"]) == (200, "WAITING")
    told = (await get(front, f"/v1/tasks/{nodes[1]['id']}/explain", front.producer)).json
    assert told["summary"] == f"it {review['detail']}"
    assert (told["state"], told["binding"]) == ("WAITING", "waiting_parents")
    assert (await get(front, "/v1/tasks", front.producer)).status == 200


async def test_an_estimate_counts_the_longest_wait_and_knows_when_it_knows_nothing(
    front: Front,
) -> None:
    """An estimate that leaves the approval out is wrong by a day."""
    wait = {"wait": {"delay_s": 600}}
    timer = {"name": "a", "nodes": {"w": wait}}
    at = f"/v1/workflows/{(await start(front, timer)).json['id']}"
    seen = (await get(front, at, front.producer)).json
    assert seen["estimate_at"] > seen["created_at"]
    await do_steps(front)
    (node,) = (await get(front, f"{at}/nodes", front.producer)).json["items"]
    assert (await get(front, at, front.producer)).json["estimate_at"] == node["next_at"]
    endless = {"name": "a", "nodes": {"w": {"wait": {"signal": "go"}}}}
    at = f"/v1/workflows/{(await start(front, endless)).json['id']}"
    assert "estimate_at" not in (await get(front, at, front.producer)).json


async def test_nothing_to_approve_is_skipped(front: Front) -> None:
    """The `if` of a wait: no approval is asked for where nothing failed."""
    at = await reviewed(front, failed=0)
    assert (await states(front, at))["review"] == "SKIPPED"
    assert [task["type"] for task in await lease(front)] == ["invoice.report"]
    (why,) = (await get(front, f"{at}/explain?node=review", front.producer)).json["nodes"]
    assert why["detail"].startswith("was skipped: its `if`")


@pytest.mark.parametrize(
    "result", [None, 7, [], {"failed": "many"}, {"failed": None}, {"failed": []}]
)
async def test_a_hostile_result_decides_one_node_and_fails_nothing(
    front: Front, result: Any
) -> None:
    """What a handler answers is never as expected: no request and no commit may fail by it."""
    reply = await start(front, REVIEWED)
    (charge,) = await lease(front)
    await settle(front, charge, result=result)
    await do_steps(front)
    at = f"/v1/workflows/{reply.json['id']}"
    assert await states(front, at) == {
        "charge": "COMPLETED",
        "review": "SKIPPED",
        "report": "READY",
    }


async def test_only_the_role_that_is_asked_for_approves(front: Front) -> None:
    """A producer that approves its own payment."""
    at = await reviewed(front)
    reply = await send(front, at, front.producer)
    assert (reply.status, reply.code) == (403, "forbidden")
    assert (await send(front, at, front.worker)).status == 403
    assert (await send(front, at, front.other_producer)).status == 404
    assert (await get(front, f"{at}/signals", front.other_producer)).status == 404
    assert (await get(front, f"{at}/signals", front.producer)).json["items"] == []
    assert (await send(front, at, front.operator)).status == 201


async def test_a_signal_that_is_sent_again_is_taken_once(front: Front) -> None:
    """An approval whose answer was lost must not approve what comes next (I8)."""
    at = await reviewed(front)
    first = await send(front, at, front.operator, idempotency_key="k")
    again = await send(front, at, front.operator, idempotency_key="k")
    assert (first.status, again.status, again.json) == (201, 200, first.json)
    assert again.headers["Idempotent-Replay"] == "true"
    # Clients send a key of their own with each call, beside it.
    lost = await front.call(
        "POST",
        f"{at}/signals",
        {"name": "approved", "idempotency_key": "k"},
        key=front.operator,
        headers={"idempotency-key": "call-1"},
    )
    assert (lost.status, lost.json["number"]) == (200, 1)
    other = await send(front, at, front.operator, idempotency_key="k", payload=1)
    assert (other.status, other.code) == (409, "idempotency_mismatch")
    assert len((await get(front, f"{at}/signals", front.producer)).json["items"]) == 1


async def test_signals_are_read_in_pages(front: Front) -> None:
    """Ten thousand in one answer stop the reader."""
    at = await reviewed(front)
    for number in range(3):
        assert (await send(front, at, front.producer, name="note", payload=number)).status == 201
    page = (await get(front, f"{at}/signals?limit=2", front.producer)).json
    assert [each["payload"] for each in page["items"]] == [0, 1]
    query = f"limit=2&cursor={page['next_cursor']}"
    rest = (await get(front, f"{at}/signals?{query}", front.producer)).json
    assert [each["payload"] for each in rest["items"]] == [2]
    assert rest["next_cursor"] is None


X = {"type": "x"}
BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "/nodes/n"),
    ({"type": "x", "wait": {"delay_s": 1}}, "/nodes/n"),
    ({"wait": {}}, "/nodes/n/wait"),
    ({"wait": {"signal": "a", "delay_s": 1}}, "/nodes/n/wait"),
    ({"wait": {"signal": "a b"}}, "/nodes/n/wait/signal"),
    ({"wait": {"signal": "a", "color": 1}}, "/nodes/n/wait/color"),
    ({"wait": {"signal": "a", "role": "worker"}}, "/nodes/n/wait/role"),
    ({"wait": {"signal": "a", "on_timeout": "skip"}}, "/nodes/n/wait/on_timeout"),
    ({"wait": {"signal": "a", "timeout_s": -1}}, "/nodes/n/wait/timeout_s"),
    ({"wait": {"signal": "a", "timeout_s": 1, "on_timeout": "x"}}, "/nodes/n/wait/on_timeout"),
    ({"wait": {"delay_s": 1, "timeout_s": 1}}, "/nodes/n/wait/timeout_s"),
    ({"wait": {"delay_s": 1, "role": "admin"}}, "/nodes/n/wait/role"),
    ({"wait": {"delay_s": 1, "until": "2097-01-01T00:00:00Z"}}, "/nodes/n/wait"),
    ({"wait": {"until": "2999-01-01T00:00:00Z"}}, "/nodes/n/wait/until"),
    ({"wait": {"until": "2097-01-01T00:00:00"}}, "/nodes/n/wait/until"),
    ({"wait": {"delay_s": 1}, "payload": 1}, "/nodes/n/payload"),
    ({"wait": {"delay_s": 1}, "target": {"pool": "a"}}, "/nodes/n/target"),
    ({"wait": {"delay_s": 1}, "concurrency_key": "a"}, "/nodes/n/concurrency_key"),
    (X | {"if": 7}, "/nodes/n/if"),
    (X | {"if": {}}, "/nodes/n/if/node"),
    (X | {"if": {"node": "m", "eq": 1}}, "/nodes/n/if/node"),
    (X | {"after": ["a"], "if": {"node": "m", "eq": 1}}, "/nodes/n/if/node"),
    (X | {"after": ["a"], "if": {"node": "a"}}, "/nodes/n/if"),
    (X | {"after": ["a"], "if": {"node": "a", "path": "x", "eq": 1}}, "/nodes/n/if/path"),
    (X | {"after": ["a"], "if": {"all": []}}, "/nodes/n/if/all"),
    (X | {"after": ["a"], "if": {"node": "a", "eq": "x" * 9000}}, "/nodes/n/if"),
]


@pytest.mark.parametrize(("node", "pointer"), BAD)
async def test_a_node_that_makes_no_sense_is_refused_where_it_is_wrong(
    front: Front, node: dict[str, Any], pointer: str
) -> None:
    """What is taken and never runs as meant is found out in production."""
    reply = await start(front, {"name": "a", "nodes": {"a": X, "n": node}})
    assert (reply.status, reply.code) == (422, "invalid"), reply.body
    assert pointer in [each["pointer"] for each in reply.json["errors"]], reply.json
    assert (await get(front, "/v1/workflows", front.producer)).json["items"] == []


BAD_SIGNALS: list[tuple[Any, int, str]] = [
    ({}, 422, "/name"),
    ({"name": ""}, 422, "/name"),
    ({"name": "a b"}, 422, "/name"),
    ({"name": "x" * 65}, 422, "/name"),
    ({"name": "a", "color": 1}, 422, "/color"),
    ({"name": "a", "payload": "\0"}, 422, "/payload"),
    ({"name": "a", "payload": "x" * (PAYLOAD_BYTES_MAX - 1)}, 422, "/payload"),
    ({"name": "a", "idempotency_key": "a b"}, 422, "/idempotency_key"),
    ([], 422, ""),
]


@pytest.mark.parametrize(("body", "status", "pointer"), BAD_SIGNALS)
async def test_a_signal_that_makes_no_sense_is_refused(
    front: Front, body: Any, status: int, pointer: str
) -> None:
    """A name that no node can have would be kept for ever."""
    at = f"/v1/workflows/{(await start(front)).json['id']}"
    reply = await post(front, f"{at}/signals", front.producer, body)
    assert reply.status == status, reply.body
    assert pointer in [each["pointer"] for each in reply.json["errors"]], reply.json
    largest = {"name": "a", "payload": "x" * (PAYLOAD_BYTES_MAX - 2)}
    assert (await post(front, f"{at}/signals", front.producer, largest)).status == 201


async def test_a_signal_to_what_is_no_workflow_finds_nothing(front: Front) -> None:
    """An id of a task, or none at all, is no reason for a server error."""
    workflow_id = (await start(front)).json["id"]
    node = f"{workflow_id[:-6]}000001"
    for wrong in (node, "x", "00000000-0000-0000-0000-000000000000"):
        assert (await send(front, f"/v1/workflows/{wrong}", front.producer)).status == 404


async def test_a_type_with_a_wait_is_kept_and_run(front: Front) -> None:
    """A definition that forgets what its nodes are would run a wait as a task."""
    definition = {"nodes": REVIEWED["nodes"]}
    at = "/v1/workflow-types/invoice.month"
    assert (await front.call("PUT", at, definition, key=front.operator)).status == 201
    reply = await start(front, {"type": "invoice.month", "payload": {"month": 11}})
    assert reply.status == 201, reply.body
    (charge,) = await lease(front)
    assert charge["payload"] == {"month": 11}
    await settle(front, charge, result={"failed": 1})
    await do_steps(front)
    assert (await send(front, f"/v1/workflows/{reply.json['id']}", front.operator)).status == 201
