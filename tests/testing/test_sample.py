"""The pages for users, tried as a user would: a test file of theirs, run by a pytest of theirs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.markdown import blocks

pytestmark = pytest.mark.slow

SAMPLE_S = 100.0


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=SAMPLE_S,
        check=False,
    )


def test_the_sample_of_the_page_passes_in_a_project_of_its_own(tmp_path: Path) -> None:
    """The page says: these files. Whoever copies them must see them pass."""
    found = [each for each in blocks("python") if each.page.endswith("test-your-tasks.md")]
    for block in found:
        name = block.text.partition("\n")[0].removeprefix("# ").strip()
        assert name.endswith(".py"), f"{block.where} does not say which file it is"
        (tmp_path / name).write_text(block.text)
    names = {"conftest.py", "shop.py", "test_shop.py", "test_mail.py"}
    assert {path.name for path in tmp_path.iterdir()} == names
    ended = run_pytest(tmp_path, "-W", "error")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4 passed" in ended.stdout


def test_a_project_that_asks_for_nothing_pays_nothing(tmp_path: Path) -> None:
    """A plugin that starts a server, or imports one, slows every test that does not need it."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["duly.testing.plugin"]\n')
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n\n\ndef test_nothing():\n"
        "    heavy = {'asyncpg', 'uvicorn', 'aiohttp', 'duly.app', 'duly.testing.server'}\n"
        "    assert not heavy & set(sys.modules)\n"
    )
    ended = run_pytest(tmp_path, "-p", "no:schemathesis", "-p", "no:hypothesispytest")
    assert ended.returncode == 0, ended.stdout + ended.stderr
