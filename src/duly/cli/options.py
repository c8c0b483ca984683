"""Flags that several commands share, and turning them into settings."""

import os
from collections.abc import Callable
from typing import Any

import click

from duly.settings import Loaded, load_settings

DATABASE_FLAGS = [
    click.option("--config", metavar="FILE", help="A TOML file with settings."),
    click.option("--data-dir", metavar="FOLDER", help="Where the embedded PostgreSQL lives."),
    click.option("--database-url", metavar="URL", help="An external PostgreSQL instead."),
    click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error."),
]

json_flag = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")


def database_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    for flag in reversed(DATABASE_FLAGS):
        command = flag(command)
    return command


def load(flags: dict[str, Any]) -> Loaded:
    return load_settings(flags, os.environ)
