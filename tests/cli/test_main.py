"""Exit codes, one-line errors, and help that works: the contract with scripts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from duly import __version__
from duly.cli.main import COMMANDS, explain, run
from duly.client.errors import ServerNotFound, Unreachable, WaitTimedOut, error_of
from duly.domain.errors import ConfigurationError
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


def test_a_mistyped_command_gets_a_hint() -> None:
    """Commands are imported when they are used, and click knows no others."""
    answer = duly("schedule", "list")
    assert answer.returncode == 2
    assert "No such command 'schedule'. Did you mean 'schedules'?" in answer.stderr


def test_our_own_mistake_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden behind one line, a bug could not be reported."""

    def mistake(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("duly.cli.config.load", mistake)
    with pytest.raises(ZeroDivisionError):
        run(["config"])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ServerNotFound(problem="x"), 2),
        (ConfigurationError(problem="x"), 2),
        (Unreachable(url="http://x", problem="refused"), 1),
        (WaitTimedOut(kind="task", id="x", timeout_s=1.0, state="READY"), 1),
        (error_of(409, {"code": "running", "detail": "x"}, None), 1),
    ],
)
def test_an_error_has_one_exit_code_in_both_forms(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts branch on it: wrong settings are not a server that said no."""
    assert explain(error) == code
    assert capsys.readouterr().err.startswith("duly: ")
    assert explain(error, as_json=True) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err).keys() >= {"code", "detail"}


def test_no_duly_anywhere_is_told_with_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first thing that a newcomer types may be `duly status`."""
    monkeypatch.setenv("DULY_DATA_DIR", str(tmp_path))
    assert run(["status"]) == 2
    assert "duly up" in capsys.readouterr().err
    assert run(["status", "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["code"] == "server_not_found"


def test_help_imports_nothing_that_takes_time() -> None:
    """`duly --help` and every completion pay for it: 150 ms is the most."""
    slow = ("aiohttp", "asyncio", "asyncpg", "msgspec", "rich", "uvicorn", "uvloop")
    program = (
        "import sys; from duly.cli.main import run; code = run(['--help']);"
        f" sys.exit(code or str([name for name in {slow} if name in sys.modules]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert ended.stderr == "[]\n"


def test_a_command_over_the_api_imports_no_http_library() -> None:
    """`duly status` answers within 300 ms; importing aiohttp alone takes 200."""
    slow = ("aiohttp", "asyncio", "asyncpg", "uvicorn")
    program = (
        "import sys; from duly.cli.main import run; run(['status', '--help']);"
        f" sys.exit(str([name for name in {slow} if name in sys.modules]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert ended.stderr == "[]\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed_for_each_shell(shell: str) -> None:
    """What is printed is read by every shell that the user starts."""
    assert "_DULY_COMPLETE" in duly("completion", shell).stdout


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("duly dead", {"dead-letters"}),
        ("duly tasks re", {"reschedule"}),
        ("duly tasks list --st", {"--state"}),
        ("duly tasks list --state CAN", {"CANCELLED"}),
    ],
)
def test_commands_flags_and_choices_are_completed(
    words: str, completed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flags of forty commands are looked up in the help."""
    monkeypatch.setenv("_DULY_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    lines = duly().stdout.splitlines()
    assert {line.partition(",")[2].lower() for line in lines} == {
        each.lower() for each in completed
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_setting_that_does_not_exist(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that goes on without it does what it was not told, with exit code 0."""
    monkeypatch.setenv("DULY_DATA_DRI", "/srv/duly")
    assert run([command]) == 2
    assert capsys.readouterr().err == (
        "duly: unknown setting DULY_DATA_DRI; did you mean DULY_DATA_DIR?\n"
    )
