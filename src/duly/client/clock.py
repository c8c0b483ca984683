"""Clocks and randomness of the worker. No other module of the client reads either."""

import time
from datetime import UTC, datetime
from random import Random

# Counts the time that the machine slept as well: a lease runs out while a laptop is closed.
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
chance = Random()  # noqa: S311 (pauses, not secrets)


def monotonic() -> float:
    return time.clock_gettime(CLOCK)


def utc_now() -> datetime:
    return datetime.now(UTC)
