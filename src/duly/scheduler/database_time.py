"""What time it is for the database, reckoned here without asking it each time.

The estimate never runs ahead: the server stamped its answer before we received it, so the true
time is the stamp plus what has passed since, or later. A ticket written too early would be refused
by the lease; one written a network delay late is only late.
"""

from datetime import UTC, datetime

from duly.environment import Clock


class DatabaseTime:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.offset_s: float | None = None

    def observe(self, database_now: datetime) -> None:
        """Called with each stamp, as soon as it is received. The newest one counts: the database's
        clock may step either way."""
        self.offset_s = database_now.timestamp() - self.clock.monotonic()

    @property
    def is_known(self) -> bool:
        return self.offset_s is not None

    def now(self) -> float:
        """Seconds since 1970 by the database's clock, at most."""
        assert self.offset_s is not None, "nothing was observed yet"
        return self.clock.monotonic() + self.offset_s

    def instant(self) -> datetime:
        return datetime.fromtimestamp(self.now(), UTC)
