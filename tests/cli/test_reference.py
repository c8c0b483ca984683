"""What is written about the command line is what it does: the reference, and the how-to pages."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli_reference import REFERENCE, make_reference
from tests.processes import PROJECT
from tests.servers import ServerOfTheRun
from tests.story.duly_up import RunningDuly, duly_up
from tests.tidy.markdown import blocks, commands

# Each with the least number of commands that it has.
HOW_TO = {
    "docs/how-to/use-the-command-line.md": 20,
    "docs/how-to/import-a-crontab.md": 8,
}
SECRET = re.compile(r"duly_[a-z0-9]+_[a-z0-9]+|--api-key (?!@)")


def test_the_reference_is_what_the_commands_say() -> None:
    """A flag that is documented and gone, or there and not documented, is found out by users."""
    assert REFERENCE.read_text("utf-8") == make_reference(), "run python -m tests.cli_reference"


def test_no_page_puts_a_key_on_a_command_line() -> None:
    """What a sample shows is copied, and then seen by every user of the machine."""
    for block in blocks("console", "sh", "bash"):
        assert not SECRET.search(block.text), block.where


@pytest.fixture(scope="module")
def running(server: ServerOfTheRun) -> Iterator[RunningDuly]:
    with server.database() as name:
        urls = {
            "DULY_DATABASE_URL": server.engine_url(name),
            "DULY_MIGRATION_DATABASE_URL": server.url(name),
        }
        with duly_up(environ=urls) as opened:
            yield opened


@pytest.mark.parametrize("page", HOW_TO)
def test_a_how_to_page_runs_from_top_to_bottom(
    page: str, running: RunningDuly, tmp_path: Path
) -> None:
    """Read in order, each command builds on the one before; one that fails strands the reader."""
    script = [line for block in blocks("sh") if block.page == page for line in commands(block)]
    assert len(script) > HOW_TO[page]
    program = tmp_path / "bin" / "duly"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m duly "$@"\n')
    program.chmod(0o755)
    environ = {
        **os.environ,
        "DULY_URL": running.url,
        "DULY_API_KEY": running.ready["api_key"],
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(PROJECT / "src"),
    }
    ended = subprocess.run(
        ["/bin/sh", "-exu"],
        input="\n".join(script),
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "Traceback" not in ended.stderr
