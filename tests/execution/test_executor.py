"""What one executor does with leases of the same task, without any database behind it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import pytest

from duly.domain.errors import DatabaseUnavailable
from duly.domain.lanes import WEBHOOK_LANES, Lane
from duly.domain.states import Outcome
from duly.environment import Environment
from duly.execution import executor as module
from duly.execution.executor import DONE, AttemptResult, Executor
from duly.store.finish import SettleAnswer, Settlement, SettleStatus
from duly.store.lease import Lease
from duly.store.stats import StatsBook
from duly.telemetry import Metrics

PATIENCE_S = 30.0
TASK = UUID(int=5)
INSTANT = datetime(2026, 1, 1, tzinfo=UTC)


def lease(fence: int) -> Lease:
    until = INSTANT + timedelta(seconds=15)
    facts = (None, INSTANT, "t", None, None, None, None)
    return Lease(TASK, 1, fence, 1, INSTANT, until, *facts)


class Desk:
    """Takes every settlement for good."""

    def __init__(self) -> None:
        self.settled: list[Settlement] = []

    async def settle(self, settlement: Settlement) -> SettleAnswer:
        self.settled.append(settlement)
        return SettleAnswer(SettleStatus.SETTLED)

    async def settle_batch(self, settlements: list[Settlement]) -> list[SettleAnswer]:
        return [await self.settle(settlement) for settlement in settlements]

    async def close(self) -> None:
        """Nothing waits here."""


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

    def waiting(self) -> int:
        return self.consumers

    def depth(self, _lane: Lane) -> int:
        return 0

    async def lease(self, *_asked: object) -> list[Lease]:
        return []


def make(
    handler: Any, desk: Desk, database: Any = None, beating: Any = None, broker: Any = None
) -> Executor:
    environment = Environment()
    return Executor(
        database,
        environment,
        broker,
        WEBHOOK_LANES,
        cast(Any, desk),
        handler,
        Metrics(),
        StatsBook(environment),
        UUID(int=9),
        beating=beating,
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


async def test_a_lease_that_came_too_late_is_given_back_and_not_begun() -> None:
    """Whoever stood still while it asked would start it beside the next holder."""
    handler, desk = Handler(), Desk()
    executor = make(handler, desk)
    long_ago = asyncio.get_running_loop().time() - module.LEASE_S
    await executor.run([lease(1)], long_ago)
    assert not handler.starts
    assert not executor.running
    assert [item.outcome for _, item in executor.ended] == [Outcome.RELEASED]


async def test_a_run_that_is_stopped_before_it_began_makes_room() -> None:
    """A lease that is counted for ever takes a place in which nothing runs any more."""
    desk = Desk()
    executor = make(lambda _lease: asyncio.get_running_loop().create_future(), desk)
    await executor.run([lease(1)])
    (run,) = executor.running.values()
    run.stop(is_lost=True)
    await asyncio.wait([run.task])
    assert not executor.running
    assert executor.room.is_set()


async def test_a_run_ends_before_its_lease_does_though_nobody_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody else starts the task when the lease is over: both would deliver it."""
    monkeypatch.setattr(module, "LEASE_S", 0.5)
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.1)
    handler, desk = Handler(), Desk()
    executor = make(handler, desk, Silent(), Silent())
    await executor.run([lease(1)])
    (run,) = executor.running.values()
    with pytest.raises(TimeoutError):
        await executor.beat()
    assert not run.task.done()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([run.task])
    assert asyncio.get_running_loop().time() < run.deadline
    assert run.is_lost
    assert executor.running == {}
    assert desk.settled == []


async def test_heartbeats_do_not_wait_for_the_connections_of_others() -> None:
    """When everything else fills the pool, leases would be lost while their deliveries run."""
    handler, desk, beating = Handler(), Desk(), Extending()
    executor = make(handler, desk, Silent(), beating)
    await executor.run([lease(1)])
    (run,) = executor.running.values()
    before = run.deadline
    async with asyncio.timeout(PATIENCE_S):
        await executor.beat()
    assert beating.beats == 1
    assert run.deadline > before
    await asyncio.sleep(0)
    handler.ends[1].set()
    await run.task


async def taken_over(_lease: Lease) -> AttemptResult:
    return AttemptResult(is_handed_over=True)


async def test_handing_over_is_tried_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried once, a moment without a database makes the receiver's work a lost attempt."""
    monkeypatch.setattr(module, "HAND_OVER_AGAIN_S", 0.001)
    database, desk = Flaky(failures=3), Desk()
    executor = make(taken_over, desk, database, database)
    await executor.run([lease(1)])
    (run,) = executor.running.values()
    await asyncio.sleep(0)
    await executor.beat()
    await executor.close()
    assert database.handed_over.is_set(), "neither a heartbeat nor a stop may interrupt it"
    assert not run.is_lost
    assert executor.running == {}
    assert desk.settled == []


async def test_handing_over_ends_with_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task is somebody else's then; trying on for ever would keep a place for nothing."""
    monkeypatch.setattr(module, "LEASE_S", 0.2)
    monkeypatch.setattr(module, "HAND_OVER_AGAIN_S", 0.02)
    database, desk = Flaky(failures=1_000_000), Desk()
    executor = make(taken_over, desk, database, database)
    await executor.run([lease(1)])
    (run,) = executor.running.values()
    async with asyncio.timeout(PATIENCE_S):
        await run.task
    assert executor.running == {}
    assert not database.handed_over.is_set()


async def test_of_a_herd_the_rest_is_started_before_what_ended_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Settling the first of a herd would make the last of it start late."""

    async def no_wait(_event: asyncio.Event, _timeout_s: float) -> None:
        """As if the next of the herd had ended at once."""

    monkeypatch.setattr(module, "PUT_OFF_S", 3600.0)
    monkeypatch.setattr(module, "wait_for", no_wait)
    desk = Desk()
    executor = make(lambda _lease: DONE, desk)
    executor.is_herd = True
    await executor.run([lease(1)])
    await executor.settle()
    assert desk.settled == []
    executor.is_herd = False
    await executor.settle()
    assert [settlement.fence for settlement in desk.settled] == [1]


async def test_when_all_of_a_herd_is_started_what_ended_is_recorded_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever waits for the last of a backlog would wait for a start that never comes."""
    monkeypatch.setattr(module, "PUT_OFF_S", 3600.0)
    desk = Desk()
    executor = make(lambda _lease: DONE, desk, broker=Emptied())
    executor.is_herd = True
    await executor.run([lease(1)])
    settling = asyncio.create_task(executor.settle())
    await asyncio.sleep(0)
    assert desk.settled == []
    await executor.tick()
    async with asyncio.timeout(PATIENCE_S):
        await settling
    assert [settlement.fence for settlement in desk.settled] == [1]


def test_while_another_tick_starts_some_of_a_herd_it_is_not_over() -> None:
    """Between two publishes the lanes are empty, and most of the herd is still to come."""
    executor = make(lambda _lease: DONE, Desk(), broker=Emptied(waiting=1))
    executor.asking = 2
    assert not executor.has_started_all(executor.next_lanes())
    executor.asking = 1
    assert executor.has_started_all(executor.next_lanes())


async def test_a_herd_without_end_puts_nothing_off_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Work that keeps coming would keep what is done from ever being recorded."""
    monkeypatch.setattr(module, "PUT_OFF_S", 0.01)
    desk = Desk()
    executor = make(lambda _lease: DONE, desk)
    executor.is_herd = True
    await executor.run([lease(1)])
    async with asyncio.timeout(PATIENCE_S):
        while not desk.settled:
            await executor.settle()


async def test_of_an_endless_herd_so_much_is_put_off_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a killed process has done and not recorded is done again."""
    monkeypatch.setattr(module, "PUT_OFF_S", 3600.0)
    monkeypatch.setattr(module, "PUT_OFF_MAX", 2)
    desk = Desk()
    executor = make(lambda _lease: DONE, desk)
    executor.is_herd = True
    await executor.run([lease(1), lease(2)])
    await executor.settle()
    assert len(desk.settled) == 2
