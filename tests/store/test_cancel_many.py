"""Two people cancel the same tasks at once, while leases come and go: nobody waits for ever."""

import asyncio
from collections.abc import Callable
from uuid import UUID

import asyncpg

from duly.domain.states import Outcome, State
from duly.store.control import ControlAnswer, cancel_tasks
from tests.store.world import TENANT, World

PATIENCE_S = 10.0
COUNT_WAITING = """
SELECT count(*) AS sessions FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


async def three_tasks(world: World) -> list[UUID]:
    """In the order of their ids, which is the order of their placement times."""
    ids = []
    for _ in range(3):
        world.advance(1)
        ids.append((await world.submit()).id)
    return ids


async def waiting_sessions(world: World, wanted: Callable[[int], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not wanted((await world.database.fetch(COUNT_WAITING))[0]["sessions"]):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_two_cancels_that_see_a_lease_differently_do_not_deadlock(
    world: World, owner: asyncpg.Connection
) -> None:
    """Locked by state instead of by id, each holds what the other wants, and one is thrown out."""
    first, second, third = await three_tasks(world)
    lease = await world.lease(first)
    blocker = owner.transaction()
    await blocker.start()
    await owner.execute("SELECT FROM duly.timers WHERE id = $1 FOR UPDATE", third)
    async with asyncio.TaskGroup() as group:
        # It sees the first leased, and stops at the third.
        one = group.create_task(cancel_tasks(world.database, TENANT, [first, second, third]))
        await waiting_sessions(world, lambda count: count == 1)
        # Done at once if the first is not locked yet; then the other cancel sees it unleased.
        release = group.create_task(world.settle(lease, Outcome.RELEASED))
        await waiting_sessions(world, lambda count: release.done() or count == 2)
        waiting = 1 if release.done() else 2
        other = group.create_task(cancel_tasks(world.database, TENANT, [first, second]))
        await waiting_sessions(world, lambda count: count > waiting)
        await blocker.rollback()
    assert (await release).state is State.CANCELLED
    assert (await one) == {
        first: ControlAnswer.CANCEL_REQUESTED,
        second: ControlAnswer.CANCELLED,
        third: ControlAnswer.CANCELLED,
    }
    assert (await other)[second] is ControlAnswer.ALREADY_CANCELLED
    states = {(await world.read(task_id)).state for task_id in (first, second, third)}
    assert states == {State.CANCELLED}


async def test_many_cancels_of_the_same_tasks_in_any_order_all_get_an_answer(world: World) -> None:
    """The lists of two people never have the same order."""
    ids = [(await world.submit()).id for _ in range(40)]
    leases = await world.lease_all()
    await asyncio.gather(
        *(world.settle(lease, Outcome.RELEASED) for lease in leases[::2]),
        *(cancel_tasks(world.database, TENANT, ids[:: (-1) ** turn]) for turn in range(6)),
    )
    answers = await cancel_tasks(world.database, TENANT, ids)
    assert set(answers.values()) <= {
        ControlAnswer.ALREADY_CANCELLED,
        ControlAnswer.CANCEL_REQUESTED,
    }
