"""`duly workflows`: start a graph from a file, list, show, draw and cancel workflows."""

from typing import Any, BinaryIO

import click
import msgspec

from duly.cli.api_session import ApiSession, Json, over_api, path
from duly.cli.options import list_flags
from duly.cli.output import clean, print_card, print_table
from duly.cli.values import read_bounded
from duly.cli.workflow_graph import drawn, svg_of

COLUMNS = ("id", "name", "state", "nodes", "created_at", "ended_at")
NODE_COLUMNS = ("name", "state", "type", "when", "parents_pending", "started_at", "finished_at")
LEADING = ("id", "name", "state", "counts", "critical_path", "estimate_at", "created_at")
STATES = ("RUNNING", "COMPLETED", "FAILED", "CANCELLED")
NODES_SHOWN_MAX = 100


@click.group("workflows")
def command() -> None:
    """Start, list, show, draw and cancel workflows."""


@command.command("submit")
@click.argument("file", type=click.File("rb"), metavar="FILE")
@click.option("--idempotency-key", metavar="KEY", help="The same file and key start it once.")
@over_api
def submit(session: ApiSession, file: BinaryIO, idempotency_key: str | None) -> None:
    """Start the workflow of FILE (JSON; - is standard input).

    \b
    {"name": "order.fulfil",
     "nodes": {"charge": {"type": "payment.charge"},
               "ship": {"type": "parcel.ship", "after": ["charge"]}}}
    """
    try:
        body = msgspec.json.decode(read_bounded(file))
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"is not JSON: {error}", param_hint="FILE") from None
    started = session.ask("POST", "/v1/workflows", body, idempotency_key=idempotency_key)
    session.show(started, lambda found: click.echo(clean(found["id"])))


@command.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only in this state.")
@click.option("--name", metavar="NAME", help="Only of this name.")
@click.option("--tag", metavar="NAME:VALUE", help="Only with this tag.")
@list_flags
@over_api
def list_workflows(session: ApiSession, limit: int, cursor: str | None, **filters: Any) -> None:
    """List workflows, newest first."""
    page = session.page("/v1/workflows", filters, limit, cursor)
    session.show_page(page, lambda items: print_table(items, COLUMNS, "no workflows"))


@command.command("show")
@click.argument("workflow_id", metavar="ID")
@over_api
def show(session: ApiSession, workflow_id: str) -> None:
    """Show a workflow with its counts, its critical path and its first nodes."""
    found = session.ask("GET", path("workflows", workflow_id))
    nodes = session.page(path("workflows", workflow_id, "nodes"), {}, NODES_SHOWN_MAX)
    session.show({**found, "items": nodes["items"]}, show_workflow)


def show_workflow(found: Json) -> None:
    counts = ", ".join(f"{count} {name}" for name, count in found["counts"].items() if count)
    facts = {**found, "counts": counts}
    items = facts.pop("items")
    if "critical_path" in facts:
        facts["critical_path"] = " > ".join(facts["critical_path"])
    print_card(facts, LEADING)
    print_table(items, NODE_COLUMNS, "no nodes")


@command.command("graph")
@click.argument("workflow_id", metavar="ID")
@click.option("--svg", "is_svg", is_flag=True, help="Write the graph as SVG.")
@over_api
def graph(session: ApiSession, workflow_id: str, is_svg: bool) -> None:
    """Draw the graph of a workflow in the terminal, level by level."""
    found = session.ask("GET", path("workflows", workflow_id, "graph"))
    if is_svg and not session.as_json:
        click.echo(svg_of(found["nodes"]))
        return
    session.show(found, lambda answer: click.echo("\n".join(drawn(answer["nodes"]))))


@command.command("explain")
@click.argument("workflow_id", metavar="ID")
@click.option("--node", metavar="NAME", help="Only this node.")
@over_api
def explain(session: ApiSession, workflow_id: str, node: str | None) -> None:
    """Say what the nodes of a workflow wait for."""
    found = session.ask("GET", path("workflows", workflow_id, "explain"), query={"node": node})
    session.show(found, lambda answer: click.echo("\n".join(explained(answer["nodes"]))))


def explained(nodes: list[Json]) -> list[str]:
    lines = []
    for node in nodes:
        lines.append(clean(f"{node['name']}  {node['state']}: {node['detail']}"))
        if blocked_by := node["blocked_by"]:
            names = ", ".join(f"{each['name']} ({each['state']})" for each in blocked_by)
            lines.append(clean(f"  blocked by {names}"))
    return lines or ["nothing waits"]


@command.command("cancel")
@click.argument("workflow_id", metavar="ID")
@over_api
def cancel(session: ApiSession, workflow_id: str) -> None:
    """Cancel a workflow; nodes that run are asked to stop."""
    found = session.ask("POST", path("workflows", workflow_id, "cancel"))
    session.show(found, lambda answer: click.echo(clean(f"{answer['id']}  {answer['state']}")))
