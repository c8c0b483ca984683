"""Expiry: a task that was to start by an instant is ended when that instant passes unstarted."""

from datetime import timedelta

from duly.domain.lanes import Ticket
from duly.domain.states import Outcome, State
from duly.domain.task import Policy
from duly.store.dead_letters import read_dead_letter
from duly.store.finish import finish_unstarted
from tests.store.world import START, TENANT, World

POLICY = Policy(start_by=START + timedelta(seconds=60))


async def test_a_task_not_started_in_time_fails_as_expired(world: World) -> None:
    """Yesterday's reminder must not go out today; and it must be seen that it did not."""
    stored = await world.submit(policy=POLICY, payload="1")
    ticket = await world.ticket(stored.id)
    world.advance(59.999)
    assert await finish_unstarted(world.database, [ticket]) == []
    world.advance(0.001)
    assert await finish_unstarted(world.database, [ticket]) == [stored.id]
    task = await world.read(stored.id)
    assert (task.state, task.reason, task.outcome, task.attempt) == (
        State.FAILED,
        "expired",
        "expired",
        0,
    )
    (record,) = await world.attempts(stored.id)
    assert (record.charged, record.holder, record.started_at) == (0, None, None)
    letter = await read_dead_letter(world.database, TENANT, stored.id)
    assert letter is not None
    assert (letter.id, letter.reason, letter.payload) == (stored.id, "expired", "1")


async def test_a_ticket_of_an_expired_task_is_void(world: World) -> None:
    """A ticket already in a lane must not start what was just ended (I4)."""
    stored = await world.submit(policy=POLICY)
    ticket = await world.ticket(stored.id)
    world.advance(60)
    await finish_unstarted(world.database, [ticket])
    assert await world.try_lease(ticket) is None
    assert await finish_unstarted(world.database, [ticket]) == []


async def test_a_started_task_does_not_expire_under_its_holder(world: World) -> None:
    """It did start in time; how long it runs is another limit."""
    stored = await world.submit(policy=POLICY)
    first = await world.ticket(stored.id)
    lease = await world.lease(stored.id)
    world.advance(61)
    tickets = [first, Ticket(stored.id, lease.fence)]
    assert await finish_unstarted(world.database, tickets[:1]) == []
    assert await finish_unstarted(world.database, tickets[1:]) == []
    assert (await world.settle(lease, Outcome.COMPLETED)).state is State.COMPLETED


async def test_a_stale_ticket_expires_nothing(world: World) -> None:
    """The row decides, not what somebody once read of it."""
    stored = await world.submit(policy=POLICY)
    old = await world.ticket(stored.id)
    await world.run(stored.id, Outcome.RELEASED)
    world.advance(61)
    assert await finish_unstarted(world.database, [old]) == []
    assert (await world.read(stored.id)).state is State.READY


async def test_a_task_without_a_limit_never_expires(world: World) -> None:
    """No limit is not a limit of zero."""
    stored = await world.submit()
    world.advance(10 * 365 * 86400)
    assert await finish_unstarted(world.database, [await world.ticket(stored.id)]) == []
