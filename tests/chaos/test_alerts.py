"""Rules with shorter durations are still the same rules."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from duly.observability import ALERTS, RECORDING
from tests.chaos.alerts import FACTOR, LASTING, LATE, compressed, plan

DURATION = re.compile(r"\[(\d+)([smhd])\]|for: (\d+)([smhd])")


def test_every_duration_is_shortened_and_nothing_else() -> None:
    """A range that stayed long would never see the fault; a threshold that moved, another one."""
    for rules in (ALERTS, RECORDING):
        whole, short = rules.read_text(), compressed(rules, FACTOR)
        assert len(DURATION.findall(whole)) == len(DURATION.findall(short))
        assert DURATION.sub("", whole) == DURATION.sub("", short)
    assert "for: 5m" in ALERTS.read_text()
    assert "for: 30s" in compressed(ALERTS, FACTOR)
    assert "for: 5m" not in compressed(ALERTS, FACTOR)


def test_prometheus_accepts_the_shortened_rules(tmp_path: Path) -> None:
    """The run would end before it began."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    for rules in (ALERTS, RECORDING):
        (tmp_path / rules.name).write_text(compressed(rules, FACTOR))
        done = subprocess.run(
            [promtool, "check", "rules", str(tmp_path / rules.name)],
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_what_a_fault_explains_is_an_alert_that_exists() -> None:
    """A renamed alert would be missed for ever, or excused for ever."""
    known = set(re.findall(r"- alert: (\w+)", ALERTS.read_text()))
    for planted in plan():
        assert planted.must | planted.may <= known, planted.name
    assert known >= LATE | LASTING
