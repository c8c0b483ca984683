"""A clock that moves only when a test says so."""

from datetime import UTC, datetime, timedelta

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
