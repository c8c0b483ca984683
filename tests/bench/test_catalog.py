"""The list of scenarios: the promised names, and something to run behind each."""

import pytest
from benchmarks.internals import INTERNALS

from duly.bench.catalog import SCENARIOS, Scenario
from tests.processes import PROJECT

PROMISED = {
    *("submit-single", "submit-batch", "end-to-end", "end-to-end-http", "drain", "webhook", "lone"),
    *("lone-http", "herd", "skew", "waiting", "noisy", "pinned-xmin"),
}


def test_without_a_name_every_promised_scenario_is_run() -> None:
    """Scripts that follow figures over months know them by these names."""
    assert {name for name, scenario in SCENARIOS.items() if scenario.is_usual} >= PROMISED


@pytest.mark.parametrize(
    "scenario", [*SCENARIOS.values(), *INTERNALS], ids=lambda scenario: scenario.name
)
def test_every_scenario_can_be_run_and_is_documented(scenario: Scenario) -> None:
    """One that is listed and cannot be imported would only fail for users."""
    assert callable(scenario.load())
    assert f"| `{scenario.name}` |" in (PROJECT / "docs" / "benchmarks.md").read_text("utf-8")


def test_the_wheel_contains_no_scenario_of_internals() -> None:
    """An installed `duly bench` would measure parts that no user calls."""
    assert not {each.name for each in INTERNALS} & set(SCENARIOS)
    assert all(each.module.startswith("benchmarks.") for each in INTERNALS)
    assert all(each.module.startswith("duly.bench.") for each in SCENARIOS.values())
