"""Files fit in a head and functions on a screen; exceptions are listed and may only shrink."""

import ast
import tomllib
from collections.abc import Mapping
from pathlib import Path

from tests.processes import PROJECT
from tests.tidy.sources import GENERATED, all_modules, project_files

# A file is split for cohesion, never only to fit: this bound catches what has grown out of hand.
FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 60
# A migration is one transaction with one ledger row: it cannot be split.
MIGRATIONS = "src/duly/store/migrations/"
RATCHET = tomllib.loads((Path(__file__).parent / "ratchet.toml").read_text())


def complaints(sizes: Mapping[str, int], most: int, ratchet: Mapping[str, int]) -> list[str]:
    """What is too large and not listed, grew past its line, or shrank and is still listed."""
    found = [
        f"{name} has {size} lines, more than {ratchet.get(name, most)}"
        for name, size in sizes.items()
        if size > ratchet.get(name, most)
    ]
    for name, listed in ratchet.items():
        size = sizes.get(name, 0)
        if size <= most:
            found.append(f"{name} is small enough now: remove its line from ratchet.toml")
        elif size < listed:
            found.append(f"{name} shrank to {size} lines: lower its line in ratchet.toml")
    return found


def test_files_stay_small() -> None:
    """A file that nobody can hold in mind collects what has no home."""
    paths = [path for path in project_files() if path.suffix in {".py", ".sql"}]
    sizes = {str(path.relative_to(PROJECT)): len(path.read_text().splitlines()) for path in paths}
    kept = {
        name: size
        for name, size in sizes.items()
        if name not in GENERATED and not name.startswith(MIGRATIONS)
    }
    assert complaints(kept, FILE_LINES_MAX, RATCHET["files"]) == []


def test_functions_stay_small() -> None:
    """What does not fit on a screen is read in pieces, and changed in pieces."""
    sizes = {
        f"{module.where}::{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module in all_modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert complaints(sizes, FUNCTION_LINES_MAX, RATCHET["functions"]) == []


def test_the_ratchet_only_turns_one_way() -> None:
    """A list of exceptions that nobody prunes is a list of permissions."""
    assert complaints({"a": 9}, 10, {}) == []
    assert complaints({"a": 11}, 10, {}) == ["a has 11 lines, more than 10"]
    assert complaints({"a": 12}, 10, {"a": 12}) == []
    assert complaints({"a": 13}, 10, {"a": 12}) == ["a has 13 lines, more than 12"]
    assert len(complaints({"a": 11}, 10, {"a": 12})) == 1
    assert len(complaints({"a": 10}, 10, {"a": 12})) == 1
    assert len(complaints({}, 10, {"a": 12})) == 1
