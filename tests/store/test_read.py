"""Reading and listing: one statement per state, complete pages, no duplicates, one tenant."""

from datetime import timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from duly.domain.states import Outcome, State
from duly.store import read as read_module
from duly.store.control import TimerChange, cancel_tasks, reschedule_tasks
from duly.store.lease import Beat, extend_leases
from duly.store.read import (
    Filter,
    ListOrder,
    Task,
    list_tasks,
    read_attempts,
    read_task,
    read_tasks,
)
from tests.store.test_control import make_waiting
from tests.store.world import HOLDER, OTHER_TENANT, START, TENANT, World, wish


async def test_a_task_is_read_in_each_phase_of_its_life(world: World) -> None:
    """A phase in which a task is neither live nor ended would look like a loss (I1)."""
    stored = await world.submit(delay_s=10.0, tags={"a": "b"})
    seen = [(await world.read(stored.id)).state]
    world.advance(10)
    seen.append((await world.read(stored.id)).state)
    lease = await world.lease(stored.id)
    seen.append((await world.read(stored.id)).state)
    await world.settle(lease, Outcome.FAILED, error="boom")
    seen.append((await world.read(stored.id)).state)
    world.advance(3600)
    await world.run(stored.id, Outcome.COMPLETED, result="1")
    task = await world.read(stored.id)
    seen.append(task.state)
    assert seen == ["SCHEDULED", "READY", "RUNNING", "SCHEDULED", "COMPLETED"]
    assert (task.attempt, task.result, task.error, task.is_purged) == (2, "1", None, False)


async def test_a_running_task_shows_its_holder_and_progress(world: World) -> None:
    """Who has it, since when and how far: the first questions of whoever looks."""
    stored = await world.submit(pool="mail")
    lease = await world.lease(stored.id)
    await extend_leases(world.database, HOLDER, [Beat(lease.id, lease.fence, '"half"')], 15.0)
    task = await world.read(stored.id)
    assert (task.holder, task.progress, task.pool) == (HOLDER, '"half"', "mail")
    assert (task.attempt, task.lease_until) == (1, START + timedelta(seconds=15))


async def test_another_tenants_task_is_not_read(world: World) -> None:
    """A guessed id must give what a missing one gives (I9)."""
    stored = await world.submit()
    await world.run(stored.id, Outcome.FAILED)
    assert await read_task(world.database, OTHER_TENANT, stored.id) is None
    assert await read_task(world.database, TENANT, uuid4()) is None
    assert await read_attempts(world.database, OTHER_TENANT, stored.id) == []


async def test_tasks_are_read_in_the_order_asked(world: World) -> None:
    """Pages are ordered by their index; the read must keep that order."""
    ids = [(await world.submit()).id for _ in range(5)]
    asked = [ids[3], uuid4(), ids[0], ids[4]]
    found = await read_tasks(world.database, TENANT, asked)
    assert [task.id for task in found] == [ids[3], ids[0], ids[4]]


async def test_attempts_are_paged_by_fence(world: World) -> None:
    """A task that was released a thousand times must not be one answer."""
    stored = await world.submit()
    for _ in range(5):
        await world.run(stored.id, Outcome.RELEASED)
    first = await read_attempts(world.database, TENANT, stored.id, limit=3)
    rest = await read_attempts(world.database, TENANT, stored.id, first[-1].fence, limit=3)
    assert [attempt.fence for attempt in first + rest] == [1, 3, 5, 7, 9]


async def pages(
    world: World,
    wanted: Filter,
    limit: int,
    tenant: int = TENANT,
    order: ListOrder | None = None,
) -> list[list[Task]]:
    found, cursor = [], None
    for _ in range(100):
        page = await list_tasks(world.database, tenant, wanted, cursor, limit, order)
        found.append(page.items)
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise AssertionError("the list has no end")


# As `duly.release_children` ends a node whose rule can no longer be met.
SKIP = """
WITH gone AS (DELETE FROM duly.timers WHERE id = $1 RETURNING shard, id, tenant, fence)
INSERT INTO duly.attempts (shard, charged, fence, tenant, id, ended_at, outcome, state)
SELECT shard, 0, fence + 1, tenant, id, duly.now(), 'skipped', 'SKIPPED' FROM gone
"""


async def every_state(world: World, owner: asyncpg.Connection) -> dict[State, set[UUID]]:
    """Seven tasks in each state, over several places; and the same number of a stranger's."""
    made: dict[State, set[UUID]] = {}
    for tenant in (OTHER_TENANT, TENANT):
        made = {}
        for state in State:
            wishes = [wish(tenant=tenant, priority=n, pool=f"p{n % 2}") for n in range(1, 8)]
            ids = [answer.id for answer in await world.submitter.submit(wishes)]
            await bring_to(world, owner, state, ids, tenant)
            made[state] = set(ids)
    return made


async def bring_to(
    world: World, owner: asyncpg.Connection, state: State, ids: list[UUID], tenant: int
) -> None:
    if state is State.CANCELLED:
        await cancel_tasks(world.database, tenant, ids)
    elif state is State.SCHEDULED:
        moves = [TimerChange(task_id, delay_s=60.0) for task_id in ids]
        await reschedule_tasks(world.database, tenant, moves)
    for task_id in ids:
        if state is State.WAITING:
            await make_waiting(owner, task_id)
        elif state is State.RUNNING:
            await world.lease(task_id, tenant=tenant)
        elif state is State.COMPLETED:
            await world.run(task_id, Outcome.COMPLETED, tenant)
        elif state is State.FAILED:
            await world.run(task_id, Outcome.REJECTED, tenant)
        elif state is State.SKIPPED:
            await owner.execute(SKIP, task_id)


async def test_lists_are_complete_and_without_duplicates_in_every_state(
    world: World, owner: asyncpg.Connection
) -> None:
    """A task that no page shows is lost to whoever looks for it; nor may a stranger's appear."""
    made = await every_state(world, owner)
    for state, ids in made.items():
        for limit in (1, 3, 7, 8):
            found = [
                task for page in await pages(world, Filter(state=state), limit) for task in page
            ]
            assert [task.state for task in found] == [state] * 7, (state, limit)
            assert {task.id for task in found} == ids, (state, limit)
    everything = [task for page in await pages(world, Filter(), 10) for task in page]
    assert len(everything) == 7 * len(State)
    assert {task.id for task in everything} == set().union(*made.values())


async def test_live_tasks_come_soonest_first_and_others_newest_first(world: World) -> None:
    """The order of a list is its cursor; a wrong one skips or repeats."""
    for delay_s in (30.0, 10.0, 20.0):
        await world.submit(delay_s=delay_s)
    ((one, two, three),) = await pages(world, Filter(state=State.SCHEDULED), 5)
    instants = [one.next_at, two.next_at, three.next_at]
    assert instants == [START + timedelta(seconds=s) for s in (10, 20, 30)]
    world.advance(1)
    newest = await world.submit(delay_s=60.0)
    (all_tasks,) = await pages(world, Filter(), 5)
    assert all_tasks[0].id == newest.id


@pytest.mark.parametrize("limit", [1, 2, 5, 8])
async def test_lists_go_by_creation_whenever_a_task_fires(world: World, limit: int) -> None:
    """Ids are placed by the fire time: what was submitted just now for today came after what was
    submitted last week for next year."""
    made = []
    for delay_s in (9000.0, 0.0, 86400.0 * 40, 10.0, 600.0):
        made.append((await world.submit(delay_s=delay_s)).id)
        world.advance(1)
    assert made != sorted(made)
    found = [task.id for page in await pages(world, Filter(), limit) for task in page]
    assert found == made[::-1]
    by_creation = await pages(world, Filter(state=State.SCHEDULED), limit, order=ListOrder.CREATED)
    scheduled = [task.id for page in by_creation for task in page]
    assert scheduled == [made[4], made[3], made[2], made[0]]


async def test_tasks_of_one_batch_are_paged_without_loss(world: World) -> None:
    """All of them are created at one instant: an order by that alone skips or repeats some."""
    ids = {answer.id for answer in await world.submitter.submit([wish() for _ in range(23)])}
    found = [task.id for page in await pages(world, Filter(), 4) for task in page]
    assert len(found) == 23
    assert set(found) == ids


async def test_tasks_that_wait_are_listed_by_their_next_instant(world: World) -> None:
    """ "What comes next" is the other question that a list is asked."""
    late = (await world.submit(delay_s=60.0)).id
    due = (await world.submit()).id
    soon = (await world.submit(delay_s=5.0)).id
    await reschedule_tasks(world.database, TENANT, [TimerChange(late, delay_s=2.0)])
    found = [
        task.id for page in await pages(world, Filter(), 2, order=ListOrder.RUN_AT) for task in page
    ]
    assert found == [due, late, soon]


async def test_filters_narrow_and_combine(world: World) -> None:
    """A filter that is ignored answers another question, and looks right."""
    first = await world.submit(type="a", tags={"team": "red"})
    world.advance(10)
    second = await world.submit(type="a", tags={"team": "blue"})
    third = await world.submit(type="b", tags={"team": "red", "x": ""}, delay_s=100.0)

    async def found(**asked: object) -> list[UUID]:
        wanted = Filter(**asked)  # type: ignore[arg-type]
        return sorted(task.id for page in await pages(world, wanted, 2) for task in page)

    assert await found(type="a") == sorted([first.id, second.id])
    assert await found(tag=("team", "red")) == sorted([first.id, third.id])
    assert await found(tag=("x", "")) == [third.id]
    assert await found(tag=("y", "")) == []
    assert await found(created_after=START) == sorted([second.id, third.id])
    assert await found(run_before=START + timedelta(seconds=11)) == sorted([first.id, second.id])
    assert await found(type="a", tag=("team", "red"), state=State.READY) == [first.id]
    assert await found(state=State.SCHEDULED, type="a") == []
    assert await found(state=State.SCHEDULED, tag=("team", "red")) == [third.id]


RARE = frozenset({0, 17, 24})


@pytest.mark.parametrize("state", [None, State.READY, State.CANCELLED, State.FAILED])
async def test_a_filter_searches_on_until_its_page_is_full(
    world: World, monkeypatch: pytest.MonkeyPatch, state: State | None
) -> None:
    """ "no tasks", and a cursor: whoever believes it misses what is on a later page."""
    monkeypatch.setattr(read_module, "STRETCH", 4)
    wanted_ids = []
    for number in range(25):
        world.advance(1)
        kind = "rare" if number in RARE else "plain"
        (answer,) = await world.submitter.submit([wish(type=kind)])
        if state is State.CANCELLED:
            await cancel_tasks(world.database, TENANT, [answer.id])
        elif state is State.FAILED:
            await world.run(answer.id, Outcome.REJECTED)
        if number in RARE:
            wanted_ids.append(answer.id)
    found = await pages(world, Filter(state=state, type="rare"), 2)
    assert [len(page) for page in found] == [2, 1]
    ids = [task.id for page in found for task in page]
    assert ids == (wanted_ids if state is State.READY else wanted_ids[::-1])


async def test_a_search_stops_at_its_bound_and_goes_on_at_its_cursor(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter that matches nothing must not read a million tasks in one call."""
    monkeypatch.setattr(read_module, "STRETCH", 4)
    (rare, *_) = await world.submitter.submit([wish(type="rare")])
    world.advance(1)
    await world.submitter.submit([wish() for _ in range(20)])
    wanted = Filter(type="rare")
    page = await list_tasks(world.database, TENANT, wanted, searched_max=8)
    assert (page.items, page.searched) == ([], 8)
    assert page.next_cursor is not None
    rest = await list_tasks(world.database, TENANT, wanted, page.next_cursor)
    assert [task.id for task in rest.items] == [rare.id]
    assert (rest.searched, rest.next_cursor) == (13, None)


@pytest.mark.parametrize("limit", [0, 201])
async def test_a_page_past_its_bound_is_our_own_mistake(world: World, limit: int) -> None:
    """Every scan has a maximum."""
    with pytest.raises(AssertionError):
        await list_tasks(world.database, TENANT, Filter(), limit=limit)


async def test_a_page_of_the_greatest_size_is_allowed(world: World) -> None:
    """The documented maximum must work."""
    await world.submitter.submit([wish() for _ in range(201)])
    found = await pages(world, Filter(state=State.READY), 200)
    assert [len(page) for page in found] == [200, 1]
    found = await pages(world, Filter(), 200)
    assert [len(page) for page in found] == [200, 1]
