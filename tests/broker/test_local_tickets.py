"""Tickets that stay in the process that wrote them: how many, how long, and who else may wait."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from duly.broker.contract import Delivery
from duly.broker.local_tickets import KEPT_S, MOMENT_S, LocalTickets
from duly.broker.postgres import PostgresCarrier
from duly.domain.errors import DatabaseUnavailable
from duly.domain.lanes import Lane, Ticket
from duly.store.ready_tickets import SQL
from duly.testing.clock import ManualClock
from tests.broker.stage import HIGH_LANE, LANE, Stage, deliveries, ids, other_process, staged, until
from tests.store.world import HOLDER, OTHER_HOLDER, World

READ_TICKETS = "SELECT id FROM duly.ready_tickets ORDER BY sequence"


@pytest.fixture
async def stage(world: World) -> AsyncIterator[Stage]:
    async with staged(world, PostgresCarrier(world.database, world.environment)) as stage:
        yield stage


async def test_what_a_consumer_here_waits_for_never_sees_the_table(stage: Stage) -> None:
    """An insert and a delete for each task, only to hand it to oneself."""
    tickets = await stage.submit(3)
    consumer = await stage.wait_in_turn(2)
    statements = on_notify(stage)
    await stage.publish(tickets[:2])
    assert ids(await consumer) == ids(tickets[:2])
    assert not {SQL.publish_tickets, SQL.lease_tickets} & set(statements)
    assert stage.queue.depth(LANE) == 0


async def test_what_nobody_here_waits_for_is_for_everybody(stage: Stage) -> None:
    """A process with one busy worker must not sit on work that others could do."""
    tickets = await stage.submit(5)
    consumer = await stage.wait_in_turn(2)
    await stage.publish(tickets)
    assert await in_table(stage) == ids(tickets[2:])
    assert ids(await consumer) == ids(tickets[:2])
    assert ids(await stage.lease(9, queue=other_process(stage))) == ids(tickets[2:])


async def test_tickets_that_are_not_taken_here_in_time_move_to_the_table(stage: Stage) -> None:
    """Their consumer hung up, or is stuck: an idle one elsewhere would wait for their deadline."""
    tickets = await stage.submit(2)
    consumer = await stage.wait_in_turn(2)
    await stage.publish(tickets)
    consumer.cancel()
    assert await in_table(stage) == []
    stage.world.node_clock.advance(KEPT_S)
    await until(lambda: not stage.queue.local)
    await until(lambda: stage.queue.depth(LANE) == 2)
    assert await in_table(stage) == ids(tickets)
    assert stage.queue.depth(LANE) == 2
    assert ids(await stage.lease(9, queue=other_process(stage))) == ids(tickets)


async def test_tickets_lost_on_the_way_to_the_table_block_nothing(stage: Stage) -> None:
    """They are void in time, and published again. What came after them must move all the same, or
    their lane is full for ever."""
    lost, later = await stage.submit(2)
    queue = stage.queue
    keep_near(stage, [lost])
    stage.world.node_clock.advance(KEPT_S / 2)
    keep_near(stage, [later], HIGH_LANE)

    async def broken(statement: str, *arguments: Any) -> list[asyncpg.Record]:
        raise DatabaseUnavailable(address="here", problem="gone")

    stage.world.database.fetch = broken  # type: ignore[method-assign]
    stage.world.node_clock.advance(KEPT_S / 2)
    queue.schedule_local_check()
    await until(lambda: queue.depth(LANE) == 0)
    del stage.world.database.fetch
    stage.world.node_clock.advance(KEPT_S / 2)
    await until(lambda: queue.depths.of(HIGH_LANE) == 1)
    assert await in_table(stage) == [later.id]


async def test_other_processes_are_not_overlooked_beside_a_steady_supply(stage: Stage) -> None:
    """Consumers that always find something here would never look for what others wrote."""
    own_tickets, others = await stage.submit(2), await stage.submit(1)
    consumer = await stage.wait_in_turn(1)
    await stage.publish(own_tickets[:1])
    await consumer
    await other_process(stage).publish([Delivery(LANE, others[0])])
    keep_near(stage, own_tickets[1:])
    stage.world.node_clock.advance(MOMENT_S)
    assert ids(await stage.lease(1)) == ids(others)
    assert ids(await stage.lease(1)) == ids(own_tickets[1:])


async def test_what_lies_here_waits_for_older_tickets_in_the_table(stage: Stage) -> None:
    """A lane has an order; what came later would overtake."""
    tickets = await stage.submit(4)
    await stage.publish(tickets[:2])
    assert ids(await stage.lease(1)) == ids(tickets[:1])
    stage.queue.local.note_came(HOLDER)
    assert stage.queue.local.room(LANE, 0) == 1
    await stage.publish(tickets[2:])
    assert await in_table(stage) == ids(tickets[1:])
    assert ids(await stage.lease(9)) == ids(tickets[1:])


async def test_a_lane_that_comes_first_comes_first_wherever_its_tickets_lie(stage: Stage) -> None:
    """Low work at hand would go before high work in the table."""
    high, low = await stage.submit(2), await stage.submit(1)
    await stage.lease(1, LANE, HIGH_LANE)
    await stage.publish(high, HIGH_LANE)
    keep_near(stage, low)
    assert ids(await stage.lease(1, HIGH_LANE, LANE)) == ids(high[:1])
    assert ids(await stage.lease(1, LANE, HIGH_LANE)) == ids(low)


async def test_foreign_work_of_a_later_lane_does_not_overtake(stage: Stage) -> None:
    """A look into the table for the sake of other processes must not bring low before high."""
    high, low = await stage.submit(1), await stage.submit(1)
    await other_process(stage).publish([Delivery(LANE, low[0])])
    keep_near(stage, high, HIGH_LANE)
    assert ids(await stage.lease(1, HIGH_LANE, LANE)) == ids(high)
    assert ids(await stage.lease(1, HIGH_LANE, LANE)) == ids(low)


async def test_a_lane_keeps_its_order_across_memory_and_table(stage: Stage) -> None:
    """The oldest are kept here, the others go to the table: here comes first."""
    tickets = await stage.submit(5)
    await stage.lease(1)
    keep_near(stage, tickets[:2])
    await stage.publish(tickets[2:])
    taken = [await stage.lease(count) for count in (1, 2, 2, 2)]
    assert [task for part in taken for task in ids(part)] == ids(tickets)


async def test_a_consumer_that_leaves_while_it_looks_wakes_the_next(stage: Stage) -> None:
    """The tickets it was woken for would lie here until they move."""
    tickets = await stage.submit(1)
    leaving = await stage.wait_in_turn(1)
    staying = await stage.wait_in_turn(1)
    fetch, is_asked = stage.world.database.fetch, asyncio.Event()

    async def slow(statement: str, *arguments: Any) -> list[asyncpg.Record]:
        if statement == SQL.lease_tickets and not is_asked.is_set():
            is_asked.set()
            await asyncio.sleep(60.0)
        if statement == SQL.count_tickets:
            await asyncio.sleep(60.0)  # or the poll would find them, half a second later
        return await fetch(statement, *arguments)

    stage.world.node_clock.advance(MOMENT_S)
    stage.world.database.fetch = slow  # type: ignore[method-assign]
    await stage.publish(tickets)
    await is_asked.wait()
    leaving.cancel()
    async with asyncio.timeout(5.0):
        assert ids(await staying) == ids(tickets)


async def test_a_consumer_of_many_lanes_has_no_more_kept_than_it_takes(stage: Stage) -> None:
    """One of each lane would lie here in vain, with idle consumers elsewhere."""
    tickets = await stage.submit(3)
    lanes = [Lane(LANE.tenant, LANE.pool, band) for band in range(3)]
    consumer = await stage.wait_in_turn(1, *lanes)
    await stage.queue.publish(list(map(Delivery, lanes, tickets)))
    assert await in_table(stage) == ids(tickets[1:])
    assert ids(await consumer) == ids(tickets[:1])


async def test_many_consumers_of_one_do_not_starve_other_processes(stage: Stage) -> None:
    """A look that brings one ticket, once in a moment, would be next to nothing."""
    foreign, own_tickets = await stage.submit(3), await stage.submit(3)
    await other_process(stage).publish(deliveries(foreign))
    keep_near(stage, own_tickets)
    stage.world.node_clock.advance(MOMENT_S)
    assert [ids(await stage.lease(1)) for _ in range(3)] == [[each.id] for each in foreign]


async def test_a_lost_answer_is_asked_for_again(stage: Stage) -> None:
    """Here the tickets are known, unlike those of the table."""
    tickets = await stage.submit(1)
    consumer = await stage.wait_in_turn(1)
    fetch, is_lost = stage.world.database.fetch, False

    async def lose(statement: str, *arguments: Any) -> list[asyncpg.Record]:
        nonlocal is_lost
        rows = await fetch(statement, *arguments)
        if "UPDATE duly.timers" in statement and not is_lost:
            is_lost = True
            raise DatabaseUnavailable(address="here", problem="gone")
        return rows

    stage.world.database.fetch = lose  # type: ignore[method-assign]
    await stage.publish(tickets)
    assert ids(await consumer) == ids(tickets)
    assert is_lost


async def test_empty_lanes_leave_nothing_behind(stage: Stage) -> None:
    """Tenants come and go for months in one process."""
    consumer = await stage.wait_in_turn(1)
    await stage.publish(await stage.submit(1))
    await consumer
    local_tickets = stage.queue.local
    stage.world.node_clock.advance(3 * MOMENT_S)
    local_tickets.pass_time()
    assert (local_tickets.queues, local_tickets.took, local_tickets.took_before) == ({}, {}, {})
    assert (local_tickets.gone, local_tickets.looked_at) == ({}, {})
    await until(lambda: stage.queue.late_check is None)


@pytest.mark.parametrize("seed", range(20))
def test_near_lanes_keep_every_ticket_once_and_in_order(seed: int) -> None:
    """Against a list for each lane: what is kept, moved and taken is what came, in its order."""
    random, clock = Random(seed), ManualClock()
    local_tickets, lanes = LocalTickets(clock), [Lane(1, 1, band) for band in range(3)]
    model: dict[Lane, list[tuple[float, Ticket]]] = {lane: [] for lane in lanes}
    for number in range(400):
        clock.advance(random.choice([0.0, KEPT_S / 3, KEPT_S]))
        asked = random.sample(lanes, 2)
        match random.choice(["keep", "take", "late"]):
            case "keep":
                tickets = [
                    Delivery(random.choice(asked), Ticket(UUID(int=n), number)) for n in range(6)
                ]
                rooms = {lane: random.randrange(4) for lane in asked}
                others = local_tickets.keep(tickets, rooms)
                for lane in asked:
                    mine = [ticket for each, ticket, _ in tickets if each == lane]
                    left = [ticket for each, ticket, _ in others if each == lane]
                    kept = mine[: rooms[lane]]
                    assert left == mine[rooms[lane] :]
                    model[lane] += [(clock.monotonic(), ticket) for ticket in kept]
            case "take":
                count = random.randrange(6)
                wanted = [Delivery(lane, ticket) for lane in asked for _, ticket in model[lane]]
                wanted = wanted[:count]
                assert local_tickets.take(asked, count) == wanted
                for lane in asked:
                    model[lane] = [
                        each for each in model[lane] if Delivery(lane, each[1]) not in wanted
                    ]
            case "late":
                moment = clock.monotonic() - KEPT_S
                late = local_tickets.take_late()
                for lane in lanes:
                    is_late = any(at <= moment for at, _ in model[lane])
                    was = [ticket for _, ticket in model[lane]] if is_late else []
                    assert [ticket for each, ticket, _ in late if each == lane] == was
                    model[lane] = [] if is_late else model[lane]
        assert {lane: local_tickets.depth(lane) for lane in lanes} == {
            lane: len(model[lane]) for lane in lanes
        }


def test_room_follows_those_who_come_back_and_is_forgotten() -> None:
    """A consumer that is busy with what it took must not have more kept for it."""
    clock = ManualClock()
    local_tickets = LocalTickets(clock)
    assert local_tickets.room(LANE, 0) == 0
    assert local_tickets.room(LANE, 7) == 7
    # Two consumers that share a holder.
    local_tickets.note_taken(HOLDER, Counter({LANE: 3}))
    local_tickets.note_taken(HOLDER, Counter({LANE: 2}))
    assert local_tickets.room(LANE, 7) == 7
    local_tickets.note_came(OTHER_HOLDER)
    assert local_tickets.room(LANE, 7) == 7
    local_tickets.note_came(HOLDER)
    local_tickets.note_came(HOLDER)
    assert local_tickets.room(LANE, 7) == 7
    assert local_tickets.room(LANE, 0) == 5
    local_tickets.keep(deliveries([Ticket(UUID(int=n), 0) for n in range(4)]), {LANE: 4})
    assert local_tickets.room(LANE, 0) == 1
    clock.advance(MOMENT_S)
    assert local_tickets.room(LANE, 0) == 1
    clock.advance(MOMENT_S)
    assert local_tickets.room(LANE, 0) == 0
    local_tickets.note_taken(HOLDER, Counter({LANE: 5}))
    clock.advance(MOMENT_S)
    local_tickets.note_came(HOLDER)
    assert local_tickets.room(LANE, 4) == 0


def keep_near(stage: Stage, tickets: list[Ticket], lane: Lane = LANE) -> None:
    assert stage.queue.local.keep(deliveries(tickets, lane), {lane: len(tickets)}) == []


async def in_table(stage: Stage) -> list[UUID]:
    return [row["id"] for row in await stage.world.database.fetch(READ_TICKETS)]


def on_notify(stage: Stage) -> list[str]:
    """The statements that are asked from now on."""
    statements: list[str] = []
    fetch = stage.world.database.fetch

    async def listening(statement: str, *arguments: Any) -> list[asyncpg.Record]:
        statements.append(statement)
        return await fetch(statement, *arguments)

    stage.world.database.fetch = listening  # type: ignore[method-assign]
    return statements
