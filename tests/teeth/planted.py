"""Deliberate bugs: a statement whose text is changed, or an attribute that does something else.

They are planted in this process and only for as long as a `with` lasts, never on disk. A change
must find what it changes: a guard that moved elsewhere is found by the assert.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from duly.store.statements import Statements
from tests.simulation.fleet_plan import replaced


class Bug:
    """One statement with parts of its text replaced: pairs of what stands there, and instead."""

    def __init__(
        self,
        name: str,
        statements: Statements,
        statement: str,
        old: str,
        new: str,
        *also: tuple[str, str],
    ) -> None:
        self.name = name
        self.statements = statements
        self.statement = statement
        self.edits = ((old, new), *also)

    @property
    def text(self) -> str:
        text: str = self.statements.blocks[self.statement]
        for found, instead in self.edits:
            assert found in text, f"{self.statement} does not say {found!r} any more"
            text = text.replace(found, instead)
        return text

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        sound = self.statements.blocks[self.statement]
        self.statements.blocks[self.statement] = self.text
        try:
            yield
        finally:
            self.statements.blocks[self.statement] = sound


@dataclass(frozen=True)
class Slip:
    """One attribute of one class or module does something else."""

    name: str
    place: Any
    attribute: str
    wrong: Any

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        assert hasattr(self.place, self.attribute), f"nothing is called {self.attribute} any more"
        with replaced([(self.place, self.attribute, self.wrong)]):
            yield


@dataclass(frozen=True)
class Both:
    """Two guards that stand behind one another, taken away together."""

    name: str
    first: Bug | Slip
    second: Bug | Slip

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        with self.first.planted(), self.second.planted():
            yield


def without(module: ModuleType, statement: str, *guards: str) -> Bug:
    """The statement as if these guards had been deleted."""
    name = f"{statement} without {' and '.join(' '.join(guard.split()) for guard in guards)}"
    first, *also = [(guard, "") for guard in guards]
    return Bug(name, module.SQL, statement, *first, *also)


def with_edits(what: str, module: ModuleType, statement: str, *edits: tuple[str, str]) -> Bug:
    """The statement rewritten; `what` says how."""
    first, *also = edits
    return Bug(f"{statement} {what}", module.SQL, statement, *first, *also)
