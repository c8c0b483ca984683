"""Lane cursors: where each lane of the table starts for this process, so that dead rows are not
read again.

While a long transaction elsewhere keeps vacuum away, every ticket ever taken is still in the way of
a scan from the beginning. A cursor trails what was taken by a little, because sequences become
visible out of order, and is forgotten now and then: a ticket left behind is late, never lost.
"""

from collections.abc import Iterable
from random import Random

from duly.domain.lanes import Lane
from duly.environment import Clock
from duly.store.ready_tickets import BEGINNING

# Longer than a publisher's commit normally takes after its transaction, whose time it is, began.
TRAIL_S = 0.25
# The server's clock may be set back, so no cursor may be trusted for long.
FORGET_S = 2.0
# A look from the beginning that took long is not repeated for this many times as long.
REST_FACTOR = 20.0
# One that waited for a connection took long as well.
REST_MAX_S = 10.0


class LaneCursors:
    def __init__(self, clock: Clock, random: Random) -> None:
        self.clock = clock
        self.random = random
        self.trusted: dict[Lane, int] = {}
        self.trailing: dict[Lane, int] = {}
        self.newest: dict[Lane, int] = {}
        self.turn_at = clock.monotonic() + TRAIL_S
        self.forget_at = clock.monotonic() + FORGET_S

    def cursors(self, lanes: Iterable[Lane]) -> dict[Lane, int]:
        """The lanes, once each, with the sequence after which to look."""
        now = self.clock.monotonic()
        if now >= self.forget_at:
            self.forget()
        elif now >= self.turn_at:
            self.trusted = {**self.trusted, **self.trailing}
            self.trailing, self.newest = self.newest, {}
            self.turn_at = now + TRAIL_S
        return {lane: self.trusted.get(lane, BEGINNING) for lane in lanes}

    def remember(self, lane: Lane, sequence: int) -> None:
        self.newest[lane] = max(sequence, self.newest.get(lane, BEGINNING))

    def forget(self) -> None:
        """Look from the beginning again, everywhere."""
        now = self.clock.monotonic()
        self.trusted, self.trailing, self.newest = {}, {}, {}
        self.turn_at = now + TRAIL_S
        # Spread, so that a fleet does not look all at once.
        self.forget_at = now + FORGET_S * self.random.uniform(0.75, 1.0)

    def took(self, seconds: float) -> None:
        """How long a look lasted."""
        rested_at = self.clock.monotonic() + min(seconds * REST_FACTOR, REST_MAX_S)
        self.forget_at = max(self.forget_at, rested_at)
