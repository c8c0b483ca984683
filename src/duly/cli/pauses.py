"""`duly pauses`: stop and resume the dispatch of a tenant, a type or a pool."""

import click

from duly.cli.api_session import ApiSession, Json, given, over_api
from duly.cli.options import list_flags
from duly.cli.output import clean, print_card, print_table
from duly.cli.suggestions import PAUSED_NAMES

COLUMNS = ("kind", "name", "paused_at", "actor", "reason")
KINDS = ("tenant", "type", "pool")

kind_argument = click.argument("kind", type=click.Choice(KINDS))
name_argument = click.argument("name", metavar="[NAME]", required=False)


@click.group("pauses")
def command() -> None:
    """Pause and resume a tenant, a type or a pool."""


@command.command("list")
@list_flags
@over_api
def list_pauses(session: ApiSession, limit: int, cursor: str | None) -> None:
    """List what is paused, by whom and why."""
    page = session.page("/v1/pauses", {}, limit, cursor)
    session.show_page(page, lambda items: print_table(items, COLUMNS, "nothing is paused"))


@command.command("pause")
@kind_argument
@name_argument
@click.option("--reason", required=True, metavar="TEXT", help="Shown with the pause.")
@over_api
def pause(session: ApiSession, kind: str, name: str | None, reason: str) -> None:
    """Pause the tenant, or the type or pool NAME. What runs goes on; nothing is lost."""
    check(kind, name)
    asked = given(kind=kind, name=name, reason=reason)
    session.show(session.ask("POST", "/v1/pauses", asked), print_card)


@command.command("resume")
@kind_argument
@click.argument("name", metavar="[NAME]", required=False, shell_complete=PAUSED_NAMES)
@over_api
def resume(session: ApiSession, kind: str, name: str | None) -> None:
    """Resume the tenant, or the type or pool NAME."""
    check(kind, name)
    ended = session.ask("POST", "/v1/pauses/resume", given(kind=kind, name=name))
    session.show(ended, print_resumed)


def print_resumed(pause: Json) -> None:
    """A card of the pause, with its `paused at`, would say that it is still there."""
    subject = " ".join(filter(None, (pause["kind"], pause.get("name"))))
    click.echo(f"{clean(subject)} is resumed")


def check(kind: str, name: str | None) -> None:
    if (name is None) != (kind == "tenant"):
        raise click.UsageError("a type or a pool has a NAME; a tenant is named with --tenant")
