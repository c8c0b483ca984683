"""`duly keys`: API keys. The text of a key is shown once, by the command that made it."""

import click

from duly.cli.calling import Json, Talk, given, over_api, path
from duly.cli.options import list_flags
from duly.cli.screen import note, print_card, print_table
from duly.cli.values import duration

COLUMNS = ("id", "name", "role", "reach", "signing", "created_at", "expires_at", "revoked_at")
LEADING = ("key", "id", "name", "role", "reach")
ROLES = ("producer", "worker", "operator", "admin")


@click.group("keys")
def command() -> None:
    """Make, rotate and revoke API keys."""


@command.command("list")
@list_flags
@over_api
def list_keys(talk: Talk, limit: int, cursor: str | None) -> None:
    """List the keys of the tenant, without their texts."""
    page = talk.page("/v1/keys", {}, limit, cursor)
    talk.show_page(page, lambda items: print_table(items, COLUMNS, "no keys"))


@command.command("create")
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What it may do.")
@click.option("--installation", is_flag=True, help="It reaches every tenant.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="It may submit only these.")
@click.option("--signing", is_flag=True, help="Its secret signs requests and is never sent.")
@click.option("--expires-in", type=duration, metavar="DURATION", help="Such as 90d.")
@over_api
def create(
    talk: Talk,
    name: str,
    role: str,
    installation: bool,
    types: tuple[str, ...],
    signing: bool,
    expires_in: float | None,
) -> None:
    """Make a key. Its text is shown this once."""
    asked = given(
        name=name,
        role=role,
        reach="installation" if installation else None,
        types=list(types) or None,
        signing=signing or None,
        expires_in_s=expires_in,
    )
    talk.show(talk.ask("POST", "/v1/keys", asked), print_made)


@command.command("rotate")
@click.argument("key_id", metavar="ID")
@click.option("--grace", type=duration, metavar="DURATION", help="The old one lives on so long.")
@over_api
def rotate(talk: Talk, key_id: str, grace: float | None) -> None:
    """Make the successor of a key. Its text is shown this once."""
    asked = given(grace_s=grace)
    talk.show(talk.ask("POST", path("keys", key_id, "rotate"), asked), print_made)


@command.command("revoke")
@click.argument("key_id", metavar="ID")
@over_api
def revoke(talk: Talk, key_id: str) -> None:
    """Revoke a key, everywhere within seconds."""
    talk.show(talk.ask("DELETE", path("keys", key_id)), print_key)


def print_key(key: Json) -> None:
    print_card(key, LEADING)


def print_made(key: Json) -> None:
    print_key(key)
    note("keep the key: it is not shown again")
