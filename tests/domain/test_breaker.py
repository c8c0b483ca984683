"""When a receiver is left alone, and how it gets its work back."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.domain.breaker import (
    ATTEMPTS_MIN,
    BUCKET_S,
    RAMP_S,
    RETRY_ATTEMPTS_MIN,
    WINDOW_S,
    BreakerPhase,
    FailureWindow,
    phase_of,
    ramp_rate,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def window(failures: int, successes: int, *, retries: int = 0, now: float = 0.0) -> FailureWindow:
    made = FailureWindow()
    for number in range(failures + successes):
        made.note(now, ok=number >= failures, is_retry=number < retries)
    return made


@pytest.mark.parametrize(
    ("failures", "successes", "is_failing"),
    [(20, 0, True), (19, 0, False), (19, 1, True), (18, 2, False), (181, 19, True), (0, 50, False)],
)
def test_a_host_is_failing_above_nine_in_ten_of_at_least_twenty(
    failures: int, successes: int, is_failing: bool
) -> None:
    """Fewer would open on one bad minute of a quiet host."""
    assert window(failures, successes).is_failing(0.0) is is_failing


def test_old_failures_are_forgotten() -> None:
    """A host that failed this morning is not failing now."""
    made = window(ATTEMPTS_MIN, 0)
    assert made.is_failing(WINDOW_S - 0.001)
    assert not made.is_failing(WINDOW_S)


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=200))
def test_the_window_counts_what_its_buckets_hold(steps: list[tuple[float, bool]]) -> None:
    """Buckets save memory; they may lose no attempt that is young enough to count for sure."""
    made, now, noted = FailureWindow(), 0.0, []
    for step_s, ok in steps:
        now += step_s
        made.note(now, ok=ok, is_retry=False)
        noted.append((now, ok))
    total = made.total(now)
    least = sum(at > now - WINDOW_S + BUCKET_S for at, _ in noted)
    most = sum(at > now - WINDOW_S - BUCKET_S for at, _ in noted)
    assert least <= total.attempts <= most
    assert total.failures <= total.attempts


def test_retries_that_are_most_of_the_traffic_are_over_budget() -> None:
    """They would keep the host down by themselves."""
    assert window(0, RETRY_ATTEMPTS_MIN, retries=RETRY_ATTEMPTS_MIN // 2 + 1).is_over_budget(0.0)
    assert not window(0, RETRY_ATTEMPTS_MIN, retries=RETRY_ATTEMPTS_MIN // 2).is_over_budget(0.0)
    assert not window(RETRY_ATTEMPTS_MIN - 1, 0, retries=RETRY_ATTEMPTS_MIN).is_over_budget(0.0)


def test_the_phases_follow_one_another() -> None:
    """Open, one probe, ramp, closed: none may be skipped or last for ever."""
    until, ramp = NOW + timedelta(seconds=60), NOW + timedelta(seconds=70)
    assert phase_of(NOW, until, None) is BreakerPhase.OPEN
    assert phase_of(until, until, None) is BreakerPhase.PROBING
    assert phase_of(ramp, until, ramp) is BreakerPhase.RAMP
    assert phase_of(ramp + timedelta(seconds=RAMP_S), until, ramp) is BreakerPhase.CLOSED


@given(st.floats(-10, RAMP_S), st.floats(0, RAMP_S))
def test_the_ramp_only_rises(elapsed: float, more: float) -> None:
    """A host that just came back must not get everything at once."""
    assert 1.0 <= ramp_rate(elapsed) <= ramp_rate(elapsed + more)
    assert ramp_rate(RAMP_S) > 1000
