"""Backoff: how long to wait after so many failures in a row: doubling, bounded, spread where many
wait."""

from random import Random

DOUBLINGS_MAX = 16


def backoff_s(failures: int, first_s: float, most_s: float, random: Random | None = None) -> float:
    """`failures` counts from 1. With `random`, spread over half of the length, so that the
    processes of a fleet do not come back at the same instant."""
    whole_s = min(first_s * 2.0 ** min(failures - 1, DOUBLINGS_MAX), most_s)
    return whole_s if random is None else whole_s * random.uniform(0.5, 1.0)
