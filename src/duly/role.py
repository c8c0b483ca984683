"""The one loop that drives every role.

A role is a small object whose `tick()` does a bounded amount of work and says in how many seconds
it wants the next one. Waiting, waking, backing off after a failure and stopping live here, so that
no role contains a loop of its own.

| event | what happens |
|---|---|
| tick raises | logged, counted, next tick after a jittered backoff that doubles up to a bound |
| tick hangs | cancelled after `TICK_TIMEOUT_S`, then as above |
| wake() | the next tick starts at once; a wake during a tick is kept |
| stop() | no further tick; the running one may finish until the limit, then it is cancelled |
| stop() while a tick waits for work | `stop_waiting()`, where a role has it, ends that wait |
"""

import asyncio
from collections.abc import Iterable
from typing import Protocol

from duly.environment import Environment
from duly.telemetry import Metrics, get_logger

TICK_TIMEOUT_S = 60.0
BACKOFF_FIRST_S = 0.1
# After an outage the first dispatch is promised within 3 s, and waits for two roles in turn.
BACKOFF_MAX_S = 1.5
# A role that has not finished a tick for this long is not "ticking" (see /readyz).
OVERDUE_AFTER_S = 30.0

log = get_logger("duly.role")


class Role(Protocol):
    name: str

    async def tick(self) -> float:
        """Do a bounded amount of work; answer the seconds until the next tick is wanted."""
        ...

    async def close(self) -> None:
        """Hand over what the role holds. Called once, after its last tick."""
        ...


class RoleLoop:
    def __init__(self, role: Role, environment: Environment, metrics: Metrics) -> None:
        self.role = role
        self.environment = environment
        self.metrics = metrics
        self.failures_in_a_row = 0
        self.next_tick_by = environment.clock.monotonic()
        self.awake = asyncio.Event()
        self.stopping = False

    def wake(self) -> None:
        self.awake.set()

    @property
    def is_ticking(self) -> bool:
        late_s = self.environment.clock.monotonic() - self.next_tick_by
        return self.failures_in_a_row == 0 and late_s < OVERDUE_AFTER_S

    async def run(self) -> None:
        while not self.stopping:
            self.awake.clear()
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
            self.failures_in_a_row += 1
            pause_s = self.backoff_s()
            self.metrics.role_failures.labels(name).inc()
            log.warning("tick failed", role=name, error=repr(error), retry_in_s=round(pause_s, 3))
            log.debug("tick failed at", role=name, exc_info=True)
            return pause_s
        self.failures_in_a_row = 0
        self.metrics.role_ticks.labels(name).inc()
        return pause_s

    def backoff_s(self) -> float:
        """Doubling, bounded, and spread over half its length so that a fleet does not march."""
        exponent = min(self.failures_in_a_row - 1, 16)
        whole_s = min(BACKOFF_FIRST_S * 2.0**exponent, BACKOFF_MAX_S)
        return whole_s * self.environment.random.uniform(0.5, 1.0)

    async def pause(self, pause_s: float) -> None:
        if self.stopping:
            return
        try:
            async with asyncio.timeout(pause_s):
                await self.awake.wait()
        except TimeoutError:
            return

    def stop(self) -> None:
        self.stopping = True
        self.wake()
        if hasattr(self.role, "stop_waiting"):
            self.role.stop_waiting()


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
    # A role with several loops hands over once.
    roles = {id(loop.role): loop for loop in loops}
    try:
        async with asyncio.timeout(limit_s / 2):
            await asyncio.gather(*(close_role(loop) for loop in roles.values()))
    except TimeoutError:
        log.warning("roles did not hand over in time", limit_s=limit_s)


async def close_role(loop: RoleLoop) -> None:
    try:
        await loop.role.close()
    except Exception as error:
        log.warning("role did not close", role=loop.role.name, error=repr(error))
