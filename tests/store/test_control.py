"""Cancel, move, run now: in every state, for one's own tasks only, voiding every old ticket."""

from datetime import timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from duly.domain.lanes import Ticket
from duly.domain.states import Outcome, State
from duly.store.control import ControlAnswer, TimerChange, cancel_tasks, reschedule_tasks, run_now
from tests.store.world import OTHER_TENANT, START, TENANT, World

TERMINAL = [Outcome.COMPLETED, Outcome.REJECTED, Outcome.CANCELLED]


async def cancel(world: World, task_id: UUID, tenant: int = TENANT) -> ControlAnswer:
    return (await cancel_tasks(world.database, tenant, [task_id]))[task_id]


async def move(world: World, change: TimerChange, tenant: int = TENANT) -> ControlAnswer:
    return (await reschedule_tasks(world.database, tenant, [change]))[change.id]


async def make_waiting(owner: asyncpg.Connection, task_id: UUID) -> None:
    """A workflow node before its parents are done: a timer without an instant."""
    await owner.execute("UPDATE duly.timers SET due_at = NULL WHERE id = $1", task_id)


@pytest.mark.parametrize("delay_s", [0.0, 60.0])
async def test_cancelling_an_unleased_task_ends_it_at_once(world: World, delay_s: float) -> None:
    """Answered as CANCELLED, no attempt may follow, not even from a ticket in a lane (I13)."""
    stored = await world.submit(delay_s=delay_s)
    ticket = await world.ticket(stored.id)
    assert await cancel(world, stored.id) is ControlAnswer.CANCELLED
    task = await world.read(stored.id)
    assert (task.state, task.attempt, task.fence, task.outcome) == (
        State.CANCELLED,
        0,
        ticket.fence + 1,
        "cancelled",
    )
    world.advance(60)
    assert await world.try_lease(ticket) is None
    assert await world.try_lease(Ticket(stored.id, ticket.fence + 1)) is None
    (record,) = await world.attempts(stored.id)
    assert (record.charged, record.holder, record.outcome) == (0, None, "cancelled")


async def test_cancelling_between_two_attempts_keeps_their_record(world: World) -> None:
    """What was executed stays on record; the cancel comes after it (I5)."""
    stored = await world.submit()
    await world.run(stored.id, Outcome.FAILED, error="boom")
    assert await cancel(world, stored.id) is ControlAnswer.CANCELLED
    records = await world.attempts(stored.id)
    assert [(r.fence, r.charged, r.outcome) for r in records] == [
        (1, 1, "failed"),
        (3, 0, "cancelled"),
    ]
    assert (await world.read(stored.id)).attempt == 1


async def test_cancelling_a_running_task_only_asks(world: World) -> None:
    """The holder is at work: its fence must stay valid, so that it can end in an orderly way."""
    stored = await world.submit()
    lease = await world.lease(stored.id)
    assert await cancel(world, stored.id) is ControlAnswer.CANCEL_REQUESTED
    assert await cancel(world, stored.id) is ControlAnswer.CANCEL_REQUESTED
    task = await world.read(stored.id)
    assert (task.state, task.cancel_requested, task.fence) == (State.RUNNING, True, lease.fence)


@pytest.mark.parametrize("outcome", TERMINAL)
async def test_cancelling_what_has_ended_changes_nothing(world: World, outcome: Outcome) -> None:
    """A terminal state never changes (I4); cancelling twice is no error."""
    stored = await world.submit()
    await world.run(stored.id, outcome)
    before = await world.read(stored.id)
    is_cancelled = outcome is Outcome.CANCELLED
    expected = ControlAnswer.ALREADY_CANCELLED if is_cancelled else ControlAnswer.ALREADY_TERMINAL
    assert await cancel(world, stored.id) is expected
    assert await world.read(stored.id) == before


async def test_a_waiting_task_can_be_cancelled_and_not_moved(
    world: World, owner: asyncpg.Connection
) -> None:
    """Moving a node would start it before its parents are done (I7)."""
    stored = await world.submit()
    await make_waiting(owner, stored.id)
    assert (await world.read(stored.id)).state is State.WAITING
    assert await move(world, run_now(stored.id)) is ControlAnswer.WAITING
    assert await cancel(world, stored.id) is ControlAnswer.CANCELLED
    assert (await world.read(stored.id)).state is State.CANCELLED


async def test_another_tenants_task_is_as_unknown_as_none(world: World) -> None:
    """Any difference would tell a stranger that the id exists (I9)."""
    live = await world.submit(delay_s=60.0)
    running = await world.submit()
    await world.lease(running.id)
    ended = await world.submit()
    await world.run(ended.id, Outcome.REJECTED)
    ids = [live.id, running.id, ended.id, uuid4()]
    before = [await world.read(task_id) for task_id in ids[:3]]
    unknown = dict.fromkeys(ids, ControlAnswer.UNKNOWN)
    assert await cancel_tasks(world.database, OTHER_TENANT, ids) == unknown
    moves = [run_now(task_id) for task_id in ids]
    assert await reschedule_tasks(world.database, OTHER_TENANT, moves) == unknown
    assert [await world.read(task_id) for task_id in ids[:3]] == before


async def test_moving_changes_the_instant_and_voids_the_old_ticket(world: World) -> None:
    """A ticket written for the old instant must not start the task at it."""
    stored = await world.submit()
    ticket = await world.ticket(stored.id)
    later = START + timedelta(hours=1)
    assert await move(world, TimerChange(stored.id, run_at=later)) is ControlAnswer.MOVED
    task = await world.read(stored.id)
    assert (task.state, task.next_at, task.fence) == (State.SCHEDULED, later, 1)
    assert (task.run_at, task.priority) == (later, 5)
    world.advance(3600)
    assert await world.try_lease(ticket) is None
    assert (await world.lease(stored.id)).fence == 2


async def test_moving_by_a_delay_counts_from_the_databases_clock(world: World) -> None:
    """A node's clock must not decide when a task fires (I12)."""
    stored = await world.submit(delay_s=500.0)
    world.node_clock.advance(3600)
    await move(world, TimerChange(stored.id, delay_s=20.0))
    assert (await world.read(stored.id)).next_at == START + timedelta(seconds=20)


async def test_moving_into_the_past_means_now(world: World) -> None:
    """A timer in the past would overtake those that have waited longer."""
    stored = await world.submit(delay_s=500.0)
    await move(world, TimerChange(stored.id, run_at=START - timedelta(days=1)))
    assert (await world.read(stored.id)).next_at == START


async def test_a_new_priority_moves_the_task_to_its_lane_and_keeps_its_instant(
    world: World,
) -> None:
    """In the old lane it would still wait behind the old band; in no recorded place, for ever."""
    stored = await world.submit(delay_s=30.0)
    assert await move(world, TimerChange(stored.id, priority=9)) is ControlAnswer.MOVED
    task = await world.read(stored.id)
    assert (task.priority, task.next_at, task.fence) == (9, START + timedelta(seconds=30), 1)
    world.advance(30)
    (due,) = await world.due()
    assert (due.id, due.priority) == (stored.id, 9)


async def test_a_new_priority_survives_a_retry(world: World) -> None:
    """The task row still says the old one; the timer's word counts."""
    stored = await world.submit()
    await move(world, TimerChange(stored.id, priority=1))
    await world.run(stored.id, Outcome.RELEASED)
    (due,) = await world.due()
    assert (due.id, due.priority, due.queue) == (stored.id, 1, 6)


async def test_run_now_makes_a_future_task_due(world: World) -> None:
    """The button in the console must do what it says, at once."""
    stored = await world.submit(delay_s=86400.0)
    assert await move(world, run_now(stored.id)) is ControlAnswer.MOVED
    assert (await world.read(stored.id)).state is State.READY
    assert (await world.run(stored.id, Outcome.COMPLETED)).state is State.COMPLETED


async def test_run_now_between_attempts_ends_the_backoff(world: World) -> None:
    """The receiver was repaired, and the task need not wait an hour."""
    stored = await world.submit()
    await world.run(stored.id, Outcome.FAILED, retry_in_s=3600.0)
    await move(world, run_now(stored.id))
    assert (await world.lease(stored.id)).attempt == 2


async def test_a_running_task_is_not_moved(world: World) -> None:
    """Its `due_at` is the end of its lease; a new one would take it from its holder."""
    stored = await world.submit()
    lease = await world.lease(stored.id)
    before = await world.timer(stored.id)
    for change in (run_now(stored.id), TimerChange(stored.id, priority=9)):
        assert await move(world, change) is ControlAnswer.RUNNING
    assert await world.timer(stored.id) == before
    assert (await world.settle(lease, Outcome.COMPLETED)).state is State.COMPLETED


@pytest.mark.parametrize("outcome", TERMINAL)
async def test_an_ended_task_is_not_moved(world: World, outcome: Outcome) -> None:
    """A moved timer would be a revived task (I4)."""
    stored = await world.submit()
    await world.run(stored.id, outcome)
    assert await move(world, run_now(stored.id)) is ControlAnswer.ALREADY_TERMINAL
    assert await world.count("timers") == 0


async def test_many_tasks_in_many_states_are_answered_one_by_one(world: World) -> None:
    """A bulk cancel meets everything at once, some ids twice."""
    scheduled = await world.submit(delay_s=60.0)
    running = await world.submit()
    await world.lease(running.id)
    done = await world.submit()
    await world.run(done.id, Outcome.COMPLETED)
    ids = [running.id, done.id, scheduled.id, scheduled.id]
    assert await cancel_tasks(world.database, TENANT, ids) == {
        scheduled.id: ControlAnswer.CANCELLED,
        running.id: ControlAnswer.CANCEL_REQUESTED,
        done.id: ControlAnswer.ALREADY_TERMINAL,
    }
    assert await cancel_tasks(world.database, TENANT, []) == {}
