"""Leases that leave their rows where they are: never handed out again, never forgotten."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from duly.domain.lanes import Ticket
from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome, State
from duly.domain.task import Policy
from duly.store import reap
from duly.store.async_webhooks import accept_async
from duly.store.cluster import read_tenant_status
from duly.store.control import cancel_tasks
from duly.store.finish import SettleStatus
from duly.store.lease import (
    ACCEPTED_ASYNC,
    Beat,
    HeartbeatStatus,
    Lease,
    extend_leases,
    lease_tasks,
)
from duly.store.load import list_placements
from duly.store.metric_queries import scan_ready
from duly.store.read import Filter, list_tasks
from duly.store.reap import reap_leases
from duly.store.tenants import count_in_flight
from tests.store.world import HOLDER, LEASE_S, OTHER_TENANT, START, TENANT, TimedDatabase, World

STEADY = Policy(timeout_s=100.0, retry=RetryPolicy(backoff="fixed", initial_s=1.0, jitter=False))
URL = "http://receiver.example/"


async def lease_in_place(world: World, count: int = 3, **fields: Any) -> list[Lease]:
    """A batch as a dispatcher and an executor make it."""
    tasks = [await world.submit(url=URL, **({"policy": STEADY} | fields)) for _ in range(count)]
    return await lease_again(world, [task.id for task in tasks])


async def lease_again(world: World, ids: list[UUID], holder: UUID = HOLDER) -> list[Lease]:
    tickets = [(await world.ticket(task_id))._replace(in_place=True) for task_id in ids]
    leases = await lease_tasks(world.database, world.environment, holder, tickets, LEASE_S)
    assert len(leases) == len(ids)
    return leases


async def test_a_lease_in_place_is_running_and_no_longer_due(world: World) -> None:
    """Its row lies among what is due, and would be handed out again and again."""
    leases = await lease_in_place(world)
    timer = await world.timer(leases[0].id)
    assert timer is not None
    assert (timer["queue"] != 0, timer["due_at"]) == (True, START)
    task = await world.read(leases[0].id)
    assert (task.state, task.holder, task.fence) == (State.RUNNING, HOLDER, 1)
    assert task.next_at == task.lease_until == START + timedelta(seconds=LEASE_S)
    assert await world.due() == []
    assert (await world.try_lease(Ticket(task.id, task.fence))) is None


async def test_one_expiry_batch_stands_for_the_whole_batch_of_a_place(world: World) -> None:
    """One for each lease would cost as much as moving them."""
    leases = await lease_in_place(world)
    rows = await world.database.fetch("SELECT * FROM duly.lease_expiry_batches")
    assert [(row["tenant"], row["expires_at"]) for row in rows] == [(TENANT, leases[0].lease_until)]
    assert rows[0]["ids"] == sorted(lease.id for lease in leases)


async def test_a_lost_lease_in_place_is_taken_back_when_it_ends_and_not_before(
    world: World,
) -> None:
    """Nothing in the index says when it ends: its expiry batch has to."""
    leases = await lease_in_place(world)
    world.advance(14.999)
    assert await world.reap() == ([], 0, 0)
    world.advance(0.001)
    reaped = await world.reap()
    assert {task_id for task_id, _ in reaped.lost} == {lease.id for lease in leases}
    assert await world.reap() == ([], 0, 1)
    assert await world.count("lease_expiry_batches") == 0
    for lease in leases:
        assert [each.outcome for each in await world.attempts(lease.id)] == ["lease_lost"]
    world.advance(1)
    assert {due.id for due in await world.due()} == {lease.id for lease in leases}


async def test_what_was_settled_in_time_is_not_taken_back(world: World) -> None:
    """An expiry batch names tasks that are long gone, and some that run again."""
    done, again, lost = await lease_in_place(world)
    assert (await world.settle(done, Outcome.COMPLETED)).state is State.COMPLETED
    await world.settle(again, Outcome.RELEASED)
    world.advance(10)
    (running,) = await lease_again(world, [again.id])
    world.advance(5)
    reaped = await world.reap()
    assert [task_id for task_id, _ in reaped.lost] == [lost.id]
    # Alive under a later fence: looked at when that one ends.
    assert (reaped.rearmed, reaped.expiry_batches) == (1, 0)
    assert (await world.settle(running, Outcome.COMPLETED)).status is SettleStatus.SETTLED
    world.advance(10)
    assert await world.reap() == ([], 0, 2)
    assert await world.count("lease_expiry_batches") == 0


async def test_a_heartbeat_moves_a_lease_to_where_the_others_are(world: World) -> None:
    """Its expiry batch is of the end it had at first; after that the row must speak for itself."""
    kept, silent = await lease_in_place(world, 2)
    world.advance(10)
    (answer,) = await extend_leases(world.database, HOLDER, [Beat(kept.id, 1)], LEASE_S)
    assert answer.status is HeartbeatStatus.HELD
    timer = await world.timer(kept.id)
    assert timer is not None
    assert (timer["queue"], timer["lease_until"]) == (0, START + timedelta(seconds=25))
    world.advance(5)
    reaped = await world.reap()
    assert [task_id for task_id, _ in reaped.lost] == [silent.id]
    world.advance(10)
    assert [task_id for task_id, _ in (await world.reap()).lost] == [kept.id]


async def test_what_a_receiver_took_over_is_the_receivers_until_its_time_limit(
    world: World,
) -> None:
    """The expiry batch is of a lease that was given away."""
    (lease,) = await lease_in_place(world, 1)
    await accept_async(world.database, [(lease.id, lease.fence)])
    world.advance(LEASE_S)
    assert await world.reap() == ([], 0, 1)
    assert (await world.read(lease.id)).holder == ACCEPTED_ASYNC
    world.advance(100 - LEASE_S)
    assert [task_id for task_id, _ in (await world.reap()).lost] == [lease.id]


async def test_a_lease_that_ends_with_its_attempt_is_not_made_in_place(world: World) -> None:
    """An expiry batch is for one instant, and a short attempt must be missed in time."""
    (short,) = await lease_in_place(world, 1, policy=Policy(timeout_s=2.0))
    assert await world.count("lease_expiry_batches") == 0
    world.advance(2)
    assert [task_id for task_id, _ in (await world.reap()).lost] == [short.id]


async def test_tickets_that_stay_and_that_move_can_be_of_one_batch(world: World) -> None:
    """Capped work beside work that nobody counts, in the lane of all tenants."""
    tasks = [await world.submit(url=URL, policy=STEADY) for _ in range(4)]
    tickets = [Ticket(task.id, 0, in_place=at % 2 == 0) for at, task in enumerate(tasks)]
    leases = await lease_tasks(world.database, world.environment, HOLDER, tickets, LEASE_S)
    assert {lease.id for lease in leases} == {task.id for task in tasks}
    lanes = [(await world.timer(task.id) or {})["queue"] for task in tasks]
    assert [lane == 0 for lane in lanes] == [False, True, False, True]
    world.advance(LEASE_S)
    assert len((await world.reap()).lost) == 4


async def test_only_the_expiry_batches_that_were_looked_at_are_forgotten(world: World) -> None:
    """One that commits a moment later, or does not fit into the pass, names leases as well."""
    await lease_in_place(world, 1)
    await lease_in_place(world, 1)
    world.advance(5)
    await lease_in_place(world, 1)
    world.advance(10)
    places = await list_placements(world.database, 0, 1023)
    pairs = sorted({(place.tenant, place.shard) for place in places})
    for left in (3, 2, 2, 1, 1):
        await reap_leases(world.database, world.environment, pairs, 100, batches_limit=1)
        assert await world.count("lease_expiry_batches") == left


async def test_leases_in_place_are_listed_and_counted_like_all_others(world: World) -> None:
    """A list of running tasks would say that nothing runs."""
    leases = await lease_in_place(world, 3)
    moved = await world.lease((await world.submit()).id)
    ready = await world.submit(url=URL)
    assert await count_in_flight(world.database, [TENANT, OTHER_TENANT]) == {
        TENANT: 4,
        OTHER_TENANT: 0,
    }
    wanted = {lease.id for lease in leases} | {moved.id}
    seen: list[UUID] = []
    cursor: str | None = None
    while True:
        running = Filter(state=State.RUNNING)
        page = await list_tasks(world.database, TENANT, running, cursor, limit=2)
        seen += [task.id for task in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert sorted(seen) == sorted(wanted)
    page = await list_tasks(world.database, TENANT, Filter(state=State.READY))
    assert [task.id for task in page.items] == [ready.id]
    world.advance(3)
    standing = await read_tenant_status(world.database, TENANT)
    assert (sum(depth.ready for depth in standing.depths), standing.in_flight) == (1, 4)
    (oldest,) = (await scan_ready(world.database)).queues
    assert oldest.age_s == pytest.approx(3.0)


class Interrupted(TimedDatabase):
    """Does something else right after leases that ran out were found, once."""

    then: Callable[[], Awaitable[object]] | None = None

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        rows = await super().fetch(statement, *arguments)
        if statement == reap.SQL.find_expired and self.then is not None:
            then, self.then = self.then, None
            await then()
        return rows


@pytest.fixture
async def interrupted(engine_url: str, owner_url: str) -> AsyncIterator[World]:
    async with World.open(engine_url, owner_url, database=Interrupted) as world:
        yield world


def interrupt(world: World, then: Callable[[], Awaitable[object]]) -> None:
    assert isinstance(world.database, Interrupted)
    world.database.then = then


async def test_a_cancel_while_it_is_taken_back_does_not_strand_it(interrupted: World) -> None:
    """The retry is refused on the row; without its expiry batch nobody would look again."""
    world = interrupted
    leases = await lease_in_place(world)
    world.advance(LEASE_S)
    interrupt(world, lambda: cancel_tasks(world.database, TENANT, [leases[0].id]))
    assert len((await world.reap()).lost) == 2
    assert [task_id for task_id, _ in (await world.reap()).lost] == [leases[0].id]
    assert (await world.read(leases[0].id)).state is State.CANCELLED


async def test_a_clock_that_steps_back_does_not_strand_it(interrupted: World) -> None:
    """It had run out when it was found, and had not when it was to be ended."""
    world = interrupted
    leases = await lease_in_place(world)
    world.advance(LEASE_S)

    async def step_back() -> None:
        world.clock.start -= timedelta(seconds=1)

    interrupt(world, step_back)
    assert await world.reap() == ([], 0, 0)
    world.advance(1)
    assert {task_id for task_id, _ in (await world.reap()).lost} == {each.id for each in leases}


async def test_a_hand_over_that_left_it_in_place_does_not_strand_it(world: World) -> None:
    """A process of the release before does not move what it finds in place."""
    (lease,) = await lease_in_place(world, 1)
    of_old = "UPDATE duly.timers SET holder = $2 WHERE id = $1"
    await world.database.fetch(of_old, lease.id, ACCEPTED_ASYNC)
    world.advance(LEASE_S)
    assert [task_id for task_id, _ in (await world.reap()).lost] == [lease.id]


async def test_a_task_that_two_expiry_batches_name_runs_once(world: World) -> None:
    """Given back and leased in place again, it is one task, in lists and in counts."""
    (lease,) = await lease_in_place(world, 1)
    world.advance(1)
    await world.settle(lease, Outcome.RELEASED)
    await lease_again(world, [lease.id])
    page = await list_tasks(world.database, TENANT, Filter(state=State.RUNNING))
    assert [task.id for task in page.items] == [lease.id]
    assert await count_in_flight(world.database, [TENANT]) == {TENANT: 1}
