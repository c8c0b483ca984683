"""`duly breakers`: hosts, types and pools that get no work because nearly everything failed."""

import click

from duly.cli.api_session import ApiSession, over_api
from duly.cli.options import list_flags
from duly.cli.output import print_card, print_table
from duly.cli.suggestions import BREAKER_NAMES

COLUMNS = ("kind", "name", "phase", "open_until", "reason")
KINDS = ("host", "type", "pool")


@click.group("breakers")
def command() -> None:
    """List circuit breakers, and close one manually."""


@command.command("list")
@list_flags
@over_api
def list_breakers(session: ApiSession, limit: int, cursor: str | None) -> None:
    """List open breakers of hosts, types and pools, with the reason."""
    page = session.page("/v1/breakers", {}, limit, cursor)
    session.show_page(page, lambda items: print_table(items, COLUMNS, "no breaker is open"))


@command.command("close")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name", shell_complete=BREAKER_NAMES)
@over_api
def close(session: ApiSession, kind: str, name: str) -> None:
    """Close the breaker of the host, type or pool NAME: its tasks are dispatched again."""
    session.show(session.ask("POST", "/v1/breakers/close", {kind: name}), print_card)
