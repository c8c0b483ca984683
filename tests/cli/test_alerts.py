"""`duly alerts`: what Prometheus and Grafana load is what it prints."""

import json
from pathlib import Path

from click.testing import CliRunner

from duly.cli.alerts import command
from duly.observability import ALERTS, DASHBOARD, RECORDING


def test_the_files_are_printed_as_they_are() -> None:
    """A rule that was changed on the way is not the rule that was tested."""
    printed = CliRunner().invoke(command, []).stdout
    assert printed == ALERTS.read_text()
    assert CliRunner().invoke(command, ["recording"]).stdout == RECORDING.read_text()
    assert json.loads(CliRunner().invoke(command, ["dashboard"]).stdout)["title"] == "duly"
    everything = json.loads(CliRunner().invoke(command, ["--json"]).stdout)
    assert everything[DASHBOARD.name] == DASHBOARD.read_text()


def test_all_files_are_written_to_a_folder(tmp_path: Path) -> None:
    """One forgotten file, and the alerts refer to rules that are not there."""
    done = CliRunner().invoke(command, ["--write", str(tmp_path / "new")])
    assert done.exit_code == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "duly-alerts.yml",
        "duly-recording.yml",
        "duly-dashboard.json",
    }
