"""The rules for Prometheus, judged by its own tool: each alert fires, and holds still for a spike.

promtool comes with Prometheus (Debian: apt-get install prometheus). Without it these tests are
skipped, except on CI.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from duly.observability import ALERTS, DASHBOARD, RECORDING
from duly.telemetry import Metrics
from tests.observability.alert_cases import CASES, Case

FILES = (RECORDING, ALERTS)
TIMEOUT_S = 240
# A case takes a third of a second, on an idle machine.
PARTS = 6
EVALUATED_AT_M = 60


def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        problem = "promtool is not installed (Debian: apt-get install prometheus)"
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)
    return found


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [promtool(), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def as_unit_test(case: Case) -> dict[str, Any]:
    return {
        "name": case.name,
        "interval": "1m",
        "input_series": [
            {"series": name, "values": values} for name, values in case.series.items()
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{EVALUATED_AT_M}m",
                "exp_samples": [
                    {"labels": f'{{alertname="{alert}"}}', "value": 1}
                    for alert in sorted(case.fires)
                ],
            }
        ],
    }


def run_cases(folder: Path, cases: list[Case], files: tuple[Path, ...] = FILES) -> str:
    """What promtool objects to; empty if nothing. JSON is YAML, too."""
    document = {
        "rule_files": [str(path) for path in files],
        "evaluation_interval": "1m",
        "group_eval_order": re.findall(r"- name: (\S+)", "".join(map(Path.read_text, files))),
        "tests": [as_unit_test(case) for case in cases],
    }
    path = folder / "cases.yml"
    path.write_text(json.dumps(document))
    done = run("test", "rules", str(path))
    return "" if done.returncode == 0 else done.stdout + done.stderr


def alerts() -> set[str]:
    return set(re.findall(r"- alert: (\w+)", ALERTS.read_text()))


def test_prometheus_accepts_the_rules() -> None:
    """A file that Prometheus refuses keeps the whole server from reloading."""
    done = run("check", "rules", *map(str, FILES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.parametrize("part", range(PARTS))
def test_each_alert_fires_for_its_fault_and_for_no_other(tmp_path: Path, part: int) -> None:
    """An alert that never fires is found out in the outage; one that always does is turned off."""
    objections = run_cases(tmp_path, CASES[part::PARTS])
    assert not objections, objections


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    """A rule without a test is a guess."""
    fires = {alert for case in CASES for alert in case.fires}
    calm = {alert for case in CASES for alert in case.calm}
    assert fires == alerts()
    # Nothing spikes here: absence for less than 5 minutes is the case.
    assert calm == alerts()
    assert not any(case.calm & case.fires for case in CASES)


def test_a_wrong_threshold_is_noticed(tmp_path: Path) -> None:
    """The cases themselves must be able to fail."""
    changed = tmp_path / "alerts.yml"
    text = ALERTS.read_text()
    changed.write_text(text.replace("* 60 > 10\n", "* 60 > 1000\n"))
    assert changed.read_text() != text
    letters = [case for case in CASES if "DulyDeadLetters" in case.fires]
    assert "DulyDeadLetters" in run_cases(tmp_path, letters, (RECORDING, changed))


@pytest.mark.parametrize("path", [RECORDING, ALERTS, DASHBOARD], ids=lambda path: path.name)
def test_every_metric_that_is_asked_for_exists(path: Path) -> None:
    """A query of a name that is not exported shows nothing, and says nothing."""
    families = {
        sample.name for family in Metrics().registry.collect() for sample in family.samples
    } | {family.name for family in Metrics().registry.collect()}
    families |= {f"{gauge.name}" for gauge in Metrics().tenant_gauges}
    recorded = set(re.findall(r"record: (duly:\S+)", RECORDING.read_text()))
    for name in set(re.findall(r"\bduly[_:][\w:]+", path.read_text())):
        if ":" in name:
            assert name in recorded, name
            continue
        base = re.sub(r"_(bucket|count|sum|total)$", "", name)
        assert name in families or base in families, name


def test_every_panel_of_the_dashboard_has_a_query_and_a_title() -> None:
    """An empty panel looks like a healthy one."""
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len(panels) >= 15
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in panels:
        assert panel["title"]
        assert all(target["expr"] for target in panel["targets"]), panel["title"]
        assert panel["targets"], panel["title"]


def test_every_alert_has_its_line_in_the_documentation() -> None:
    """A page at night that nobody explains is a page that is ignored."""
    page = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()
    missing = {alert for alert in alerts() if f"`{alert}`" not in page}
    assert not missing
