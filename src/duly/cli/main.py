"""The `duly` command: its groups, and the one place where errors become exit codes.

Commands are imported when they are called, so that `duly --help` stays instant.
"""

import importlib
import sys
from collections.abc import Sequence

import click

from duly import __version__

EXIT_FAILED = 1
EXIT_USAGE = 2

# command -> (module, what the list of commands says about it)
COMMANDS = {
    "up": ("duly.cli.up", "Start duly on this machine, with an embedded PostgreSQL."),
    "serve": ("duly.cli.serve", "Start one process of an installation with its own PostgreSQL."),
    "migrate": ("duly.cli.migrate", "Bring the database schema to this version of duly."),
    "config": ("duly.cli.config", "Show every setting, its value and where it came from."),
}


class LazyGroup(click.Group):
    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command: click.Command = importlib.import_module(module).command
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="duly")
def group() -> None:
    """duly: hand it a task and a time; it fires on time and never loses what it acknowledged."""


def main(arguments: Sequence[str] | None = None) -> None:
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 done, 1 refused or failed, 2 usage or configuration."""
    try:
        group.main(arguments, prog_name="duly", standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return EXIT_USAGE
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("duly: interrupted", err=True)
        return EXIT_FAILED
    except Exception as error:
        return explain(error)
    return 0


def explain(error: Exception) -> int:
    """One clear line for a fault of the world; our own mistakes keep their traceback."""
    from duly.domain.errors import DulyError, MigrationFailed

    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if not isinstance(error, DulyError):
        raise error
    click.echo(f"duly: {' '.join(str(error).split())}", err=True)
    return EXIT_FAILED if isinstance(error, MigrationFailed) else EXIT_USAGE
