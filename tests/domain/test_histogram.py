"""Durations in buckets: the bounds stay for ever, and a quantile is right within its bucket."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.domain.histogram import (
    BOUND_FIRST_S,
    BOUND_LAST_S,
    BOUNDS,
    BUCKETS,
    index_of,
    quantile,
    trimmed,
)

durations = st.floats(0.0, 2 * BOUND_LAST_S)
shares = st.floats(0.0, 1.0)
RATIO = math.sqrt(2) * 1.0001


def counted(values: list[float]) -> list[int]:
    counts = [0] * BUCKETS
    for value in values:
        counts[index_of(value)] += 1
    return counts


def test_the_bounds_are_what_stored_minutes_were_counted_by() -> None:
    """A moved bound changes what every stored minute says, and nobody notices."""
    assert len(BOUNDS) == 54
    assert BUCKETS == 55
    assert BOUNDS[0] == BOUND_FIRST_S == 0.001
    assert BOUNDS[20] == pytest.approx(1.024)
    assert BOUNDS[-1] == BOUND_LAST_S == 86400.0
    assert all(low < high <= low * RATIO for low, high in itertools.pairwise(BOUNDS))


@given(durations)
def test_a_duration_lies_in_its_bucket(seconds: float) -> None:
    """One bucket too high is 41 % too slow, one too low hides a late start."""
    index = index_of(seconds)
    assert 0 <= index < BUCKETS
    assert index == 0 or BOUNDS[index - 1] < seconds
    assert index == len(BOUNDS) or seconds <= BOUNDS[index]


@pytest.mark.parametrize("seconds", [-5.0, -0.0, 0.0, 1e-9])
def test_a_negative_duration_counts_as_none(seconds: float) -> None:
    """A clock that stepped back must not count a start in the bucket of a day."""
    assert index_of(seconds) == 0


def test_a_bound_belongs_to_the_bucket_below_it() -> None:
    """Counted above, `le` in the metrics and here would disagree."""
    assert [index_of(bound) for bound in BOUNDS] == list(range(len(BOUNDS)))
    assert index_of(math.nextafter(BOUND_LAST_S, math.inf)) == BUCKETS - 1


@given(st.lists(durations, min_size=1), shares)
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], q: float) -> None:
    """A quantile in an empty bucket is a number that no task ever had."""
    found = quantile(counted(values), q)
    assert found is not None
    true = sorted(values)[max(math.ceil(q * len(values)) - 1, 0)]
    index = index_of(true)
    assert (BOUNDS[index - 1] if index else 0.0) <= found
    assert found <= (BOUNDS[index] if index < len(BOUNDS) else BOUND_LAST_S) * 1.0000001


@given(st.lists(durations, min_size=1), shares, shares)
def test_a_larger_share_never_has_a_smaller_quantile(
    values: list[float], one: float, other: float
) -> None:
    """A p99 below the p50 makes every other number unbelievable."""
    counts = counted(values)
    small, large = quantile(counts, min(one, other)), quantile(counts, max(one, other))
    assert small is not None
    assert large is not None
    assert small <= large


@given(st.lists(durations), shares)
def test_zeros_at_the_end_say_nothing(values: list[float], q: float) -> None:
    """Rows are stored without them; they must read the same."""
    counts = counted(values)
    assert quantile(trimmed(counts), q) == quantile(counts, q)
    assert trimmed(counts) + [0] * (BUCKETS - len(trimmed(counts))) == counts
    assert trimmed(trimmed(counts)) == trimmed(counts)


def test_nothing_counted_has_no_quantile() -> None:
    """Zero would be the best p99 of all."""
    assert quantile([], 0.5) is None
    assert quantile([0] * BUCKETS, 0.5) is None


def test_above_a_day_the_answer_is_a_day() -> None:
    """The last bucket has no upper end to draw a line to."""
    assert quantile(counted([1e6]), 0.99) == BOUND_LAST_S
