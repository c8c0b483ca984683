"""Rings between processes about tickets: few, and only where they are of use."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from duly.broker.contract import Delivery
from duly.broker.lane_hints import LaneHints, on_lane_hints
from duly.broker.postgres import PostgresCarrier
from duly.store.notify import PACE_S, READY
from tests.broker.stage import (
    HIGH_LANE,
    LANE,
    CountedStatements,
    Stage,
    ids,
    other_process,
    staged,
    until,
)
from tests.store.world import World

TICKETS = 100


class Ears:
    """What other processes would hear, and when."""

    def __init__(self) -> None:
        self.hints: list[list[str]] = []

    def __call__(self, channel: str, hints: list[str]) -> None:
        assert channel == READY
        self.hints.append(hints)


@pytest.fixture
async def stage(world: World) -> AsyncIterator[Stage]:
    async with staged(world, PostgresCarrier(world.database, world.environment)) as stage:
        yield stage


def ring_into(stage: Stage, ears: Ears) -> None:
    stage.queue.on_published = LaneHints(ears).send


async def test_publishing_rings_a_bounded_number_of_times_a_second(stage: Stage) -> None:
    """Each NOTIFY is a commit that waits for every other one of the database."""
    ears = Ears()
    ring_into(stage, ears)
    tickets = await stage.submit(TICKETS)
    loop = asyncio.get_running_loop()
    before = loop.time()
    for ticket in tickets:
        await stage.publish([ticket])
    rings_max = (loop.time() - before) / PACE_S + 1
    assert 1 <= len(ears.hints) <= rings_max < TICKETS


async def test_what_was_published_during_a_rest_is_told_after_it(stage: Stage) -> None:
    """The last ticket of a burst would otherwise wait for a poll."""
    ears = Ears()
    ring_into(stage, ears)
    first, second, third = await stage.submit(3)
    await stage.publish([first])
    await stage.publish([second, third], HIGH_LANE)
    await until(lambda: len(ears.hints) == 2)
    assert ears.hints == [[f"{LANE.tenant} 1 1"], [f"{LANE.tenant} 1 0"]]


async def test_tickets_that_consumers_here_wait_for_are_nobody_elses_news(stage: Stage) -> None:
    """A process that does its own work would wake all others for each task."""
    ears = Ears()
    ring_into(stage, ears)
    tickets = await stage.submit(3)
    consumer = await stage.wait_in_turn(1)
    await stage.publish(tickets[:1])
    assert ids(await consumer) == ids(tickets[:1])
    assert ears.hints == []
    consumer = await stage.wait_in_turn(1)
    await stage.publish(tickets[1:])
    await consumer
    assert ears.hints == [[f"{LANE.tenant} 1 1"]]


async def test_a_ring_for_lanes_that_nobody_awaits_costs_no_statement(stage: Stage) -> None:
    """Every process hears every ring, also one that is not understood."""
    queue = stage.queue
    consumer = await stage.wait_in_turn(1)
    on_lane_hints(stage.queue, ["7 3 2", "not a lane", "1 2"])
    assert queue.tick_at > 0.0
    (ticket,) = await stage.submit(1)
    other = other_process(stage)
    await other.publish([Delivery(LANE, ticket)])
    on_lane_hints(stage.queue, [f"{LANE.tenant} 1 1"])
    assert ids(await consumer) == [ticket.id]


async def test_a_ring_during_a_look_makes_the_consumer_look_again(stage: Stage) -> None:
    """The ticket was committed after the look began; the ring came before it ended."""
    other = other_process(stage)
    (ticket,) = await stage.submit(1)
    take, looks = stage.queue.take, 0

    async def looked_too_early(*arguments: object) -> object:
        nonlocal looks
        looks += 1
        taken = await take(*arguments)  # type: ignore[arg-type]
        if looks == 1:
            await other.publish([Delivery(LANE, ticket)])
            on_lane_hints(stage.queue, [f"{LANE.tenant} 1 1"])
        return taken

    stage.queue.take = looked_too_early  # type: ignore[method-assign, assignment]
    with CountedStatements(stage.world.database) as statements:
        assert ids(await stage.lease(1, wait_s=60.0)) == [ticket.id]
    # Two looks and a publish; no poll in between.
    assert (looks, statements.count) == (2, 3)
