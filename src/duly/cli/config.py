"""`duly config`: the effective settings and where each came from, secrets hidden."""

from typing import Any

import click
import msgspec

from duly.cli.options import config_flag, data_dir_flag, json_flag, load, log_level_flag, with_flags
from duly.cli.output import print_table, wide_flag
from duly.cli.psql import owner_url
from duly.settings import FIELDS, is_secret, meta_of

HIDDEN = "(hidden)"
# What `--database-url` is without a value: no URL is empty.
ASKED = ""
FLAGS = [
    config_flag,
    data_dir_flag,
    click.option(
        "--database-url",
        is_flag=False,
        flag_value=ASKED,
        metavar="[URL]",
        help="An external PostgreSQL instead; without URL, print the one that is used.",
    ),
    log_level_flag,
    wide_flag,
]


@click.command("config")
@with_flags(FLAGS)
@json_flag
def command(as_json: bool, database_url: str | None, **flags: Any) -> None:
    """Show every setting: its value, where it came from, and what it means.

    With --database-url alone: only the owner's URL of the database, with its password, for another
    program, as in pg_dump "$(duly config --database-url)". The embedded PostgreSQL must run for it.
    """
    if database_url == ASKED:
        url = owner_url(load(flags).settings)
        click.echo(msgspec.json.encode({"database_url": url}).decode() if as_json else url)
        return
    flags["database_url"] = database_url
    loaded = load(flags)
    rows = [
        {
            "name": name,
            "value": shown(name, getattr(loaded.settings, name), loaded.origins[name]),
            "origin": loaded.origins[name],
            "description": meta_of(name).description,
        }
        for name in FIELDS
    ]
    if as_json:
        click.echo(msgspec.json.encode({"items": rows}).decode())
    else:
        print_rows(rows)


def shown(name: str, value: object, origin: str) -> object:
    """A default is no secret: it stands in the documentation."""
    return HIDDEN if is_secret(name) and origin != "default" and value else value


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
