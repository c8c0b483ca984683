"""Token buckets: never more than the rate allows, and no savings beyond the burst."""

from hypothesis import given
from hypothesis import strategies as st

from duly.domain.token_bucket import TokenBucket

RATES = st.floats(0.1, 1000.0)
BURSTS = st.floats(1.0, 100.0)
GAPS = st.lists(st.floats(0.0, 10.0), max_size=200)


@given(RATES, BURSTS, GAPS)
def test_takes_never_exceed_burst_and_rate(rate: float, burst: float, gaps: list[float]) -> None:
    """A tenant's dispatch rate is a promise to somebody's downstream (I10)."""
    bucket = TokenBucket.full(rate, burst, 0.0)
    now, taken = 0.0, 0
    for gap in gaps:
        now += gap
        taken += bucket.take(now)
        assert taken <= burst + rate * now + 1e-6


@given(RATES, BURSTS, st.integers(1, 50))
def test_the_promised_instant_is_kept(rate: float, burst: float, drains: int) -> None:
    """`explain` tells people when the bucket refills; a take at that instant must work."""
    bucket = TokenBucket.full(rate, burst, 0.0)
    for _ in range(drains):
        bucket.take(0.0)
    ready_at = bucket.ready_at(0.0)
    assert bucket.take(ready_at + 1e-9)


@given(RATES, BURSTS)
def test_a_clock_that_steps_back_gives_nothing_away(rate: float, burst: float) -> None:
    """A stepped clock must not double the rate, nor lock the tenant out."""
    bucket = TokenBucket.full(rate, burst, 1000.0)
    before = bucket.tokens
    bucket.refill(0.0)
    assert bucket.tokens == before
    bucket.refill(1.0)
    assert bucket.tokens <= burst


def test_what_passes_at_one_instant_is_always_paid_for() -> None:
    """A bucket a trace short of a token is ready by the rounded instant; with nothing taken, any
    number of tasks would pass at that instant (I10)."""
    now = 1.7e9
    bucket = TokenBucket(rate=10.0, burst=10.0, tokens=1.0 - 1e-9, updated_at=now)
    passed = 0
    while bucket.ready_at(now) <= now and passed < 100:
        bucket.spend(now)
        passed += 1
    assert passed == 1
