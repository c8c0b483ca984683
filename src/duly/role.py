"""The one loop that drives every role.

A role is a small object whose `tick()` does a bounded amount of work and says in how many seconds
it wants the next one. Waiting, waking, backing off after a failure and stopping live here, so that
no role contains a loop of its own.

| event | what happens |
|---|---|
| tick raises | counted; next tick after a jittered, doubling, bounded pause, which no wake cuts |
| tick raises again and again | the role has a `problem`, and it is logged less and less often |
| idle ticks between failing ones pass | the same, until it has been calm for a while |
| tick hangs | cancelled after `TICK_TIMEOUT_S`, then as above |
| wake() | the next tick starts at once; a wake during a tick is kept |
| stop() | no further tick; the running one may finish until the limit, then it is cancelled |
| stop() while a tick waits for work | `stop_waiting()`, where a role has it, ends that wait |
"""

import asyncio
import math
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from duly.backoff import backoff_s
from duly.environment import Environment
from duly.telemetry import Metrics, get_logger

TICK_TIMEOUT_S = 60.0
BACKOFF_FIRST_S = 0.1
# After an outage the first dispatch is promised within 3 s, and waits for two roles in turn.
BACKOFF_MAX_S = 1.5
# A role that has not finished a tick for this long has a problem (see /readyz).
OVERDUE_AFTER_S = 30.0
# One failure is a hiccup; so many without a calm between them are a problem.
FAILING_AFTER = 3
# A role that failed again after a good tick is well only after this long without a failure: a
# dispatcher that cannot publish has good ticks in between, when there is nothing to publish.
CALM_S = 10.0
# A failure that repeats is logged at once, and then after pauses that double.
LOG_PAUSE_FIRST_S = 1.0
LOG_PAUSE_MAX_S = 300.0

log = get_logger("duly.role")


class Role(Protocol):
    name: str

    async def tick(self) -> float:
        """Do a bounded amount of work; answer the seconds until the next tick is wanted."""
        ...

    async def close(self) -> None:
        """Hand over what the role holds. Called once, after its last tick."""
        ...


class Wakeup:
    """Asks for the next tick of one role at once. It exists before the role does, so that parts
    which wake each other are given it by their constructors; a role's loop waits for it."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def wake(self) -> None:
        self.event.set()


@runtime_checkable
class WakeableRole(Role, Protocol):
    """A role that itself or others want to wake."""

    wakeup: Wakeup


@runtime_checkable
class WaitingRole(Role, Protocol):
    """A role whose ticks may wait for work."""

    def stop_waiting(self) -> None:
        """End such waits: the process stops."""
        ...


class Failures:
    """The failures of one role since it was last calm, and when to speak of them."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.forget()

    def forget(self) -> None:
        self.count = 0
        self.in_a_row = 0
        self.first_at = self.last_at = 0.0
        self.cause = ""
        # It failed, did well, and failed again.
        self.has_relapsed = False
        self.is_recovery_told = True
        self.untold = 0
        self.log_at = -math.inf
        self.log_pause_s = LOG_PAUSE_FIRST_S

    def is_calm(self, now: float) -> bool:
        return self.in_a_row == 0 and now - self.last_at >= CALM_S

    def are_many(self, now: float) -> bool:
        """Whether the role is failing: enough of them, and not over."""
        is_over = self.in_a_row == 0 and (not self.has_relapsed or self.is_calm(now))
        return self.count >= FAILING_AFTER and not is_over

    def failed(self, error: Exception, now: float) -> None:
        if self.count and self.is_calm(now):
            self.forget()
        self.has_relapsed |= self.count > 0 and self.in_a_row == 0
        self.first_at = self.first_at if self.count else now
        self.last_at = now
        self.count += 1
        self.in_a_row += 1
        self.cause = type(error).__name__
        self.is_recovery_told = False
        self.untold += 1
        if now >= self.log_at:
            log.warning("role tick failed", role=self.role, error=repr(error), failures=self.untold)
            self.untold = 0
            self.log_at = now + self.log_pause_s
            self.log_pause_s = min(self.log_pause_s * 2, LOG_PAUSE_MAX_S)

    def passed(self, now: float) -> None:
        self.in_a_row = 0
        if self.count and not self.is_recovery_told and not self.are_many(now):
            lasted_s = round(now - self.first_at, 1)
            log.info("role recovered", role=self.role, failures=self.count, after_s=lasted_s)
            self.is_recovery_told = True
        if self.count and self.is_calm(now):
            self.forget()


class RoleLoop:
    def __init__(self, role: Role, environment: Environment, metrics: Metrics) -> None:
        self.role = role
        self.environment = environment
        self.metrics = metrics
        self.failures = Failures(role.name)
        self.next_tick_by = environment.clock.monotonic()
        self.wakeup = role.wakeup if isinstance(role, WakeableRole) else Wakeup()
        self.stop_asked = asyncio.Event()

    def wake(self) -> None:
        self.wakeup.wake()

    @property
    def stopping(self) -> bool:
        return self.stop_asked.is_set()

    @property
    def problem(self) -> str | None:
        """Why the role does not do its work, in a few words without secrets; None if it does."""
        now = self.environment.clock.monotonic()
        failures = self.failures
        if failures.are_many(now):
            since_s = now - failures.first_at
            return f"failing: {failures.cause}, {failures.count} times in {since_s:.0f} s"
        late_s = now - self.next_tick_by
        return None if late_s < OVERDUE_AFTER_S else f"overdue: no tick for {late_s:.0f} s"

    async def run(self) -> None:
        while not self.stopping:
            self.wakeup.event.clear()
            pause_s = await self.tick_once()
            self.next_tick_by = self.environment.clock.monotonic() + pause_s
            await self.pause(pause_s)

    async def tick_once(self) -> float:
        """One tick, surviving any failure; answers how long to wait before the next."""
        name = self.role.name
        try:
            with self.metrics.role_tick_seconds.labels(name).time():
                async with asyncio.timeout(TICK_TIMEOUT_S):
                    pause_s = await self.role.tick()
        except Exception as error:
            self.failures.failed(error, self.environment.clock.monotonic())
            self.metrics.role_failures.labels(name).inc()
            log.debug("role tick failed at", role=name, exc_info=True)
            return self.backoff_s()
        self.failures.passed(self.environment.clock.monotonic())
        self.metrics.role_ticks.labels(name).inc()
        return pause_s

    def backoff_s(self) -> float:
        failures, random = self.failures.in_a_row, self.environment.random
        return backoff_s(failures, BACKOFF_FIRST_S, BACKOFF_MAX_S, random)

    async def pause(self, pause_s: float) -> None:
        # A wake must not shorten a backoff: a busy process wakes a role a thousand times a second.
        waited_for = self.stop_asked if self.failures.in_a_row else self.wakeup.event
        if self.stopping:
            return
        try:
            async with asyncio.timeout(pause_s):
                await waited_for.wait()
        except TimeoutError:
            return

    def stop(self) -> None:
        self.stop_asked.set()
        self.wake()
        if isinstance(self.role, WaitingRole):
            self.role.stop_waiting()


def problems_of(loops: Iterable[RoleLoop]) -> dict[str, str | None]:
    """Of each role by its name; of one with several loops, whichever has one."""
    problems: dict[str, str | None] = {}
    for loop in loops:
        problems[loop.role.name] = problems.get(loop.role.name) or loop.problem
    return problems


async def stop_roles(
    loops: Iterable[RoleLoop],
    running: Iterable[asyncio.Task[None]],
    limit_s: float,
    passed_s: float = 0.0,
) -> None:
    """Let the running ticks finish, cancel what does not, then let every role hand over.

    Each has half of the limit; `passed_s` of the first half is gone already.
    """
    loops, running = list(loops), list(running)
    for loop in loops:
        loop.stop()
    if running:
        _, late = await asyncio.wait(running, timeout=max(limit_s / 2 - passed_s, 0.0))
        for task in late:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    # A role with several loops is closed once.
    roles = {id(loop.role): loop for loop in loops}
    try:
        async with asyncio.timeout(limit_s / 2):
            await asyncio.gather(*(close_role(loop) for loop in roles.values()))
    except TimeoutError:
        log.warning("roles did not stop in time", limit_s=limit_s)


async def close_role(loop: RoleLoop) -> None:
    try:
        await loop.role.close()
    except Exception as error:
        log.warning("role close failed", role=loop.role.name, error=repr(error))
