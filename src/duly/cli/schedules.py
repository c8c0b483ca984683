"""`duly schedules`: create, list, show, edit, delete, preview. Pause, trigger, files and crontabs
have modules of their own."""

from typing import Any

import click
from msgspec import Raw

from duly.cli.api_session import ApiSession, Json, over_api, path
from duly.cli.dead_letters import flag_text
from duly.cli.options import list_flags, with_flags, yes_flag
from duly.cli.output import clean, confirm, make_table, print_card, print_drawn, print_table, say
from duly.cli.schedule_control import backfill, pause, resume, trigger
from duly.cli.schedule_fields import (
    WHEN_OPTIONS,
    definition_of,
    fields_said,
    find,
    find_id,
    rule_of,
    when_flags,
)
from duly.cli.schedule_files import apply
from duly.cli.schedule_import import import_crontab
from duly.cli.suggestions import SCHEDULE_NAMES, TASK_TYPES
from duly.cli.task_submit import ONE_TASK_OPTIONS, TEMPLATE_FLAGS, task_of
from duly.cli.values import instant, json_document, workflow_document
from duly.client.schedule_plan import DEFAULTS, MADE

COLUMNS = ("name", "state", "rule", "timezone", "next_at", "fires", "cadence", "id")
LEADING = ("id", "name", "state", "cron", "every_s", "timezone", "next_at", "next_due_at", *MADE)
LEDGER_COLUMNS = ("nominal_at", "verdict", "late_s", "decided_at", "task_id", "workflow_id")
# The first to go where the terminal is narrow.
LESS = ("id", "fires", "cadence", "timezone")
FIRE_COLUMNS = ("at", "wall", "due_by", "verdict")
VERDICTS = (
    "FIRED",
    "LATE",
    "COALESCED",
    "SKIPPED_MISFIRE",
    "SKIPPED_DST",
    "SKIPPED_OVERLAP",
    "SKIPPED_PAUSED",
    "EXCLUDED",
    "TRIGGERED",
    "BACKFILLED",
)
named = click.argument("name_or_id", metavar="NAME|ID", shell_complete=SCHEDULE_NAMES)


@click.group("schedules")
def command() -> None:
    """Schedules by cron or by interval. A NAME works like an ID."""


for part in (pause, resume, trigger, backfill, apply, import_crontab):
    command.add_command(part)


@command.command("create")
@click.argument("name")
@click.argument(
    "task_type", metavar="[TYPE]", shell_complete=TASK_TYPES, required=False, default=None
)
@click.argument("payload", metavar="[PAYLOAD]", type=json_document, required=False)
@click.option(
    "--workflow",
    type=workflow_document,
    metavar="TYPE|JSON",
    help="Start a workflow: a type (name or name@version), or JSON.",
)
@when_flags
@with_flags(TEMPLATE_FLAGS)
@over_api
def create(
    session: ApiSession,
    name: str,
    task_type: str | None,
    payload: Raw | None,
    workflow: object,
    **flags: Any,
) -> None:
    """Define the schedule NAME, which submits tasks of TYPE, or starts a workflow. PAYLOAD is JSON,
    @FILE, or - for standard input."""
    when = {each: flags.pop(each) for each in WHEN_OPTIONS}
    asked = {"name": name, **fields_said(when)}
    if "cron" not in asked and "every_s" not in asked:
        raise click.UsageError("give --cron or --every")
    if (task_type is None) == (workflow is None):
        raise click.UsageError("give TYPE or --workflow")
    if task_type is not None:
        asked["task"] = task_of(task_type, payload, **flags, **dict.fromkeys(ONE_TASK_OPTIONS))
    elif any(value not in (None, (), False) for value in flags.values()):
        raise click.UsageError(
            "flags of tasks go with TYPE: the nodes of a workflow have their own"
        )
    else:
        asked["workflow"] = workflow
    session.show(session.ask("POST", "/v1/schedules", asked), print_schedule)


@command.command("list")
@click.option("--name-prefix", metavar="TEXT", help="Those whose name begins with it.")
@click.option(
    "--type",
    "task_type",
    metavar="TYPE",
    shell_complete=TASK_TYPES,
    help="Those that make tasks of this type.",
)
@click.option("--paused/--not-paused", default=None, help="Only what is, or is not, paused.")
@click.option("--flagged", is_flag=True, help="Only those that do not fire on time.")
@list_flags
@over_api
def list_schedules(
    session: ApiSession,
    limit: int,
    cursor: str | None,
    name_prefix: str | None,
    task_type: str | None,
    paused: bool | None,
    flagged: bool,
) -> None:
    """List schedules, newest first. The cadence says how many of the last ones fired on time."""
    query = {
        "name_prefix": name_prefix,
        "type": task_type,
        "paused": flag_text(paused),
        "flagged": "true" if flagged else None,
    }
    page = session.page("/v1/schedules", query, limit, cursor)
    session.show_page(
        page,
        lambda items: print_table([row_of(each) for each in items], COLUMNS, "no schedules", LESS),
    )


@command.command("show")
@named
@over_api
def show_one(session: ApiSession, name_or_id: str) -> None:
    """Show everything about a schedule."""
    session.show(find(session, name_or_id), print_schedule)


@command.command("edit")
@named
@click.option("--name", metavar="TEXT", help="Another name.")
@when_flags
@click.option(
    "--task", type=json_document, metavar="JSON", help="The task to submit, replaced as a whole."
)
@click.option(
    "--workflow", type=workflow_document, metavar="TYPE|JSON", help="The workflow to start instead."
)
@over_api
def edit(
    session: ApiSession,
    name_or_id: str,
    name: str | None,
    task: Raw | None,
    workflow: object,
    **flags: Any,
) -> None:
    """Change some fields of a schedule; `none` removes a bound. Due occurrences are decided under
    the earlier definition."""
    asked = fields_said({"name": name, "task": task, "workflow": workflow, **flags})
    if not asked:
        raise click.UsageError("give at least one field, such as --cron '0 3 * * *'")
    changed = session.ask("PATCH", path("schedules", find_id(session, name_or_id)), asked)
    session.show(changed, print_schedule)


@command.command("delete")
@named
@yes_flag
@over_api
def delete(session: ApiSession, name_or_id: str, yes: bool) -> None:
    """Delete a schedule. Its tasks and its ledger stay."""
    schedule = find(session, name_or_id)
    name = clean(schedule["name"])
    confirm(f"delete the schedule {name}?", yes=yes, as_json=session.as_json)
    session.ask("DELETE", path("schedules", schedule["id"]))
    gone = {"id": schedule["id"], "name": schedule["name"], "deleted": True}
    session.show(gone, lambda _: click.echo(f"{name} is deleted"))


@command.command("preview")
@click.argument("name_or_id", metavar="[NAME|ID]", required=False, shell_complete=SCHEDULE_NAMES)
@when_flags
@click.option("--count", type=click.IntRange(1, 100), default=10, show_default=True, metavar="N")
@click.option("--after", type=instant, metavar="INSTANT", help="From then on; now if not given.")
@over_api
def preview(
    session: ApiSession, name_or_id: str | None, count: int, after: str | None, **flags: Any
) -> None:
    """Show when a schedule would fire next, and what the next two clock changes do to it: one that
    exists, or one that is described here, or the one with the changes of the other."""
    asked = fields_said(flags)
    if name_or_id is not None:
        known = definition_of(find(session, name_or_id))
        if asked.keys() & {"cron", "every_s"}:
            known |= {"cron": None, "every_s": None}
        # When it fires has nothing to do with what, and a type may have become stricter since.
        for each in MADE:
            known.pop(each, None)
        asked = known | asked
    elif not asked.keys() & {"cron", "every_s"}:
        raise click.UsageError("name a schedule, or give --cron or --every")
    asked |= {"count": count} | ({} if after is None else {"after": after})
    session.show(session.ask("POST", "/v1/schedules/preview", asked), print_preview)


@command.command("occurrences")
@named
@click.option("--verdict", type=click.Choice(VERDICTS, case_sensitive=False))
@click.option("--since", type=instant, metavar="INSTANT", help="With a nominal time from then on.")
@list_flags
@over_api
def occurrences(
    session: ApiSession,
    name_or_id: str,
    verdict: str | None,
    since: str | None,
    limit: int,
    cursor: str | None,
) -> None:
    """List the occurrences of a schedule with their verdicts, newest first."""
    ledger = path("schedules", find_id(session, name_or_id), "occurrences")
    page = session.page(ledger, {"verdict": verdict, "since": since}, limit, cursor)
    session.show_page(
        page, lambda items: print_table(items, LEDGER_COLUMNS, "nothing has been due yet")
    )


def row_of(schedule: Json) -> Json:
    cadence = schedule["cadence"]
    kept = f"{cadence['fired']}/{cadence['expected']}"
    return {
        **schedule,
        "rule": rule_of(schedule),
        "cadence": f"{kept} {cadence['flag']}" if cadence["flag"] else kept,
    }


def print_schedule(schedule: Json) -> None:
    changed = [name for name, usual in DEFAULTS.items() if schedule[name] != usual]
    print_card(schedule, tuple(dict.fromkeys((*LEADING, *changed))))


def print_preview(preview: Json) -> None:
    if preview["fires"]:
        print_drawn(make_table([fire_row(each) for each in preview["fires"]], FIRE_COLUMNS))
    else:
        click.echo("it never fires")
    for change in preview["clock_changes"]:
        click.echo()
        before, after = wall_text(change["wall_before"]), wall_text(change["wall_after"])
        say(f"clocks go from {before} to {after}: {change['effect']}")
        for each in change["touched"]:
            verdict = f" ({each['verdict']})" if each["verdict"] else ""
            click.echo(f"  {wall_text(each['wall'])} is at {utc_text(each['at'])}{verdict}")


def fire_row(fire: Json) -> Json:
    return {
        "at": utc_text(fire["at"]),
        "wall": wall_text(fire["wall"]),
        "due_by": None if fire["due_by"] == fire["at"] else utc_text(fire["due_by"]),
        "verdict": fire["verdict"],
    }


def utc_text(at: str) -> str:
    return at.replace("T", " ")


def wall_text(at: str) -> str:
    """Without the seconds that hardly any rule has."""
    return at.replace("T", " ").removesuffix(":00")
