"""Histogram of durations with fixed buckets, so that counts of any two minutes add up.

Each bound is the square root of two times the one before it, from a millisecond to a day. A count
list may be shorter than the list of buckets: what is missing at its end is zero.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

BOUND_FIRST_S = 0.001
BOUND_LAST_S = 86400.0
STEPS_PER_DOUBLING = 2
# Stored rows speak of buckets by position: changing a bound would change what old minutes say.
BOUNDS: tuple[float, ...] = (
    *(BOUND_FIRST_S * 2.0 ** (step / STEPS_PER_DOUBLING) for step in range(53)),
    BOUND_LAST_S,
)
# One more than bounds: the last bucket has everything above a day.
BUCKETS = len(BOUNDS) + 1


def index_of(seconds: float) -> int:
    """The bucket of a duration; a bound belongs to the bucket below it, as Prometheus has it."""
    return bisect_left(BOUNDS, seconds)


def trimmed(counts: Sequence[int]) -> list[int]:
    """Without the zeros at the end, which are most of it."""
    length = len(counts)
    while length and not counts[length - 1]:
        length -= 1
    return list(counts[:length])


def quantile(counts: Sequence[int], q: float) -> float | None:
    """The duration below which a share `q` lies, drawn straight through its bucket.

    None if nothing was counted; above a day, a day: the last bucket has no upper end.
    """
    assert 0.0 <= q <= 1.0
    assert len(counts) <= BUCKETS
    sums = list(accumulate(counts))
    if not sums or not sums[-1]:
        return None
    rank = q * sums[-1]
    # The first bucket that has a member at or after the rank; never an empty one.
    index = next(n for n, total in enumerate(sums) if counts[n] and total >= rank)
    if index == len(BOUNDS):
        return BOUND_LAST_S
    lower = BOUNDS[index - 1] if index else 0.0
    inside = (rank - (sums[index] - counts[index])) / counts[index]
    return lower + (BOUNDS[index] - lower) * max(inside, 0.0)
