"""`duly schedules pause|resume|trigger|backfill`: stop schedules, one or many, and fire by hand."""

from collections import Counter
from typing import Any

import click

from duly.cli.api_session import ApiSession, Json, given, over_api, path
from duly.cli.bulk import matching
from duly.cli.options import dry_run_flag, with_flags, yes_flag
from duly.cli.output import clean, confirm, counted, note, print_table, progress, worded_instant
from duly.cli.schedule_fields import find_id
from duly.cli.suggestions import SCHEDULE_NAMES, TASK_TYPES
from duly.cli.tasks import print_changed
from duly.cli.values import instant

CHANGED_COLUMNS = ("name", "state", "next_at", "id")
# The server takes as long as two minutes for the largest that it takes.
BACKFILL_TIMEOUT_S = 150.0
LEFT_SHOWN_MAX = 20

many_flags = with_flags(
    [
        click.argument("names", metavar="[NAME|ID]...", nargs=-1, shell_complete=SCHEDULE_NAMES),
        click.option("--name-prefix", metavar="TEXT", help="All whose name begins with it."),
        click.option(
            "--type",
            "task_type",
            metavar="TYPE",
            shell_complete=TASK_TYPES,
            help="All that make such tasks.",
        ),
        click.option("--all", "everything", is_flag=True, help="All schedules of the tenant."),
        dry_run_flag,
        yes_flag,
    ]
)


@click.command("pause")
@many_flags
@click.option("--reason", required=True, metavar="TEXT", help="Shown with the pause.")
@over_api
def pause(session: ApiSession, reason: str, **asked: Any) -> int:
    """Pause schedules: those named, or all that match. What comes due is skipped, on record."""
    return change(session, "pause", reason, **asked)


@click.command("resume")
@many_flags
@click.option("--reason", metavar="TEXT", help="For the audit.")
@over_api
def resume(session: ApiSession, reason: str | None, **asked: Any) -> int:
    """Resume schedules: those named, or all that match, from their next occurrence on."""
    return change(session, "resume", reason, **asked)


def change(
    session: ApiSession,
    verb: str,
    reason: str | None,
    names: tuple[str, ...],
    name_prefix: str | None,
    task_type: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    wanted = given(name_prefix=name_prefix, type=task_type)
    if sum((bool(names), bool(wanted), everything)) != 1:
        raise click.UsageError("name schedules, or give a filter, or --all")
    if names:
        if dry_run:
            raise click.UsageError("--dry-run goes with a filter or --all")
        change_named(session, verb, reason, names)
        return 0
    body = {"filter": wanted, **given(reason=reason)}
    totals = change_matching(session, verb, body, dry_run=dry_run, yes=yes)
    session.show(totals, lambda found: print_totals(found, verb))
    return 1 if totals["left"] else 0


def change_named(
    session: ApiSession, verb: str, reason: str | None, names: tuple[str, ...]
) -> None:
    ids = [find_id(session, each) for each in names]
    body = given(reason=reason)
    answers = [session.ask("POST", path("schedules", each, verb), body) for each in ids]
    session.show_page(
        {"items": answers, "next_cursor": None},
        lambda items: print_table(items, CHANGED_COLUMNS, "no schedules"),
    )


def change_matching(
    session: ApiSession, verb: str, body: Json, *, dry_run: bool, yes: bool
) -> Json:
    """Count first, then change batch after batch; a batch follows the cursor past unchanged
    schedules."""
    at = f"/v1/schedules/{verb}"
    matched = sum(each["matched"] for each in follow(session, at, {**body, "dry_run": True}))
    totals: Json = {"dry_run": dry_run, "matched": matched, "done": 0, "left": []}
    if dry_run or not matched:
        return totals
    confirm(f"{verb} {counted(matched, 'schedule')}?", yes=yes, as_json=session.as_json)
    sums: Counter[str] = Counter()
    with progress(verb, matched, is_shown=not session.as_json) as advance:
        for each in follow(session, at, {**body, "dry_run": False}):
            sums["done"] += each["done"]
            totals["left"] += each["left"]
            advance(each["matched"])
    return {**totals, "done": sums["done"]}


def follow(session: ApiSession, at: str, body: Json) -> Any:
    cursor = None
    while True:
        answer = session.ask("POST", at, {**body, **given(cursor=cursor)})
        yield answer
        cursor = answer["next_cursor"]
        if cursor is None:
            return


def print_totals(totals: Json, verb: str) -> None:
    if totals["dry_run"]:
        click.echo(matching({**totals, "has_more": False}, "schedule"))
    elif not totals["matched"]:
        click.echo("no schedule matches")
    else:
        click.echo(f"{counted(totals['done'], 'schedule')} {verb}d")
    for left in totals["left"][:LEFT_SHOWN_MAX]:
        note(f"{left['name']}: {left['detail']}")
    beyond = len(totals["left"]) - LEFT_SHOWN_MAX
    if beyond > 0:
        note(f"and {beyond:,} more; --json names them all")


@click.command("trigger")
@click.argument("name_or_id", metavar="NAME|ID", shell_complete=SCHEDULE_NAMES)
@over_api
def trigger(session: ApiSession, name_or_id: str) -> None:
    """Trigger a schedule now, also while it is paused."""
    task = session.ask("POST", path("schedules", find_id(session, name_or_id), "trigger"))
    session.show(task, print_changed)


@click.command("backfill")
@click.argument("name_or_id", metavar="NAME|ID", shell_complete=SCHEDULE_NAMES)
@click.option("--from", "since", type=instant, required=True, metavar="INSTANT", help="Included.")
@click.option("--to", "until", type=instant, required=True, metavar="INSTANT", help="Included.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Tasks per second; 10."
)
@dry_run_flag
@yes_flag
@over_api
def backfill(
    session: ApiSession,
    name_or_id: str,
    since: str,
    until: str,
    rate: float | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Create tasks for past occurrences without one, spread over time. Running it twice creates no
    task twice."""
    at = path("schedules", find_id(session, name_or_id), "backfill")
    body = given(**{"from": since, "to": until, "rate_per_s": rate})
    answer = session.ask("POST", at, {**body, "dry_run": True})
    if not dry_run and answer["made"]:
        confirm(f"make {answer['made']:,} tasks?", yes=yes, as_json=session.as_json)
        session.connection.close()
        session.connection.timeout_s = BACKFILL_TIMEOUT_S
        with progress("backfill", None, is_shown=not session.as_json):
            answer = session.ask("POST", at, {**body, "dry_run": False})
    session.show({**answer, "dry_run": dry_run}, print_backfill)


def print_backfill(answer: Json) -> None:
    made = "would be made" if answer["dry_run"] else "made"
    click.echo(clean(f"{answer['made']:,} tasks {made} for {answer['matched']:,} occurrences"))
    if answer["known"]:
        click.echo(f"{answer['known']:,} have a task already")
    if answer["pending"]:
        click.echo(f"{answer['pending']:,} are left to the schedule, which has yet to rule on them")
    if answer["last_at"] is not None:
        click.echo(f"the last is due at {worded_instant(answer['last_at'])}")
