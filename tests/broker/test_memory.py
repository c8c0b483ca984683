"""The carrier in memory: the conformance suite, and what only it can get wrong."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from duly.broker.memory import MemoryCarrier
from duly.domain.errors import DatabaseUnavailable
from duly.domain.states import Outcome
from duly.events import TasksLeased
from tests.broker.conformance import Conformance
from tests.broker.stage import LANE, CountedStatements, Stage, ids, staged
from tests.store.world import HOLDER, World


@pytest.fixture
async def stage(world: World) -> AsyncIterator[Stage]:
    async with staged(world, MemoryCarrier(world.node_clock)) as stage:
        yield stage


class TestMemory(Conformance):
    async def test_waiting_asks_the_database_nothing(self, stage: Stage) -> None:
        """An idle laptop must be idle."""
        with CountedStatements(stage.world.database) as statements:
            await stage.lease(1, wait_s=0.05)
        assert statements.count == 0

    async def test_a_lost_answer_is_asked_for_again(self, stage: Stage) -> None:
        """Leases that nobody knows of run out, and each costs its task an attempt."""
        tickets = await stage.submit(3)
        await stage.publish(tickets)
        lose_answers(stage.world, 1)
        assert ids(await stage.lease(3)) == ids(tickets)
        assert stage.queue.depth(LANE) == 0

    async def test_when_the_question_fails_too_the_consumer_is_told(self, stage: Stage) -> None:
        """A consumer that hears "nothing there" while the database is away would spin."""
        (ticket,) = await stage.submit(1)
        told: list[TasksLeased] = []
        stage.queue.events.subscribe(TasksLeased, told.append)
        await stage.publish([ticket])
        lose_answers(stage.world, 2)
        with pytest.raises(DatabaseUnavailable):
            await stage.lease(1)
        assert told == [TasksLeased([ticket], [])]
        assert (await stage.world.read(ticket.id)).holder == HOLDER

    async def test_a_newer_fence_wins_over_its_repeat(self, stage: Stage) -> None:
        """An old ticket behind the new one must not push it out of the batch."""
        (old,) = await stage.submit(1)
        await stage.world.run(old.id, Outcome.RELEASED)
        new = old._replace(fence=2)
        await stage.publish([new, old])
        assert ids(await stage.lease(2)) == [old.id]

    async def test_empty_lanes_leave_nothing_behind(self, stage: Stage) -> None:
        """Tenants come and go for months in one process."""
        queue = stage.queue
        assert isinstance(queue.carrier, MemoryCarrier)
        consumer = await stage.wait_in_turn(1)
        await stage.publish(await stage.submit(2))
        await consumer
        await stage.lease(1)
        await stage.lease(1, wait_s=0.01)
        assert not any((queue.local, queue.carrier.queues, queue.depths.queues))
        assert (queue.consumers.by_queue, queue.waiting()) == ({}, 0)

    async def test_given_back_tickets_come_before_later_ones(self, stage: Stage) -> None:
        """A consumer that leaves must not send its tickets to the end of the lane."""
        tickets = await stage.submit(3)
        leaving = await stage.wait_in_turn(2)
        await stage.publish(tickets)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert [*ids(await stage.lease(2)), *ids(await stage.lease(1))] == ids(tickets)


def lose_answers(world: World, count: int) -> None:
    """The next statements are committed, and then the connection is gone."""
    fetch = world.database.fetch
    left = [count]

    async def lossy(statement: str, *arguments: Any) -> list[asyncpg.Record]:
        rows = await fetch(statement, *arguments)
        if left[0] > 0:
            left[0] -= 1
            raise DatabaseUnavailable(address="here", problem="the answer was lost")
        return rows

    world.database.fetch = lossy  # type: ignore[method-assign]
