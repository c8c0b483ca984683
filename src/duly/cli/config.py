"""`duly config`: the effective settings and where each came from, secrets hidden."""

from typing import Any

import click
import msgspec

from duly.cli.options import database_flags, json_flag, load
from duly.cli.output import print_table
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
        print_rows(rows)


def shown(name: str, value: object) -> object:
    return HIDDEN if is_secret(name) and value else value


def print_rows(rows: list[dict[str, Any]]) -> None:
    shown_rows = [
        {
            "setting": row["name"],
            "value": str(row["value"]),
            "from": row["origin"],
            "meaning": row["description"],
        }
        for row in rows
    ]
    print_table(shown_rows, ("setting", "value", "from", "meaning"), "no settings")
