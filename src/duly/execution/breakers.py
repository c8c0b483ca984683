"""Breakers, as the executor sees them: what it learns from each delivery, and tells the others.

Every executor judges by its own deliveries; what it finds is a row that every scheduler reads.

| event | what happens |
|---|---|
| nearly everything to a host fails | opened: nothing goes there for a minute |
| the probe fails | open for another minute |
| the probe succeeds | ramp: the host gets its work back at a growing rate, then the row is over |
| the probe is lost with its executor | another one is let through a minute later |
| failures go on during the ramp | opened again |
| this process restarts | the rows stand; its own counts begin anew |
"""

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime

from duly.domain.breaker import OPEN_S, RETRY_STRETCH_S, FailureWindow
from duly.environment import Environment
from duly.store.breakers import open_breaker, ramp_breaker, read_watched, reopen_breaker
from duly.store.database import Database
from duly.telemetry import get_logger

HOSTS_MAX = 10_000
WATCH_EVERY_S = 5.0
# Without a delivery for so long, nobody needs to know how the rows stand.
QUIET_S = 120.0
IDLE_S = 60.0
RAMP_ATTEMPTS_MIN = 5

log = get_logger("duly.execution.breakers")
Place = tuple[int, str]


class Breakers:
    """A role; `on_outcome` is told of every delivery."""

    name = "breakers"

    def __init__(self, database: Database, environment: Environment) -> None:
        self.database = database
        self.environment = environment
        self.windows: OrderedDict[Place, FailureWindow] = OrderedDict()
        # Rows that exist, with the beginning of their ramp.
        self.watched: dict[Place, datetime | None] = {}
        self.failed: set[Place] = set()
        self.recovered: set[Place] = set()
        self.heard_at = float("-inf")
        self.watch_at = 0.0
        self.wake: Callable[[], None] | None = None

    def on_outcome(self, tenant: int, host: str, ok: bool, attempt: int = 1) -> None:
        now = self.environment.clock.monotonic()
        is_first = now - self.heard_at > QUIET_S
        self.heard_at = now
        place = (tenant, host)
        window = self.window_of(place)
        window.note(now, ok=ok, is_retry=attempt > 1)
        if place in self.watched:
            (self.recovered if ok else self.failed).add(place)
        elif not ok and window.is_failing(now):
            self.failed.add(place)
        if (is_first or self.failed or self.recovered) and self.wake is not None:
            self.wake()

    def window_of(self, place: Place) -> FailureWindow:
        window = self.windows.get(place)
        if window is None:
            window = self.windows[place] = FailureWindow()
            if len(self.windows) > HOSTS_MAX:
                self.windows.popitem(last=False)
        self.windows.move_to_end(place)
        return window

    def stretch_s(self, tenant: int, host: str) -> float | None:
        """Put a retry off by at least this, where retries are most of the traffic already."""
        window = self.windows.get((tenant, host))
        if window is None or not window.is_over_budget(self.environment.clock.monotonic()):
            return None
        return self.environment.random.uniform(RETRY_STRETCH_S / 2, RETRY_STRETCH_S)

    async def tick(self) -> float:
        now = self.environment.clock.monotonic()
        if now - self.heard_at > QUIET_S:
            return IDLE_S
        if now >= self.watch_at:
            self.watch_at = now + WATCH_EVERY_S
            self.watched = await read_watched(self.database)
        recovered, self.recovered = self.recovered, set()
        for place in recovered & self.watched.keys() - self.failed:
            if self.watched[place] is None and await ramp_breaker(self.database, *place):
                log.info("a receiver is back", tenant=place[0], host=place[1])
                self.windows[place] = FailureWindow()
                self.watch_at = now
        failed, self.failed = self.failed, set()
        for place in failed:
            await self.fail(place, now)
        return WATCH_EVERY_S

    async def fail(self, place: Place, now: float) -> None:
        ramp_at = self.watched.get(place)
        if place in self.watched and ramp_at is None:
            # A probe: one failure is enough.
            await reopen_breaker(self.database, *place, OPEN_S)
            return
        least = RAMP_ATTEMPTS_MIN if place in self.watched else None
        window = self.window_of(place)
        if least is not None and not window.is_failing(now, least):
            return
        total = window.total(now)
        reason = f"{total.failures} of {total.attempts} calls failed"
        if await open_breaker(self.database, *place, OPEN_S, reason) is not None:
            log.warning("a receiver is left alone", tenant=place[0], host=place[1], why=reason)
            self.windows[place] = FailureWindow()
            self.watch_at = now

    async def close(self) -> None:
        """What was found stands in the database already."""
