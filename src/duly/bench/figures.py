"""Figures from counts and times: rates, a rate over time, percentiles. Pure sums."""

import math
from collections.abc import Sequence
from typing import Any

from duly.bench.processor_time import Costs
from duly.environment import Clock

# What is counted together; a long run is shown in coarser steps.
BUCKET_S = 0.1
STEPS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
POINTS_MAX = 60
PERCENTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}

Figures = dict[str, Any]


def percentiles(waits_s: Sequence[float]) -> Figures:
    """By nearest rank: each is a wait that was really seen."""
    ordered = sorted(waits_s)
    return {
        name: ordered[max(0, math.ceil(share * len(ordered)) - 1)] * 1000
        for name, share in PERCENTILES.items()
        if ordered
    }


class Meter:
    """Counts what is done, and when, from the moment it is made."""

    def __init__(self, clock: Clock, costs: Costs | None = None) -> None:
        self.clock = clock
        self.costs = costs
        self.began = self.ended = clock.monotonic()
        self.count = 0
        self.buckets: list[int] = []

    def add(self, count: int = 1) -> None:
        self.ended = self.clock.monotonic()
        self.count += count
        at = int((self.ended - self.began) / BUCKET_S)
        if at >= len(self.buckets):
            self.buckets += [0] * (at + 1 - len(self.buckets))
        self.buckets[at] += count

    @property
    def passed_s(self) -> float:
        """Until the last thing was done."""
        return max(self.ended - self.began, 1e-6)

    @property
    def rate(self) -> float:
        return self.count / self.passed_s

    def figures(self) -> Figures:
        costs = {} if self.costs is None else self.costs.figures(self.count)
        return {"tasks_per_s": self.rate, **costs, "series": series(self.buckets, self.passed_s)}


def series(buckets: Sequence[int], passed_s: float) -> Figures:
    """A rate for each step; the last step is as short as what was left of it."""
    wide_enough = (step for step in STEPS_S if passed_s / step <= POINTS_MAX)
    step_s = next(wide_enough, STEPS_S[-1])
    width = round(step_s / BUCKET_S)
    rates: list[float] = []
    for start in range(0, len(buckets), width):
        lasted_s = min(step_s, passed_s - start * BUCKET_S)
        # A short interval at the end would show a rate that did not exist.
        if lasted_s >= step_s / 2 or not rates:
            rates.append(sum(buckets[start : start + width]) / max(lasted_s, BUCKET_S / 2))
    return {"step_s": step_s, "tasks_per_s": [round(rate, 1) for rate in rates]}


def mean_rate(meters: Sequence[Meter]) -> float:
    """Of all that was done over all the time it took."""
    return sum(meter.count for meter in meters) / sum(meter.passed_s for meter in meters)
