"""`duly tasks`: list, show, wait, change. Submitting is in task_submit.py."""

from typing import Any

import click
import msgspec

from duly.cli.api_session import ApiSession, Json, given, over_api, path
from duly.cli.bulk import BulkOperation, matching, run_in_batches
from duly.cli.options import (
    dry_run_flag,
    list_flags,
    task_filter_flags,
    yes_flag,
)
from duly.cli.output import (
    busy,
    clean,
    confirm,
    make_table,
    print_card,
    print_drawn,
    print_table,
    say,
    worded_instant,
)
from duly.cli.suggestions import TASK_IDS, TASK_TYPES, UNFINISHED_TASK_IDS
from duly.cli.tables import ELLIPSIS
from duly.cli.task_submit import submit
from duly.cli.values import duration, instant
from duly.client.errors import WaitTimedOut
from duly.environment import SystemClock

COLUMNS = ("id", "state", "type", "created_at", "run_at", "priority", "attempt", "max_attempts")
# The first to go where the terminal is narrow.
LESS = ("max_attempts", "attempt", "priority", "created_at")
LEADING = ("id", "state", "type", "run_at", "next_at", "finished_at", "result", "error", "reason")
ATTEMPT_COLUMNS = (
    "attempt",
    "fence",
    "outcome",
    "started_at",
    "ended_at",
    "lease_until",
    "holder",
    "reason",
    "error",
)
GATE_COLUMNS = ("gate", "state", "reason", "until_at", "unblock")
ENDED_WELL = "COMPLETED"
ENDED = (ENDED_WELL, "FAILED", "CANCELLED")
# One question; a longer wait is several.
WAIT_S_MAX = 20.0
LOG_FOLLOW_S = 20.0
CANCEL = BulkOperation(
    "/v1/tasks/cancel",
    "cancel",
    "task",
    moved=("cancelled", "cancel_requested"),
    counted=("matched", "cancelled", "cancel_requested"),
)

ERASE = BulkOperation(
    "/v1/erasures",
    "erase for good the data of",
    "task",
    moved=("erased",),
    counted=("matched", "erased", "unfinished"),
)


@click.group("tasks")
def command() -> None:
    """Submit, list, wait for, cancel and change tasks."""


command.add_command(submit)


@command.command("show")
@click.argument("task_id", metavar="ID", shell_complete=TASK_IDS)
@over_api
def show_one(session: ApiSession, task_id: str) -> None:
    """Show everything about a task."""
    session.show(session.ask("GET", path("tasks", task_id)), print_task)


@command.command("list")
@task_filter_flags
@click.option(
    "--order",
    type=click.Choice(["created", "run_at"]),
    help="Newest created first, or by the next instant. Default: as the state is found soonest.",
)
@list_flags
@over_api
def list_tasks(
    session: ApiSession, order: str | None, limit: int, cursor: str | None, **filters: Any
) -> None:
    """List tasks, newest created first; unfinished states by their next instant, soonest first."""
    page = session.page("/v1/tasks", filter_of(**filters) | given(order=order), limit, cursor)
    session.show_page(page, lambda items: print_table(items, COLUMNS, "no tasks", LESS))


@command.command("search")
@click.argument("text", required=False)
@click.option(
    "--type", "task_type", metavar="TYPE", shell_complete=TASK_TYPES, help="Tasks of this type."
)
@click.option("--tag", metavar="NAME:VALUE", help="Tasks with this tag.")
@click.option("--worker", metavar="ID", help="Run by this worker, or by this holder.")
@click.option("--error", metavar="TEXT", help="An attempt's error has this text.")
@list_flags
@over_api
def search(
    session: ApiSession,
    text: str | None,
    task_type: str | None,
    tag: str | None,
    worker: str | None,
    error: str | None,
    limit: int,
    cursor: str | None,
) -> None:
    """Search tasks, newest created first: TEXT in the id (its beginning), type, tags, payload or
    errors. It looks at a bounded number of tasks and says where to continue.
    """
    asked = given(q=text, type=task_type, tag=tag, worker=worker, error=error)
    if not asked:
        raise click.UsageError("give TEXT, --type, --tag, --worker or --error")
    page = session.page("/v1/search", asked, limit, cursor)
    session.show_page(page, lambda items: print_table(items, COLUMNS, "no tasks", LESS))


@command.command("cancel")
@click.argument("task_ids", metavar="[ID]...", nargs=-1, shell_complete=UNFINISHED_TASK_IDS)
@task_filter_flags
@click.option("--all", "everything", is_flag=True, help="All unfinished tasks of the tenant.")
@dry_run_flag
@yes_flag
@over_api
def cancel(
    session: ApiSession,
    task_ids: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    yes: bool,
    **filters: Any,
) -> None:
    """Cancel tasks: those with the IDs, or all that match. A running one is asked to stop."""
    wanted = filter_of(**filters)
    if sum((bool(task_ids), bool(wanted), everything)) != 1:
        raise click.UsageError("give IDs, or a filter, or --all")
    if task_ids:
        if dry_run:
            raise click.UsageError("--dry-run goes with a filter or --all")
        cancel_by_id(session, task_ids)
        return
    totals = run_in_batches(session, CANCEL, {"filter": wanted}, dry_run=dry_run, yes=yes)
    session.show(totals, print_cancelled)


@command.command("erase")
@click.argument("task_ids", metavar="[ID]...", nargs=-1, shell_complete=TASK_IDS)
@task_filter_flags
@click.option("--whole-tenant", metavar="NAME", help="All ended tasks of the tenant, named here.")
@dry_run_flag
@yes_flag
@over_api
def erase(
    session: ApiSession,
    task_ids: tuple[str, ...],
    whole_tenant: str | None,
    dry_run: bool,
    yes: bool,
    **filters: Any,
) -> None:
    """Erase the data of ended tasks for good: payload, result, errors, tags, keys, dead letter.

    Of the tasks with the IDs, of all that match, or of a whole tenant. Unfinished tasks keep
    their data: cancel them first. Needs an admin's key.
    """
    wanted = filter_of(**filters)
    if sum((bool(task_ids), bool(wanted), whole_tenant is not None)) != 1:
        raise click.UsageError("give IDs, or a filter, or --whole-tenant")
    bodies: list[Json] = [given(filter=wanted or None, tenant=whole_tenant)]
    if task_ids:
        bodies = [{"task": each} for each in task_ids]
        question = f"{ERASE.verb} {len(task_ids):,} tasks?"
        confirm(question, yes=yes or dry_run, as_json=session.as_json)
        yes = True
    totals = [run_in_batches(session, ERASE, body, dry_run=dry_run, yes=yes) for body in bodies]
    session.show(added_up(totals), print_erased)


def added_up(totals: list[Json]) -> Json:
    sums = {name: sum(each[name] for each in totals) for name in ERASE.counted}
    return {**totals[-1], **sums, "has_more": any(each["has_more"] for each in totals)}


def cancel_by_id(session: ApiSession, task_ids: tuple[str, ...]) -> None:
    answers = [session.ask("POST", path("tasks", each, "cancel")) for each in task_ids]
    if len(answers) == 1:
        session.show(answers[0], print_changed)
    else:
        session.show_page(
            {"items": answers, "next_cursor": None},
            lambda items: print_table(items, (*COLUMNS, "cancel_requested"), "no tasks"),
        )


@command.command("reschedule")
@click.argument("task_id", metavar="ID", shell_complete=UNFINISHED_TASK_IDS)
@click.option("--run-at", type=instant, metavar="INSTANT", help="Such as 2026-12-24T18:00:00Z.")
@click.option("--delay", type=duration, metavar="DURATION", help="From now on: 90, 5m, 2h, 1d.")
@click.option("--priority", type=click.IntRange(0, 9), help="0 to 9, higher is more urgent.")
@over_api
def reschedule(
    session: ApiSession, task_id: str, run_at: str | None, delay: float | None, priority: int | None
) -> None:
    """Change the fire time or priority of a task."""
    asked = given(run_at=run_at, delay_s=delay, priority=priority)
    if not asked or (run_at is not None and delay is not None):
        raise click.UsageError("give --run-at or --delay, or --priority")
    session.show(session.ask("PATCH", path("tasks", task_id), asked), print_changed)


@command.command("run-now")
@click.argument("task_id", metavar="ID", shell_complete=UNFINISHED_TASK_IDS)
@over_api
def run_now(session: ApiSession, task_id: str) -> None:
    """Make a task due at once."""
    session.show(session.ask("POST", path("tasks", task_id, "run-now")), print_changed)


@command.command("wait")
@click.argument("task_id", metavar="ID", shell_complete=TASK_IDS)
@click.option("--timeout", type=duration, metavar="DURATION", help="Timeout; else wait for ever.")
@over_api
def wait(session: ApiSession, task_id: str, timeout: float | None) -> int:
    """Wait until a task has ended. Exit code 0 if it completed, 1 if not."""
    with busy(f"waiting for task {task_id}", is_shown=not session.as_json):
        task = wait_for(session, task_id, timeout)
    session.show(task, print_task)
    return 0 if task["state"] == ENDED_WELL else 1


def wait_for(session: ApiSession, task_id: str, timeout_s: float | None) -> Json:
    clock = SystemClock()
    ends_at = float("inf") if timeout_s is None else clock.monotonic() + timeout_s
    while True:
        wait_s = min(WAIT_S_MAX, max(0.0, ends_at - clock.monotonic()))
        task: Json = session.ask(
            "GET", path("tasks", task_id, "wait"), None, given(timeout_s=wait_s)
        )
        if task["state"] in ENDED:
            return task
        if clock.monotonic() >= ends_at:
            raise WaitTimedOut(kind="task", id=task_id, timeout_s=timeout_s, state=task["state"])


@command.command("logs")
@click.argument("task_id", metavar="ID", shell_complete=TASK_IDS)
@click.option("--follow", "-f", is_flag=True, help="Print lines as they come, until the task ends.")
@over_api
def logs(session: ApiSession, task_id: str, follow: bool) -> None:
    """Print what the handlers of a task logged.

    With --json: one object a line.
    """
    after: str | None = None
    while True:
        query = given(after=after, follow=LOG_FOLLOW_S if follow else None)
        page: Json = session.ask("GET", path("tasks", task_id, "logs"), None, query)
        for line in page["items"]:
            click.echo(encode_line(line) if session.as_json else log_text(line))
        if page["is_over"] or (not follow and page["after"] == after):
            return
        after = page["after"]


def encode_line(line: Json) -> str:
    return msgspec.json.encode(line).decode()


def log_text(line: Json) -> str:
    return f"{line['at']} {line['level']:7} {clean(line['text'])}"


@command.command("explain")
@click.argument("task_id", metavar="ID", shell_complete=TASK_IDS)
@over_api
def explain(session: ApiSession, task_id: str) -> None:
    """Explain why a task has not run yet, and what would unblock it."""
    session.show(session.ask("GET", path("tasks", task_id, "explain")), print_explanation)


@command.command("attempts")
@click.argument("task_id", metavar="ID", shell_complete=TASK_IDS)
@list_flags
@over_api
def attempts(session: ApiSession, task_id: str, limit: int, cursor: str | None) -> None:
    """List the attempts of a task, oldest first, with the one that runs."""
    page = session.page(path("tasks", task_id, "attempts"), {}, limit, cursor)
    session.show_page(page, lambda items: print_table(items, ATTEMPT_COLUMNS, "no attempt yet"))


def filter_of(
    state: str | None,
    task_type: str | None,
    tag: str | None,
    created_after: str | None,
    run_before: str | None,
) -> Json:
    return given(
        state=state, type=task_type, tag=tag, created_after=created_after, run_before=run_before
    )


def print_task(task: Json) -> None:
    print_card(task, LEADING)


def print_changed(task: Json) -> None:
    more = ", and is asked to stop" if task.get("cancel_requested") else ""
    text = f"task {task['id']} is {task['state']}{more}"
    if task.get("next_at") is not None and not more:
        text += f", next at {worded_instant(task['next_at'])}"
    click.echo(text)


def print_cancelled(totals: Json) -> None:
    if totals["dry_run"]:
        click.echo(matching(totals, "task"))
    elif not totals["matched"]:
        click.echo("no unfinished task matches")
    else:
        asked = totals["cancel_requested"]
        click.echo(f"{totals['cancelled']:,} cancelled, {asked:,} running and asked to stop")
        if totals["has_more"]:
            click.echo("more match: run it again")


def print_erased(totals: Json) -> None:
    unfinished = totals["unfinished"]
    if totals["dry_run"]:
        click.echo(matching(totals, "ended task"))
    else:
        click.echo(f"{totals['erased']:,} erased")
    if unfinished:
        click.echo(f"{unfinished:,} unfinished and not erased: cancel them first")


def print_explanation(explanation: Json) -> None:
    say(explanation["summary"])
    if explanation["estimate_at"] is not None:
        click.echo(f"it should start at {worded_instant(explanation['estimate_at'])}")
    gates = [
        {**gate, "until_at": gate["until"], "state": "open" if gate["open"] else "blocked"}
        for gate in explanation["gates"]
    ]
    for gate in gates:
        if gate["gate"] == explanation["binding"]:
            gate["gate"] = f"> {gate['gate']}"
    if not gates:
        return
    click.echo()
    drawn = make_table(gates, GATE_COLUMNS)
    print_drawn(drawn)
    for gate in gates:
        # Shortened in a narrow table, and what there is to do stands in it.
        if gate["state"] == "blocked" and ELLIPSIS in "".join(drawn.lines):
            click.echo()
            say(f"{gate['gate'].removeprefix('> ')}: {gate['reason']}")
            if gate["unblock"]:
                say(f"-> {gate['unblock']}")
