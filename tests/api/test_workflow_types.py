"""Workflow types over HTTP: versions that never change, and runs that are pinned to one."""

import asyncio
from typing import Any

from tests.api.conftest import Front, Reply
from tests.api.test_workflows import get, lease, post, settle, start

AT = "/v1/workflow-types/invoice.month"
MONTH: dict[str, Any] = {
    "deadline_s": 3600,
    "tags": {"team": "billing"},
    "nodes": {
        "list": {"type": "invoice.list"},
        "charge": {"type": "invoice.charge", "after": ["list"], "payload": {"fixed": True}},
    },
}


async def put(front: Front, body: dict[str, Any] | None = None, key: str = "") -> Reply:
    return await front.call("PUT", AT, body or MONTH, key=key or front.operator)


def with_node(name: str) -> dict[str, Any]:
    return MONTH | {"nodes": MONTH["nodes"] | {name: {"type": "invoice.report"}}}


async def test_the_same_definition_again_is_the_same_version(front: Front) -> None:
    """A deployment that puts its definitions at every start would make versions without end."""
    first = await put(front)
    assert (first.status, first.json["version"], first.json["nodes"]) == (201, 1, 2)
    assert ((again := await put(front)).status, again.json["version"]) == (200, 1)
    assert (await put(front, with_node("report"))).json["version"] == 2
    # Back to the first: the latest is what was put last.
    assert (await put(front)).json["version"] == 3


async def test_two_definitions_at_once_are_two_versions(front: Front) -> None:
    """Two deployments that took one number would start each other's graph under it."""
    replies = await asyncio.gather(*(put(front, with_node(f"n{i}")) for i in range(8)))
    assert sorted(reply.json["version"] for reply in replies) == list(range(1, 9))
    listed = (await get(front, f"{AT}/versions?limit=5", front.producer)).json
    assert [each["version"] for each in listed["items"]] == [8, 7, 6, 5, 4]
    following = f"{AT}/versions?cursor={listed['next_cursor']}"
    assert len((await get(front, following, front.producer)).json["items"]) == 3
    one = (await get(front, f"{AT}@{replies[0].json['version']}", front.producer)).json
    assert set(one["definition"]["nodes"]) == {"list", "charge", "n0"}


async def test_types_are_listed_by_name_with_their_latest_version(front: Front) -> None:
    """A list of all versions would hide the other types behind the busiest one."""
    for name, versions in (("b", 3), ("a", 1), ("c", 2)):
        for number in range(versions):
            path = f"/v1/workflow-types/{name}"
            await front.call("PUT", path, with_node(f"n{number}"), key=front.operator)
    first = (await get(front, "/v1/workflow-types?limit=2", front.producer)).json
    assert [(each["name"], each["version"]) for each in first["items"]] == [("a", 1), ("b", 3)]
    at = f"/v1/workflow-types?cursor={first['next_cursor']}"
    rest = (await get(front, at, front.producer)).json
    assert [(each["name"], each["version"]) for each in rest["items"]] == [("c", 2)]


async def test_a_run_is_pinned_to_its_version(front: Front) -> None:
    """A run that changed with its type would end with nodes that were never in its graph."""
    await put(front)
    run = await post(front, "/v1/workflows", front.producer, {"type": "invoice.month"})
    assert (run.status, run.json["type"], run.json["nodes"]) == (201, "invoice.month@1", 2)
    assert (run.json["name"], run.json["tags"]) == ("invoice.month", {"team": "billing"})
    assert "deadline_at" in run.json
    await put(front, with_node("report"))
    later = await post(front, "/v1/workflows", front.producer, {"type": "invoice.month"})
    assert (later.json["type"], later.json["nodes"]) == ("invoice.month@2", 3)
    old = {"type": "invoice.month@1", "tags": {"team": "other"}}
    older = await post(front, "/v1/workflows", front.producer, old)
    assert (older.json["type"], older.json["nodes"]) == ("invoice.month@1", 2)
    assert older.json["tags"] == {"team": "other"}
    at = f"/v1/workflows/{run.json['id']}"
    assert (await get(front, at, front.producer)).json["nodes"] == 2


async def test_the_payload_of_a_start_is_that_of_nodes_without_one(front: Front) -> None:
    """One definition for all months would need a version for each of them."""
    await put(front)
    asked = {"type": "invoice.month@1", "payload": {"month": "2026-11"}, "idempotency_key": "k"}
    run = await post(front, "/v1/workflows", front.producer, asked)
    again = await post(front, "/v1/workflows", front.producer, asked)
    assert (run.status, again.status, again.json["id"]) == (201, 200, run.json["id"])
    (listing,) = await lease(front)
    assert listing["payload"] == {"month": "2026-11"}
    await settle(front, listing)
    (charge,) = await lease(front)
    assert charge["payload"] == {"fixed": True}
    inline = {"name": "x", "payload": [1], "nodes": {"a": {"type": "a.b"}}}
    assert (await start(front, inline)).status == 201
    (node,) = await lease(front)
    assert node["payload"] == [1]


async def test_a_payload_for_the_start_is_checked_at_the_start(front: Front) -> None:
    """A definition whose payload comes later could not be put, or a run would skip the schema."""
    schema = {"type": "object", "required": ["month"]}
    path = "/v1/task-types/invoice.list"
    described = await front.call("PUT", path, {"schema": schema}, key=front.admin)
    assert described.status == 200
    assert (await put(front)).status == 201
    missing = await post(front, "/v1/workflows", front.producer, {"type": "invoice.month"})
    assert (missing.status, missing.json["errors"][0]["pointer"][:12]) == (422, "/nodes/list/")
    asked = {"type": "invoice.month", "payload": {"month": 1}}
    assert (await post(front, "/v1/workflows", front.producer, asked)).status == 201


async def test_what_is_wrong_with_a_type_or_a_start_of_one_is_named(front: Front) -> None:
    """What is refused without a pointer is tried again as it was."""
    cycle = {"nodes": {"a": {"type": "x", "after": ["b"]}, "b": {"type": "x", "after": ["a"]}}}
    assert (await put(front, cycle)).json["errors"][0]["pointer"] == "/nodes/b/after"
    assert (await put(front, key=front.producer)).status == 403
    await put(front)
    for body, pointer in (
        ({"type": "invoice.month@2"}, "/type"),
        ({"type": "invoice.none"}, "/type"),
        ({"type": "Invoice@x"}, "/type"),
        ({"type": "invoice.month", "name": "x"}, "/type"),
        ({"type": "invoice.month", "on_failure": "stop"}, "/type"),
        ({"name": "x"}, "/nodes"),
        ({"nodes": {"a": {"type": "x"}}}, "/name"),
    ):
        reply = await post(front, "/v1/workflows", front.producer, body)
        assert (reply.status, reply.json["errors"][0]["pointer"]) == (422, pointer), body
    assert (await get(front, f"{AT}@9", front.producer)).status == 404
    assert (await get(front, f"{AT}@x", front.producer)).status == 404
    assert (await get(front, "/v1/workflow-types/none/versions", front.producer)).status == 404


async def test_types_of_another_tenant_are_not_there(front: Front) -> None:
    """A definition holds payloads and headers of a tenant (I9)."""
    await put(front)
    assert (await get(front, AT, front.other_producer)).status == 404
    page = await get(front, "/v1/workflow-types", front.other_producer)
    assert page.json["items"] == []
    run = await post(front, "/v1/workflows", front.other_producer, {"type": "invoice.month"})
    assert run.status == 422


SCHEDULE = {"name": "monthly", "cron": "0 2 1 * *", "overlap": "queue_one"}


async def schedule(front: Front, workflow: Any, **fields: Any) -> Reply:
    return await post(
        front, "/v1/schedules", front.operator, SCHEDULE | {"workflow": workflow} | fields
    )


async def test_a_schedule_of_workflows_is_defined_triggered_and_filled(front: Front) -> None:
    """What a schedule of tasks can do, and one of workflows cannot, needs a task that starts it."""
    await put(front)
    typed = {"type": "invoice.month", "payload": [1]}
    made = await schedule(front, typed)
    assert (made.status, made.json["workflow"], made.json["task"]) == (201, typed, None)
    at = f"/v1/schedules/{made.json['id']}"
    fired = await post(front, f"{at}/trigger", front.operator)
    assert (fired.status, fired.json["type"]) == (202, "invoice.month@1")
    assert fired.json["tags"]["schedule"] == "monthly"
    (listing,) = await lease(front)
    assert (listing["type"], listing["payload"]) == ("invoice.list", [1])
    (entry,) = (await get(front, f"{at}/occurrences", front.producer)).json["items"]
    assert (entry["task_id"], entry["workflow_id"]) == (None, fired.json["id"])
    listed = (await get(front, "/v1/schedules?type=invoice.month", front.producer)).json
    assert listed["items"][0]["workflow"] == {"type": "invoice.month"}


async def test_a_schedule_keeps_its_workflow_when_something_else_changes(front: Front) -> None:
    """A change of the time that forgets the graph, or asks for it again."""
    graph = {"name": "month", "nodes": {"a": {"type": "x"}, "b": {"type": "y", "after": ["a"]}}}
    made = await schedule(front, graph)
    assert made.json["workflow"]["nodes"]["b"] == {"type": "y", "after": ["a"]}
    at = f"/v1/schedules/{made.json['id']}"
    moved = await front.call("PATCH", at, {"cron": "0 3 1 * *"}, key=front.operator)
    assert (moved.status, moved.json["workflow"]) == (200, made.json["workflow"])
    assert (await post(front, f"{at}/trigger", front.operator)).json["nodes"] == 2
    other = await front.call("PATCH", at, {"task": {"type": "z"}}, key=front.operator)
    assert (other.json["task"], other.json["workflow"]) == ({"type": "z"}, None)
    assert (await post(front, f"{at}/trigger", front.operator)).status == 201
    back = await front.call("PATCH", at, {"workflow": graph}, key=front.operator)
    assert (back.json["task"], back.json["workflow"]["name"]) == (None, "month")


async def test_what_is_wrong_with_the_workflow_of_a_schedule_is_named(front: Front) -> None:
    """A definition that cannot start anything would be found out at night."""
    cycle = {"name": "x", "nodes": {"a": {"type": "x", "after": ["a"]}}}
    for workflow, pointer in (
        (cycle, "/workflow/nodes/a/after/0"),
        ({"type": "invoice.none"}, "/workflow/type"),
        ({"name": "x"}, "/workflow/nodes"),
    ):
        reply = await schedule(front, workflow)
        assert (reply.status, reply.json["errors"][0]["pointer"]) == (422, pointer)
    both = await schedule(front, {"name": "x", "nodes": {"a": {"type": "x"}}}, task={"type": "y"})
    assert both.status == 422
    neither = await post(front, "/v1/schedules", front.operator, SCHEDULE)
    assert neither.status == 422
    asked = SCHEDULE | {"workflow": cycle}
    assert (await post(front, "/v1/schedules/preview", front.operator, asked)).status == 422


async def test_a_held_task_says_who_paused_its_workflow(front: Front) -> None:
    """A task that is due and does not start, without a word, is reported as a bug."""
    body = {"name": "a", "nodes": {"x": {"type": "t"}, "y": {"type": "t", "after": ["x"]}}}
    at = f"/v1/workflows/{(await start(front, body)).json['id']}"
    await post(front, f"{at}/pause", front.producer, None)
    nodes = (await get(front, f"{at}/nodes", front.producer)).json["items"]
    words = []
    for node in nodes:
        told = (await get(front, f"/v1/tasks/{node['id']}/explain", front.producer)).json
        words.append(told["summary"])
    assert words[0].startswith("it is held: its workflow was paused by ")
    assert words[1] == "it waits for all parents to complete: 1 have not ended"
    (first, _) = (await get(front, f"{at}/explain", front.producer)).json["nodes"]
    assert words[0] == f"it {first['detail']}"


async def test_a_workflow_is_paused_and_unpaused_over_http(front: Front) -> None:
    """Who runs into a fault of a third party can only cancel, and begin again."""
    run = (await start(front)).json
    at = f"/v1/workflows/{run['id']}"
    paused = await post(front, f"{at}/pause", front.producer)
    assert (paused.status, paused.json["state"]) == (200, "RUNNING")
    assert paused.json["counts"]["waiting"] == 4
    assert "paused_at" in paused.json
    assert await lease(front) == []
    told = (await get(front, f"{at}/explain?node=charge", front.producer)).json
    assert told["nodes"][0]["detail"].startswith("is held: its workflow was paused by ")
    again = await post(front, f"{at}/pause", front.operator)
    assert again.json["paused_by"] == paused.json["paused_by"]
    back = await post(front, f"{at}/unpause", front.producer)
    assert "paused_at" not in back.json
    assert front.hints
    assert len(await lease(front)) == 1
    await post(front, f"{at}/cancel", front.producer)
    assert (await post(front, f"{at}/pause", front.other_producer)).status == 404
    (await lease(front))
    done = (await start(front, {"name": "n", "nodes": {"a": {"type": "x"}}})).json
    (task,) = await lease(front)
    await settle(front, task)
    for verb in ("pause", "unpause"):
        reply = await post(front, f"/v1/workflows/{done['id']}/{verb}", front.producer)
        assert (reply.status, reply.code) == (409, "already_terminal")
