"""Maps over HTTP: what may be asked for, what is shown of items, and who may hand them over."""

from typing import Any

import pytest

from duly.store.workflow_control import run_timer
from duly.store.workflow_timers import find_due_timers
from tests.api.conftest import Front, Reply
from tests.api.test_workflows import get, lease, post, settle, start

CHARGE: dict[str, Any] = {
    "type": "invoice.charge",
    "after": ["list"],
    "retry": {"max_attempts": 1},
    "map": {"over": {"node": "list", "path": "/ids"}},
}
MONTH: dict[str, Any] = {
    "name": "invoice.month",
    "nodes": {
        "list": {"type": "invoice.list"},
        "charge": CHARGE,
        "report": {
            "type": "invoice.report",
            "after": ["charge"],
            "when": "all_done",
            "if": {"node": "charge", "path": "/failed", "gt": 0},
        },
    },
}


def month(**fields: Any) -> dict[str, Any]:
    """With other words for its map; what is None is left out."""
    charge = {**CHARGE, **fields}
    charge = {name: value for name, value in charge.items() if value is not None}
    return {**MONTH, "nodes": {**MONTH["nodes"], "charge": charge}}


def mapped(**fields: Any) -> dict[str, Any]:
    return month(map={**CHARGE["map"], **fields})


async def step(front: Front) -> None:
    """What a scheduler does for workflows."""

    async def no_callback(*_: object) -> Any:
        raise AssertionError("no callback was asked for")

    while timers := await find_due_timers(front.database, range(1024)):
        for timer in timers:
            await run_timer(front.database, timer, no_callback)


async def listed(front: Front, body: dict[str, Any], ids: list[Any]) -> str:
    """A workflow whose list has ended with these ids, and whose map has begun."""
    reply = await start(front, body)
    assert reply.status == 201, reply.body
    (task,) = await lease(front)
    await settle(front, task, result={"ids": ids})
    await step(front)
    return f"/v1/workflows/{reply.json['id']}"


async def test_a_map_runs_a_task_for_each_item_and_tells_how_they_ended(front: Front) -> None:
    """The whole way, with one failure that is tolerated and that a node after the map sees."""
    at = await listed(front, mapped(tolerate={"count": 1}), [{"id": 1}, 2, "three"])
    tasks = await lease(front)
    assert [task["payload"] for task in tasks] == [{"id": 1}, 2, "three"]
    assert [task["execution_key"].split(":")[1:] for task in tasks] == [
        ["charge", "0"],
        ["charge", "1"],
        ["charge", "2"],
    ]
    assert all("parents" not in task or task["parents"] is None for task in tasks)
    (node,) = (await get(front, f"{at}/nodes?state=RUNNING", front.producer)).json["items"]
    assert (node["kind"], node["state"]) == ("map", "RUNNING")
    assert node["map"] == {
        "items": 3,
        "made": 3,
        "open": 3,
        "completed": 0,
        "failed": 0,
        "cancelled": 0,
        "tolerated": 1,
    }
    await settle(front, tasks[1], "failed", error="no money")
    await settle(front, tasks[0])
    await settle(front, tasks[2])
    await step(front)
    (report,) = await lease(front)
    counts = {"items": 3, "completed": 2, "failed": 1, "cancelled": 0}
    assert report["parents"] == {"charge": {"state": "COMPLETED", "result": counts}}
    await settle(front, report)
    done = (await get(front, at, front.producer)).json
    assert (done["state"], done["nodes"], done["counts"]["failed"]) == ("COMPLETED", 6, 1)
    graph = (await get(front, f"{at}/graph", front.producer)).json["nodes"]
    assert [(each["name"], each.get("map", {}).get("failed")) for each in graph] == [
        ("list", None),
        ("charge", 1),
        ("report", None),
    ]
    (letter,) = (await get(front, "/v1/dead-letters", front.operator)).json["items"]
    assert (letter["node"], letter["index"], letter["workflow"]) == (
        "charge",
        1,
        at.rpartition("/")[2],
    )
    task = (await get(front, f"/v1/tasks/{tasks[2]['id']}", front.producer)).json
    assert (task["node"], task["index"]) == ("charge", 2)


async def test_items_are_listed_by_their_map_and_state(front: Front) -> None:
    """Of ten thousand items the one that failed cannot be found."""
    at = await listed(front, mapped(tolerate={"percent": 100}), list(range(5)))
    tasks = await lease(front)
    await settle(front, tasks[3], "failed", error="no")
    await settle(front, tasks[0])
    nodes = (await get(front, f"{at}/nodes", front.producer)).json
    assert [node["name"] for node in nodes["items"]] == ["list", "charge", "report"]
    first = (await get(front, f"{at}/nodes?map=charge&limit=3", front.producer)).json
    assert [(node["name"], node["index"]) for node in first["items"]] == [
        ("charge[0]", 0),
        ("charge[1]", 1),
        ("charge[2]", 2),
    ]
    rest = f"{at}/nodes?map=charge&limit=3&cursor={first['next_cursor']}"
    last = (await get(front, rest, front.producer)).json
    assert [node["index"] for node in last["items"]] == [3, 4]
    assert last["next_cursor"] is None
    failed = (await get(front, f"{at}/nodes?map=charge&state=FAILED", front.producer)).json
    assert [(node["index"], node["state"]) for node in failed["items"]] == [(3, "FAILED")]
    for name in ("list", "nothing"):
        assert (await get(front, f"{at}/nodes?map={name}", front.producer)).status == 404
    foreign = await get(front, f"{at}/nodes?map=charge", front.other_producer)
    assert foreign.status == 404


async def test_a_map_is_explained(front: Front) -> None:
    """A map that waits for its last item looks like one that hangs."""
    at = await listed(front, mapped(max_parallel=2, tolerate={"count": 1}), list(range(5)))
    (why,) = (await get(front, f"{at}/explain?node=charge", front.producer)).json["nodes"]
    assert why["detail"] == "has made 2 of 5 items: 2 are open, 0 failed, and 1 may"
    told = (await get(front, f"/v1/tasks/{why['id']}/explain", front.producer)).json
    assert told["summary"] == f"it {why['detail']}"
    (late,) = (await get(front, f"{at}/explain?node=report", front.producer)).json["nodes"]
    assert [each["name"] for each in late["blocked_by"]] == ["charge"]
    first, second = await lease(front)
    await settle(front, first, "failed", error="no")
    await step(front)
    (third,) = await lease(front)
    await settle(front, second, "failed", error="no")
    await step(front)
    (why,) = (await get(front, f"{at}/explain?node=charge", front.producer)).json["nodes"]
    assert why["detail"] == (
        "fails when its 1 open items have ended: 2 of 5 items failed, and 1 are tolerated"
    )
    await settle(front, third, "cancelled")
    await step(front)
    (node,) = (await get(front, f"{at}/nodes?state=FAILED", front.producer)).json["items"]
    assert (node["name"], node["reason"]) == ("charge", "items_failed")


REFUSED: list[tuple[dict[str, Any], str]] = [
    (mapped(max_items=0), "/nodes/charge/map/max_items"),
    (mapped(max_items=1_000_001), "/nodes/charge/map/max_items"),
    (mapped(max_parallel=0), "/nodes/charge/map/max_parallel"),
    (mapped(max_parallel=10_001), "/nodes/charge/map/max_parallel"),
    (mapped(tolerate={"percent": 101}), "/nodes/charge/map/tolerate/percent"),
    (mapped(tolerate={"percent": -1}), "/nodes/charge/map/tolerate/percent"),
    (mapped(tolerate={"count": -1}), "/nodes/charge/map/tolerate/count"),
    (mapped(tolerate={"count": 1, "percent": 1}), "/nodes/charge/map/tolerate"),
    (mapped(over={"node": "unknown"}), "/nodes/charge/map/over/node"),
    (mapped(over={"node": "report"}), "/nodes/charge/map/over/node"),
    (mapped(over={"node": "list", "path": "ids"}), "/nodes/charge/map/over/path"),
    (mapped(over={"node": "list", "path": "/" + "a" * 512}), "/nodes/charge/map/over/path"),
    (mapped(over={"node": "list", "count": 1}), "/nodes/charge/map/over"),
    (mapped(over={}), "/nodes/charge/map/over"),
    (mapped(over={"count": 1, "path": "/a"}), "/nodes/charge/map/over/path"),
    (mapped(over={"count": -1}), "/nodes/charge/map/over/count"),
    (mapped(over={"count": 1_000_001}), "/nodes/charge/map/over/count"),
    (mapped(over={"count": 11}, max_items=10), "/nodes/charge/map/over/count"),
    (mapped(over="lists"), "/nodes/charge/map/over"),
    (mapped(over=[1, 2]), "/nodes/charge/map/over"),
    (mapped(unknown=1), "/nodes/charge/map/unknown"),
    (month(map={"max_items": 1}), "/nodes/charge/map/over"),
    (month(payload=[1]), "/nodes/charge/payload"),
    (month(payload={"item": 1}), "/nodes/charge/payload/item"),
    (month(map={"over": "pages"}, after=[]), "/nodes/charge/map/over"),
    (month(map={"over": "pages"}, when="all_done"), "/nodes/charge/when"),
    (month(map={"over": "pages"}, delay_s=1), "/nodes/charge/delay_s"),
    (month(map={"over": "pages"}, **{"if": {"node": "list", "eq": 1}}), "/nodes/charge/if"),
    (month(type=None, retry=None, wait={"delay_s": 1}), "/nodes/charge/map"),
    (month(type=None, retry=None), "/nodes/charge"),
]


@pytest.mark.parametrize(("body", "pointer"), REFUSED)
async def test_a_map_that_cannot_be_is_refused_with_a_pointer(
    front: Front, body: dict[str, Any], pointer: str
) -> None:
    """Found out by the first run, it costs a month's end."""
    reply = await start(front, body)
    assert reply.status == 422, reply.body
    assert pointer in [error["pointer"] for error in reply.json["errors"]], reply.body
    assert await front.database.fetch("SELECT id FROM duly.workflows") == []


ALLOWED = [
    mapped(max_items=1, max_parallel=1, tolerate={"percent": 0}),
    mapped(max_items=1_000_000, max_parallel=10_000, tolerate={"percent": 100}),
    mapped(over={"node": "list"}, tolerate={"count": 1_000_000}),
    mapped(over={"node": "list", "path": "/" + "a" * 511}),
    mapped(over={"count": 1_000_000}),
    mapped(over={"count": 0}),
    month(map={"over": "pages"}),
    month(payload={"currency": "EUR"}),
]


@pytest.mark.parametrize("body", ALLOWED)
async def test_a_map_at_its_bounds_is_taken(front: Front, body: dict[str, Any]) -> None:
    """A bound that is one too low refuses what was promised."""
    reply = await start(front, body)
    assert reply.status == 201, reply.body


async def test_a_type_with_a_schema_takes_a_map(front: Front) -> None:
    """The payload of a map is not that of its items: its schema would refuse every map."""
    schema = {"type": "object", "required": ["id"]}
    path = "/v1/task-types/invoice.charge"
    put = await front.call("PUT", path, {"schema": schema}, key=front.operator)
    assert put.status in (200, 201), put.body
    assert (await start(front, MONTH)).status == 201


async def test_a_workflow_payload_is_not_that_of_a_map(front: Front) -> None:
    """Merged into every item, it would replace what a list says."""
    definition = {"nodes": MONTH["nodes"]}
    path = "/v1/workflow-types/invoice.month"
    put = await front.call("PUT", path, definition, key=front.operator)
    assert put.status == 201, put.body
    reply = await post(
        front, "/v1/workflows", front.producer, {"type": "invoice.month", "payload": {"a": 1}}
    )
    assert reply.status == 201
    (task,) = await lease(front)
    await settle(front, task, result={"ids": [5]})
    await step(front)
    (item,) = await lease(front)
    assert item["payload"] == 5


PAGED = month(map={"over": "pages", "max_items": 4})


async def hand(
    front: Front, at: str, task: dict[str, Any], first: int, items: list[Any], **more: Any
) -> Reply:
    key = more.pop("key", front.worker)
    name = more.pop("name", "charge")
    body = {"task": task["id"], "fence": task["fence"], "first": first, "items": items, **more}
    return await post(front, f"{at}/nodes/{name}/items", key, body)


async def paged(front: Front) -> tuple[str, dict[str, Any]]:
    reply = await start(front, PAGED)
    assert reply.status == 201, reply.body
    (task,) = await lease(front)
    return f"/v1/workflows/{reply.json['id']}", task


async def test_a_running_node_hands_over_items(front: Front) -> None:
    """Items wait for a list that takes an hour; or are made again by its second attempt."""
    at, task = await paged(front)
    assert task["node"] == "list"
    assert (await hand(front, at, task, 0, [1, {"id": 2}])).json == {"handed": 2}
    assert (await hand(front, at, task, 1, ["again", 3])).json == {"handed": 3}
    await step(front)
    items = await lease(front)
    assert [item["payload"] for item in items] == [1, {"id": 2}, 3]
    for item in items:
        await settle(front, item)
    await settle(front, task)
    await step(front)
    graph = (await get(front, f"{at}/graph", front.producer)).json
    assert graph["state"] == "COMPLETED"
    assert graph["nodes"][1]["map"]["completed"] == 3


async def test_items_are_refused_with_what_is_wrong(front: Front) -> None:
    """A page that is lost without a word leaves customers out."""
    at, task = await paged(front)
    reply = await hand(front, at, task, 1, [1])
    assert (reply.status, reply.json["errors"][0]["pointer"]) == (422, "/first")
    reply = await hand(front, at, task | {"fence": task["fence"] + 1}, 0, [1])
    assert (reply.status, reply.json["code"]) == (409, "stale")
    assert (await hand(front, at, task, 0, [1], name="report")).status == 404
    assert (await hand(front, at, task, 0, [1], key=front.other_producer)).status == 404
    for items in ([], [0] * 1001):
        reply = await hand(front, at, task, 0, items)
        assert (reply.status, reply.json["errors"][0]["pointer"]) == (422, "/items")
    reply = await hand(front, at, task, 0, [1, "x" * 65_536])
    assert (reply.status, reply.json["errors"][0]["pointer"]) == (422, "/items/1")
    other, _ = await paged(front)
    reply = await hand(front, other, task, 0, [1])
    assert (reply.status, reply.json["errors"][0]["pointer"]) == (422, "/task")
    reply = await hand(front, at, task, 0, [1, 2, 3, 4, 5])
    assert (reply.status, reply.json["code"]) == (409, "already_terminal")
    assert "more items than 4" in reply.json["detail"]
    await settle(front, task)
    await step(front)
    (node,) = (await get(front, f"{at}/nodes?state=FAILED", front.producer)).json["items"]
    assert (node["name"], node["reason"]) == ("charge", "invalid_items")
    assert (await hand(front, at, task, 0, [1])).status == 409
