"""`duly workflows`: start a graph from a file, list, show, draw, signal, pause, resume, cancel."""

from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from duly.cli.api_session import ApiSession, Json, given, over_api, path
from duly.cli.options import dry_run_flag, list_flags
from duly.cli.output import (
    clean,
    growing_progress,
    note,
    print_card,
    print_table,
    say,
    screen_of_output,
    show,
    wide_flag,
    write_file,
)
from duly.cli.suggestions import WORKFLOW_IDS
from duly.cli.values import duration, json_document, read_bounded
from duly.cli.workflow_graph import drawn, items_of, svg_of
from duly.client.errors import WorkflowTimedOut
from duly.environment import SystemClock

COLUMNS = ("id", "name", "state", "nodes", "created_at", "ended_at", "parent")
NODE_COLUMNS = (
    *("name", "state", "kind", "map", "workflow", "type", "when", "parents_pending"),
    "compensates",
    *("next_at", "started_at", "finished_at"),
)
ITEM_COLUMNS = ("index", "id", "state", "next_at", "started_at", "finished_at", "reason")
SIGNAL_COLUMNS = ("number", "name", "sender", "role", "received_at", "node", "payload")
LEADING = (
    *("id", "name", "state", "counts", "compensation"),
    *("critical_path", "estimate_at", "created_at"),
)
STATES = ("RUNNING", "COMPLETED", "FAILED", "CANCELLED")
RUNNING, COMPLETED = STATES[:2]
NODE_STATES = ("WAITING", "SCHEDULED", "READY", *STATES)
ENDED_COUNTS = ("completed", "failed", "skipped", "cancelled")
NODES_MAX = 10_000
# One question; the bar is drawn between two of them.
WAIT_S = 2.0

workflow_argument = click.argument("workflow_id", metavar="ID", shell_complete=WORKFLOW_IDS)
timeout_flag = click.option(
    "--timeout", type=duration, metavar="DURATION", help="Timeout; else wait for ever."
)


@click.group("workflows")
def command() -> None:
    """Start, list, show, draw, signal, pause, resume and cancel workflows."""


@command.command("submit")
@click.argument("file", type=click.File("rb"), metavar="FILE")
@click.option("--idempotency-key", metavar="KEY", help="The same file and key start it once.")
@click.option("--wait", "is_waiting", is_flag=True, help="Wait until it has ended.")
@timeout_flag
@over_api
def submit(
    session: ApiSession,
    file: BinaryIO,
    idempotency_key: str | None,
    is_waiting: bool,
    timeout: float | None,
) -> int:
    """Start the workflow of FILE (JSON; - is standard input).

    With --wait, exit code 0 if it completed, 1 if not.

    \b
    {"name": "order.fulfil",
     "nodes": {"charge": {"type": "payment.charge"},
               "ship": {"type": "parcel.ship", "after": ["charge"]}}}
    """
    try:
        body = msgspec.json.decode(read_bounded(file))
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"is not JSON: {error}", param_hint="FILE") from None
    if timeout is not None and not is_waiting:
        raise click.UsageError("--timeout goes with --wait")
    started: Json = session.ask("POST", "/v1/workflows", body, idempotency_key=idempotency_key)
    if not is_waiting:
        session.show(started, lambda found: click.echo(clean(found["id"])))
        return 0
    if not session.as_json:
        note(f"workflow {started['id']} is started")
    return follow(session, started["id"], timeout)


@command.command("wait")
@workflow_argument
@timeout_flag
@over_api
def wait(session: ApiSession, workflow_id: str, timeout: float | None) -> int:
    """Wait until a workflow has ended. Exit code 0 if it completed, 1 if not."""
    return follow(session, workflow_id, timeout)


def follow(session: ApiSession, workflow_id: str, timeout_s: float | None) -> int:
    """With a bar on the terminal: how many of its nodes have ended."""
    clock = SystemClock()
    ends_at = float("inf") if timeout_s is None else clock.monotonic() + timeout_s
    found: Json = session.ask("GET", path("workflows", workflow_id, "status"))
    with growing_progress("nodes", is_shown=not session.as_json) as reached:
        while True:
            # Items of maps are nodes as well, and come while they run.
            reached(sum(found["counts"][name] for name in ENDED_COUNTS), found["nodes"])
            if found["state"] != RUNNING:
                break
            left_s = ends_at - clock.monotonic()
            if left_s <= 0:
                raise WorkflowTimedOut(id=workflow_id, timeout_s=timeout_s, state=RUNNING)
            query = {"timeout_s": min(WAIT_S, left_s)}
            found = session.ask("GET", path("workflows", workflow_id, "wait"), query=query)
    session.show(found, lambda ended: print_card(with_parent(with_counts(ended)), LEADING))
    return 0 if found["state"] == COMPLETED else 1


@command.command("list")
@click.option(
    "--state", type=click.Choice(STATES, case_sensitive=False), help="Only in this state."
)
@click.option("--name", metavar="NAME", help="Only of this name.")
@click.option("--tag", metavar="NAME:VALUE", help="Only with this tag.")
@list_flags
@over_api
def list_workflows(session: ApiSession, limit: int, cursor: str | None, **filters: Any) -> None:
    """List workflows, newest first."""
    page = session.page("/v1/workflows", filters, limit, cursor)
    session.show_page(page, show_workflows)


def show_workflows(items: list[Json]) -> None:
    print_table(list(map(with_parent, items)), COLUMNS, "no workflows")


@command.command("show")
@workflow_argument
@click.option(
    "--limit",
    type=click.IntRange(1, NODES_MAX),
    default=100,
    show_default=True,
    metavar="N",
    help="Show at most so many nodes.",
)
@wide_flag
@over_api
def show_one(session: ApiSession, workflow_id: str, limit: int) -> None:
    """Show a workflow with its counts, its critical path and its first nodes."""
    found = session.ask("GET", path("workflows", workflow_id))
    nodes = session.page(path("workflows", workflow_id, "nodes"), {}, limit)
    session.show({**found, "items": nodes["items"]}, show_workflow)


def show_workflow(found: Json) -> None:
    facts = with_parent(with_counts(found))
    items = [with_workflow(with_map(node)) for node in facts.pop("items")]
    if "critical_path" in facts:
        facts["critical_path"] = " > ".join(facts["critical_path"])
    print_card(facts, LEADING)
    click.echo()
    print_table(items, NODE_COLUMNS, "no nodes")
    graph = found["nodes"] - sum(node["map"]["made"] for node in found["items"] if "map" in node)
    if graph > len(items):
        note(f"the first {len(items):,} of {graph:,} nodes are shown; raise --limit")


def with_map(node: Json) -> Json:
    return node if node.get("map") is None else {**node, "map": items_of(node["map"])}


def with_workflow(node: Json) -> Json:
    """Of one that started a workflow: which."""
    return node if node.get("workflow") is None else {**node, "workflow": node["workflow"]["id"]}


def with_parent(found: Json) -> Json:
    """Of one within another: in which, and as which node."""
    parent = found.get("parent")
    return (
        found if parent is None else {**found, "parent": f"{parent['workflow']} {parent['node']}"}
    )


def with_counts(found: Json) -> Json:
    counts = ", ".join(f"{count:,} {name}" for name, count in found["counts"].items() if count)
    told = {**found, "counts": counts}
    if (undone := found.get("compensation")) is not None:
        told["compensation"] = undone_words(undone)
    return told


def undone_words(undone: Json) -> str:
    """How far what completed is undone, and what is not."""
    words = f"{undone['state']}: {undone['completed']:,} undone"
    if undone["failed"]:
        words += f", {undone['failed']:,} not"
    if names := undone.get("not_undone"):
        words += f" ({', '.join(names)})"
    return words


@command.command("items")
@workflow_argument
@click.argument("name", metavar="MAP")
@click.option(
    "--state",
    type=click.Choice(NODE_STATES, case_sensitive=False),
    help="Only in this state.",
)
@list_flags
@over_api
def list_items(
    session: ApiSession,
    workflow_id: str,
    name: str,
    state: str | None,
    limit: int,
    cursor: str | None,
) -> None:
    """List the items of a map, in their order."""
    filters = {"map": name, "state": state}
    page = session.page(path("workflows", workflow_id, "nodes"), filters, limit, cursor)
    session.show_page(page, lambda items: print_table(items, ITEM_COLUMNS, "no items"))


@command.command("graph")
@workflow_argument
@click.option(
    "--svg",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Write it as SVG instead; - is standard output.",
)
@over_api
def graph(session: ApiSession, workflow_id: str, svg: Path | None) -> None:
    """Draw the graph of a workflow in the terminal, level by level."""
    if svg is not None and session.as_json:
        raise click.UsageError("give --svg or --json")
    found = session.ask("GET", path("workflows", workflow_id, "graph"))
    if svg is not None:
        write_file(svg, svg_of(found["nodes"]))
        return
    session.show(found, lambda answer: show(drawn(answer["nodes"], screen_of_output())))


@command.command("explain")
@workflow_argument
@click.option("--node", metavar="NAME", help="Only this node.")
@over_api
def explain(session: ApiSession, workflow_id: str, node: str | None) -> None:
    """Say what the nodes of a workflow wait for."""
    found = session.ask("GET", path("workflows", workflow_id, "explain"), query={"node": node})
    session.show(found, lambda answer: say("\n".join(explained(answer["nodes"]))))


def explained(nodes: list[Json]) -> list[str]:
    lines = []
    for node in nodes:
        lines.append(f"{node['name']}  {node['state']}: {node['detail']}")
        if blocked_by := node["blocked_by"]:
            names = ", ".join(f"{each['name']} ({each['state']})" for each in blocked_by)
            lines.append(f"  blocked by {names}")
    return lines or ["nothing waits"]


@command.command("signal")
@workflow_argument
@click.argument("name", metavar="NAME")
@click.argument("payload", type=json_document, metavar="[JSON]", required=False)
@click.option("--idempotency-key", metavar="KEY", help="The same signal and key are taken once.")
@over_api
def signal(
    session: ApiSession,
    workflow_id: str,
    name: str,
    payload: Any,
    idempotency_key: str | None,
) -> None:
    """Send a signal to a workflow, such as an approval: for one node that waits for it, now or
    later. The payload is what that node answers."""
    body = {"name": name, "payload": payload, "idempotency_key": idempotency_key}
    found = session.ask("POST", path("workflows", workflow_id, "signals"), body)
    session.show(found, lambda sent: click.echo(clean(where_sent(sent))))


def where_sent(sent: Json) -> str:
    node = sent.get("node")
    place = f"got by {node}" if node else "kept: no node waits for it yet"
    return f"signal {sent['number']}  {sent['name']}  {place}"


@command.command("signals")
@workflow_argument
@list_flags
@over_api
def list_signals(session: ApiSession, workflow_id: str, limit: int, cursor: str | None) -> None:
    """List what was sent to a workflow, oldest first."""
    page = session.page(path("workflows", workflow_id, "signals"), {}, limit, cursor)
    session.show_page(page, lambda items: print_table(items, SIGNAL_COLUMNS, "no signals"))


@command.command("cancel")
@workflow_argument
@over_api
def cancel(session: ApiSession, workflow_id: str) -> None:
    """Cancel a workflow; nodes that run are asked to stop."""
    found = session.ask("POST", path("workflows", workflow_id, "cancel"))
    session.show(found, lambda answer: click.echo(clean(f"{answer['id']}  {answer['state']}")))


@command.command("pause")
@workflow_argument
@over_api
def pause(session: ApiSession, workflow_id: str) -> None:
    """Pause a workflow: nothing of it starts; nodes that run go on."""
    found = session.ask("POST", path("workflows", workflow_id, "pause"))
    session.show(found, lambda answer: click.echo(clean(f"{answer['id']}  paused")))


@command.command("unpause")
@workflow_argument
@over_api
def unpause(session: ApiSession, workflow_id: str) -> None:
    """Go on with a workflow that is paused."""
    found = session.ask("POST", path("workflows", workflow_id, "unpause"))
    session.show(found, lambda answer: click.echo(clean(f"{answer['id']}  {answer['state']}")))


@command.command("resume")
@workflow_argument
@click.option(
    "--from",
    "nodes",
    multiple=True,
    metavar="NODE",
    help="Run this node again, and what follows it; else what failed or was cancelled.",
)
@click.option(
    "--payload",
    "payloads",
    multiple=True,
    metavar="NODE=JSON",
    help="A new payload of a node that runs again.",
)
@click.option(
    "--rate", type=click.FloatRange(0.01, 10_000), metavar="N", help="First nodes per second."
)
@click.option("--idempotency-key", metavar="KEY", help="The same key resumes it once.")
@click.option("--wait", "is_waiting", is_flag=True, help="Wait until it has ended.")
@timeout_flag
@dry_run_flag
@over_api
def resume(
    session: ApiSession,
    workflow_id: str,
    nodes: tuple[str, ...],
    payloads: tuple[str, ...],
    rate: float | None,
    idempotency_key: str | None,
    is_waiting: bool,
    timeout: float | None,
    dry_run: bool,
) -> int:
    """Run again what did not finish, as a new workflow that reuses the rest.

    With --wait, exit code 0 if it completed, 1 if not.
    """
    if timeout is not None and not is_waiting:
        raise click.UsageError("--timeout goes with --wait")
    asked: Json = given(rate_per_s=rate, dry_run=dry_run or None)
    if nodes:
        asked["from"] = list(nodes)
    if payloads:
        asked["payloads"] = dict(map(node_payload, payloads))
    at = path("workflows", workflow_id, "resume")
    found: Json = session.ask("POST", at, asked, idempotency_key=idempotency_key)
    if dry_run:
        session.show(found, print_preview)
        return 0
    if not is_waiting:
        session.show(found, lambda made: click.echo(clean(made["id"])))
        return 0
    if not session.as_json:
        note(f"workflow {found['id']} is started")
    return follow(session, found["id"], timeout)


def node_payload(text: str) -> tuple[str, msgspec.Raw]:
    name, equals, payload = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not of the form NODE=JSON", param_hint="--payload")
    return name, json_document(payload)


def print_preview(found: Json) -> None:
    click.echo(f"{found['again']:,} nodes would run again, {found['reused']:,} be reused")
    for name in found["nodes"]:
        click.echo(clean(f"  {name}"))
    if found["again"] > len(found["nodes"]):
        note(f"the first {len(found['nodes'])} are named")
