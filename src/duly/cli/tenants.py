"""`duly tenants`: the tenants of the installation, and their limits."""

from typing import Any

import click

from duly.cli.api_session import ApiSession, Json, over_api, path
from duly.cli.options import list_flags, with_flags
from duly.cli.output import print_card, print_table
from duly.cli.suggestions import TENANT_NAMES
from duly.cli.values import NO_BOUND, bound, whole_seconds

COLUMNS = (
    "name",
    "weight",
    "in_flight_max",
    "dispatch_rate",
    "dispatch_burst",
    "submit_rate",
    "submit_burst",
    "stored_max",
    "schedule_s_min",
    "suspended",
)

# The first to go where the terminal is narrow.
LESS = ("dispatch_burst", "submit_burst", "schedule_s_min", "weight", "stored_max")

limit_flags = with_flags(
    [
        click.option("--weight", type=float, metavar="N", help="Fair share weight under load."),
        click.option(
            "--in-flight-max", type=bound, metavar="N|none", help="Running tasks at most."
        ),
        click.option(
            "--dispatch-rate", type=bound, metavar="N|none", help="Dispatches per second."
        ),
        click.option("--dispatch-burst", type=bound, metavar="N|none", help="Dispatch burst."),
        click.option("--submit-rate", type=bound, metavar="N|none", help="Submits per second."),
        click.option("--submit-burst", type=bound, metavar="N|none", help="Submit burst."),
        click.option(
            "--stored-max", type=bound, metavar="N|none", help="Unfinished tasks at most."
        ),
        click.option(
            "--schedule-min",
            "schedule_s_min",
            type=whole_seconds,
            metavar="DURATION",
            help="The least time between two fires of one schedule.",
        ),
    ]
)


@click.group("tenants")
def command() -> None:
    """Tenants and their limits."""


@command.command("list")
@list_flags
@over_api
def list_tenants(session: ApiSession, limit: int, cursor: str | None) -> None:
    """List the tenants of the installation."""
    page = session.page("/v1/tenants", {}, limit, cursor)
    session.show_page(page, lambda items: print_table(items, COLUMNS, "no tenants", LESS))


@command.command("show")
@click.argument("name", shell_complete=TENANT_NAMES)
@over_api
def show(session: ApiSession, name: str) -> None:
    """Show a tenant's limits."""
    session.show(session.ask("GET", path("tenants", name)), print_card)


@command.command("create")
@click.argument("name")
@limit_flags
@over_api
def create(session: ApiSession, name: str, **limits: Any) -> None:
    """Create a tenant."""
    asked = {"name": name} | said(limits)
    session.show(session.ask("POST", "/v1/tenants", asked), print_card)


@command.command("set")
@click.argument("name", shell_complete=TENANT_NAMES)
@limit_flags
@over_api
def change(session: ApiSession, name: str, **limits: Any) -> None:
    """Change some limits of a tenant; `none` removes a limit."""
    asked = said(limits)
    if not asked:
        raise click.UsageError("give at least one limit, such as --in-flight-max 100")
    session.show(session.ask("PATCH", path("tenants", name), asked), print_card)


@command.command("suspend")
@click.argument("name", shell_complete=TENANT_NAMES)
@over_api
def suspend(session: ApiSession, name: str) -> None:
    """Refuse the calls of a tenant and hold its tasks; what runs may come to its end."""
    session.show(session.ask("PATCH", path("tenants", name), {"suspended": True}), print_card)


@command.command("resume")
@click.argument("name", shell_complete=TENANT_NAMES)
@over_api
def resume(session: ApiSession, name: str) -> None:
    """End the suspension of a tenant."""
    session.show(session.ask("PATCH", path("tenants", name), {"suspended": False}), print_card)


def said(limits: Json) -> Json:
    return {
        name: None if value == NO_BOUND else value
        for name, value in limits.items()
        if value is not None
    }
