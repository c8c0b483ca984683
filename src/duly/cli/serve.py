"""`duly serve`: one process of an installation on an external PostgreSQL, until SIGTERM."""

from typing import Any

import click
import uvloop

from duly.app import serve
from duly.cli.options import database_flags, json_flag, load
from duly.cli.up import announce_json, announce_text
from duly.domain.errors import ConfigurationError
from duly.environment import system_environment
from duly.telemetry import configure_logs


@click.command("serve")
@database_flags
@click.option("--host", help="Address the API listens on.")
@click.option("--port", metavar="N", help="Port of the API; 0 chooses a free one.")
@click.option("--roles", metavar="LIST", help="Some of api,scheduler,executor,maintenance.")
@json_flag
def command(as_json: bool, **flags: Any) -> None:
    """Start one process of an installation on the PostgreSQL of --database-url. Start as many as
    you like: they share the slots and the ready queue. SIGTERM releases its slots and stops.
    With --roles, this one does only that, and others must do the rest.
    """
    settings = load(flags).settings
    if not settings.database_url:
        problem = "serve needs --database-url or DULY_DATABASE_URL; `duly up` brings its own server"
        raise ConfigurationError(problem=problem)
    configure_logs(settings.log_level, settings.log_format)
    announce = announce_json if as_json else announce_text
    uvloop.run(serve(settings, system_environment(), announce))
