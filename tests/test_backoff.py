"""The pause after failures: it grows, it ends growing, and a fleet does not come back at once."""

from random import Random

import pytest

from duly.backoff import backoff_s


@pytest.mark.parametrize(
    ("failures", "expected_s"), [(1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0), (5, 3.0), (10_000, 3.0)]
)
def test_the_pause_doubles_up_to_its_bound(failures: int, expected_s: float) -> None:
    """Without a bound an outage of an hour is followed by a pause of another."""
    assert backoff_s(failures, 0.5, 3.0) == expected_s


def test_with_chance_it_lies_in_the_upper_half() -> None:
    """Processes that fail together must not all come back at the same instant."""
    waits = [backoff_s(3, 0.5, 3.0, Random(seed)) for seed in range(200)]
    assert 1.0 <= min(waits) < 1.1
    assert 1.9 < max(waits) <= 2.0
