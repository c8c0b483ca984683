"""Every page as its reader meets it: from top to bottom, in one terminal, beside a `duly up`.

The terminal knows nothing: no setting, no key, no database, only what the page itself says. Blocks
marked `elsewhere` or `compile only` are left out, and so is what calls `make`.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from tests.story.duly_up import duly_up
from tests.tidy.markdown import Block, blocks

pytestmark = pytest.mark.slow

PAGE_TIMEOUT_S = 180
# What a page shows below a command that is refused.
REFUSAL = "duly: "
# About the project's own tests, which are no part of a duly that runs.
FOR_CONTRIBUTORS = "CONTRIBUTING.md"
RUN_SQL = """
import asyncio, os, sys
import asyncpg
async def main():
    connection = await asyncpg.connect(os.environ["DATABASE_URL"])
    await connection.execute(sys.stdin.read())
    await connection.close()
asyncio.run(main())
"""


def samples() -> dict[str, list[Block]]:
    found = [
        block
        for block in blocks("python", "sh", "console", "sql")
        if not block.note and block.page != FOR_CONTRIBUTORS
    ]
    return {page: list(each) for page, each in groupby(found, key=lambda block: block.page)}


def steps(block: Block) -> Iterator[str]:
    """The shell's version of a block."""
    if block.language == "python":
        yield f"python -c {shlex.quote(block.text)}"
    elif block.language == "sql":
        yield f"python -c {shlex.quote(RUN_SQL)} <<'END_OF_SQL'\n{block.text}\nEND_OF_SQL"
    elif block.language == "sh":
        yield block.text
    else:
        for command, refusal in commands_with_refusals(block):
            if command.split()[0] != "make":
                yield expecting(command, refusal) if refusal else command


def commands_with_refusals(block: Block) -> Iterator[tuple[str, str]]:
    lines = block.text.replace("\\\n", " ").splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("$ "):
            yield line[2:], after if after.startswith(REFUSAL) else ""


def expecting(command: str, refusal: str) -> str:
    return f'said=$({command} 2>&1) && exit 99; grep -qxF -e {shlex.quote(refusal)} <<<"$said"'


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a user who has said `make up` in another terminal."""
    home = tmp_path_factory.mktemp("home")
    with duly_up(environ={"HOME": str(home), "XDG_DATA_HOME": str(home / ".local" / "share")}):
        yield home


@pytest.mark.parametrize("page", samples())
def test_a_page_runs_as_printed_from_top_to_bottom(page: str, home: Path, tmp_path: Path) -> None:
    """A sample that fails is the first thing that a new user learns about us."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    script = ["set -eu"]
    if Path(page).parent == Path("docs") and page != "docs/tutorial.md":
        # Pages for those who run duly, and have it on their PATH.
        script.append(". .venv/bin/activate")
    for block in samples()[page]:
        script.append(f"echo at {block.where} >&2")
        script += steps(block)
    ended = subprocess.run(
        ["bash"],
        input="\n".join(script),
        cwd=tmp_path,
        env={"HOME": str(home), "PATH": os.defpath + ":/usr/local/bin"},
        capture_output=True,
        text=True,
        timeout=PAGE_TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-1000:] + ended.stderr[-3000:]
    assert "Traceback" not in ended.stderr, ended.stderr
