"""Every registered crash point costs a real process in some test; read from the tests."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from duly.environment import CrashPoint
from tests.processes import PROJECT, doomed

# It fails a test whose process does not die at the point that it was given.
KILLS = doomed.__name__
PARAMETER = "point"


def modules_that_kill() -> Iterator[tuple[ModuleType, ast.Module]]:
    for path in sorted((PROJECT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        if path != Path(__file__) and KILLS in called_in(tree):
            name = ".".join(path.relative_to(PROJECT).with_suffix("").parts)
            yield importlib.import_module(name), tree


def called_in(node: ast.AST) -> set[str]:
    calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    return {function.id for function in calls if isinstance(function, ast.Name)}


def functions_that_kill(tree: ast.Module) -> set[str]:
    """Those that call it, or call one of these."""
    calls = {
        node.name: called_in(node)
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    killing = {KILLS}
    while more := {name for name, called in calls.items() if called & killing} - killing:
        killing |= more
    return killing


def points_of(module: ModuleType, function: str) -> set[CrashPoint]:
    """What the test of that name is repeated for."""
    marks = getattr(getattr(module, function), "pytestmark", [])
    chosen = [mark.args[1] for mark in marks if mark.args[:1] == (PARAMETER,)]
    return {point for points in chosen for point in points}


def test_every_crash_point_loses_a_real_process_somewhere() -> None:
    """A point that only simulations pass says nothing about sockets, files and other processes."""
    lost = {
        point
        for module, tree in modules_that_kill()
        for function in functions_that_kill(tree)
        if function.startswith("test_")
        for point in points_of(module, function)
    }
    assert set(CrashPoint) - lost == set()


def test_a_process_that_passes_its_crash_point_fails_the_test() -> None:
    """Otherwise a point that was renamed or moved away would be killed at for ever, on paper."""
    with (
        pytest.raises(AssertionError),
        doomed(CrashPoint.FIRE_BEFORE, "-c", "print('nothing fires here')"),
    ):
        """It ends by itself."""
