"""`duly workflow-types`: define a workflow type from a file, list types and versions, show one."""

from typing import BinaryIO

import click
import msgspec

from duly.cli.api_session import ApiSession, over_api, path
from duly.cli.options import list_flags
from duly.cli.output import clean, print_card, print_table
from duly.cli.suggestions import WORKFLOW_TYPES
from duly.cli.values import read_bounded

COLUMNS = ("name", "version", "nodes", "created_at")
LEADING = ("name", "version", "nodes", "created_at")

type_argument = click.argument("name", metavar="NAME", shell_complete=WORKFLOW_TYPES)


@click.group("workflow-types")
def command() -> None:
    """Workflow types: definitions in versions that never change."""


@command.command("put")
@type_argument
@click.argument("file", type=click.File("rb"), metavar="FILE")
@over_api
def put(session: ApiSession, name: str, file: BinaryIO) -> None:
    """Define the type NAME by FILE (JSON; - is standard input): its next version, unless the latest
    says the same.

    \b
    {"nodes": {"charge": {"type": "payment.charge"},
               "ship": {"type": "parcel.ship", "after": ["charge"]}}}
    """
    content = read_bounded(file)
    try:
        msgspec.json.decode(content)
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"is not JSON: {error}", param_hint="FILE") from None
    made = session.ask("PUT", path("workflow-types", name), msgspec.Raw(content))
    session.show(made, lambda found: click.echo(clean(f"{found['name']}@{found['version']}")))


@command.command("list")
@click.option("--versions", "name", metavar="NAME", help="The versions of this type instead.")
@list_flags
@over_api
def list_types(session: ApiSession, limit: int, cursor: str | None, name: str | None) -> None:
    """List workflow types by name, each with its latest version."""
    at = "/v1/workflow-types" if name is None else path("workflow-types", name, "versions")
    page = session.page(at, {}, limit, cursor)
    session.show_page(page, lambda items: print_table(items, COLUMNS, "no workflow types"))


@command.command("show")
@type_argument
@over_api
def show(session: ApiSession, name: str) -> None:
    """Show a workflow type with its definition: NAME is its latest version, NAME@3 its third."""
    found = session.ask("GET", path("workflow-types", name))
    session.show(found, lambda answer: print_card(answer, LEADING))
