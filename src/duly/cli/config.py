"""`duly config`: the effective settings and where each came from, secrets hidden."""

from typing import Any

import click
import msgspec

from duly.cli.options import database_flags, json_flag, load
from duly.settings import FIELDS, is_secret, meta_of

HIDDEN = "(hidden)"


@click.command("config")
@database_flags
@json_flag
def command(as_json: bool, **flags: Any) -> None:
    """Show every setting: its value, where it came from, and what it means."""
    loaded = load(flags)
    rows = [
        {
            "name": name,
            "value": shown(name, getattr(loaded.settings, name)),
            "origin": loaded.origins[name],
            "description": meta_of(name).description,
        }
        for name in FIELDS
    ]
    if as_json:
        click.echo(msgspec.json.encode({"items": rows}).decode())
    else:
        print_table(rows)


def shown(name: str, value: object) -> object:
    return HIDDEN if is_secret(name) and value else value


def print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("setting", "value", "from", "meaning"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(row["name"], str(row["value"]), row["origin"], row["description"])
    Console().print(table)
