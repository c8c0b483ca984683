"""Flags that several commands share, and turning them into settings."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli.output import wide_flag
from duly.cli.suggestions import TASK_TYPES, TENANT_NAMES
from duly.cli.values import instant, secret, server_url

if TYPE_CHECKING:
    from duly.settings import LoadedSettings

Command = Callable[..., Any]
STATES = (
    "WAITING",
    "SCHEDULED",
    "READY",
    "RUNNING",
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "SKIPPED",
)
SHOWN_MAX = 100_000

config_flag = click.option("--config", metavar="FILE", help="A TOML file with settings.")
data_dir_flag = click.option(
    "--data-dir", metavar="FOLDER", help="Data directory of the embedded PostgreSQL."
)
log_level_flag = click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
DATABASE_FLAGS = [
    config_flag,
    data_dir_flag,
    click.option("--database-url", metavar="URL", help="An external PostgreSQL instead."),
    log_level_flag,
]

json_flag = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")

API_FLAGS = [
    click.option(
        "--url",
        type=server_url,
        metavar="URL",
        help="URL of duly. Default: DULY_URL, else the `duly up` of this machine.",
    ),
    click.option(
        "--api-key",
        type=secret,
        metavar="KEY",
        help="An API key, or @FILE. Better: DULY_API_KEY, which other users cannot see.",
    ),
    click.option(
        "--tenant",
        metavar="NAME",
        shell_complete=TENANT_NAMES,
        help="Tenant, for keys that reach several.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Answer as one JSON document."),
]

LIST_FLAGS = [
    click.option(
        "--limit",
        type=click.IntRange(1, SHOWN_MAX),
        default=50,
        show_default=True,
        metavar="N",
        help="Show at most so many.",
    ),
    click.option("--cursor", metavar="TEXT", help="Continue an earlier list."),
    wide_flag,
]

TASK_FILTER_FLAGS = [
    click.option(
        "--state", type=click.Choice(STATES, case_sensitive=False), help="Tasks in this state."
    ),
    click.option(
        "--type", "task_type", metavar="TYPE", shell_complete=TASK_TYPES, help="Tasks of this type."
    ),
    click.option("--tag", metavar="NAME:VALUE", help="Tasks with this tag."),
    click.option(
        "--created-after", type=instant, metavar="INSTANT", help="Submitted after this instant."
    ),
    click.option("--run-before", type=instant, metavar="INSTANT", help="To run before it."),
]

dry_run_flag = click.option(
    "--dry-run", is_flag=True, help="Only count the matches; change nothing."
)
yes_flag = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def with_flags(flags: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for flag in reversed(flags):
            command = flag(command)
        return command

    return add


database_flags = with_flags(DATABASE_FLAGS)
api_flags = with_flags(API_FLAGS)
list_flags = with_flags(LIST_FLAGS)
task_filter_flags = with_flags(TASK_FILTER_FLAGS)


def load(flags: dict[str, Any]) -> "LoadedSettings":
    from duly.settings import load_settings

    return load_settings(flags, os.environ)


def load_to_look(flags: dict[str, Any]) -> "LoadedSettings":
    """For commands that change nothing: where no embedded PostgreSQL is, none is made."""
    from duly.domain.errors import DataDirectoryUnusable
    from duly.environment import system_environment
    from duly.store.embedded import EmbeddedPostgres

    loaded = load(flags)
    settings = loaded.settings
    if not settings.database_url:
        embedded = EmbeddedPostgres(Path(settings.data_dir), system_environment())
        problem = "there is no duly in it"
        try:
            is_there = embedded.existing_major() is not None
        except OSError as error:
            is_there, problem = False, str(error.strerror)
        if not is_there:
            raise DataDirectoryUnusable(data_dir=embedded.data_dir, problem=problem)
    return loaded
