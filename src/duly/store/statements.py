"""Loader of the named SQL statements in the `.sql` file beside a module. Runs nothing.

A block starts with `-- name: verb_object`, then at least one comment line that says why it exists.
What several statements share is a block `-- fragment: noun` of one file; a line
`-- include: file.noun parameter=$1 other="$2 + 1"` of a statement stands for its text, with
`:parameter` and `:other` replaced. A fragment may include others.
"""

import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
BLOCK = re.compile(r"^-- (name|fragment): ([a-z][a-z0-9_]*)\s*$", re.MULTILINE)
INCLUDE = re.compile(
    r"^ *-- include: ([a-z_]+)\.([a-z_]+)((?: [a-z_]+=(?:\"[^\"]*\"|\S+))*)$", re.MULTILINE
)
GIVEN = re.compile(r"([a-z_]+)=(?:\"([^\"]*)\"|(\S+))")
PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")


class Statements:
    """The statements of one file, as attributes: `SQL.finish_completed`."""

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
    """Statements by name, with the text of what they include."""
    return {name: include_fragments(body) for name, body in parse_blocks(text, "name").items()}


def parse_blocks(text: str, kind: str) -> dict[str, str]:
    pieces = BLOCK.split(text)
    blocks = list(zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True))
    names = [name for _, name, _ in blocks]
    assert len(set(names)) == len(names), "two blocks share a name"
    return {name: body.strip() for found, name, body in blocks if found == kind}


def include_fragments(body: str) -> str:
    return INCLUDE.sub(fragment_text, body)


def fragment_text(line: re.Match[str]) -> str:
    file, noun, given = line.groups()
    values = {name: quoted or plain for name, quoted, plain in GIVEN.findall(given)}
    text = fragments_of(file)[noun]
    assert set(PARAMETER.findall(text)) == set(values), f"{file}.{noun} is given {sorted(values)}"
    return include_fragments(PARAMETER.sub(lambda found: values[found[1]], text))


@cache
def fragments_of(file: str) -> dict[str, str]:
    """A file's fragments, without the reasons: the statement that includes one has its own."""
    blocks = parse_blocks((FOLDER / f"{file}.sql").read_text("utf-8"), "fragment")
    return {noun: without_reason(body) for noun, body in blocks.items()}


def without_reason(body: str) -> str:
    lines = body.splitlines()
    first = next(at for at, line in enumerate(lines) if not line.startswith("--"))
    return "\n".join(lines[first:])
