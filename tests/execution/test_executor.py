"""What one executor does with leases of the same task, without any database behind it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

from duly.environment import Environment
from duly.execution.executor import DONE, Executor, Verdict
from duly.store.lease import Lease
from duly.store.settle import SettleAnswer, Settlement, SettleStatus
from duly.store.stats import StatsBook
from duly.telemetry import Metrics

TASK = UUID(int=5)
INSTANT = datetime(2026, 1, 1, tzinfo=UTC)


def lease(fence: int) -> Lease:
    until = INSTANT + timedelta(seconds=15)
    facts = (None, INSTANT, "t", None, None, None, None)
    return Lease(TASK, 1, fence, 1, 0, INSTANT, until, *facts)


class Desk:
    """Takes every settlement for good."""

    def __init__(self) -> None:
        self.settled: list[Settlement] = []

    async def settle(self, settlement: Settlement) -> SettleAnswer:
        self.settled.append(settlement)
        return SettleAnswer(SettleStatus.SETTLED)


class Handler:
    """Each attempt runs until its own event is set."""

    def __init__(self) -> None:
        self.ends: dict[int, asyncio.Event] = {}
        self.starts: list[int] = []

    async def __call__(self, lease: Lease) -> Verdict:
        self.starts.append(lease.fence)
        await self.ends.setdefault(lease.fence, asyncio.Event()).wait()
        return DONE


def make(handler: Handler, desk: Desk) -> Executor:
    environment = Environment()
    nothing: Any = None
    return Executor(
        nothing,
        environment,
        nothing,
        [],
        cast(Any, desk),
        handler,
        Metrics(),
        StatsBook(environment),
        UUID(int=9),
    )


async def test_the_same_lease_again_is_dropped() -> None:
    """A repeated ticket and a lost answer bring a lease twice: its effect must not happen twice."""
    handler, desk = Handler(), Desk()
    executor = make(handler, desk)
    await executor.run([lease(1)])
    await executor.run([lease(1)])
    (run,) = executor.running.values()
    await asyncio.sleep(0)
    handler.ends[1].set()
    await run.task
    assert handler.starts == [1]
    assert len(desk.settled) == 1


async def test_a_lost_lease_that_ends_leaves_the_next_one_alone() -> None:
    """After a long stop both run here; the end of the first must not stop the other's heartbeat."""
    handler, desk = Handler(), Desk()
    executor = make(handler, desk)
    await executor.run([lease(1)])
    await executor.run([lease(3)])
    first, second = executor.running.values()
    await asyncio.sleep(0)
    handler.ends[1].set()
    await first.task
    assert [run.lease.fence for run in executor.running.values()] == [3]
    handler.ends[3].set()
    await second.task
    assert [item.fence for item in desk.settled] == [1, 3]
