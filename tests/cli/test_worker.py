"""`duly worker`: finding a worker in somebody's module, and starting it again after a change."""

import os
import signal
from pathlib import Path

import pytest

from duly import Client
from duly.cli.main import run
from tests.processes import PROJECT, child, eventually
from tests.story.duly_up import duly_up
from tests.story.test_duly_up import external

MODULE = """
from duly import Worker

worker = Worker(pools=["reloaded"], lease_s=2)
nothing = 3


@worker.task("version")
async def version(ctx):
    return "first"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_worker.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # Another test's duly may have left its address where this user's local one is looked for.
    monkeypatch.setenv("DULY_DATA_DIR", str(tmp_path / "nowhere"))
    return tmp_path


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("my_worker", "MODULE:NAME"),
        ("no_such_module:worker", "no module 'no_such_module'"),
        ("my_worker:nothing", "'nothing' in my_worker is not a duly.Worker"),
        ("my_worker:missing", "there is no 'missing' in my_worker; it has the worker 'worker'"),
        ("my_worker:worker", "no duly was found"),
    ],
)
def test_what_is_wrong_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], target: str, problem: str
) -> None:
    """A traceback of ours for a typing mistake of theirs helps nobody."""
    assert run(["worker", target]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def broken(:", "SyntaxError: invalid syntax (broken_worker.py, line 1)"),
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("{}['nothing']", "KeyError: 'nothing'"),
    ],
)
def test_a_module_that_fails_is_shown_from_its_own_first_line(
    folder: Path, capsys: pytest.CaptureFixture[str], code: str, said: str
) -> None:
    """Thirty frames of the command line stood above the one line that was theirs."""
    (folder / "broken_worker.py").write_text(code)
    assert run(["worker", "broken_worker:worker"]) == 2
    told = capsys.readouterr().err
    assert told.splitlines()[-1] == f"duly: broken_worker cannot be imported: {said}"
    assert "broken_worker.py" in told
    assert "importlib" not in told
    assert "duly/cli" not in told


def test_bands_are_those_of_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A typing mistake would be a worker that takes everything, or nothing."""
    assert run(["worker", "my_worker:worker", "--bands", "high, urgent"]) == 2
    assert "bands are one or more of high, normal, low" in capsys.readouterr().err
    assert run(["worker", "my_worker:worker", "--bands", "high,low"]) == 2
    assert "no duly was found" in capsys.readouterr().err


@pytest.mark.slow
def test_a_changed_file_starts_the_worker_again(
    owner_url: str, engine_url: str, folder: Path
) -> None:
    """Edit, submit, look: nobody wants to think of restarting in between."""
    with duly_up(environ=external(owner_url, engine_url)) as duly:
        environ = {
            "DULY_URL": duly.url,
            "DULY_API_KEY": duly.ready["api_key"],
            "PYTHONPATH": os.pathsep.join([str(PROJECT / "src"), str(PROJECT)]),
        }
        program = f"import os; os.chdir({str(folder)!r}); from duly.cli.main import main; main()"
        with (
            child(
                "-c", program, "worker", "my_worker:worker", "--reload", environ=environ
            ) as process,
            Client(duly.url, duly.ready["api_key"]) as client,
        ):

            def answer() -> object:
                task = client.submit("version", pool="reloaded")
                return client.wait(task.id, 30).output

            assert answer() == "first"
            (folder / "my_worker.py").write_text(MODULE.replace("first", "second"))
            eventually(lambda: "starting again" in process.said_on_errors, "it has noticed")
            eventually(lambda: answer() == "second", "the new version answers")
            process.signal(signal.SIGTERM)
            assert process.wait() == 0
