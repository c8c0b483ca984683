"""`duly audit`: who changed what in the control plane, newest first. Reads only."""

import click

from duly.cli.api_session import ApiSession, Json, given, over_api
from duly.cli.options import list_flags
from duly.cli.output import print_table

COLUMNS = ("at", "actor", "action", "subject", "detail")


@click.command("audit")
@click.option("--action", metavar="NAME", help="Only this action, such as key.create.")
@click.option("--actor", metavar="TEXT", help="Only by this actor, as the list names it.")
@list_flags
@over_api
def command(
    session: ApiSession, action: str | None, actor: str | None, limit: int, cursor: str | None
) -> None:
    """List the audit log of the tenant, newest first: keys, limits, pauses, schedules, replays.

    Needs an operator's or admin's key.
    """
    page = session.page("/v1/audit", given(action=action, actor=actor), limit, cursor)
    session.show_page(
        page, lambda items: print_table([row_of(each) for each in items], COLUMNS, "no entries")
    )


def row_of(entry: Json) -> Json:
    """Without the braces of an empty detail, which most entries have."""
    return {**entry, "detail": entry["detail"] or None}
