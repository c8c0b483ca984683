"""Probes and ramps of open breakers: nothing, one probe a minute, or a growing rate. In memory
only: a probe that is lost with its node is followed by another one from the next owner."""

from collections.abc import Container

from duly.domain.breaker import PROBE_EVERY_S, RAMP_S, ramp_rate
from duly.domain.token_bucket import TokenBucket
from duly.store.tenants import Breaker

Place = tuple[int, str]


class Probes:
    def __init__(self) -> None:
        self.next_probe: dict[Place, float] = {}
        self.ramps: dict[Place, TokenBucket] = {}

    def ready_at(self, breaker: Breaker, now: float) -> float:
        """When the next task may pass, by the database's clock."""
        place = (breaker.tenant, breaker.host)
        if breaker.ramp_at is None:
            return max(breaker.open_until.timestamp(), self.next_probe.get(place, 0.0))
        elapsed = now - breaker.ramp_at.timestamp()
        if elapsed >= RAMP_S:
            return now
        return self.ramp_of(place, elapsed, now).ready_at(now)

    def ramp_of(self, place: Place, elapsed: float, now: float) -> TokenBucket:
        rate = ramp_rate(elapsed)
        bucket = self.ramps.get(place)
        if bucket is None:
            bucket = self.ramps[place] = TokenBucket.full(rate, 1.0, now)
        bucket.refill(now)
        bucket.rate, bucket.burst = rate, max(1.0, rate)
        return bucket

    def passed(self, breaker: Breaker, now: float) -> None:
        """Record that a task passed."""
        place = (breaker.tenant, breaker.host)
        if breaker.ramp_at is None:
            self.next_probe[place] = now + PROBE_EVERY_S
        elif place in self.ramps:
            self.ramps[place].spend(now)

    def wasted(self, breaker: Breaker) -> bool:
        """Record that a probe found no task any more; answers whether another may go instead."""
        place = (breaker.tenant, breaker.host)
        return breaker.ramp_at is None and self.next_probe.pop(place, None) is not None

    def forget(self, known: Container[Place]) -> None:
        """Drop the state of breakers that closed."""
        for kept in (self.next_probe, self.ramps):
            for place in [place for place in kept if place not in known]:
                del kept[place]
