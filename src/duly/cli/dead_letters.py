"""`duly dead-letters`: what failed for good, by cause; replayed or purged, one or many."""

from typing import Any

import click

from duly.cli.api_session import ApiSession, Json, given, over_api, path
from duly.cli.bulk import BulkOperation, matching, run_in_batches
from duly.cli.options import dry_run_flag, list_flags, with_flags, yes_flag
from duly.cli.output import print_card, print_table, worded_instant
from duly.cli.suggestions import DEAD_LETTER_IDS, TASK_TYPES
from duly.cli.tasks import print_changed
from duly.cli.values import instant

COLUMNS = ("id", "type", "reason", "attempts", "failed_at", "replayed_as", "fingerprint", "error")
GROUP_COLUMNS = ("count", "type", "reason", "fingerprint", "first_at", "last_at", "example")
LEADING = ("id", "type", "reason", "error", "attempts", "failed_at", "replayed_as", "payload")
REASONS = (
    "exhausted",
    "rejected",
    "non_retryable",
    "expired",
    "poison",
    "items_failed",
    "invalid_items",
    "workflow_failed",
)
COUNTED = ("matched", "done")
REPLAY = BulkOperation("/v1/dead-letters/replay", "replay", "dead letter", ("done",), COUNTED)
PURGE = BulkOperation("/v1/dead-letters/purge", "purge", "dead letter", ("done",), COUNTED)

filter_flags = with_flags(
    [
        click.option(
            "--type",
            "task_type",
            metavar="TYPE",
            shell_complete=TASK_TYPES,
            help="Only of tasks of this type.",
        ),
        click.option("--reason", type=click.Choice(REASONS), help="Only with this failure reason."),
        click.option("--fingerprint", metavar="HEX", help="Only of one cause, from `groups`."),
    ]
)
replayed_flag = click.option(
    "--replayed/--not-replayed", default=None, help="Only what was, or was not, replayed."
)


@click.group("dead-letters")
def command() -> None:
    """List and inspect dead letters; replay or purge them."""


@command.command("list")
@filter_flags
@replayed_flag
@list_flags
@over_api
def list_letters(
    session: ApiSession, limit: int, cursor: str | None, replayed: bool | None, **filters: Any
) -> None:
    """List dead letters, newest first."""
    query = {**filter_of(**filters), "replayed": flag_text(replayed)}
    page = session.page("/v1/dead-letters", query, limit, cursor)
    session.show_page(page, lambda items: print_table(items, COLUMNS, "no dead letters"))


@command.command("groups")
@filter_flags
@replayed_flag
@list_flags
@over_api
def groups(
    session: ApiSession, limit: int, cursor: str | None, replayed: bool | None, **filters: Any
) -> None:
    """Group dead letters by cause, the most frequent first."""
    query = {**filter_of(**filters), "replayed": flag_text(replayed), "group_by": "fingerprint"}
    page = session.page("/v1/dead-letters", query, limit, cursor)
    session.show_page(page, lambda items: print_table(items, GROUP_COLUMNS, "no dead letters"))


@command.command("show")
@click.argument("letter_id", metavar="ID", shell_complete=DEAD_LETTER_IDS)
@over_api
def show(session: ApiSession, letter_id: str) -> None:
    """Show a dead letter with its payload and error."""
    letter = session.ask("GET", path("dead-letters", letter_id))
    session.show(letter, lambda found: print_card(found, LEADING))


@command.command("replay")
@click.argument("letter_ids", metavar="[ID]...", nargs=-1, shell_complete=DEAD_LETTER_IDS)
@filter_flags
@click.option("--all", "everything", is_flag=True, help="All that were not replayed yet.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Replays per second."
)
@click.option("--start-at", type=instant, metavar="INSTANT", help="Due time of the first replay.")
@dry_run_flag
@yes_flag
@over_api
def replay(
    session: ApiSession,
    letter_ids: tuple[str, ...],
    everything: bool,
    rate: float | None,
    start_at: str | None,
    dry_run: bool,
    yes: bool,
    **filters: Any,
) -> int:
    """Replay dead letters as new tasks: those with the IDs, or all that match."""
    pace = given(rate_per_s=rate, start_at=start_at)
    wanted = chosen(letter_ids, filter_of(**filters), everything=everything)
    if len(letter_ids) == 1 and not dry_run and not pace:
        task = session.ask("POST", path("dead-letters", letter_ids[0], "replay"))
        session.show(task, print_changed)
        return 0
    yes = yes or bool(letter_ids)
    totals = run_in_batches(session, REPLAY, {**wanted, **pace}, dry_run=dry_run, yes=yes)
    session.show(totals, lambda found: print_totals(found, "replayed"))
    return missing(letter_ids, totals)


@command.command("purge")
@click.argument("letter_ids", metavar="[ID]...", nargs=-1, shell_complete=DEAD_LETTER_IDS)
@filter_flags
@replayed_flag
@click.option("--all", "everything", is_flag=True, help="All dead letters of the tenant.")
@dry_run_flag
@yes_flag
@over_api
def purge(
    session: ApiSession,
    letter_ids: tuple[str, ...],
    everything: bool,
    replayed: bool | None,
    dry_run: bool,
    yes: bool,
    **filters: Any,
) -> int:
    """Purge dead letters and the data of their tasks for good: by IDs, or all that match."""
    matching = filter_of(**filters) | given(replayed=replayed)
    wanted = chosen(letter_ids, matching, everything=everything)
    yes = yes or bool(letter_ids)
    totals = run_in_batches(session, PURGE, wanted, dry_run=dry_run, yes=yes)
    session.show(totals, lambda found: print_totals(found, "purged"))
    return missing(letter_ids, totals)


def chosen(letter_ids: tuple[str, ...], matching: Json, *, everything: bool) -> Json:
    if sum((bool(letter_ids), bool(matching), everything)) != 1:
        raise click.UsageError("give IDs, or a filter, or --all")
    return {"ids": list(letter_ids)} if letter_ids else {"filter": matching}


def missing(letter_ids: tuple[str, ...], totals: Json) -> int:
    """Exit code 1 if something that was named is not there, or was dealt with already."""
    return 1 if totals["matched"] < len(set(letter_ids)) else 0


def filter_of(task_type: str | None, reason: str | None, fingerprint: str | None) -> Json:
    return given(type=task_type, reason=reason, fingerprint=fingerprint)


def flag_text(flag: bool | None) -> str | None:
    return None if flag is None else str(flag).lower()


def print_totals(totals: Json, done: str) -> None:
    if totals["dry_run"]:
        click.echo(matching(totals, "dead letter"))
    elif not totals["matched"]:
        click.echo("no dead letter matches")
    else:
        click.echo(f"{totals['done']:,} dead letters {done}")
    if totals.get("last_at") is not None:
        click.echo(f"the last is due at {worded_instant(totals['last_at'])}")
