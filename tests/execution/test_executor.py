"""What one executor does with leases of the same task, without any database behind it."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import pytest

from duly.domain.errors import DatabaseUnavailable
from duly.domain.lanes import WEBHOOK_LANES, Lane
from duly.domain.states import Outcome
from duly.environment import Environment
from duly.execution import attempt
from duly.execution import executor as module
from duly.execution.attempt import DONE, AttemptResult
from duly.execution.executor import Executor
from duly.execution.held_leases import LEASE_S, StopReason
from duly.store.finish import SettleAnswer, Settlement, SettleStatus
from duly.store.lease import Lease
from duly.store.stats import StatsBook
from duly.telemetry import Metrics
from tests.broker.stage import until

PATIENCE_S = 30.0
TASK = UUID(int=5)
INSTANT = datetime(2026, 1, 1, tzinfo=UTC)


def lease(fence: int) -> Lease:
    until = INSTANT + timedelta(seconds=15)
    facts = (None, INSTANT, "t", None, None, None, None)
    return Lease(TASK, 1, fence, 1, INSTANT, until, *facts)


class Settled:
    """A settle queue that takes every settlement for good."""

    def __init__(self) -> None:
        self.settled: list[Settlement] = []
        self.is_away = False

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        if self.is_away:
            raise DatabaseUnavailable(address="here", problem="away")
        self.settled += settlements
        return [SettleAnswer(SettleStatus.SETTLED) for _ in settlements]


class Silent:
    """A database that is asked and never answers, as through a pool that others use up."""

    async def fetch(self, _statement: str, *_arguments: object) -> list[Any]:
        await asyncio.Event().wait()
        return []


class Extending:
    """A database where every lease is still held."""

    def __init__(self) -> None:
        self.beats = 0

    async def fetch(self, _statement: str, *arguments: Any) -> list[Any]:
        self.beats += 1
        pairs = zip(arguments[1], arguments[2], strict=True)
        facts = {"cancel_requested": False, "lease_until": INSTANT}
        return [{"id": task_id, "fence": fence} | facts for task_id, fence in pairs]


class Flaky:
    """A database that fails a few times before it hands over; heartbeats find another holder."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.handed_over = asyncio.Event()

    async def fetch(self, statement: str, *_arguments: object) -> list[Any]:
        if "beat" in statement.split("FROM", 1)[1]:
            return []
        if self.failures:
            self.failures -= 1
            raise DatabaseUnavailable(address="here", problem="away for a moment")
        self.handed_over.set()
        return [{"id": TASK}]


class Handler:
    """Each attempt runs until its own event is set."""

    def __init__(self) -> None:
        self.ends: dict[int, asyncio.Event] = {}
        self.starts: list[int] = []

    async def __call__(self, lease: Lease) -> AttemptResult:
        self.starts.append(lease.fence)
        await self.ends.setdefault(lease.fence, asyncio.Event()).wait()
        return DONE


class Emptied:
    """A broker whose last ticket is gone."""

    def __init__(self, waiting: int = 0) -> None:
        self.consumers = waiting
        self.asked = 0

    def waiting(self) -> int:
        return self.consumers

    def depth(self, _lane: Lane) -> int:
        return 0

    async def lease(self, *_asked: object) -> list[Lease]:
        self.asked += 1
        return []


def make(
    handler: Any,
    queue: Settled,
    database: Any = None,
    heartbeat_database: Any = None,
    broker: Any = None,
    lease_s: float = LEASE_S,
) -> Executor:
    environment = Environment()
    return Executor(
        database,
        environment,
        broker,
        WEBHOOK_LANES,
        cast(Any, queue),
        handler,
        Metrics(),
        StatsBook(environment),
        UUID(int=9),
        heartbeat_database=heartbeat_database,
        lease_s=lease_s,
    )


async def test_the_same_lease_again_is_dropped() -> None:
    """A repeated ticket and a lost answer bring a lease twice: its effect must not happen twice."""
    handler, queue = Handler(), Settled()
    executor = make(handler, queue)
    await executor.run([lease(1)])
    await executor.run([lease(1)])
    (run,) = executor.leases.held.values()
    await asyncio.sleep(0)
    handler.ends[1].set()
    await run.task
    assert handler.starts == [1]
    assert len(queue.settled) == 1


async def test_a_lost_lease_that_ends_leaves_the_next_one_alone() -> None:
    """After a long stop both run here; the end of the first must not stop the other's heartbeat."""
    handler, queue = Handler(), Settled()
    executor = make(handler, queue)
    await executor.run([lease(1)])
    await executor.run([lease(3)])
    first, second = executor.leases.held.values()
    await asyncio.sleep(0)
    handler.ends[1].set()
    await first.task
    assert [run.lease.fence for run in executor.leases.held.values()] == [3]
    handler.ends[3].set()
    await second.task
    assert [item.fence for item in queue.settled] == [1, 3]


async def test_a_lease_that_came_too_late_is_given_back_and_not_begun() -> None:
    """A process that stood still while it asked would start it beside the next holder."""
    handler, queue = Handler(), Settled()
    executor = make(handler, queue)
    long_ago = asyncio.get_running_loop().time() - executor.leases.lease_s
    await executor.run([lease(1)], long_ago)
    assert not handler.starts
    assert not executor.leases.held
    await executor.close()
    assert [item.outcome for item in queue.settled] == [Outcome.RELEASED]


async def test_a_run_that_is_stopped_before_it_began_makes_room() -> None:
    """A lease that is counted for ever takes a place in which nothing runs any more."""
    queue = Settled()
    executor = make(lambda _lease: asyncio.get_running_loop().create_future(), queue)
    await executor.run([lease(1)])
    (run,) = executor.leases.held.values()
    run.stop(StopReason.LOST)
    await asyncio.wait([run.task])
    assert not executor.leases.held
    assert executor.has_room.is_set()


async def test_a_run_ends_before_its_lease_does_though_nobody_answers() -> None:
    """Another holder starts the task when the lease is over: both would deliver it."""
    handler, queue = Handler(), Settled()
    executor = make(handler, queue, Silent(), Silent(), lease_s=0.5)
    await executor.run([lease(1)])
    (run,) = executor.leases.held.values()
    with pytest.raises(TimeoutError):
        await executor.leases.tick()
    assert not run.task.done()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([run.task])
    assert asyncio.get_running_loop().time() < run.deadline
    assert run.stop_reason is StopReason.LOST
    assert executor.leases.held == {}
    assert queue.settled == []


async def test_heartbeats_do_not_wait_for_the_connections_of_others() -> None:
    """When everything else fills the pool, leases would be lost while their deliveries run."""
    handler, queue, heartbeat_database = Handler(), Settled(), Extending()
    executor = make(handler, queue, Silent(), heartbeat_database)
    await executor.run([lease(1)])
    (run,) = executor.leases.held.values()
    before = run.deadline
    async with asyncio.timeout(PATIENCE_S):
        await executor.leases.tick()
    assert heartbeat_database.beats == 1
    assert run.deadline > before
    await asyncio.sleep(0)
    handler.ends[1].set()
    await run.task


async def taken_over(_lease: Lease) -> AttemptResult:
    return AttemptResult(is_accepted_async=True)


async def test_handing_over_is_tried_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried once, a moment without a database makes the receiver's work a lost attempt."""
    monkeypatch.setattr(attempt, "RETRY_PAUSE_S", 0.001)
    database, queue = Flaky(failures=3), Settled()
    executor = make(taken_over, queue, database, database)
    await executor.run([lease(1)])
    (run,) = executor.leases.held.values()
    await asyncio.sleep(0)
    await executor.leases.tick()
    await executor.close()
    assert database.handed_over.is_set(), "neither a heartbeat nor a stop may interrupt it"
    assert run.stop_reason is None
    assert executor.leases.held == {}
    assert queue.settled == []


async def test_handing_over_ends_with_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task is somebody else's then; trying on for ever would keep a place for nothing."""
    monkeypatch.setattr(attempt, "RETRY_PAUSE_S", 0.02)
    database, queue = Flaky(failures=1_000_000), Settled()
    executor = make(taken_over, queue, database, database, lease_s=0.2)
    await executor.run([lease(1)])
    (run,) = executor.leases.held.values()
    async with asyncio.timeout(PATIENCE_S):
        await run.task
    assert executor.leases.held == {}
    assert not database.handed_over.is_set()


async def all_settled(executor: Executor) -> None:
    """But for what is deferred."""
    await until(lambda: executor.unsettled == len(executor.deferred))


async def test_of_a_herd_the_rest_is_started_before_what_ended_is_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Settling the first of a herd would make the last of it start late."""
    monkeypatch.setattr(module, "DEFERRED_S", 3600.0)
    queue = Settled()
    executor = make(lambda _lease: DONE, queue)
    executor.is_burst = True
    await executor.run([lease(1)])
    await all_settled(executor)
    assert queue.settled == []
    executor.is_burst = False
    await executor.run([lease(2)])
    await all_settled(executor)
    assert [settlement.fence for settlement in queue.settled] == [1, 2]
    assert executor.unsettled == 0


async def test_when_all_of_a_herd_is_started_what_ended_is_settled_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The settlements of a backlog would wait for a start that never comes."""
    monkeypatch.setattr(module, "DEFERRED_S", 3600.0)
    queue = Settled()
    executor = make(lambda _lease: DONE, queue, broker=Emptied())
    executor.is_burst = True
    await executor.run([lease(1)])
    assert queue.settled == []
    await executor.tick()
    await all_settled(executor)
    assert [settlement.fence for settlement in queue.settled] == [1]


def test_while_another_tick_starts_some_of_a_herd_it_is_not_over() -> None:
    """Between two publishes the lanes are empty, and most of the herd is still to come."""
    executor = make(lambda _lease: DONE, Settled(), broker=Emptied(waiting=1))
    executor.lease_calls = 2
    assert not executor.has_started_all(executor.next_lanes())
    executor.lease_calls = 1
    assert executor.has_started_all(executor.next_lanes())


async def test_a_herd_without_end_defers_nothing_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Work that keeps coming would keep what is done from ever being recorded."""
    monkeypatch.setattr(module, "DEFERRED_S", 0.01)
    queue = Settled()
    executor = make(lambda _lease: DONE, queue)
    executor.is_burst = True
    await executor.run([lease(1)])
    await until(lambda: bool(queue.settled))


async def test_of_an_endless_herd_so_much_is_deferred_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a killed process has done and not recorded is done again."""
    monkeypatch.setattr(module, "DEFERRED_S", 3600.0)
    monkeypatch.setattr(module, "DEFERRED_MAX", 2)
    queue = Settled()
    executor = make(lambda _lease: DONE, queue)
    executor.is_burst = True
    await executor.run([lease(1), lease(2)])
    await all_settled(executor)
    assert len(queue.settled) == 2


async def test_with_as_much_unsettled_as_may_be_nothing_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the database is away, what ended would pile up in memory."""
    monkeypatch.setattr(module, "UNSETTLED_MAX", 2)
    monkeypatch.setattr(module, "TAKE_WAIT_S", 0.01)
    monkeypatch.setattr(attempt, "RETRY_PAUSE_S", 0.001)
    queue, broker = Settled(), Emptied()
    queue.is_away = True
    executor = make(lambda _lease: DONE, queue, broker=broker)
    await executor.run([lease(1), lease(2)])
    await executor.tick()
    assert broker.asked == 0
    queue.is_away = False
    await all_settled(executor)
    assert len(queue.settled) == 2
    await executor.tick()
    assert broker.asked == 1


async def test_a_stop_settles_what_was_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ended and was not recorded would be done once more by another process."""
    monkeypatch.setattr(module, "DEFERRED_S", 3600.0)
    queue = Settled()
    executor = make(lambda _lease: DONE, queue)
    executor.is_burst = True
    await executor.run([lease(1)])
    await executor.close()
    assert [settlement.fence for settlement in queue.settled] == [1]


async def test_a_stop_releases_what_has_not_begun() -> None:
    """Cancelled before its first step, its lease would run out and charge an attempt."""
    handler, queue = Handler(), Settled()
    executor = make(handler, queue)
    await executor.run([lease(1)])
    await executor.close()
    assert handler.starts == []
    assert [settlement.outcome for settlement in queue.settled] == [Outcome.RELEASED]
