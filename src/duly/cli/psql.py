"""`duly psql`: PostgreSQL's own terminal on duly's database, with the owner's login."""

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

import click

from duly.cli.options import database_flags, load
from duly.cli.output import note
from duly.domain.errors import ConfigurationError, PostgresBinariesMissing
from duly.environment import system_environment
from duly.settings import Settings

PROGRAM = "psql"


class Login(NamedTuple):
    """An address without its password, which a command line would show to every user."""

    address: str
    password: str | None


@click.command(
    "psql", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@database_flags
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[PSQL-ARGUMENT]...")
def command(arguments: tuple[str, ...], **flags: Any) -> None:
    """Open psql on duly's database: the embedded PostgreSQL that runs, or the one of the settings.
    Arguments go to psql: duly psql -c 'select count(*) from duly.tasks'.

    It logs in as the owner, who may do everything: look, and change nothing by hand. Where psql is
    not installed, the URL is printed for another program, with exit code 1.
    """
    settings = load(flags).settings
    url = owner_url(settings)
    program = find_program(settings.pg_bin)
    if program is None:
        click.echo(url)
        note("duly: psql is not installed here; this is the URL for another program")
        raise click.exceptions.Exit(1)
    login = login_of(url)
    environ = dict(os.environ)
    if login.password is not None:
        environ["PGPASSWORD"] = login.password
    os.execve(program, [program, login.address, *arguments], environ)  # noqa: S606 - psql, no shell


def owner_url(settings: Settings) -> str:
    """The schema's owner, past a pooler if there is one. Nothing is started for it."""
    if settings.database_url:
        return settings.migration_database_url or settings.database_url
    from duly.store.embedded import EmbeddedPostgres

    found = EmbeddedPostgres(Path(settings.data_dir), system_environment()).running()
    if found is None:
        problem = f"no embedded PostgreSQL runs in {settings.data_dir}; start `duly up`, or give"
        raise ConfigurationError(problem=f"{problem} --database-url")
    return found.url()


def find_program(pg_bin: str) -> str | None:
    """The one of the PATH, which has the user's pager and history; else the embedded server's."""
    found = shutil.which(PROGRAM)
    if found is not None:
        return found
    from duly.store.binaries import find_binaries

    try:
        program = find_binaries(pg_bin).program(PROGRAM)
    except PostgresBinariesMissing:
        return None
    return program if os.access(program, os.X_OK) else None


def login_of(url: str) -> Login:
    parts = urlsplit(url)
    who, at, where = parts.netloc.rpartition("@")
    user, _, password = who.partition(":")
    query = parse_qsl(parts.query, keep_blank_values=True)
    named = dict(query).get("password")
    rest = urlencode([each for each in query if each[0] != "password"], quote_via=quote)
    address = urlunsplit(parts._replace(netloc=f"{user}{at}{where}", query=rest))
    return Login(address, named if named is not None else (unquote(password) or None))
