"""Clocks for tests: one that moves only when a test says so, and one that can be moved ahead."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from duly.environment import SystemClock

START = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """Stands in for `environment.SystemClock`; both of its readings move together."""

    def __init__(self, start: datetime = START) -> None:
        assert start.tzinfo is not None, "an instant without a zone is not an instant"
        self.start = start
        self.elapsed_s = 0.0

    def now(self) -> datetime:
        return self.start + timedelta(seconds=self.elapsed_s)

    def monotonic(self) -> float:
        return self.elapsed_s

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "time never runs backwards"
        self.elapsed_s += seconds


class MovableClock:
    """Goes on as the system's does, and can be moved ahead: `clock.advance(days=7)`."""

    def __init__(self) -> None:
        self.system = SystemClock()
        self.ahead_s = 0.0
        # Users of this clock may want to be moved with care.
        self.move: Callable[[float], None] = self.jump

    def now(self) -> datetime:
        """The instant that it is for the server and its database."""
        return self.system.now() + timedelta(seconds=self.ahead_s)

    def monotonic(self) -> float:
        """Seconds since some moment, moved ahead with the rest."""
        return self.system.monotonic() + self.ahead_s

    def advance(
        self,
        seconds: float = 0.0,
        *,
        minutes: float = 0.0,
        hours: float = 0.0,
        days: float = 0.0,
        weeks: float = 0.0,
    ) -> datetime:
        """Let so much time pass at once; the instant that it is then. Never backwards."""
        step = timedelta(seconds=seconds, minutes=minutes, hours=hours, days=days, weeks=weeks)
        assert step >= timedelta(0), "time never runs backwards"
        self.move(step.total_seconds())
        return self.now()

    def jump(self, seconds: float) -> None:
        self.ahead_s += seconds

    def advance_to(self, instant: datetime) -> datetime:
        """Until that instant; nothing if it is past."""
        return self.advance(max((instant - self.now()).total_seconds(), 0.0))
