"""The project's own text: openings, names, swallowed errors, and what must never be written."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.processes import PROJECT
from tests.tidy.sources import Module, all_modules, dotted, project_files, source_modules

OPENING_LINES_MAX = 5
HOMELESS = {"util", "utils", "common", "helper", "helpers", "base", "manager", "models", "misc"}
TEXT_SUFFIXES = {".py", ".sql", ".md", ".toml", ".txt", ".cfg", ".yml", ".yaml", ".json", ""}
# Written so that this file does not contain what it looks for.
REGISTRIES = re.compile(r"py[p]i\.(org|python)|python[h]osted\.org|/simp[l]e/|--extra-inde[x]-url")
HOMES = re.compile(r"/hom[e]/(?!you\b|user\b)\w+|/User[s]/\w+")


# Subjects that name no component: a sentence about them is not found by those who search for one.
VAGUE = re.compile(r"\b(whoever|somebody|nobody)\b", re.IGNORECASE)
# Metaphors that were names once. Each has a word of the field now: batch, cursor, jitter, hint, ...
RETIRED = re.compile(
    r"(?<![a-z])(bites?|bookmarks?|desks?|hearts?|lookouts?|smear|rung|corridors?|bells?)(?![a-z])",
    re.IGNORECASE,
)
# A user of the operating system has that name.
VAGUE_ALLOWED = {"src/duly/store/server_user.py", "docs/operations.md"}


def opening_of(module: Module) -> list[str]:
    """The paragraph lines of a docstring; a table may follow them."""
    opening = ast.get_docstring(module.tree) or ""
    return [line for line in opening.splitlines() if line.strip() and not line.startswith("|")]


def test_a_module_opens_with_what_lives_in_it() -> None:
    """Without it, the next thing is put wherever there is room."""
    lines = {module.where: len(opening_of(module)) for module in all_modules()}
    assert {where: n for where, n in lines.items() if not 1 <= n <= OPENING_LINES_MAX} == {}


def test_class_names_are_unique() -> None:
    """Two classes of one name in two packages, and every search and every log line is ambiguous."""
    homes = defaultdict(list)
    for module in source_modules():
        if module.package != "client":
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ClassDef):
                    homes[node.name].append(module.where)
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_sentences_name_the_component() -> None:
    """A docstring about "whoever" cannot be found by the name of what it is about."""
    pages = [
        path
        for path in project_files()
        if path.suffix in {".py", ".sql", ".md"}
        and path.relative_to(PROJECT).parts[0] in {"src", "docs", "README.md", "CHANGELOG.md"}
        and path.relative_to(PROJECT).parts[:2] != ("docs", "adr")
    ]
    found = {str(path.relative_to(PROJECT)) for path in pages if VAGUE.search(path.read_text())}
    assert found - VAGUE_ALLOWED == set()


def test_retired_names_stay_away() -> None:
    """A word that has to be learned before a search for it finds anything comes back unnoticed."""
    pages = [
        path
        for path in project_files()
        if path.suffix in {".py", ".sql", ".md"}
        and path.relative_to(PROJECT).parts[0] in {"src", "docs", "README.md"}
        and path.relative_to(PROJECT).parts[:2] != ("docs", "adr")
    ]
    found = {
        str(path.relative_to(PROJECT)): sorted({hit[0] for hit in hits})
        for path in pages
        if (hits := list(RETIRED.finditer(path.read_text("utf-8"))))
    }
    assert found == {}


def test_docstrings_of_tests_have_a_subject() -> None:
    """A danger without an actor says neither which component is at fault nor who is hurt."""
    owners = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = [
        (module.where, text)
        for module in all_modules()
        for node in ast.walk(module.tree)
        if isinstance(node, owners) and VAGUE.match(text := ast.get_docstring(node) or "")
    ]
    assert found == []


def test_no_file_is_named_after_nothing() -> None:
    """A place for everything is a place for anything."""
    paths = [path.relative_to(PROJECT) for path in project_files()]
    homeless = [path for path in paths if path.suffix == ".py" and set(path.parts) & HOMELESS]
    homeless += [path for path in paths if path.suffix == ".py" and path.stem in HOMELESS]
    assert not homeless


def swallowed(tree: ast.AST) -> list[int]:
    """Lines where any error at all is caught and nothing is done about it."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        catches_all = node.type is None or (
            isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"}
        )
        does_nothing = all(
            isinstance(step, ast.Pass | ast.Continue)
            or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))
            for step in node.body
        )
        if catches_all and does_nothing:
            found.append(node.lineno)
    return found + [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and dotted(node.func).endswith("suppress")
        and any(dotted(argument) == "Exception" for argument in node.args)
    ]


def test_no_error_is_swallowed() -> None:
    """The failure that nobody sees is the one that loses a task."""
    found = {module.where: swallowed(module.tree) for module in source_modules()}
    assert {where: lines for where, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "program",
    [
        "try: f()\nexcept Exception: pass",
        "try: f()\nexcept: ...",
        "with contextlib.suppress(Exception): f()",
        "with suppress(OSError, Exception): f()",
    ],
)
def test_swallowing_is_noticed(program: str) -> None:
    """The rule itself must be able to fail."""
    assert swallowed(ast.parse(program))


def text_files() -> list[Path]:
    return [path for path in project_files() if path.suffix in TEXT_SUFFIXES]


def test_no_file_names_a_registry_or_somebodys_machine() -> None:
    """A mirror or a home folder in a committed file works for one person and fails for the rest."""
    found = []
    for path in text_files():
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if REGISTRIES.search(line) or HOMES.search(line) or str(PROJECT) in line:
                found.append(f"{path.relative_to(PROJECT)}:{number}: {line.strip()[:80]}")
    assert not found


def test_the_pinned_versions_carry_hashes_and_no_address() -> None:
    """What is installed must not depend on who answers, nor on where they ask."""
    text = (PROJECT / "constraints.txt").read_text()
    assert "://" not in text
    pins = re.findall(r"^([a-z0-9][\w.-]*)==\S+", text, re.MULTILINE | re.IGNORECASE)
    assert pins
    entries = re.split(r"\n(?=\S)", text.strip())
    unhashed = [entry.split()[0] for entry in entries if "==" in entry and "--hash=" not in entry]
    assert not unhashed
