"""Token buckets: a rate that may be saved up to a burst, and no further."""

from dataclasses import dataclass

# A bucket holds at least one token, so that a slow rate still lets one through.
BURST_MIN = 1.0


@dataclass(slots=True)
class TokenBucket:
    """`rate` tokens a second, at most `burst` saved. Time is handed in, in seconds."""

    rate: float
    burst: float
    tokens: float
    updated_at: float

    @classmethod
    def full(cls, rate: float, burst: float, now: float) -> "TokenBucket":
        assert rate > 0
        assert burst >= 1
        return cls(rate, burst, burst, now)

    def refill(self, now: float) -> None:
        """A clock that steps back refills nothing and takes nothing away."""
        if now > self.updated_at:
            self.tokens = min(self.burst, self.tokens + (now - self.updated_at) * self.rate)
        self.updated_at = now

    def take(self, now: float, count: float = 1.0) -> bool:
        self.refill(now)
        if self.tokens < count:
            return False
        self.tokens -= count
        return True

    def spend(self, now: float, count: float = 1.0) -> None:
        """Spend after a check by `ready_at`. Instants are rounded, so it may find a trace too
        little; the trace is owed, or at one instant any number would pass for free."""
        self.refill(now)
        self.tokens -= count

    def ready_at(self, now: float, count: float = 1.0) -> float:
        """When `count` tokens will be available, if no other caller takes any."""
        self.refill(now)
        missing = count - self.tokens
        return now if missing <= 0 else now + missing / self.rate


def burst_of(rate: float, burst: float | None) -> float:
    """What may be saved up; unless said otherwise, a second's worth."""
    return max(burst or rate, BURST_MIN)
