"""Rates, rates over time, and percentiles."""

import pytest

from duly.bench.figures import POINTS_MAX, Meter, mean_rate, percentiles, series
from duly.testing.clock import ManualClock


def test_a_percentile_is_a_wait_that_was_seen() -> None:
    """Off by one, and the slowest of a hundred is called the usual."""
    found = percentiles([number / 1000 for number in range(1000, 0, -1)])
    assert found == pytest.approx(
        {"p50_ms": 500, "p90_ms": 900, "p99_ms": 990, "p999_ms": 999, "max_ms": 1000}
    )


def test_percentiles_of_one_wait_are_that_wait_and_of_none_are_none() -> None:
    """A small run must not end in an index error."""
    assert set(percentiles([0.25]).values()) == {250.0}
    assert percentiles([]) == {}


def test_a_rate_ends_with_the_last_thing_done() -> None:
    """What a scenario does afterwards, such as stopping, would make every rate smaller."""
    clock = ManualClock()
    meter = Meter(clock)
    for _ in range(10):
        clock.advance(0.5)
        meter.add(100)
    clock.advance(60.0)
    assert meter.rate == pytest.approx(200.0)
    assert mean_rate([meter, meter]) == pytest.approx(200.0)


def test_a_series_shows_a_stall_where_it_was() -> None:
    """An average hides the second in which nothing happened."""
    clock = ManualClock()
    meter = Meter(clock)
    for pause_s in (0.05, 0.1, 0.1, 0.5, 0.13):
        clock.advance(pause_s)
        meter.add(10)
    shown = meter.figures()["series"]
    assert shown["step_s"] == 0.1
    assert shown["tasks_per_s"] == [100.0, 100.0, 100.0, 0.0, 0.0, 0.0, 0.0, 100.0, 125.0]


@pytest.mark.parametrize("passed_s", [0.1, 7.0, 100.0, 3000.0])
def test_a_long_run_is_shown_in_coarser_steps_with_the_same_rate(passed_s: float) -> None:
    """Ten points a second for an hour are no picture."""
    shown = series([10] * round(passed_s * 10), passed_s)
    assert len(shown["tasks_per_s"]) <= POINTS_MAX
    assert shown["tasks_per_s"] == pytest.approx([100.0] * len(shown["tasks_per_s"]))
