"""How the database's clock relates to ours, as far as answers prove it.

A poll may wait for seconds before it is answered, so neither its start nor its end says when a
lease in it was granted; the lease itself does, by the database's clock. Every answer that names an
instant of that clock bounds the difference from below: it happened after we had asked.

| event | what happens |
|---|---|
| the answer lay unread while this process was paused | the lease is seen to be old |
| nothing is known, or it is long ago | we say so, and the lease is confirmed before it starts |
| the database's clock is set back or forth | at worst the same, until the next answers |
"""

from datetime import datetime

from duly.client.clock import monotonic

# Two clocks may drift apart by a thousandth of that, which is less than any margin of ours.
KNOWN_FOR_S = 300.0
# More doubt than this, and a heartbeat is asked.
DOUBT_S_MAX = 0.25


class ServerClock:
    def __init__(self) -> None:
        # At least so many seconds is our clock ahead of theirs, and when we learnt it.
        self.known: tuple[float, float] | None = None

    def note(self, asked_at: float, instant: datetime) -> None:
        """The database's clock showed `instant` at some moment after `asked_at`. Any thread."""
        ahead_s, now = asked_at - instant.timestamp(), monotonic()
        known = self.known
        if known is None or ahead_s > known[0] or now - known[1] > KNOWN_FOR_S / 2:
            self.known = (ahead_s, now)

    def granted_at(self, started_at: datetime, asked_at: float, now: float) -> float | None:
        """When, by our clock, the lease was granted at the earliest; None if that is in doubt."""
        earliest = asked_at
        known = self.known
        if known is not None and now - known[1] < KNOWN_FOR_S:
            earliest = max(earliest, started_at.timestamp() + known[0])
        return None if now - earliest > DOUBT_S_MAX else min(earliest, now)
