"""One guard taken out of one statement, by a change of its text that must really be found."""

from dataclasses import dataclass
from types import ModuleType

import pytest


@dataclass(frozen=True)
class Mutant:
    """`edits` are pairs of what stands in the statement and what stands there instead."""

    name: str
    module: ModuleType
    statement: str
    edits: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        text: str = self.module.SQL.blocks[self.statement]
        for found, instead in self.edits:
            assert found in text, f"{self.statement} does not say {found!r} any more"
            text = text.replace(found, instead)
        return text

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setitem(self.module.SQL.blocks, self.statement, self.text)


def without(module: ModuleType, statement: str, *guards: str) -> Mutant:
    """The statement as if somebody had deleted these guards."""
    name = f"{statement} without {' and '.join(' '.join(guard.split()) for guard in guards)}"
    return Mutant(name, module, statement, tuple((guard, "") for guard in guards))


def with_edits(what: str, module: ModuleType, statement: str, *edits: tuple[str, str]) -> Mutant:
    """The statement rewritten; `what` says how."""
    return Mutant(f"{statement} {what}", module, statement, edits)
