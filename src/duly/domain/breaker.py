"""When a receiver is left alone, when it is tried again, and how fast it gets work back. Pure.

A breaker belongs to one host as one tenant calls it. It opens when nearly everything fails, lets
one probe through each minute, and after a success gives the host its work back at a growing rate.
"""

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

WINDOW_S = 300.0
BUCKET_S = 15.0
ATTEMPTS_MIN = 20
FAILED_SHARE_MAX = 0.9
OPEN_S = 60.0
PROBE_EVERY_S = 60.0
RAMP_S = 60.0
# One a second at the first success, doubled every six seconds: a thousand after a minute.
RAMP_FIRST_RATE = 1.0
RAMP_DOUBLING_S = 6.0
# Of a host's attempts, how many may be retries before further ones are put off.
RETRY_SHARE_MAX = 0.5
RETRY_ATTEMPTS_MIN = 50
RETRY_STRETCH_S = 60.0


class Phase(StrEnum):
    OPEN = "open"
    PROBING = "probing"
    RAMP = "ramp"
    CLOSED = "closed"


def phase_of(now: datetime, open_until: datetime, ramp_at: datetime | None) -> Phase:
    if ramp_at is not None:
        return Phase.RAMP if (now - ramp_at).total_seconds() < RAMP_S else Phase.CLOSED
    return Phase.OPEN if now < open_until else Phase.PROBING


def ramp_rate(elapsed_s: float) -> float:
    """Tasks a second that a host gets so long after its first success."""
    return float(RAMP_FIRST_RATE * 2 ** (max(elapsed_s, 0.0) / RAMP_DOUBLING_S))


@dataclass(slots=True)
class Counts:
    attempts: int = 0
    failures: int = 0
    retries: int = 0


@dataclass(slots=True)
class FailureWindow:
    """How one host did over the last minutes; time is handed in, in seconds."""

    buckets: deque[tuple[float, Counts]] = field(default_factory=deque)

    def note(self, now: float, *, ok: bool, is_retry: bool) -> None:
        if not self.buckets or now >= self.buckets[-1][0] + BUCKET_S:
            self.buckets.append((now, Counts()))
        self.forget(now)
        counts = self.buckets[-1][1]
        counts.attempts += 1
        counts.failures += not ok
        counts.retries += is_retry

    def forget(self, now: float) -> None:
        while self.buckets and self.buckets[0][0] <= now - WINDOW_S:
            self.buckets.popleft()

    def total(self, now: float) -> Counts:
        self.forget(now)
        return Counts(
            sum(counts.attempts for _, counts in self.buckets),
            sum(counts.failures for _, counts in self.buckets),
            sum(counts.retries for _, counts in self.buckets),
        )

    def is_failing(self, now: float, attempts_min: int = ATTEMPTS_MIN) -> bool:
        total = self.total(now)
        return total.attempts >= attempts_min and total.failures > total.attempts * FAILED_SHARE_MAX

    def is_over_budget(self, now: float) -> bool:
        """So many of the attempts are retries that they would keep the host down by themselves."""
        total = self.total(now)
        return (
            total.attempts >= RETRY_ATTEMPTS_MIN
            and total.retries > total.attempts * RETRY_SHARE_MAX
        )
