"""Breakers, as the executor sees them: what it learns from each delivery, and tells the others.

Every executor judges by its own deliveries; what it finds is a row that every scheduler reads.

| event | what happens |
|---|---|
| nearly everything to a host fails | opened: nothing goes there for a minute |
| the probe fails | open for another minute |
| the probe succeeds | ramp: the host gets its work back at a growing rate, then the row is over |
| the probe is lost with its executor | another one is let through a minute later |
| failures go on during the ramp | opened again; failures of before the ramp do not count |
| how the rows stand is not known (restart, a quiet time) | results are kept until they were read |
| the database is away | results are kept, and told when it is back |
| this process restarts | the rows stand; its own counts begin anew |
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import datetime

from duly.domain.breaker import ATTEMPTS_MIN, OPEN_S, RETRY_STRETCH_S, FailureWindow
from duly.environment import Environment
from duly.store.breakers import open_breaker, ramp_breaker, read_watched, reopen_breaker
from duly.store.database import Database
from duly.telemetry import get_logger

HOSTS_MAX = 10_000
WATCH_EVERY_S = 5.0
# What was read longer ago says nothing about a row that is not in it.
STALE_S = 2 * WATCH_EVERY_S
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
        self.read_at = float("-inf")
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
        # It may have been a probe: until the rows were read, nobody can say that it was none.
        may_be_watched = place in self.watched or now - self.read_at > STALE_S
        is_news = False
        if may_be_watched or (not ok and window.is_failing(now)):
            is_news = self.keep(self.recovered if ok else self.failed, place)
        if (is_first or is_news) and self.wake is not None:
            self.wake()

    def keep(self, results: set[Place], place: Place) -> bool:
        """Whether it was not there yet. Bounded: while nothing can be read, all hosts come here."""
        if place in results or len(results) >= HOSTS_MAX:
            return False
        results.add(place)
        return True

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
            self.learn(await read_watched(self.database), now)
        for place in list(self.recovered):
            self.recovered.discard(place)
            if place not in self.failed:
                await self.kept_on_failure(self.recovered, place, self.recover(place, now))
        for place in list(self.failed):
            self.failed.discard(place)
            await self.kept_on_failure(self.failed, place, self.fail(place, now))
        return WATCH_EVERY_S

    def learn(self, watched: dict[Place, datetime | None], now: float) -> None:
        """A ramp that began elsewhere is judged by what comes after it, as one of our own is."""
        for place, ramp_at in watched.items():
            if ramp_at is not None and self.watched.get(place) is None:
                self.windows.pop(place, None)
        self.watched = watched
        self.read_at = now
        self.watch_at = now + WATCH_EVERY_S

    async def kept_on_failure(
        self, results: set[Place], place: Place, telling: Awaitable[None]
    ) -> None:
        try:
            await telling
        except BaseException:
            results.add(place)
            raise

    async def recover(self, place: Place, now: float) -> None:
        if place not in self.watched or self.watched[place] is not None:
            return
        if await ramp_breaker(self.database, *place):
            log.info("a receiver is back", tenant=place[0], host=place[1])
            self.windows[place] = FailureWindow()
            # Ours: what is read next must not look like a ramp that began elsewhere.
            self.watched[place] = self.environment.clock.now()
            self.watch_at = now

    async def fail(self, place: Place, now: float) -> None:
        is_watched = place in self.watched
        if is_watched and self.watched[place] is None:
            # A probe: one failure is enough.
            await reopen_breaker(self.database, *place, OPEN_S)
            return
        window = self.window_of(place)
        if not window.is_failing(now, RAMP_ATTEMPTS_MIN if is_watched else ATTEMPTS_MIN):
            return
        total = window.total(now)
        reason = f"{total.failures} of {total.attempts} calls failed"
        if await open_breaker(self.database, *place, OPEN_S, reason) is not None:
            log.warning("a receiver is left alone", tenant=place[0], host=place[1], why=reason)
            self.windows[place] = FailureWindow()
            self.watch_at = now

    async def close(self) -> None:
        """What was found stands in the database already."""
