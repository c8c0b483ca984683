"""`duly keys`: API keys. The text of a key is shown once, by the command that made it."""

import asyncio
from typing import Any

import click
import msgspec

from duly.cli.api_session import ApiSession, Json, given, over_api, path
from duly.cli.options import api_flags, database_flags, list_flags, load_to_look
from duly.cli.output import note, print_card, print_table
from duly.cli.suggestions import KEY_IDS, TASK_TYPES
from duly.cli.values import NO_BOUND, bound, duration
from duly.domain.errors import KeysExist

COLUMNS = ("id", "name", "role", "reach", "signing", "created_at", "expires_at", "revoked_at")
# The first to go where the terminal is narrow.
LESS = ("signing", "created_at", "reach")
LEADING = ("key", "id", "name", "role", "reach")
DATABASE_FLAG_NAMES = ("config", "data_dir", "database_url", "log_level")
COMMANDLINE = click.core.ParameterSource.COMMANDLINE
ROLES = ("viewer", "producer", "worker", "operator", "admin")


@click.group("keys")
def command() -> None:
    """Create, rotate and revoke API keys."""


@command.command("list")
@list_flags
@over_api
def list_keys(session: ApiSession, limit: int, cursor: str | None) -> None:
    """List the keys of the tenant, without their secrets."""
    page = session.page("/v1/keys", {}, limit, cursor)
    session.show_page(page, lambda items: print_table(items, COLUMNS, "no keys", LESS))


@command.command("create")
@click.argument("name", required=False)
@click.option("--role", type=click.Choice(ROLES), help="Role of the key.")
@click.option("--installation", is_flag=True, help="Access to every tenant.")
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="TYPE",
    shell_complete=TASK_TYPES,
    help="Limit it to these task types.",
)
@click.option("--signing", is_flag=True, help="Its secret signs requests and is never sent.")
@click.option("--expires-in", type=duration, metavar="DURATION", help="Such as 90d.")
@click.option("--request-rate", type=float, metavar="N", help="Requests per second at most.")
@click.option("--first", is_flag=True, help="First key, created in the database.")
@database_flags
@api_flags
@click.pass_context
def create(context: click.Context, /, first: bool, as_json: bool, **flags: Any) -> None:
    """Create a key. Its secret is shown only now.

    With --first: the admin's key of an installation without a live one, because it is new or all of
    them were revoked. It needs no server, only the database, which the settings or --database-url
    name, and takes no other flags.
    """
    of_database = {option: flags.pop(option) for option in DATABASE_FLAG_NAMES}
    if first:
        named = [name for name in flags if context.get_parameter_source(name) == COMMANDLINE]
        if named:
            raise click.UsageError(f"--first makes an admin's key, and takes no {named[0]}")
        return create_first(of_database, as_json=as_json)
    for name, what in (("name", "argument 'NAME'"), ("role", "option '--role'")):
        if flags[name] is None:
            raise click.UsageError(f"Missing {what}.", context)
    create_over_api(as_json=as_json, **flags)
    return None


def create_first(flags: dict[str, Any], *, as_json: bool) -> None:
    from duly.app import create_first_key
    from duly.environment import system_environment

    settings = load_to_look(flags).settings
    key = asyncio.run(create_first_key(settings, system_environment()))
    if key is None:
        raise KeysExist
    made = {"key": key, "tenant": "default", "role": "admin", "reach": "installation"}
    if as_json:
        click.echo(msgspec.json.encode(made).decode())
    else:
        print_made(made)


@over_api
def create_over_api(
    session: ApiSession,
    name: str,
    role: str,
    installation: bool,
    types: tuple[str, ...],
    signing: bool,
    expires_in: float | None,
    request_rate: float | None,
) -> None:
    asked = given(
        name=name,
        role=role,
        reach="installation" if installation else None,
        types=list(types) or None,
        signing=signing or None,
        expires_in_s=expires_in,
        request_rate=request_rate,
    )
    session.show(session.ask("POST", "/v1/keys", asked), print_made)


@command.command("rotate")
@click.argument("key_id", metavar="ID", shell_complete=KEY_IDS)
@click.option(
    "--grace", type=duration, metavar="DURATION", help="How long the old key stays valid."
)
@over_api
def rotate(session: ApiSession, key_id: str, grace: float | None) -> None:
    """Create the successor of a key. Its secret is shown only now."""
    asked = given(grace_s=grace)
    session.show(session.ask("POST", path("keys", key_id, "rotate"), asked), print_made)


@command.command("limit")
@click.argument("key_id", metavar="ID", shell_complete=KEY_IDS)
@click.argument("request_rate", type=bound, metavar="N|none")
@over_api
def limit(session: ApiSession, key_id: str, request_rate: float | str) -> None:
    """Set the request rate of a key, over all nodes."""
    asked = {"request_rate": None if request_rate == NO_BOUND else request_rate}
    session.show(session.ask("PATCH", path("keys", key_id), asked), print_key)


@command.command("revoke")
@click.argument("key_id", metavar="ID", shell_complete=KEY_IDS)
@over_api
def revoke(session: ApiSession, key_id: str) -> None:
    """Revoke a key, everywhere within seconds."""
    session.show(session.ask("DELETE", path("keys", key_id)), print_key)


def print_key(key: Json) -> None:
    print_card(key, LEADING)


def print_made(key: Json) -> None:
    print_key(key)
    note("keep the key: it is not shown again")
