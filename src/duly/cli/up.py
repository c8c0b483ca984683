"""`duly up`: all of duly in one process on this machine, until Ctrl-C."""

import contextlib
import sys
from typing import Any

import click
import msgspec
import uvloop

from duly import __version__
from duly.app import FIRST_KEY_COMMAND, Ready, up
from duly.cli.options import database_flags, json_flag, load
from duly.cli.output import busy
from duly.domain.errors import ConfigurationError
from duly.environment import system_environment
from duly.settings import ROLES
from duly.telemetry import configure_logs, get_logger

log = get_logger("duly.cli")


@click.command("up")
@database_flags
@click.option("--host", help="Address the API listens on.")
@click.option("--port", metavar="N", help="Port of the API; 0 chooses a free one.")
@json_flag
def command(as_json: bool, **flags: Any) -> None:
    """Start duly on this machine: an embedded PostgreSQL (or the one of --database-url), the
    schema, every role and the API. Ctrl-C or SIGTERM stops all of it in order.

    With --json, one line says when it is ready: {"url", "api_key", "data_dir", "dashboard"}.
    """
    settings = load(flags).settings
    if set(settings.roles) != set(ROLES):
        raise ConfigurationError(problem="up does all of it; `duly serve` can have some roles only")
    configure_logs(settings.log_level, settings.log_format)
    starting = contextlib.ExitStack()

    def announce(ready: Ready) -> None:
        starting.close()
        (announce_json if as_json else announce_text)(ready)

    with starting:
        # At once: a first start makes a database, and that takes seconds.
        notice = busy("starting PostgreSQL and duly", is_shown=not as_json, after_s=0.0)
        starting.enter_context(notice)
        uvloop.run(up(settings, system_environment(), announce))


def announce_json(ready: Ready) -> None:
    embedded = ready.target.embedded
    line = {
        "url": ready.url,
        "api_key": ready.key.first,
        "data_dir": str(embedded.data_dir) if embedded else None,
        "dashboard": ready.dashboard,
    }
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()
    if not ready.key.is_any:
        log.warning("no API key yet", make_it_with=FIRST_KEY_COMMAND)


def announce_text(ready: Ready) -> None:
    click.echo(f"duly {__version__} is ready")
    click.echo(f"  API       {ready.url}")
    click.echo(f"  dashboard {ready.dashboard or ready.url}")
    if ready.dashboard is not None:
        click.echo("            (signs in once, within 15 minutes; `duly dashboard` makes another)")
    click.echo(f"  database  {ready.target.description}")
    if ready.key.first is not None:
        click.echo(f"  API key   {ready.key.first}")
        click.echo("            (an admin's; keep it, it is not shown again)")
    elif ready.is_key_known:
        click.echo("  API key   as before; `duly env` prints it")
    if not ready.key.is_any:
        click.echo(f"  API key   none yet; make the first one with: {FIRST_KEY_COMMAND}")
    if ready.allows_private:
        click.echo("  webhooks  may go to this machine and its network (webhook_allow_private)")
    click.echo("Ctrl-C stops it.")
