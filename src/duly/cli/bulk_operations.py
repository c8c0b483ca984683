"""`duly bulk`: operations that the server carries out: start, follow, list, stop, continue."""

import threading
from collections.abc import Callable
from typing import Any

import click

from duly.cli.api_session import ApiSession, Json, given, over_api, path
from duly.cli.bulk import matching, number_of
from duly.cli.options import (
    dry_run_flag,
    list_flags,
    task_filter_flags,
    with_flags,
    yes_flag,
)
from duly.cli.output import confirm, note, print_card, print_table, progress
from duly.cli.suggestions import BULK_IDS, TASK_TYPES
from duly.cli.tasks import filter_of
from duly.cli.values import duration, instant

COLUMNS = ("id", "action", "state", "matched", "done", "refused", "rate_per_s", "created_at")
LEADING = ("id", "action", "state", "matched", "done", "refused", "error")
RUNNING, DONE, PAUSED = "RUNNING", "DONE", "PAUSED_AFTER_CANARY"
LOOK_S = 0.5

START_FLAGS = [
    click.option("--all", "everything", is_flag=True, help="All of the tenant, without a filter."),
    click.option(
        "--rate", type=click.FloatRange(0.01, 10_000), metavar="N", help="Changes per second."
    ),
    click.option(
        "--canary", type=click.IntRange(1, 1_000_000), metavar="N", help="Pause after so many."
    ),
    click.option("--no-wait", is_flag=True, help="Return at once; the server goes on."),
    dry_run_flag,
    yes_flag,
]
LETTER_FLAGS = [
    click.option(
        "--type",
        "task_type",
        metavar="TYPE",
        shell_complete=TASK_TYPES,
        help="Dead letters of this type.",
    ),
    click.option("--tag", metavar="NAME:VALUE", help="Dead letters with this tag."),
    click.option("--reason", metavar="REASON", help="Failed for this reason."),
    click.option("--fingerprint", metavar="HEX", help="Dead letters of this cause."),
]
WORKFLOW_FLAGS = [
    click.option("--name", metavar="NAME", help="Workflows of this name."),
    click.option("--tag", metavar="NAME:VALUE", help="Workflows with this tag."),
    click.option("--created-after", type=instant, metavar="TIME", help="Started after it."),
]
start_flags = with_flags(START_FLAGS)
workflow_flags = with_flags(WORKFLOW_FLAGS)
letter_flags = with_flags(LETTER_FLAGS)


@click.group("bulk")
def command() -> None:
    """Change all tasks, dead letters or workflows that match, in the server, at a rate.

    An operation goes on when this command ends; stop it with `duly bulk stop`.
    """


@command.command("cancel")
@task_filter_flags
@start_flags
@over_api
def cancel(session: ApiSession, **flags: Any) -> int:
    """Cancel unfinished tasks; running ones are asked to stop."""
    return start(session, "cancel", "task", flags, task_filter)


@command.command("run-now")
@task_filter_flags
@start_flags
@over_api
def run_now(session: ApiSession, **flags: Any) -> int:
    """Make tasks due at once."""
    return start(session, "run_now", "task", flags, task_filter)


@command.command("reschedule")
@click.option("--delay", type=duration, required=True, metavar="DURATION", help="From then on.")
@task_filter_flags
@start_flags
@over_api
def reschedule(session: ApiSession, delay: float, **flags: Any) -> int:
    """Make tasks due a while after the operation comes to them."""
    return start(session, "reschedule", "task", flags, task_filter, delay_s=delay)


@command.command("replay")
@letter_flags
@start_flags
@over_api
def replay(session: ApiSession, **flags: Any) -> int:
    """Replay dead letters as new tasks."""
    return start(session, "replay", "dead letter", flags, letter_filter)


@command.command("purge")
@letter_flags
@click.option("--replayed/--not-replayed", default=None, help="Only replayed ones, or others.")
@start_flags
@over_api
def purge(session: ApiSession, **flags: Any) -> int:
    """Purge dead letters and erase the data of their tasks, for good."""
    return start(session, "purge", "dead letter", flags, letter_filter)


@command.command("cancel-workflows")
@workflow_flags
@start_flags
@over_api
def cancel_workflows(session: ApiSession, **flags: Any) -> int:
    """Cancel workflows that have not ended; nodes that run are asked to stop."""
    return start(session, "cancel_workflows", "workflow", flags, workflow_filter)


@command.command("pause-workflows")
@workflow_flags
@start_flags
@over_api
def pause_workflows(session: ApiSession, **flags: Any) -> int:
    """Pause workflows: nothing of them starts; nodes that run go on."""
    return start(session, "pause_workflows", "workflow", flags, workflow_filter)


@command.command("unpause-workflows")
@workflow_flags
@start_flags
@over_api
def unpause_workflows(session: ApiSession, **flags: Any) -> int:
    """Go on with workflows that are paused."""
    return start(session, "unpause_workflows", "workflow", flags, workflow_filter)


@command.command("resume-workflows")
@click.option(
    "--state",
    type=click.Choice(("FAILED", "CANCELLED"), case_sensitive=False),
    help="Only those that ended so.",
)
@workflow_flags
@start_flags
@over_api
def resume_workflows(session: ApiSession, **flags: Any) -> int:
    """Resume workflows that failed or were cancelled, each as a new one that reuses the rest."""
    return start(session, "resume_workflows", "workflow", flags, workflow_filter)


@command.command("list")
@list_flags
@over_api
def list_bulk(session: ApiSession, limit: int, cursor: str | None) -> None:
    """List bulk operations, newest first."""
    page = session.page("/v1/bulk", {}, limit, cursor)
    session.show_page(page, lambda items: print_table(items, COLUMNS, "no bulk operations"))


@command.command("show")
@click.argument("operation_id", metavar="ID", shell_complete=BULK_IDS)
@over_api
def show(session: ApiSession, operation_id: str) -> None:
    """Show a bulk operation and its progress."""
    session.show(session.ask("GET", path("bulk", operation_id)), print_operation)


@command.command("stop")
@click.argument("operation_id", metavar="ID", shell_complete=BULK_IDS)
@over_api
def stop(session: ApiSession, operation_id: str) -> None:
    """Stop a bulk operation; what it changed stays changed."""
    session.show(session.ask("POST", path("bulk", operation_id, "stop")), print_operation)


@command.command("continue")
@click.argument("operation_id", metavar="ID", shell_complete=BULK_IDS)
@click.option("--no-wait", is_flag=True, help="Return at once; the server goes on.")
@over_api
def go_on(session: ApiSession, operation_id: str, no_wait: bool) -> int:
    """Go on with a bulk operation that paused after its canary."""
    operation = session.ask("POST", path("bulk", operation_id, "continue"))
    return follow(session, operation, no_wait=no_wait)


def task_filter(flags: Json) -> Json:
    names = ("state", "task_type", "tag", "created_after", "run_before")
    return filter_of(**{name: flags[name] for name in names})


def letter_filter(flags: Json) -> Json:
    names = ("tag", "reason", "fingerprint", "replayed")
    return given(type=flags["task_type"], **{name: flags.get(name) for name in names})


def workflow_filter(flags: Json) -> Json:
    return given(**{name: flags.get(name) for name in ("state", "name", "tag", "created_after")})


def start(
    session: ApiSession,
    action: str,
    thing: str,
    flags: Json,
    filter_from: Callable[[Json], Json],
    **more: object,
) -> int:
    """Preview, confirm, start, follow."""
    wanted = filter_from(flags)
    if bool(wanted) == flags["everything"]:
        raise click.UsageError("give a filter, or --all")
    body = {"action": action, "filter": wanted, **more}
    seen: Json = session.ask("POST", "/v1/bulk", {**body, "dry_run": True})
    if flags["dry_run"] or not seen["matched"]:
        session.show(seen, lambda found: click.echo(matching(found, thing)))
        return 0
    verb = action.removesuffix("_workflows").replace("_", " ")
    confirm(f"{verb} {number_of(seen, thing)}?", yes=flags["yes"], as_json=session.as_json)
    pace = given(rate_per_s=flags["rate"], canary=flags["canary"])
    operation = session.ask("POST", "/v1/bulk", {**body, **pace})
    return follow(session, operation, no_wait=flags["no_wait"])


def follow(session: ApiSession, operation: Json, *, no_wait: bool) -> int:
    """Until it does not go on by itself; exit code 1 if it failed or was stopped."""
    if not no_wait:
        total = None if operation["has_more"] else operation["matched"]
        shown = operation["done"] + operation["refused"]
        with progress(operation["action"], total, is_shown=not session.as_json) as advance:
            advance(shown)
            while operation["state"] == RUNNING:
                threading.Event().wait(LOOK_S)
                operation = session.ask("GET", path("bulk", operation["id"]))
                processed = operation["done"] + operation["refused"]
                advance(processed - shown)
                shown = processed
    session.show(operation, print_operation)
    if operation["state"] == PAUSED and not session.as_json:
        note(f"paused after the canary: duly bulk continue {operation['id']}")
    return 0 if operation["state"] in (RUNNING, DONE, PAUSED) else 1


def print_operation(operation: Json) -> None:
    print_card(operation, LEADING)
