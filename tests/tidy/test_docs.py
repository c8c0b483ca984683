"""The documentation is true: its samples run, its commands exist, its map leads somewhere."""

import ast
import contextlib
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from duly.cli.main import COMMANDS, group
from duly.settings import FIELDS, is_secret
from duly.store.migrate import read_migrations
from tests.processes import PROJECT
from tests.tidy.markdown import (
    COMPILE_ONLY,
    ELSEWHERE,
    Block,
    blocks,
    commands,
    pages,
    table_rows,
)
from tests.tidy.test_imports import ALLOWED, EXCEPTIONS, SHARED

ARCHITECTURE = PROJECT / "docs" / "ARCHITECTURE.md"
# Single modules, and packages that compose a whole duly, which the page sums up.
NOT_LISTED = {
    *("tracing", "duly", "environment", "events", "tenant_changes", "logs", "telemetry"),
    *("metric_families", "settings", "role", "child_tasks", "local_clients", "backoff"),
    *("ttl_cache", "__main__", "testing", "bench"),
}
DECISIONS = PROJECT / "docs" / "adr"
REQUEST_PATH = ("stop", "file", "function", "state after")
MAKE_TARGETS = set(re.findall(r"^([a-z]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))


def by_place(block: Block) -> str:
    return block.where


def test_every_stop_of_the_request_path_exists() -> None:
    """The page that newcomers read first must not send them to what was renamed long ago."""
    rows = table_rows(ARCHITECTURE, REQUEST_PATH)
    assert 8 <= len(rows) <= 10, "a path that is longer is read by few"
    missing = []
    for row in rows:
        path = PROJECT / row["file"].strip("`")
        if not path.is_file():
            missing.append(f"{row['stop']}: no file {row['file']}")
        elif row["function"].strip("`") not in functions_in(path):
            missing.append(f"{row['stop']}: no function {row['function']} in {row['file']}")
    assert not missing


def test_every_file_and_name_of_the_architecture_exists() -> None:
    """A map that names what is gone sends readers and contributors astray."""
    text = ARCHITECTURE.read_text("utf-8")
    package = PROJECT / "src" / "duly"
    paths = set(re.findall(r"`((?:src|tests|[a-z_]+)/[\w/]+\.(?:py|sql))`", text))
    assert len(paths) > 20
    bases = (PROJECT, package)
    missing = {path for path in paths if not any((base / path).is_file() for base in bases)}
    assert missing == set()
    source = "\n".join(path.read_text("utf-8") for path in package.rglob("*.py"))
    names = set(re.findall(r"`([A-Z]\w+[a-z]\w*|[a-z]+_[a-z_]+)`", text))
    tables = (package / "store" / "schema.sql").read_text("utf-8")
    assert {name for name in names if not re.search(rf"\b{name}\b", source + tables)} == set()


def test_the_architecture_lists_every_package() -> None:
    """A package that is not on the map has no rule about its imports."""
    packages = {path.parent.name for path in (PROJECT / "src" / "duly").glob("*/__init__.py")}
    listed = {
        row["package"].strip("`/")
        for row in table_rows(ARCHITECTURE, ("package", "contents", "may import"))
    }
    assert listed == packages


def test_the_architecture_lists_the_allowed_imports() -> None:
    """A table that lags behind the rule tells where to put something, and the rule refuses it."""
    rows = table_rows(ARCHITECTURE, ("package", "contents", "may import"))
    texts = {row["package"].strip("`/"): row["may import"] for row in rows}
    wrong = {}
    for package in ALLOWED.keys() - NOT_LISTED:
        named = {name.partition(".")[0] for name in re.findall(r"`([\w.]+)`", texts[package])}
        excepted = {target.split(".")[1] for each, target in EXCEPTIONS if each == package}
        if named != (allowed := (ALLOWED[package] - SHARED) | excepted):
            wrong[package] = (named, allowed)
    assert wrong == {}


def test_each_migration_has_a_number_of_its_own() -> None:
    """Two changes that took the next number at once: no process starts with both."""
    numbers = [migration.number for migration in read_migrations()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_superseded_decisions_say_so() -> None:
    """A decision that no longer holds, read without a word of the later one, is built upon."""
    pages = {page.name[:4]: page.read_text("utf-8") for page in DECISIONS.glob("[0-9]*.md")}
    listed = re.findall(r"^\| \[(\d{4})\]\(", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    assert listed == sorted(pages)
    status = {
        number: text.partition("\n## ")[0].replace("\n", " ") for number, text in pages.items()
    }
    later = [(old, new) for new in pages for old in linked_after("supersedes", status[new])]
    earlier = [(old, new) for old in pages for new in linked_after("superseded by", status[old])]
    assert sorted(later) == sorted(earlier)
    assert ("0009", "0012") in later


def linked_after(words: str, text: str) -> list[str]:
    return re.findall(rf"{words} \[(\d{{4}})\]", text)


def functions_in(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("block", blocks("python", "sh", "console", "sql"), ids=by_place)
def test_every_sample_is_run_or_says_why_not(block: Block) -> None:
    """`tests/story/test_pages.py` runs all but those; a note with a typing error hides nothing."""
    assert block.note in ("", COMPILE_ONLY, ELSEWHERE), f"{block.where}: unknown {block.note!r}"
    if block.language == "python":
        compile(block.text, block.where, "exec")


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
