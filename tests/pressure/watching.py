"""Handlers that remember what they were given, and waiting for what they saw."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from duly.domain.task import Policy, Submission
from duly.execution.attempt import DONE, AttemptResult
from duly.store.lease import Lease
from duly.testing.engine import Engine
from tests.pressure.crowd import URL

PATIENCE_S = 40.0
POLL_S = 0.01


class Watcher:
    """Answers at once unless told to hold; remembers when each task started, by tenant and key."""

    def __init__(self) -> None:
        self.leases: list[Lease] = []
        self.counts: Counter[object] = Counter()
        self.started: dict[object, float] = {}
        self.is_held: Callable[[Lease], bool] = lambda _lease: False
        self.let_go = asyncio.Event()

    def __call__(self, lease: Lease) -> AttemptResult | asyncio.Future[AttemptResult]:
        self.leases.append(lease)
        self.counts[lease.tenant] += 1
        self.started[lease.id] = time.monotonic()
        if self.is_held(lease):
            return asyncio.ensure_future(self.hold())
        return DONE

    async def hold(self) -> AttemptResult:
        await self.let_go.wait()
        return DONE


def task(tenant: int = 1, key: str | None = None, kind: str = "t", **facts: object) -> Submission:
    policy = Policy(concurrency_key=key)
    return Submission(tenant=tenant, type=kind, url=URL, policy=policy, **facts)  # type: ignore[arg-type]


async def until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> float:
    """Seconds until it is true."""
    began = time.monotonic()
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110 (the scheduler's memory has no signals for tests)
            await asyncio.sleep(POLL_S)
    return time.monotonic() - began


def fullest_queue(engine: Engine) -> int:
    """Entries in memory of the place that has the most."""
    return max(engine.scheduler.dispatcher.ready_state.per_queue.values(), default=0)
