"""`duly bench` as its users run it: a real process, a real server of its own, real signals."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from duly.bench.catalog import SCENARIOS
from duly.bench.figures import percentiles
from duly.cli.bench import PLOTS_FOLDER, write_report
from duly.cli.main import run
from tests.processes import PROJECT, child, eventually

# Servers are started and stopped; on a busy machine that takes its time.
WAIT_S = 240.0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_answers_with_figures_and_with_what_they_depend_on(tmp_path: Path) -> None:
    """Figures without the machine, the settings and the backlog can be compared with nothing."""
    ended = subprocess.run(
        [sys.executable, "-m", "duly", "bench", "drain", "lone", "--tasks", "200", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    report = json.loads(ended.stdout)
    machine = report["machine"]
    assert machine["postgresql"]["fsync"] == machine["postgresql"]["synchronous_commit"] == "on"
    assert machine["cores"] >= 1
    assert machine.keys() >= {"processor", "memory_mb", "system", "python", "duly", "commit"}
    assert machine["libraries"].keys() >= {"asyncpg", "uvloop", "msgspec"}
    drain, lone = report["results"]
    assert (drain["scenario"], drain["tasks"], drain["backlog"]) == ("drain", 200, 200)
    assert drain["tasks_per_s"] > 0
    assert drain["series"]["tasks_per_s"]
    assert (lone["scenario"], lone["tasks"], lone["backlog"]) == ("lone", 200, 0)
    assert 0 < lone["p50_ms"] <= lone["p90_ms"] <= lone["p99_ms"] <= lone["max_ms"]
    # With --json no plot was asked for.
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_shows_what_had_finished_and_leaves_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Twenty minutes of figures lost to a Ctrl-C; a PostgreSQL that nobody knows of."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    tmp_path.chmod(0o755)
    arguments = ("-m", "duly", "bench", "drain", "lone", "--tasks", "20000")
    with child(
        *(*arguments, "--plots", str(tmp_path / "plots")), environ={"TMPDIR": str(temporary)}
    ) as running:
        eventually(lambda: "drain took" in running.said_on_errors, "one of two is done", WAIT_S)
        running.signal(number)
        assert running.wait(WAIT_S) == 1
        shown = running.lines
        text = "\n".join(shown.get_nowait() for _ in range(shown.qsize()))
    assert "\ndrain " in text
    assert "\nlone " not in text
    assert "interrupted, 1 of 2 had finished" in running.said_on_errors
    assert "Traceback" not in running.said_on_errors
    assert list(temporary.iterdir()) == []


def test_an_unknown_scenario_is_exit_code_2_with_the_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Found out after ten minutes, or by an empty report, a typing mistake costs a run."""
    assert run(["bench", "drain", "drian"]) == 2
    said = capsys.readouterr().err
    assert "no scenario drian" in said
    assert all(name in said for name in SCENARIOS)


def test_a_folder_for_plots_that_cannot_be_made_is_known_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An hour of measuring that ends in a traceback, for a typing mistake."""
    monkeypatch.setattr("duly.cli.bench.measure", lambda *_, **__: pytest.fail("it measures"))
    (tmp_path / "file").write_text("")
    assert run(["bench", "lone", "--plots", str(tmp_path / "file" / "plots")]) == 2
    assert "cannot make" in capsys.readouterr().err


def test_figures_are_shown_where_no_plot_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was measured is worth more than its picture."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / PLOTS_FOLDER).write_text("in the way")
    report = {"machine": {}, "results": [{"scenario": "x", **percentiles([0.1])}]}
    monkeypatch.setattr("duly.bench.plots.footer", lambda _machine: "some machine")
    assert not write_report(report, Path(PLOTS_FOLDER), as_json=False)
    said = capsys.readouterr()
    assert "some machine" in said.out
    assert "cannot write plots" in said.err


def test_help_imports_no_scenario() -> None:
    """Each of them imports the whole server."""
    program = (
        "import sys; from duly.cli.main import run; run(['bench', '--help']);"
        " sys.exit(str([name for name in ('asyncpg', 'duly.app') if name in sys.modules]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stderr == "[]\n"
    assert "end-to-end-http" in ended.stdout
