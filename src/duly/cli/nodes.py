"""`duly nodes`: the processes of the installation, and the slots they own."""

import click

from duly.cli.api_session import ApiSession, Json, over_api
from duly.cli.options import list_flags
from duly.cli.output import print_table

ROLES = ("api", "scheduler", "executor", "maintenance")
COLUMNS = (
    *("id", "name", "version", "is_live", "roles", "slots", "failing"),
    *("carrier", "started_at", "seen_at"),
)
# The first to go where the terminal is narrow.
LESS = ("started_at", "version", "id", "carrier", "slots")
SLOT_COLUMNS = ("slot", "first_shard", "last_shard", "node", "epoch", "is_owned", "expires_at")


@click.group("nodes")
def command() -> None:
    """The processes of the installation."""


@command.command("list")
@list_flags
@over_api
def list_nodes(session: ApiSession, limit: int, cursor: str | None) -> None:
    """List nodes, also those that fell silent a short while ago."""
    page = session.page("/v1/nodes", {}, limit, cursor)
    session.show_page(
        page,
        lambda items: print_table([in_words(item) for item in items], COLUMNS, "no nodes", LESS),
    )


def in_words(node: Json) -> Json:
    failing = "; ".join(f"{role} {problem}" for role, problem in node["failing"].items())
    roles = "all" if set(node["roles"]) == set(ROLES) else " ".join(node["roles"])
    carrier = carrier_in_words(node["carrier"])
    return {**node, "roles": roles, "failing": failing, "carrier": carrier}


def carrier_in_words(carrier: Json | None) -> str:
    if carrier is None:
        return ""
    return f"{carrier['kind']} down" if carrier["problem"] else str(carrier["kind"])


@command.command("slots")
@list_flags
@over_api
def list_slots(session: ApiSession, limit: int, cursor: str | None) -> None:
    """List the slots of shards and who dispatches for each."""
    page = session.page("/v1/shards", {}, limit, cursor)
    session.show_page(page, lambda items: print_table(items, SLOT_COLUMNS, "no slots"))
