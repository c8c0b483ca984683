"""The `duly` command: its groups, and the one place where errors become exit codes.

Commands are imported when they are called, so that `duly --help` stays instant.
"""

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from duly import __version__

if TYPE_CHECKING:
    from duly.client.errors import ApiError

# What `pip install duly` leaves out; `duly[server]` brings all of it.
SERVER_MODULES = frozenset(
    (
        *("aiohttp", "asyncpg", "httptools", "jsonschema_rs", "jwt", "prometheus_client"),
        *("uvicorn", "uvloop"),
    )
)
# The command that starts PostgreSQL too.
EMBEDDED_COMMANDS = ("up", "bench")
EXIT_FAILED = 1
EXIT_USAGE = 2

# command -> (module, what the list of commands says about it)
COMMANDS = {
    "up": ("duly.cli.up", "Start duly on this machine, with an embedded PostgreSQL."),
    "serve": ("duly.cli.serve", "Start one process of an installation."),
    "worker": ("duly.cli.worker", "Run the handlers of a worker in your own code."),
    "migrate": ("duly.cli.migrate", "Bring the database schema to this version of duly."),
    "doctor": ("duly.cli.doctor", "Check the database and roles, and print remedies."),
    "verify": ("duly.cli.verify", "Check all stored rows against duly's invariants."),
    "config": ("duly.cli.config", "Show every setting, its value and where it came from."),
    "psql": ("duly.cli.psql", "Open psql on duly's database."),
    "dashboard": ("duly.cli.dashboard", "Print a link that signs a browser in, once."),
    "env": ("duly.cli.env", "Print address, key and database for a shell."),
    "status": ("duly.cli.status", "Show nodes, slots, backlog, lag and dead letters."),
    "stats": ("duly.cli.stats", "Show counts, lag and run times over the last hours."),
    "tasks": ("duly.cli.tasks", "Submit, list, wait for, cancel and change tasks."),
    "workflows": ("duly.cli.workflows", "Start, list, draw, pause, resume, cancel workflows."),
    "workflow-types": ("duly.cli.workflow_types", "Definitions of workflows, in versions."),
    "schedules": ("duly.cli.schedules", "Create, list and change schedules; apply a file."),
    "forecast": ("duly.cli.forecast", "Show expected fires per minute, and peaks."),
    "dead-letters": ("duly.cli.dead_letters", "List failed tasks; replay or purge them."),
    "bulk": ("duly.cli.bulk_operations", "Cancel, move, replay or purge many, in the server."),
    "types": ("duly.cli.types", "Task types: schemas, defaults, permitted keys."),
    "tenants": ("duly.cli.tenants", "Tenants and their limits."),
    "keys": ("duly.cli.keys", "Create, rotate and revoke API keys."),
    "webhook-secrets": ("duly.cli.webhook_secrets", "Secrets that sign webhooks."),
    "notifications": ("duly.cli.notifications", "Who is told of failures, and how."),
    "audit": ("duly.cli.audit", "List who changed keys, limits, pauses and schedules."),
    "breakers": ("duly.cli.breakers", "List circuit breakers, and close one."),
    "pauses": ("duly.cli.pauses", "Pause and resume a tenant, a type or a pool."),
    "nodes": ("duly.cli.nodes", "The processes of the installation."),
    "workers": ("duly.cli.workers", "The tenant's live workers."),
    "alerts": ("duly.cli.alerts", "Print alerts for Prometheus and a dashboard for Grafana."),
    "bench": ("duly.cli.bench", "Measure duly on this machine."),
    "relay": ("duly.cli.relay", "Forward the outbox of a producer in another PostgreSQL."),
    "completion": ("duly.cli.completion", "Print the completion script for a shell."),
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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """With a hint for a mistyped name: click knows only the commands that are imported."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """From the list above: completing a name must not import every command."""
        names = [
            CompletionItem(name, help=line)
            for name, (_, line) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="duly")
def group() -> None:
    """duly: hand it a task and a time; it fires on time and never loses what it acknowledged."""
    if any(name.startswith("DULY_") for name in os.environ):
        from duly.settings import check_names

        check_names(os.environ)


def main(arguments: Sequence[str] | None = None) -> None:
    code = run(arguments)
    # A process that ends looks through all its objects once more, which takes it longer than some
    # commands do; the system has them all back in a moment.
    gc.freeze()
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 done, 1 refused or failed, 2 usage or configuration."""
    as_json = wants_json(sys.argv[1:] if arguments is None else arguments)
    try:
        code = group.main(arguments, prog_name="duly", standalone_mode=False)
    except click.UsageError as error:
        if as_json:
            print_problem({"code": "usage", "detail": error.format_message()})
        else:
            error.show()
        return EXIT_USAGE
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("duly: interrupted", err=True)
        return EXIT_FAILED
    except BrokenPipeError:
        # The reader of the output has gone (closed pipe): write nothing more, also not at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in SERVER_MODULES:
            raise
        return explain(missing_server(arguments), as_json=as_json)
    except Exception as error:
        return explain(error, as_json=as_json)
    return code if isinstance(code, int) else 0


def missing_server(arguments: Sequence[str] | None) -> Exception:
    from duly.domain.errors import ConfigurationError

    given = sys.argv[1:] if arguments is None else arguments
    command = next((each for each in given if each in COMMANDS), "")
    extra = "embedded" if command in EMBEDDED_COMMANDS else "server"
    problem = f"`duly {command}` needs the server's packages: pip install 'duly[{extra}]'"
    return ConfigurationError(problem=problem)


def wants_json(arguments: Sequence[str]) -> bool:
    """Known before the rest is read, because reading it may be what fails."""
    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in flags


def explain(error: Exception, *, as_json: bool = False) -> int:
    """One line for a DulyError; a bug keeps its traceback."""
    from duly.client.errors import ApiError, Unreachable, WaitTimedOut
    from duly.domain.errors import DulyError, KeysExist, MigrationFailed

    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if not isinstance(error, DulyError):
        raise error
    text = " ".join(str(error).split())
    if not as_json:
        click.echo(f"duly: {text}", err=True)
    elif isinstance(error, ApiError):
        print_problem(problem_of(error))
    else:
        print_problem({"code": snake_case(type(error).__name__), "detail": text})
    failures = (MigrationFailed, KeysExist, ApiError, Unreachable, WaitTimedOut)
    return EXIT_FAILED if isinstance(error, failures) else EXIT_USAGE


def problem_of(error: "ApiError") -> dict[str, object]:
    """As the server said it."""
    problem = {
        "status": error.status,
        "code": error.code,
        "detail": error.detail,
        "errors": error.errors,
        "retry_after_s": error.retry_after_s,
    }
    return {name: value for name, value in problem.items() if value not in (None, [])}


def snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)[1:]


def print_problem(problem: dict[str, object]) -> None:
    import msgspec

    click.echo(msgspec.json.encode(problem).decode(), err=True)
