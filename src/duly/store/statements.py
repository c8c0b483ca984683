"""Loading named SQL statements from the `.sql` file beside a module. Runs nothing.

A block starts with `-- name: verb_object`, then at least one comment line that says why it exists.
"""

import re
from pathlib import Path

NAME = re.compile(r"^-- name: ([a-z][a-z0-9_]*)\s*$", re.MULTILINE)


class Statements:
    """The statements of one file, as attributes: `SQL.settle_completed`."""

    def __init__(self, blocks: dict[str, str]) -> None:
        self.blocks = blocks

    def __getattr__(self, name: str) -> str:
        try:
            return self.blocks[name]
        except KeyError:
            raise AttributeError(f"no statement named {name}") from None


def statements_beside(module_file: str) -> Statements:
    return Statements(parse_statements(Path(module_file).with_suffix(".sql").read_text("utf-8")))


def parse_statements(text: str) -> dict[str, str]:
    pieces = NAME.split(text)
    names, bodies = pieces[1::2], pieces[2::2]
    assert len(set(names)) == len(names), "two statements share a name"
    return {name: body.strip() for name, body in zip(names, bodies, strict=True)}
