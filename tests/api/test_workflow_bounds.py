"""Workflows past their bounds and at them: what is refused is refused soon, with a pointer, and
stores nothing; what is taken holds up no other caller."""

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from duly.api.workflows import BODY_BYTES_MAX
from duly.app import tune_garbage_collector
from duly.domain.workflow import DEPTH_MAX, EDGES_MAX, NODES_MAX
from tests.api.conftest import Front, Reply
from tests.api.test_workflows import WORKER, get, lease, post, settle, start
from tests.loop_watch import loop_watched

# Of the processor, by this process, which is server and client in one; half of it on a machine that
# does nothing else.
ANSWERED_S_MAX = 2.0
TASK = {"type": "t"}
TABLES = ("workflows", "workflow_nodes", "workflow_timers", "timers", "tasks")


def of_nodes(nodes: dict[str, Any], **more: Any) -> bytes:
    return msgspec.json.encode({"name": "a", "nodes": nodes} | more)


def chain(length: int, **first: Any) -> bytes:
    nodes: dict[str, Any] = {"n0": TASK | first}
    nodes |= {f"n{at}": TASK | {"after": [f"n{at - 1}"]} for at in range(1, length)}
    return of_nodes(nodes)


def joined(edges: int) -> bytes:
    """As many edges as asked for, of as few nodes as have them."""
    parents = [f"p{at}" for at in range(1000)]
    nodes: dict[str, Any] = dict.fromkeys(parents, TASK)
    for at in range(0, edges, len(parents)):
        nodes[f"c{at}"] = TASK | {"after": parents[: min(len(parents), edges - at)]}
    return of_nodes(nodes)


def many(
    node: dict[str, Any], count: int = NODES_MAX - 1, last: dict[str, Any] | None = None
) -> bytes:
    nodes: dict[str, Any] = {"first": TASK} | {f"n{at}": node for at in range(count)}
    return of_nodes(nodes | {f"n{count - 1}": node | (last or {})})


LONG_IF = {"all": [{"node": "first", "path": "/a", "eq": "x" * 40}] * 100}
WITH_IF = TASK | {"after": ["first"], "if": LONG_IF}
SIGNAL = {"after": ["first"], "wait": {"signal": "go"}}
PAGED = TASK | {"after": ["first"], "map": {"over": {"node": "first", "path": "/ids"}}}
UNKNOWN = {"after": ["nothing"]}

REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "a cycle through all nodes": (lambda: chain(NODES_MAX, after=["n9999"]), "/nodes/n"),
    "an edge to itself, at the end": (
        lambda: many(TASK, last={"after": ["n9998"]}),
        "/nodes/n9998/after/0",
    ),
    "an unknown parent, at the end": (lambda: many(TASK, last=UNKNOWN), "/nodes/n9998/after/0"),
    "no nodes, in a long body": (
        lambda: of_nodes({}, payload="x" * 60_000) + b" " * 300_000,
        "/nodes",
    ),
    "an edge too many": (lambda: joined(EDGES_MAX + 1), "/nodes"),
    "a chain of 50,000": (lambda: chain(50_000), "/nodes"),
    "a million nodes": (
        lambda: b'{"name":"a","nodes":{%s}}' % b",".join(b'"%d":1' % at for at in range(1_000_000)),
        "/nodes",
    ),
    "what are no nodes": (
        lambda: b'{"name":"a","nodes":[%s1]}' % (b"1," * 4_000_000),
        "/nodes",
    ),
    "a million unknown members": (
        lambda: b'{"nodes":{},%s}' % b",".join(b'"%d":1' % at for at in range(1_000_000)),
        "/0",
    ),
    "an unknown member of a long body": (
        lambda: (
            msgspec.json.encode({"name": "a", "nodes": {"x": TASK}, "node": 1}) + b" " * 300_000
        ),
        "/node",
    ),
    "a parent that is named 60,000 times": (
        lambda: of_nodes({"x": TASK, "y": TASK | {"after": ["x"] * 60_000}}),
        "/nodes/y/after/1",
    ),
    "a name that none can have, at the end": (
        lambda: of_nodes({f"n{at}": TASK for at in range(NODES_MAX - 1)} | {"a b": TASK}),
        "/nodes",
    ),
    "one node of 15 MiB": (
        lambda: of_nodes({"x": TASK | {"payload": "x" * (15 * 2**20)}}),
        "/nodes/x",
    ),
    "payloads that are too long": (
        lambda: many(TASK, 200, {"payload": "x" * 70_000}),
        "/nodes/n199/payload",
    ),
    "a shared payload that is too long": (
        lambda: of_nodes({f"n{at}": TASK for at in range(NODES_MAX)}, payload="x" * 70_000),
        "/payload",
    ),
    "a shared payload of 16 MiB in all": (
        lambda: of_nodes({f"n{at}": TASK for at in range(1000)}, payload="x" * 60_000),
        "/payload",
    ),
    "an if of a stranger, behind long ones": (
        lambda: many(WITH_IF, 1500, {"if": {"node": "n1", "eq": 1}}),
        "/nodes/n1499/if/node",
    ),
    "an if that is too long": (
        lambda: many(TASK, last={"after": ["first"], "if": {"node": "first", "eq": "x" * 200_000}}),
        "/nodes/n9998/if",
    ),
    "an if that is too deep": (
        lambda: many(TASK, last={"after": ["first"], "if": nested_if(60)}),
        "/nodes/n9998/if",
    ),
    "a wait that makes no sense, at the end": (
        lambda: many(SIGNAL, last={"wait": {"signal": "go", "delay_s": 1}}),
        "/nodes/n9998/wait",
    ),
    "a map over a stranger, at the end": (
        lambda: many(PAGED, last={"map": {"over": {"node": "n1", "path": "/ids"}}}),
        "/nodes/n9998/map/over/node",
    ),
    "nodes that run nothing": (
        lambda: of_nodes({str(at): {} for at in range(9999)}),
        "/nodes",
    ),
}


def nested_if(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"node": "first", "eq": 1}
    for _ in range(depth):
        found = {"not": found}
    return found


async def assert_nothing_is_stored(front: Front, tables: tuple[str, ...] = TABLES) -> None:
    for table in tables:
        (row,) = await front.database.fetch(f"SELECT count(*) AS rows FROM duly.{table}")
        assert row["rows"] == 0, table


async def timed(front: Front, path: str, raw: bytes, key: str = "", method: str = "POST") -> Reply:
    """The body is made before the clock runs, and the answer comes soon."""
    async with loop_watched():
        began_s = time.thread_time()
        reply = await front.call(method, path, key=key or front.producer, raw=raw)
        taken_s = time.thread_time() - began_s
    assert taken_s < ANSWERED_S_MAX, f"{taken_s:.2f} s for {len(raw)} bytes"
    return reply


def assert_points(reply: Reply, pointer: str) -> None:
    assert (reply.status, reply.code) == (422, "invalid"), reply.body[:500]
    pointers = [error["pointer"] for error in reply.json["errors"]]
    assert len(pointers) <= 50
    assert any(each.startswith(pointer) for each in pointers), pointers[:5]


@pytest.fixture(autouse=True)
def few_collections() -> Iterator[None]:
    """As in a server's process: the cycle collector must not be taken for the work of a request."""
    before = gc.get_threshold()
    tune_garbage_collector()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.parametrize("case", REFUSED)
async def test_a_graph_that_cannot_be_is_refused_soon_with_a_pointer(
    front: Front, case: str
) -> None:
    """One tenant's mistake of 16 MiB must not be every tenant's second of silence."""
    make, pointer = REFUSED[case]
    reply = await timed(front, "/v1/workflows", make())
    assert_points(reply, pointer)
    await assert_nothing_is_stored(front)


async def test_a_body_past_its_bound_is_refused_unread(front: Front) -> None:
    """What is longer than any workflow is no workflow."""
    reply = await timed(front, "/v1/workflows", b" " * (BODY_BYTES_MAX + 1))
    assert (reply.status, reply.code) == (413, "body_too_large")
    await assert_nothing_is_stored(front)


@pytest.mark.parametrize("size", [1, 300_000])
async def test_members_of_long_and_short_bodies_are_refused_alike(front: Front, size: int) -> None:
    """A long body was read by rules of its own: an unknown member was a server error."""
    for text, code in (
        ('{"name":"a","nodes":{"x":{"type":"t"}},"color":1%s}', "invalid"),
        ('{"name":"a","name":"b","nodes":{"x":{"type":"t"}}%s}', "malformed_body"),
        ('{"name":"a","nodes":{"x":{"type":"t"}},"nodes":{"y":{"type":"t"}}%s}', "malformed_body"),
        ('{"name":7,"nodes":{"x":{"type":"t"}}%s}', "invalid"),
    ):
        raw = (text % (" " * size)).encode()
        reply = await post(front, "/v1/workflows", front.producer, raw=raw)
        assert reply.code == code, reply.body
    await assert_nothing_is_stored(front)


async def test_a_long_body_takes_a_payload_as_a_short_one_does(front: Front) -> None:
    """Above 256 KiB a payload of 20 KiB was refused, which every smaller body may have."""
    nodes: dict[str, Any] = {f"n{at}": TASK | {"payload": "x" * 60_000} for at in range(5)}
    raw = of_nodes(nodes | {"last": TASK}, payload="y" * 60_000)
    reply = await post(front, "/v1/workflows", front.producer, raw=raw)
    assert reply.status == 201, reply.body


TAKEN: dict[str, Callable[[], bytes]] = {
    "the deepest": lambda: chain(DEPTH_MAX),
    "the most edges": lambda: joined(EDGES_MAX),
    "the most nodes": lambda: many(TASK),
    "as many waits": lambda: many(SIGNAL),
    "as many maps": lambda: many(PAGED),
    "as many predicates": lambda: many(
        TASK | {"after": ["first"], "if": {"node": "first", "eq": 1}}
    ),
    "16 MiB of payloads": lambda: many(TASK | {"payload": "x" * 60_000}, 250),
    "16 MiB of predicates": lambda: many(WITH_IF, 2000),
}


@pytest.mark.parametrize("case", TAKEN)
async def test_a_graph_at_its_bounds_is_taken_and_read_without_holding_the_loop(
    front: Front, case: str
) -> None:
    """Everything about 10,000 nodes is work for a tenth of a second and more: in slices, or every
    heartbeat waits."""
    raw = TAKEN[case]()
    async with loop_watched():
        reply = await front.call("POST", "/v1/workflows", key=front.producer, raw=raw)
    assert reply.status == 201, reply.body
    at = f"/v1/workflows/{reply.json['id']}"
    for path in ("", "/status", "/graph", "/explain", "/nodes?limit=200", "/nodes?state=RUNNING"):
        async with loop_watched():
            found = await get(front, at + path, front.producer)
        assert found.status == 200, path


async def living(front: Front) -> tuple[str, dict[str, Any]]:
    """A workflow with a node that runs."""
    nodes = {"first": TASK, "each": TASK | {"after": ["first"], "map": {"over": "pages"}}}
    reply = await start(front, {"name": "a", "nodes": nodes})
    assert reply.status == 201, reply.body
    (task,) = await lease(front)
    return f"/v1/workflows/{reply.json['id']}", task


async def count_rows(front: Front) -> dict[str, int]:
    tables = (*TABLES, "workflow_signals", "workflow_map_pages")
    found = {}
    for table in tables:
        (row,) = await front.database.fetch(f"SELECT count(*) AS rows FROM duly.{table}")
        found[table] = row["rows"]
    return found


APPENDED: dict[str, tuple[Callable[[], Any], str]] = {
    "a node too many": (lambda: {f"n{at}": TASK for at in range(1001)}, "/nodes"),
    "a cycle": (
        lambda: {f"n{at}": TASK | {"after": [f"n{(at + 1) % 1000}"]} for at in range(1000)},
        "/nodes/n",
    ),
    "unknown parents": (lambda: {f"n{at}": TASK | UNKNOWN for at in range(1000)}, "/nodes/n0"),
    "a name that is there": (lambda: {"first": TASK}, "/nodes/first"),
    "an edge to itself": (lambda: {"x": TASK | {"after": ["x"]}}, "/nodes/x/after/0"),
    "an edge too many": (
        lambda: {f"n{at}": TASK | {"after": ["first"] * 101} for at in range(1000)},
        "/nodes",
    ),
    "no nodes": (dict, "/nodes"),
    "a payload of 15 MiB": (lambda: {"x": TASK | {"payload": "x" * (15 * 2**20)}}, "/nodes/x"),
}


@pytest.mark.parametrize("case", APPENDED)
async def test_nodes_that_cannot_be_added_are_refused_soon_with_a_pointer(
    front: Front, case: str
) -> None:
    """The same bounds for what is added, from outside."""
    at, _ = await living(front)
    before = await count_rows(front)
    make, pointer = APPENDED[case]
    raw = msgspec.json.encode({"nodes": make()})
    assert_points(await timed(front, f"{at}/nodes", raw), pointer)
    assert await count_rows(front) == before


async def test_a_settlement_with_hostile_nodes_is_refused_soon_and_keeps_its_lease(
    front: Front,
) -> None:
    """A handler in a loop sends a thousand bad appends; the others' settlements go on."""
    at, task = await living(front)
    before = await count_rows(front)
    end = {"id": task["id"], "fence": task["fence"], "outcome": "completed"}
    nodes = {f"n{number}": TASK | UNKNOWN for number in range(1000)}
    raw = msgspec.json.encode(
        {"worker_id": WORKER, "settlements": [end | {"append": {"nodes": nodes}}]}
    )
    reply = await timed(front, "/v1/worker/settle", raw, front.worker)
    assert reply.json["items"][0]["status"] == "refused", reply.body[:500]
    many_ends = [end | {"append": {"nodes": {"x": TASK | UNKNOWN}}}] * 500
    raw = msgspec.json.encode({"worker_id": WORKER, "settlements": many_ends})
    reply = await timed(front, "/v1/worker/settle", raw, front.worker)
    assert reply.status in (200, 422), reply.body[:500]
    assert await count_rows(front) == before
    await settle(front, task)
    assert (await get(front, at, front.producer)).json["counts"]["completed"] >= 1


async def test_signals_items_and_resumes_of_a_megabyte_are_refused_soon(front: Front) -> None:
    """Small calls have small bounds."""
    at, task = await living(front)
    before = await count_rows(front)
    megabyte = "x" * 2**20
    signal = msgspec.json.encode({"name": "go", "payload": megabyte})
    reply = await timed(front, f"{at}/signals", signal)
    assert (reply.status, reply.code) == (413, "body_too_large")
    page = {"task": task["id"], "fence": task["fence"], "first": 0}
    items = f"{at}/nodes/each/items"
    raw = msgspec.json.encode(page | {"items": [megabyte]})
    assert (await timed(front, items, raw, front.worker)).status == 413
    raw = msgspec.json.encode(page | {"items": [0] * 400_000})
    assert_points(await timed(front, items, raw, front.worker), "/items")
    raw = msgspec.json.encode(page | {"items": ["x" * 65_535] * 15})
    assert_points(await timed(front, items, raw, front.worker), "/items/0")
    for body in (
        {"from": [f"n{number}" for number in range(100_000)]},
        {"payloads": {f"n{number}": 0 for number in range(60_000)}},
        {"from": [], "rate_per_s": 0},
    ):
        reply = await timed(front, f"{at}/resume", msgspec.json.encode(body))
        assert (reply.status, reply.code) == (422, "invalid"), reply.body[:500]
    assert await count_rows(front) == before


async def test_definitions_that_cannot_be_are_refused_soon(front: Front) -> None:
    """Types and schedules take the same graphs, and the same mistakes."""
    made: list[tuple[Callable[[], bytes], str]] = [
        (lambda: chain(NODES_MAX, after=["n9999"]), "/nodes/n"),
        (lambda: many(WITH_IF, 400, {"if": {"node": "n1", "eq": 1}}), "/nodes/n399/if/node"),
    ]
    for make, pointer in made:
        raw = make().replace(b'"name":"a",', b"", 1)
        reply = await timed(front, "/v1/workflow-types/a", raw, front.operator, "PUT")
        assert_points(reply, pointer)
    graph = {"name": "a", "nodes": {f"n{at}": TASK | UNKNOWN for at in range(2000)}}
    body = {"name": "s", "every_s": 60, "workflow": graph}
    raw = msgspec.json.encode(body)
    reply = await timed(front, "/v1/schedules", raw, front.operator)
    assert_points(reply, "/workflow/nodes/n0/after/0")
    await assert_nothing_is_stored(front, (*TABLES, "workflow_types", "schedules"))


async def test_every_change_of_another_tenants_workflow_finds_nothing(front: Front) -> None:
    """Whether an id exists must not show, and nothing of it may move (I9)."""
    at, task = await living(front)
    before = await count_rows(front)
    stranger = front.other_producer
    page = {"task": task["id"], "fence": task["fence"], "first": 0, "items": [1]}
    calls: list[tuple[str, Any]] = [
        ("cancel", None),
        ("pause", None),
        ("unpause", None),
        ("resume", {}),
        ("signals", {"name": "go"}),
        ("nodes", {"nodes": {"x": TASK}}),
        ("nodes/each/items", page),
    ]
    for path, body in calls:
        reply = await post(front, f"{at}/{path}", stranger, body)
        assert (reply.status, reply.code) == (404, "not_found"), path
    for path in ("signals", "nodes?map=each"):
        assert (await get(front, f"{at}/{path}", stranger)).status == 404
    assert await count_rows(front) == before
    seen = (await get(front, at, front.producer)).json
    assert (seen["state"], seen.get("paused_at")) == ("RUNNING", None)
