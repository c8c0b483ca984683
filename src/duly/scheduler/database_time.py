"""Estimate of the database's clock, without a query each time.

The estimate never runs ahead: the server stamped its answer before we received it, so the true
time is the stamp plus what has passed since, or later. The stamp that travelled fastest is the best
one; stamps are good for some seconds only, because clocks drift, and the database's may step.
"""

from datetime import UTC, datetime

from duly.environment import Clock

# How long a stamp may be the best one, at least and at most twice that.
WINDOW_S = 5.0
# A stamp this far behind the others means that the database's clock was set back.
STEP_S = 1.0


class DatabaseTime:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.offset_s: float | None = None
        self.recent_s: float | None = None
        self.window_ends = 0.0

    def observe(self, database_now: datetime) -> None:
        """Called with each stamp, as soon as it is received."""
        here = self.clock.monotonic()
        offset_s = database_now.timestamp() - here
        if self.recent_s is None or offset_s > self.recent_s:
            self.recent_s = offset_s
        if self.offset_s is None or not 0 <= self.offset_s - offset_s <= STEP_S:
            self.offset_s = self.recent_s = offset_s
        if here >= self.window_ends:
            self.offset_s, self.recent_s = self.recent_s, None
            self.window_ends = here + WINDOW_S

    @property
    def is_known(self) -> bool:
        return self.offset_s is not None

    def now(self) -> float:
        """Seconds since 1970 by the database's clock, at most."""
        assert self.offset_s is not None, "nothing was observed yet"
        return self.clock.monotonic() + self.offset_s

    def instant(self) -> datetime:
        return datetime.fromtimestamp(self.now(), UTC)
