"""`duly workers`: the tenant's own processes that lease tasks."""

import click

from duly.cli.api_session import ApiSession, over_api
from duly.cli.options import list_flags
from duly.cli.output import print_table

COLUMNS = ("id", "pools", "started_at", "seen_at", "holder")


@click.group("workers")
def command() -> None:
    """The tenant's live workers."""


@command.command("list")
@list_flags
@over_api
def list_workers(session: ApiSession, limit: int, cursor: str | None) -> None:
    """List the workers that are alive, and the pools they serve."""
    page = session.page("/v1/workers", {}, limit, cursor)
    session.show_page(
        page,
        lambda items: print_table(
            [{**item, "pools": " ".join(item["pools"])} for item in items],
            COLUMNS,
            "no worker is alive",
        ),
    )
