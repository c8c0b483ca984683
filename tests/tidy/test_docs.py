"""The documentation is true: its samples run, its commands exist, its map leads somewhere."""

import ast
import contextlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from duly.cli.main import COMMANDS, group
from duly.settings import FIELDS, is_secret
from tests.processes import PROJECT
from tests.servers import ServerOfTheRun
from tests.story.duly_up import RunningDuly, duly_up
from tests.tidy.markdown import Block, blocks, commands, pages, table_rows

ARCHITECTURE = PROJECT / "docs" / "ARCHITECTURE.md"
CORRIDOR = ("stop", "file", "function", "state after")
COMPILE_ONLY = "compile only"
SAMPLE_TIMEOUT_S = 60
MAKE_TARGETS = set(re.findall(r"^([a-z]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))


def by_place(block: Block) -> str:
    return block.where


def test_every_stop_of_the_corridor_exists() -> None:
    """The page that newcomers read first must not send them to what was renamed long ago."""
    rows = table_rows(ARCHITECTURE, CORRIDOR)
    assert rows, "docs/ARCHITECTURE.md has no corridor table"
    missing = []
    for row in rows:
        path = PROJECT / row["file"].strip("`")
        if not path.is_file():
            missing.append(f"{row['stop']}: no file {row['file']}")
        elif row["function"].strip("`") not in functions_in(path):
            missing.append(f"{row['stop']}: no function {row['function']} in {row['file']}")
    assert not missing


def functions_in(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.fixture(scope="module")
def database_of_duly(server: ServerOfTheRun) -> Iterator[str]:
    with server.database() as name:
        yield name


@pytest.fixture(scope="module")
def duly(server: ServerOfTheRun, database_of_duly: str) -> Iterator[RunningDuly]:
    """A running duly, which is what a reader of the samples has."""
    environ = {
        "DULY_DATABASE_URL": server.engine_url(database_of_duly),
        "DULY_MIGRATION_DATABASE_URL": server.url(database_of_duly),
    }
    with duly_up(environ=environ) as running:
        yield running


@pytest.mark.parametrize("block", blocks("python"), ids=by_place)
def test_every_python_sample_runs(
    block: Block,
    duly: RunningDuly,
    server: ServerOfTheRun,
    database_of_duly: str,
    tmp_path: Path,
) -> None:
    """A sample that fails is the first thing that a new user learns about us."""
    compile(block.text, block.where, "exec")
    if block.note == COMPILE_ONLY:
        return
    assert block.note == "", f"{block.where}: unknown note {block.note!r}"
    environ = os.environ | {
        "DULY_URL": duly.url,
        "DULY_API_KEY": duly.ready["api_key"] or "",
        # Of a program whose own data lives beside duly's.
        "DATABASE_URL": server.url(database_of_duly),
    }
    ended = subprocess.run(
        [sys.executable, "-c", block.text],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=SAMPLE_TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, f"{block.where}\n{ended.stderr}"


@pytest.mark.parametrize("block", blocks("console", "sh", "bash"), ids=by_place)
def test_every_command_in_the_documentation_exists(block: Block) -> None:
    """A flag that was renamed lives on in the documentation, and nowhere else."""
    for line in commands(block):
        words = [word for word in shlex.split(line, comments=True) if "=" not in word[:30]]
        program = Path(words[0]).name if words else ""
        if program == "duly":
            parse_duly(shlex.split(line, comments=True))
        elif program == "make":
            targets = {word for word in words[1:] if not word.startswith("-")}
            assert targets <= MAKE_TARGETS, f"{block.where}: {line}"


def parse_duly(words: list[str]) -> None:
    """Read the command line as click would, without running the command."""
    while Path(words[0]).name != "duly":
        words = words[1:]
    arguments = words[1:]
    if not arguments or arguments[0].startswith("-"):
        return
    assert arguments[0] in COMMANDS, f"there is no `duly {arguments[0]}`"
    command = group.get_command(click.Context(group), arguments[0])
    assert command is not None
    with contextlib.suppress(click.exceptions.Exit):  # --help was shown
        command.make_context(arguments[0], arguments[1:])


def test_a_command_that_does_not_exist_is_noticed() -> None:
    """The rule itself must be able to fail."""
    with pytest.raises(AssertionError):
        parse_duly(["duly", "fly"])
    with pytest.raises(click.UsageError):
        parse_duly(["DULY_PORT=1", ".venv/bin/duly", "up", "--no-such-flag"])


@pytest.mark.parametrize("block", blocks("toml"), ids=by_place)
def test_every_setting_in_a_sample_file_exists(block: Block) -> None:
    """Copied into a file, an unknown name stops the server."""
    for name in tomllib.loads(block.text):
        secret = name.removesuffix("_file")
        assert name in FIELDS or (secret in FIELDS and is_secret(secret)), name


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_is_documented(name: str) -> None:
    """What is not written down does not exist for those who run it."""
    page = (PROJECT / "docs" / "configuration.md").read_text("utf-8")
    assert f"`{name}`" in page, f"docs/configuration.md does not mention `{name}`"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_link_inside_the_project_leads_somewhere(page: Path) -> None:
    """A dead link in the page about recovery is found at the worst time."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    local = [
        target for target in targets if "://" not in target and not target.startswith("mailto:")
    ]
    missing = [target for target in local if not (page.parent / target).exists()]
    assert not missing
