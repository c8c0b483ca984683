"""Taking the pages of the documentation apart: fenced blocks, tables, links."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.processes import PROJECT

# Notes on a block that no reader types into a terminal beside `make up`: a file for another test to
# run, and a command for another machine, or one that goes on until it is stopped.
COMPILE_ONLY = "compile only"
ELSEWHERE = "elsewhere"
FENCE = re.compile(
    r"^(?:<!-- sample: (?P<note>[^>]*?) -->\s*\n)?"
    r"```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```\s*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block; `note` is the comment `<!-- sample: ... -->` right above it."""

    page: str
    line: int
    language: str
    text: str
    note: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    roots = sorted(PROJECT.glob("*.md"))
    return roots + sorted((PROJECT / "docs").rglob("*.md"))


def blocks(*languages: str) -> list[Block]:
    found = []
    for page in pages():
        text = page.read_text("utf-8")
        for match in FENCE.finditer(text):
            if match["language"] in languages:
                line = text.count("\n", 0, match.start("text")) + 1
                where = str(page.relative_to(PROJECT))
                found.append(
                    Block(where, line, match["language"], match["text"], match["note"] or "")
                )
    return found


def commands(block: Block) -> list[str]:
    """The command lines of a shell block: after `$ ` in a console, every line of a script."""
    joined = block.text.replace("\\\n", " ")
    if block.language == "console":
        return [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def table_rows(page: Path, heading: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of the first table with exactly this heading."""
    lines = page.read_text("utf-8").splitlines()
    for start, line in enumerate(lines):
        if cells(line) == heading:
            rows = []
            for row in lines[start + 2 :]:
                if not row.startswith("|"):
                    break
                rows.append(dict(zip(heading, cells(row), strict=True)))
            return rows
    return []


def cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
