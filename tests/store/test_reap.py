"""Reaping: leases that ran out are taken back, charged, and ended when the rules say so."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from duly.domain.retry import POISON_LOSSES, RetryPolicy
from duly.domain.states import Outcome, State
from duly.domain.task import Policy
from duly.environment import CrashPoint, Environment
from duly.store.control import cancel_tasks
from duly.store.lease import Beat, HeartbeatStatus, Lease, extend_leases
from duly.store.reap import LOST_ERROR, reap_leases
from tests.store.world import HOLDER, OTHER_TENANT, START, TENANT, World, wish

STEADY = Policy(retry=RetryPolicy(max_attempts=10, jitter=False, initial_s=10.0, backoff="fixed"))


async def lose(world: World, lease: Lease, *, is_seen: bool) -> State | None:
    """Let a lease run out, after a heartbeat or without any."""
    if is_seen:
        await extend_leases(world.database, HOLDER, [Beat(lease.id, lease.fence)], 15.0)
    world.advance(16)
    # A lease that was extended is looked at twice: the first look only re-arms it.
    lost = (await world.reap()).lost or (await world.reap()).lost
    ((task_id, answer),) = lost
    assert task_id == lease.id
    return answer.state


async def test_a_lost_lease_is_charged_and_tried_again(world: World) -> None:
    """The attempt may have had its effect: not to charge it would promise one too many."""
    stored = await world.submit(policy=STEADY)
    lease = await world.lease(stored.id)
    world.advance(15)
    ((task_id, answer),) = (await world.reap()).lost
    assert task_id == stored.id
    assert (answer.state, answer.due_at) == (None, START + timedelta(seconds=25))
    task = await world.read(stored.id)
    assert (task.state, task.attempt, task.fence, task.holder) == (
        State.SCHEDULED,
        1,
        lease.fence + 1,
        None,
    )
    (record,) = await world.attempts(stored.id)
    assert (record.outcome, record.charged, record.holder) == ("lease_lost", 1, HOLDER)
    assert record.error == LOST_ERROR
    world.advance(10)
    assert (await world.lease(stored.id)).attempt == 2


async def test_a_lease_that_still_runs_is_left_alone(world: World) -> None:
    """Taken a moment too early, the task would have two holders (I2)."""
    lease = await world.lease((await world.submit()).id)
    world.advance(14.999)
    assert await world.reap() == ([], 0, 0)
    assert (await world.settle(lease, Outcome.COMPLETED)).state is State.COMPLETED


async def test_an_extended_lease_is_looked_at_again_when_it_really_ends(world: World) -> None:
    """Without a new instant the reaper would look at it for ever, or never again."""
    stored = await world.submit(policy=STEADY)
    lease = await world.lease(stored.id)
    world.advance(10)
    await extend_leases(world.database, HOLDER, [Beat(lease.id, lease.fence)], 15.0)
    world.advance(5)
    assert await world.reap() == ([], 1, 0)
    assert (await world.read(stored.id)).next_at == START + timedelta(seconds=25)
    assert await world.reap() == ([], 0, 0)
    world.advance(10)
    assert len((await world.reap()).lost) == 1


async def test_three_losses_of_a_task_seen_running_are_poison(world: World) -> None:
    """A task that kills its worker each time would take all workers down."""
    stored = await world.submit(policy=STEADY)
    for _ in range(POISON_LOSSES - 1):
        assert await lose(world, await world.lease(stored.id), is_seen=True) is None
        world.advance(10)
    assert await lose(world, await world.lease(stored.id), is_seen=True) is State.FAILED
    task = await world.read(stored.id)
    assert (task.state, task.reason, task.attempt) == (State.FAILED, "poison", 3)
    assert await world.count("dead_letters") == 1


async def test_losses_without_a_sign_of_life_are_not_the_tasks_fault(world: World) -> None:
    """Workers that die before they begin, in a bad night, must not condemn their tasks."""
    stored = await world.submit(policy=STEADY)
    for _ in range(5):
        assert await lose(world, await world.lease(stored.id), is_seen=False) is None
        world.advance(10)
    timer = await world.timer(stored.id)
    assert timer is not None
    assert timer["losses"] == 0


async def test_a_failure_in_between_breaks_the_row_of_losses(world: World) -> None:
    """Three in a row, not three in a life."""
    stored = await world.submit(policy=STEADY)
    for _ in range(POISON_LOSSES - 1):
        await lose(world, await world.lease(stored.id), is_seen=True)
        world.advance(10)
    await world.run(stored.id, Outcome.FAILED)
    world.advance(10)
    assert await lose(world, await world.lease(stored.id), is_seen=True) is None


async def test_the_last_attempt_lost_is_exhausted(world: World) -> None:
    """A lost lease is an attempt like any other."""
    stored = await world.submit(policy=Policy(retry=RetryPolicy(max_attempts=1)))
    assert await lose(world, await world.lease(stored.id), is_seen=False) is State.FAILED
    task = await world.read(stored.id)
    assert (task.reason, task.outcome, task.error) == ("exhausted", "lease_lost", LOST_ERROR)


@pytest.mark.parametrize("attempts_max", [1, 10])
async def test_a_lost_lease_with_a_requested_cancel_is_cancelled(
    world: World, attempts_max: int
) -> None:
    """The holder died without hearing of the cancel: no later retry all the same (I13)."""
    policy = Policy(retry=RetryPolicy(max_attempts=attempts_max))
    stored = await world.submit(policy=policy)
    lease = await world.lease(stored.id)
    await cancel_tasks(world.database, TENANT, [stored.id])
    assert await lose(world, lease, is_seen=False) is State.CANCELLED
    assert await world.count("timers") == await world.count("dead_letters") == 0


def between(act: Callable[[], Awaitable[object]], world: World) -> Environment:
    """An environment in which something happens after the reaper looked and before it acts."""

    async def crash_point(point: CrashPoint) -> None:
        if point is CrashPoint.REAP_BEFORE:
            await act()

    return replace(world.environment, crash_point=crash_point)


async def reap_while(world: World, lease: Lease, act: Callable[[], Awaitable[object]]) -> None:
    """Reap an expired lease while something else happens to it; the reaper must lose."""
    world.advance(16)
    places = [(TENANT, timer["shard"])] if (timer := await world.timer(lease.id)) else []
    reaped = await reap_leases(world.database, between(act, world), places, 100)
    assert reaped.lost == []


@pytest.mark.parametrize("attempts_max", [1, 10])
async def test_a_heartbeat_between_look_and_act_wins(world: World, attempts_max: int) -> None:
    """The holder is alive and was told so; taking its task would give it two holders (I2)."""
    policy = Policy(retry=RetryPolicy(max_attempts=attempts_max))
    lease = await world.lease((await world.submit(policy=policy)).id)

    async def beat() -> None:
        beats = [Beat(lease.id, lease.fence)]
        (answer,) = await extend_leases(world.database, HOLDER, beats, 15.0)
        assert answer.status is HeartbeatStatus.HELD

    await reap_while(world, lease, beat)
    assert (await world.read(lease.id)).state is State.RUNNING
    assert await world.attempts(lease.id) == []


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.RELEASED])
async def test_a_settlement_between_look_and_act_wins(world: World, outcome: Outcome) -> None:
    """The attempt is on record already; a second record would count it twice (I5)."""
    lease = await world.lease((await world.submit()).id)
    await reap_while(world, lease, lambda: world.settle(lease, outcome))
    assert [record.outcome for record in await world.attempts(lease.id)] == [outcome]


async def test_a_cancel_between_look_and_act_is_found_by_the_next_pass(world: World) -> None:
    """A retry decided before the cancel must not slip through after it (I13)."""
    lease = await world.lease((await world.submit()).id)
    await reap_while(world, lease, lambda: cancel_tasks(world.database, TENANT, [lease.id]))
    ((_, answer),) = (await world.reap()).lost
    assert answer.state is State.CANCELLED


async def test_two_reapers_take_a_lease_once(world: World) -> None:
    """Two nodes may believe that they own the slot."""
    lease = await world.lease((await world.submit()).id)
    await reap_while(world, lease, world.reap)
    assert len(await world.attempts(lease.id)) == 1


async def test_reaping_is_bounded_for_each_place_and_oldest_first(world: World) -> None:
    """One tenant's ten thousand dead leases must not hide another's single one."""
    await world.submitter.submit([wish(priority=number % 9) for number in range(5)])
    await world.submit(tenant=OTHER_TENANT)
    assert len(await world.lease_all()) == 6
    world.advance(16)
    first = await world.reap(limit=3)
    assert len(first.lost) == 4
    assert len((await world.reap(limit=3)).lost) == 2
