"""Exit codes, one-line errors, and help that works: the contract with scripts."""

import subprocess
import sys

import pytest

from duly import __version__
from duly.cli.main import COMMANDS, run
from tests.processes import PROJECT


def duly(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "duly", *arguments],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that is listed and cannot be imported would only fail for users."""
    assert run([command, "--help"]) == 0
    assert f"Usage: duly {command}" in capsys.readouterr().out


def test_the_list_of_commands_and_the_version_are_printed() -> None:
    """As an installed program, in a process of its own."""
    listed = duly("--help")
    assert listed.returncode == 0
    assert all(f"  {command}" in listed.stdout for command in COMMANDS)
    assert duly("--version").stdout == f"duly, version {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["up", "--nonsense"], ["migrate", "--to", "-1"], ["up", "extra"]]
)
def test_a_wrong_command_line_is_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts tell a typing mistake from a failure by it."""
    assert run(arguments) == 2
    assert "Error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["up", "--port", "http"], "--port is 'http': expected int"),
        (["config", "--config", "missing.toml"], "cannot read missing.toml"),
        (["migrate", "--database-url", "postgresql://u:hunter2@127.0.0.1:1/x"], "127.0.0.1:1/x"),
        (["up", "--data-dir", "/dev/null"], "the data directory /dev/null cannot be used"),
    ],
)
def test_a_fault_of_the_world_is_one_line_without_traceback(
    arguments: list[str], says: str
) -> None:
    """A traceback hides the one line that helps, and may carry a secret."""
    if arguments[0] == "up":
        arguments = [*arguments, *([] if "--port" in arguments else ["--port", "0"])]
    answer = duly(*arguments)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr.startswith("duly: ")
    assert answer.stderr.count("\n") == 1, answer.stderr
    assert says in answer.stderr
    assert "hunter2" not in answer.stderr


def test_our_own_mistake_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden behind one line, a bug could not be reported."""

    def mistake(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("duly.cli.config.load", mistake)
    with pytest.raises(ZeroDivisionError):
        run(["config"])
