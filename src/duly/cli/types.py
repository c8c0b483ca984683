"""`duly types`: task types of a tenant: payload schema, defaults, permitted keys."""

import click
import msgspec

from duly.cli.api_session import ApiSession, given, over_api, path
from duly.cli.options import list_flags
from duly.cli.output import print_card, print_table
from duly.cli.suggestions import KEY_IDS, TASK_TYPES
from duly.cli.values import json_document

COLUMNS = ("name", "has_schema", "defaults", "keys", "updated_at")


@click.group("types")
def command() -> None:
    """Task types: payload schemas, defaults, which keys may submit them."""


@command.command("list")
@list_flags
@over_api
def list_types(session: ApiSession, limit: int, cursor: str | None) -> None:
    """List task types by name."""
    page = session.page("/v1/task-types", {}, limit, cursor)
    session.show_page(
        page,
        lambda items: print_table(
            [{**item, "has_schema": item["schema"] is not None} for item in items],
            COLUMNS,
            "no task types are described",
        ),
    )


@command.command("show")
@click.argument("name", shell_complete=TASK_TYPES)
@over_api
def show(session: ApiSession, name: str) -> None:
    """Show a task type."""
    session.show(session.ask("GET", path("task-types", name)), print_card)


@command.command("set")
@click.argument("name", shell_complete=TASK_TYPES)
@click.option("--schema", type=json_document, metavar="JSON", help="A JSON Schema for payloads.")
@click.option("--defaults", type=json_document, metavar="JSON", help="Defaults of task fields.")
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="ID",
    shell_complete=KEY_IDS,
    help="Only these keys may submit it.",
)
@click.option("--no-keys", is_flag=True, help="No key may submit it.")
@over_api
def put(
    session: ApiSession,
    name: str,
    schema: msgspec.Raw | None,
    defaults: msgspec.Raw | None,
    keys: tuple[str, ...],
    no_keys: bool,
) -> None:
    """Set the description of a task type, replacing the earlier one. JSON may be @FILE, or - for
    stdin."""
    if keys and no_keys:
        raise click.UsageError("give --key or --no-keys")
    asked = given(schema=schema, defaults=defaults, keys=list(keys) or None)
    if no_keys:
        asked["keys"] = []
    session.show(session.ask("PUT", path("task-types", name), asked), print_card)


@command.command("delete")
@click.argument("name", shell_complete=TASK_TYPES)
@over_api
def delete(session: ApiSession, name: str) -> None:
    """Delete the description of a task type; its tasks stay."""
    session.ask("DELETE", path("task-types", name))
    session.show({"name": name, "deleted": True}, lambda _: click.echo(f"{name} deleted"))
