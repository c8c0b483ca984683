"""`duly workflows` against a real front door, and graphs as text and SVG."""

import asyncio
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from duly.cli.tables import Screen
from duly.cli.workflow_graph import drawn, svg_of
from tests.api.conftest import Front
from tests.api.test_workflow_compensations import failed, run_next
from tests.api.test_workflow_signals import do_steps
from tests.api.test_workflows import lease, settle
from tests.cli.conftest import CommandLine

GRAPH = {
    "name": "order.fulfil",
    "nodes": {
        "charge": {"type": "payment.charge"},
        "ship": {"type": "parcel.ship", "after": ["charge"]},
        "refund": {"type": "payment.refund", "after": ["charge"], "when": "any_failed"},
    },
}


async def test_a_workflow_is_started_shown_drawn_and_cancelled(
    duly: CommandLine, tmp_path: Path
) -> None:
    """What can only be seen over HTTP is not looked at in an incident."""
    file = tmp_path / "order.json"
    file.write_text(json.dumps(GRAPH))
    made = await duly.json("workflows", "submit", str(file), "--idempotency-key", "k")
    again = await duly.json("workflows", "submit", str(file), "--idempotency-key", "k")
    assert again["id"] == made["id"]
    listed = await duly.json("workflows", "list", "--state", "RUNNING")
    assert [item["id"] for item in listed["items"]] == [made["id"]]
    assert "payment.charge" in await duly("workflows", "show", made["id"])
    text = await duly("workflows", "graph", made["id"])
    assert "  ○ ship  < charge  WAITING" in text.splitlines()
    picture = tmp_path / "graph.svg"
    assert await duly("workflows", "graph", made["id"], "--svg", picture) == ""
    assert ElementTree.fromstring(picture.read_text()).tag.endswith("svg")
    assert await duly("workflows", "graph", made["id"], "--svg", "-") == picture.read_text()
    await duly("workflows", "graph", made["id"], "--svg", tmp_path, code=2)
    await duly("workflows", "graph", made["id"], "--svg", picture, "--json", code=2)
    assert "blocked by charge (READY)" in await duly("workflows", "explain", made["id"])
    assert "CANCELLED" in await duly("workflows", "cancel", made["id"])
    file.write_text("{")
    await duly("workflows", "submit", str(file), code=2)


async def test_a_workflow_is_waited_for_until_it_has_ended(
    duly: CommandLine, front: Front, tmp_path: Path
) -> None:
    """A script that goes on while the graph still runs, or after it failed."""
    file = tmp_path / "order.json"
    file.write_text(json.dumps(GRAPH))
    problem = await duly.problem("workflows", "submit", file, "--wait", "--timeout", "0.1s")
    assert problem["code"] == "workflow_timed_out"
    workflow_id = problem["detail"].split()[1]
    assert problem["detail"] == f"workflow {workflow_id} has not ended within 0.1 s; it is RUNNING"
    waiting = asyncio.create_task(duly("workflows", "wait", workflow_id, code=1))
    await front.call("POST", f"/v1/workflows/{workflow_id}/cancel")
    assert "CANCELLED" in await waiting
    file.write_text(json.dumps({"name": "one", "nodes": {"only": {"type": "x"}}}))
    waiting = asyncio.create_task(duly("workflows", "submit", file, "--wait"))
    await complete_next(front)
    screen = await waiting
    assert "state       COMPLETED" in screen
    assert "counts      1 completed" in screen
    assert "is started" in duly.said_on_errors
    await duly("workflows", "submit", file, "--timeout", "1m", code=2)


async def test_an_approval_is_given_at_a_terminal(
    duly: CommandLine, front: Front, tmp_path: Path
) -> None:
    """An approver in a hurry, who must see at once whether it was heard."""
    file = tmp_path / "refund.json"
    wait = {"signal": "approved", "timeout_s": 3600}
    file.write_text(json.dumps({"name": "refund", "nodes": {"ok": {"wait": wait}}}))
    made = await duly.json("workflows", "submit", str(file))
    sent = await duly("workflows", "signal", made["id"], "other", "--idempotency-key", "k")
    assert sent == "signal 1  other  kept: no node waits for it yet\n"
    await do_steps(front)
    assert "waits for the signal approved" in await duly("workflows", "explain", made["id"])
    assert "○ ok (wait)" in await duly("workflows", "graph", made["id"])
    await duly("workflows", "signal", made["id"], "approved", "{", code=2)
    sent = await duly("workflows", "signal", made["id"], "approved", '{"by": "jane"}')
    assert sent == "signal 2  approved  got by ok\n"
    table = await duly("workflows", "signals", made["id"])
    assert "jane" in table
    problem = await duly.problem("workflows", "signal", made["id"], "approved")
    assert problem["code"] == "already_terminal"


async def complete_next(front: Front) -> None:
    """As a worker that takes the next task and completes it."""
    async with asyncio.timeout(20.0):
        leased: list[Any] = []
        while not leased:
            leased = await lease(front)
    await settle(front, leased[0])


async def test_what_is_undone_is_shown_drawn_and_explained(
    duly: CommandLine, front: Front, tmp_path: Path
) -> None:
    """In an incident, the first question is what stays done."""
    at = await failed(front)
    workflow_id = at.rpartition("/")[2]
    lines = (await duly("workflows", "graph", workflow_id)).splitlines()
    assert [line.rpartition("  ")[2] for line in lines] == [
        "↩ being undone, WAITING",
        "↩ being undone, READY",
        "FAILED",
    ]
    picture = await duly("workflows", "graph", workflow_id, "--svg", "-")
    assert "COMPLETED ↩ being undone, READY" in picture
    explained = await duly("workflows", "explain", workflow_id)
    assert "reserve:compensate  WAITING: undoes reserve: once what is undone before it" in explained
    await run_next(front, "failed")
    await run_next(front)
    shown = await duly("workflows", "show", workflow_id)
    assert "FAILED: 1 undone, 1 not (charge)" in shown
    lines = (await duly("workflows", "graph", workflow_id)).splitlines()
    assert [line.rpartition("  ")[2] for line in lines] == ["↩ undone", "↩ not undone", "FAILED"]


async def test_a_workflow_is_paused_and_resumed(
    duly: CommandLine, front: Front, tmp_path: Path
) -> None:
    """What failed at night is started anew in the morning, from its first node on."""
    file = tmp_path / "order.json"
    file.write_text(json.dumps(GRAPH))
    made = await duly.json("workflows", "submit", str(file))
    assert "paused" in await duly("workflows", "pause", made["id"])
    assert await lease(front) == []
    assert "RUNNING" in await duly("workflows", "unpause", made["id"])
    await complete_next(front)
    for task in await lease(front):
        await settle(front, task, "rejected")
    preview = await duly("workflows", "resume", made["id"], "--dry-run")
    assert preview.splitlines() == ["1 nodes would run again, 2 be reused", "  ship"]
    new = await duly.json(
        *("workflows", "resume", made["id"], "--payload", 'ship={"by": "road"}', "--rate", "10")
    )
    assert new["resumed_from"] == made["id"]
    (ship,) = await lease(front)
    assert ship["payload"] == {"by": "road"}
    await settle(front, ship)
    waiting = asyncio.create_task(
        duly("workflows", "resume", new["id"], "--from", "ship", "--wait", "--idempotency-key", "k")
    )
    await complete_next(front)
    assert "COMPLETED" in await waiting
    await duly("workflows", "resume", made["id"], "--payload", "ship", code=2)
    await duly("workflows", "resume", made["id"], "--timeout", "1m", code=2)


async def test_a_workflow_type_is_defined_listed_started_and_scheduled(
    duly: CommandLine, front: Front, tmp_path: Path
) -> None:
    """A definition that can only be put over HTTP is kept in no repository."""
    file = tmp_path / "order.json"
    file.write_text(json.dumps({"nodes": GRAPH["nodes"]}))
    assert await duly("workflow-types", "put", "order.fulfil", file) == "order.fulfil@1\n"
    assert await duly("workflow-types", "put", "order.fulfil", file) == "order.fulfil@1\n"
    file.write_text(json.dumps({"nodes": {"charge": {"type": "payment.charge"}}}))
    assert await duly("workflow-types", "put", "order.fulfil", file) == "order.fulfil@2\n"
    listed = await duly.json("workflow-types", "list")
    assert [(each["name"], each["version"]) for each in listed["items"]] == [("order.fulfil", 2)]
    versions = await duly.json("workflow-types", "list", "--versions", "order.fulfil")
    assert [each["version"] for each in versions["items"]] == [2, 1]
    assert "ship" in await duly("workflow-types", "show", "order.fulfil@1")
    made = await duly.json(
        *("schedules", "create", "nightly", "--every", "1h", "--workflow", "order.fulfil@1")
    )
    assert (made["workflow"], made["task"]) == ({"type": "order.fulfil@1"}, None)
    assert "charge" not in await duly("schedules", "preview", "nightly")
    await duly("schedules", "trigger", "nightly")
    (charge,) = await lease(front)
    assert charge["type"] == "payment.charge"
    changed = await duly.json("schedules", "edit", "nightly", "--workflow", "order.fulfil")
    assert changed["workflow"] == {"type": "order.fulfil"}
    await duly("schedules", "create", "x", "--every", "1h", code=2)
    both = ("schedules", "create", "x", "a.b", "--every", "1h", "--workflow", "order.fulfil")
    await duly(*both, code=2)
    await duly(*both[:3], *both[4:], "--priority", "3", code=2)
    file.write_text("{")
    await duly("workflow-types", "put", "order.fulfil", file, code=2)


def test_a_drawn_graph_shows_each_node_after_its_parents() -> None:
    """A node that is drawn beside its parent reads as its sibling. And no name breaks the SVG."""
    nodes: list[dict[str, Any]] = [
        {"name": "last", "state": "WAITING", "after": ["a<b", "c"], "when": "all_done"},
        {"name": "a<b", "state": "FAILED"},
        {"name": "c", "state": "COMPLETED", "after": ["a<b"], "kind": "wait"},
    ]
    assert drawn(nodes) == [
        "✗ a<b  FAILED",
        "  ✓ c (wait)  < a<b  COMPLETED",
        "    ○ last  < a<b, c  [all_done]  WAITING",
    ]
    narrow = drawn(nodes, Screen(20, is_coloured=True))
    assert narrow[0] == "\x1b[31m✗ a<b  FAILED\x1b[0m"
    assert len(narrow) > len(nodes)
    root = ElementTree.fromstring(svg_of(nodes))
    texts = [element.text for element in root.iter() if element.text and element.text.strip()]
    assert {"a<b", "c", "last"} <= set(texts)


async def test_a_map_is_shown_with_a_bar_of_its_items(
    duly: CommandLine, front: Front, tmp_path: Path
) -> None:
    """Ten thousand items as so many lines hide that a map hangs at the last."""
    charge = {"type": "invoice.charge", "map": {"over": {"count": 4}, "tolerate": {"count": 1}}}
    file = tmp_path / "month.json"
    last = {"type": "x", "after": ["charge"], "when": "all_done"}
    file.write_text(json.dumps({"name": "month", "nodes": {"charge": charge, "last": last}}))
    made = await duly.json("workflows", "submit", str(file))
    await do_steps(front)
    one, two, three, _ = await lease(front)
    await settle(front, one)
    await settle(front, two)
    await settle(front, three, "rejected", error="no")
    line = "▶ charge (map)  RUNNING  [#########...] 3/4, 1 open, 1 failed"
    assert line in (await duly("workflows", "graph", made["id"])).splitlines()
    screen = await duly("workflows", "show", made["id"])
    assert "3/4, 1 open, 1 failed" in screen
    assert "are shown" not in duly.said_on_errors
    assert "RUNNING 3/4" in await duly("workflows", "graph", made["id"], "--svg", "-")
    listed = await duly("workflows", "items", made["id"], "charge")
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["0", "1", "2", "3"]
    failed = await duly.json("workflows", "items", made["id"], "charge", "--state", "failed")
    assert [item["index"] for item in failed["items"]] == [2]
    assert (await duly.problem("workflows", "items", made["id"], "last"))["code"] == "not_found"
