"""`duly workers`: the tenant's own processes that lease tasks."""

import click

from duly.cli.api_session import ApiSession, Json, over_api
from duly.cli.options import list_flags
from duly.cli.output import print_table

COLUMNS = ("id", "pools", "started_at", "seen_at", "holder")
HISTORY_COLUMNS = (
    *("id", "is_live", "completed", "failed", "lost", "busy", "first_seen_at", "last_seen_at"),
    *("version", "sdk", "pools", "slots", "other"),
)
# The first to go where the terminal is narrow.
LESS = ("other", "slots", "sdk", "pools", "first_seen_at", "version")


@click.group("workers")
def command() -> None:
    """The tenant's workers: those that live, and what each did."""


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


@command.command("history")
@list_flags
@over_api
def list_history(session: ApiSession, limit: int, cursor: str | None) -> None:
    """List what workers did, also those that are gone: last seen first."""
    page = session.page("/v1/workers/history", {}, limit, cursor)
    session.show_page(
        page,
        lambda items: print_table(
            [in_words(item) for item in items], HISTORY_COLUMNS, "no worker was seen", LESS
        ),
    )


def in_words(worker: Json) -> Json:
    share = worker["busy_share"]
    busy = "" if share is None else f"{share:.0%}"
    return {**worker, "pools": " ".join(worker["pools"]), "busy": busy}
