"""`duly env`: the local duly's address, key and database, for a shell and other programs."""

import shlex
from pathlib import Path

import click
import msgspec

from duly.cli.options import json_flag, load
from duly.client.server import find_server
from duly.environment import system_environment
from duly.store.embedded import EmbeddedPostgres


@click.command("env")
@json_flag
def command(as_json: bool) -> None:
    """Print DULY_URL and DULY_API_KEY as clients would find them, and as DATABASE_URL the owner's
    login of the embedded PostgreSQL, if it runs: eval "$(duly env)" sets them in a shell.
    """
    server = find_server()
    variables = {"DULY_URL": server.url, "DULY_API_KEY": server.api_key}
    settings = load({}).settings
    if not settings.database_url:
        found = EmbeddedPostgres(Path(settings.data_dir), system_environment()).running()
        if found is not None:
            variables["DATABASE_URL"] = found.url()
    if as_json:
        click.echo(msgspec.json.encode(variables).decode())
    else:
        for name, value in variables.items():
            click.echo(f"export {name}={shlex.quote(value)}")
