"""The list of scenarios: the promised names, and something to run behind each."""

import pytest

from duly.bench.catalog import SCENARIOS
from tests.processes import PROJECT

PROMISED = {
    *("submit-single", "submit-batch", "end-to-end", "end-to-end-http", "drain", "webhook", "lone"),
    *("lone-http", "herd", "skew", "waiting", "noisy", "pinned-xmin"),
}


def test_without_a_name_every_promised_scenario_is_run() -> None:
    """Scripts that follow figures over months know them by these names."""
    assert {name for name, scenario in SCENARIOS.items() if scenario.is_usual} >= PROMISED


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_can_be_run_and_is_documented(name: str) -> None:
    """One that is listed and cannot be imported would only fail for users."""
    assert callable(SCENARIOS[name].load())
    assert f"| `{name}` |" in (PROJECT / "docs" / "benchmarks.md").read_text("utf-8")
