"""Type checkers see the parameters and results of handles, as their users' editors do."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import PROJECT

pytestmark = pytest.mark.slow
SAMPLE = PROJECT / "tests" / "client" / "typed_sample.py"
ERROR = re.compile(r"typed_sample\.py:(\d+)(?::\d+)?(?: -|:) error")


def lines_to_refuse() -> set[int]:
    lines = SAMPLE.read_text("utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}


def refused_by(command: list[str]) -> set[int]:
    answer = subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, timeout=110, check=False
    )
    assert "typed_sample" in answer.stdout, answer.stdout + answer.stderr
    return {int(line) for line in ERROR.findall(answer.stdout)}


def test_mypy_infers_arguments_and_results_of_handles() -> None:
    """A handle typed as Any checks nothing, and no test of behaviour would notice."""
    options = ["--strict", "--cache-dir", os.devnull, "--follow-imports", "silent"]
    assert refused_by([sys.executable, "-m", "mypy", *options, str(SAMPLE)]) == lines_to_refuse()


def test_pyright_infers_arguments_and_results_of_handles(tmp_path: Path) -> None:
    """Editors show what pyright says; the two checkers disagree on generics in places."""
    program = shutil.which("pyright")
    if program is None and os.environ.get("CI") != "true":
        pytest.skip("pyright is not installed: npm install --global pyright")
    assert program, "pyright is required on CI"
    options = ["--pythonpath", sys.executable]
    assert refused_by([program, *options, str(SAMPLE)]) == lines_to_refuse()
