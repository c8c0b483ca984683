"""Leasing: one ticket, one lease; never early, never twice, never for a stranger."""

from datetime import timedelta
from uuid import uuid4

from duly.domain.lanes import Ticket
from duly.domain.states import Outcome, State
from duly.domain.task import Policy
from duly.store.lease import Lease, lease_tasks, read_held
from duly.store.load import Cursor, list_placements, load_due
from duly.store.statements import fragments_of
from tests.store.world import HOLDER, OTHER_HOLDER, START, World, wish


async def test_a_lease_carries_all_that_a_worker_needs(world: World) -> None:
    """A worker must not have to ask again: the task may be gone by then."""
    policy = Policy(timeout_s=100.0)
    stored = await world.submit(payload='{"a": 1}', policy=policy, url="https://example.com/")
    lease = await world.lease(stored.id, lease_s=15.0)
    assert (lease.id, lease.tenant, lease.type, lease.payload) == (
        stored.id,
        1,
        "mail.send",
        '{"a": 1}',
    )
    assert (lease.fence, lease.attempt, lease.progress) == (1, 1, None)
    assert (lease.started_at, lease.lease_until) == (START, START + timedelta(seconds=15))
    assert (lease.policy, lease.url, lease.run_at) == (policy, "https://example.com/", START)
    assert lease.execution_key == str(stored.id)


async def test_a_leased_task_is_running_and_no_longer_due(world: World) -> None:
    """A leased row that still loads would be handed out again and again."""
    stored = await world.submit()
    await world.lease(stored.id)
    task = await world.read(stored.id)
    assert (task.state, task.holder, task.attempt, task.fence) == (State.RUNNING, HOLDER, 1, 1)
    assert task.lease_until == task.next_at == START + timedelta(seconds=15)
    world.advance(3600)
    assert await world.due() == []


async def test_a_ticket_becomes_one_lease(world: World) -> None:
    """Tickets are repeated by every carrier there is (I2)."""
    stored = await world.submit()
    ticket = await world.ticket(stored.id)
    assert await world.try_lease(ticket) is not None
    assert await world.try_lease(ticket) is None
    assert await world.try_lease(ticket, OTHER_HOLDER) is None
    assert (await world.read(stored.id)).holder == HOLDER


async def test_the_fence_of_a_running_task_is_no_ticket(world: World) -> None:
    """A caller that learns the fence of a lease must not be able to take it."""
    stored = await world.submit()
    await world.lease(stored.id)
    assert await world.try_lease(await world.ticket(stored.id), OTHER_HOLDER) is None
    # Run out and not yet reaped: due, with the right fence, and still somebody's.
    world.advance(16)
    assert await world.try_lease(await world.ticket(stored.id), OTHER_HOLDER) is None


async def test_a_ticket_from_before_a_retry_is_void(world: World) -> None:
    """The old ticket speaks of an attempt that is over."""
    stored = await world.submit()
    first = await world.ticket(stored.id)
    await world.run(stored.id, Outcome.RELEASED)
    assert await world.try_lease(first) is None
    assert await world.try_lease(Ticket(stored.id, first.fence + 1)) is None
    assert await world.try_lease(Ticket(stored.id, first.fence + 2)) is not None


async def test_nothing_is_leased_before_it_is_due_by_the_databases_clock(world: World) -> None:
    """A node whose clock is fast would start early (I12)."""
    stored = await world.submit(delay_s=10.0)
    world.node_clock.advance(3600)
    ticket = await world.ticket(stored.id)
    assert await world.try_lease(ticket) is None
    world.advance(9.999)
    assert await world.try_lease(ticket) is None
    world.advance(0.001)
    assert await world.try_lease(ticket) is not None


async def test_a_ticket_past_its_deadline_is_void(world: World) -> None:
    """Its scheduler may have been replaced, and the new one counts on its tickets being over."""
    stored = await world.submit()
    ticket = Ticket(stored.id, 0, deadline=START + timedelta(seconds=5))
    world.advance(5)
    assert await world.try_lease(ticket) is None
    world.clock.start -= timedelta(milliseconds=1)
    assert await world.try_lease(ticket) is not None


async def test_a_lease_never_lasts_longer_than_the_attempt_may(world: World) -> None:
    """An attempt past its time limit must be found, however long a lease was asked for."""
    stored = await world.submit(policy=Policy(timeout_s=2.5))
    lease = await world.lease(stored.id, lease_s=60.0)
    assert lease.lease_until == START + timedelta(seconds=2.5)


async def test_a_batch_leases_what_it_can_and_leaves_the_rest(world: World) -> None:
    """One stale ticket must not cost its neighbours their leases."""
    due = [await world.submit() for _ in range(3)]
    later = await world.submit(delay_s=60.0)
    ended = await world.submit()
    await world.run(ended.id, Outcome.COMPLETED)
    tickets = [Ticket(task.id, 0) for task in (*due, later, ended)]
    tickets += [Ticket(uuid4(), 0)]
    leases = await lease_tasks(world.database, world.environment, HOLDER, tickets, 15.0)
    assert {lease.id for lease in leases} == {task.id for task in due}


async def test_no_tickets_are_no_leases(world: World) -> None:
    """A worker that asks while the lane is empty is the usual case."""
    assert await lease_tasks(world.database, world.environment, HOLDER, [], 15.0) == []


async def test_after_a_lost_answer_a_holder_finds_exactly_its_own(world: World) -> None:
    """Unasked, these leases would run out and be charged to the tasks."""
    tasks = [await world.submit() for _ in range(4)]
    tickets = [Ticket(task.id, 0) for task in tasks]
    mine, theirs, unleased, settled = tickets
    leased = [await world.try_lease(mine), await world.try_lease(settled)]
    await world.try_lease(theirs, OTHER_HOLDER)
    assert leased[1] is not None
    await world.settle(leased[1], Outcome.RELEASED)
    held = await read_held(world.database, HOLDER, tickets)
    assert held == [leased[0]]
    assert await read_held(world.database, HOLDER, [unleased]) == []


async def test_a_lease_from_another_ticket_is_not_reported_as_held(world: World) -> None:
    """The process may hold the task already, from an earlier call with another fence."""
    stored = await world.submit()
    await world.run(stored.id, Outcome.RELEASED)
    await world.lease(stored.id)
    assert await read_held(world.database, HOLDER, [Ticket(stored.id, 0)]) == []


async def test_fences_strictly_increase_over_a_whole_life(world: World) -> None:
    """A fence that repeats lets a late effect pass for a current one (I2)."""
    stored = await world.submit()
    fences = []
    for outcome in (Outcome.RELEASED, Outcome.SNOOZED, Outcome.FAILED, Outcome.COMPLETED):
        world.advance(3600)
        lease = await world.lease(stored.id)
        fences.append(lease.fence)
        await world.settle(lease, outcome)
    assert fences == [1, 3, 5, 7]
    assert [attempt.fence for attempt in await world.attempts(stored.id)] == fences


async def test_loading_goes_on_from_its_cursor_through_a_herd(world: World) -> None:
    """Tasks of one instant fill many pages: none may be skipped or loaded twice."""
    answers = await world.submitter.submit([wish() for _ in range(25)])
    (place,) = await list_placements(world.database, 0, 1023)
    cursor, loaded = Cursor(), []
    for _ in range(4):
        page = await load_due(world.database, {place: cursor}, 0.0, 10)
        loaded += page
        cursor = Cursor(page[-1].due_at, page[-1].id) if page else cursor
    assert [due.id for due in loaded] == sorted(answer.id for answer in answers)


async def test_loading_looks_as_far_as_its_horizon_and_place_by_place(world: World) -> None:
    """A busy place must not use up the page of a quiet one."""
    await world.submitter.submit([wish() for _ in range(5)])
    quiet = await world.submit(tenant=2, delay_s=5.0)
    assert len(await world.due(horizon_s=4.9, limit=3)) == 3
    local_tickets = await world.due(horizon_s=5.0, limit=3)
    assert [due.id for due in local_tickets if due.tenant == 2] == [quiet.id]
    assert len(local_tickets) == 4


def test_the_columns_of_a_lease_are_its_fields() -> None:
    """Leases are made from rows by position, on the hottest path."""
    text = fragments_of("lease")["columns"]
    named = [column.split(" AS ")[-1].strip().rpartition(".")[2] for column in text.split(",")]
    assert named == list(Lease.__struct_fields__)
