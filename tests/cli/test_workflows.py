"""`duly workflows` against a real front door, and graphs as text and SVG."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from duly.cli.workflow_graph import drawn, svg_of
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
    assert ElementTree.fromstring(await duly("workflows", "graph", made["id"], "--svg")) is not None
    assert "blocked by charge (READY)" in await duly("workflows", "explain", made["id"])
    assert "CANCELLED" in await duly("workflows", "cancel", made["id"])
    file.write_text("{")
    await duly("workflows", "submit", str(file), code=2)


def test_a_drawn_graph_shows_each_node_after_its_parents() -> None:
    """A node that is drawn beside its parent reads as its sibling. And no name breaks the SVG."""
    nodes: list[dict[str, Any]] = [
        {"name": "last", "state": "WAITING", "after": ["a<b", "c"], "when": "all_done"},
        {"name": "a<b", "state": "FAILED"},
        {"name": "c", "state": "COMPLETED", "after": ["a<b"]},
    ]
    assert drawn(nodes) == [
        "✗ a<b  FAILED",
        "  ✓ c  < a<b  COMPLETED",
        "    ○ last  < a<b, c  [all_done]  WAITING",
    ]
    root = ElementTree.fromstring(svg_of(nodes))
    texts = [element.text for element in root.iter() if element.text and element.text.strip()]
    assert {"a<b", "c", "last"} <= set(texts)
