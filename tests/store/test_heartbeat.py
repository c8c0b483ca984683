"""Heartbeats: they keep one's own lease alive, tell of a cancel, and never outlive the attempt."""

from datetime import timedelta
from uuid import uuid4

import pytest

from duly.domain.states import Outcome
from duly.domain.task import Policy
from duly.store.control import cancel_tasks
from duly.store.lease import Beat, HeartbeatResult, HeartbeatStatus, Lease, extend_leases
from tests.store.world import HOLDER, OTHER_HOLDER, START, TENANT, World

STALE = HeartbeatResult(HeartbeatStatus.STALE)


async def beat(
    world: World, lease: Lease, lease_s: float = 15.0, progress: str | None = None
) -> HeartbeatResult:
    beats = [Beat(lease.id, lease.fence, progress)]
    (answer,) = await extend_leases(world.database, HOLDER, beats, lease_s)
    return answer


async def test_a_heartbeat_extends_the_lease_and_leaves_the_next_look_alone(world: World) -> None:
    """Moving `due_at` too would cost two index entries for each heartbeat."""
    lease = await world.lease((await world.submit()).id)
    world.advance(10)
    until = START + timedelta(seconds=25)
    assert await beat(world, lease) == HeartbeatResult(HeartbeatStatus.HELD, until)
    timer = await world.timer(lease.id)
    assert timer is not None
    assert (timer["lease_until"], timer["due_at"]) == (until, START + timedelta(seconds=15))
    assert timer["confirmed"]


async def test_a_cancel_is_told_by_the_next_heartbeat(world: World) -> None:
    """The holder must learn it, and keep its lease to end in an orderly way."""
    lease = await world.lease((await world.submit()).id)
    await cancel_tasks(world.database, TENANT, [lease.id])
    world.advance(5)
    answer = await beat(world, lease)
    assert answer == HeartbeatResult(HeartbeatStatus.CANCEL, START + timedelta(seconds=20))


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.FAILED, Outcome.RELEASED])
async def test_a_heartbeat_after_the_end_is_stale(world: World, outcome: Outcome) -> None:
    """A holder that heartbeats an ended attempt must stop working (I3)."""
    lease = await world.lease((await world.submit()).id)
    await world.settle(lease, outcome)
    before = await world.timer(lease.id)
    assert await beat(world, lease) == STALE
    assert await world.timer(lease.id) == before


async def test_a_foreign_holder_or_fence_extends_nothing(world: World) -> None:
    """A zombie that extends somebody's lease keeps a dead worker's task from everybody (I3)."""
    lease = await world.lease((await world.submit()).id)
    before = await world.timer(lease.id)
    world.advance(5)
    mine = Beat(lease.id, lease.fence)
    assert await extend_leases(world.database, OTHER_HOLDER, [mine], 15.0) == [STALE]
    others = [Beat(lease.id, lease.fence - 1), Beat(lease.id, lease.fence + 1), Beat(uuid4(), 1)]
    assert await extend_leases(world.database, HOLDER, others, 15.0) == [STALE] * 3
    assert await world.timer(lease.id) == before


async def test_a_lease_is_never_extended_past_the_attempts_time_limit(world: World) -> None:
    """A handler that hangs and heartbeats for ever would hold its task for ever."""
    stored = await world.submit(policy=Policy(timeout_s=20.0))
    lease = await world.lease(stored.id)
    world.advance(12)
    limit = START + timedelta(seconds=20)
    assert await beat(world, lease) == HeartbeatResult(HeartbeatStatus.HELD, limit)
    world.advance(7.999)
    assert await beat(world, lease) == HeartbeatResult(HeartbeatStatus.HELD, limit)
    world.advance(0.001)
    assert await beat(world, lease) == STALE
    assert [answer.status for _, answer in (await world.reap()).lost] == ["settled"]


async def test_the_time_limit_counts_from_each_attempts_own_start(world: World) -> None:
    """A second attempt must have its whole time, whenever the first one began."""
    stored = await world.submit(policy=Policy(timeout_s=20.0))
    await world.run(stored.id, Outcome.RELEASED)
    world.advance(100)
    lease = await world.lease(stored.id)
    world.advance(10)
    answer = await beat(world, lease)
    assert answer.lease_until == START + timedelta(seconds=120)


async def test_a_lease_that_ran_out_and_was_not_reaped_can_still_be_kept(world: World) -> None:
    """The holder is alive after all; taking its work away would only repeat it."""
    lease = await world.lease((await world.submit()).id)
    world.advance(16)
    assert (await beat(world, lease)).status is HeartbeatStatus.HELD
    assert await world.reap() == ([], 1, 0)


async def test_progress_is_kept_for_the_next_attempt(world: World) -> None:
    """A long task resumes where its last holder was seen, not from the start."""
    lease = await world.lease((await world.submit()).id)
    await beat(world, lease, progress='{"row": 50}')
    await beat(world, lease)
    assert (await world.read(lease.id)).progress == '{"row": 50}'
    await world.settle(lease, Outcome.FAILED)
    world.advance(3600)
    assert (await world.lease(lease.id)).progress == '{"row": 50}'


async def test_beats_of_one_batch_are_answered_in_order(world: World) -> None:
    """A worker with fifty leases sends one request; each answer must find its lease."""
    leases = [await world.lease((await world.submit()).id) for _ in range(3)]
    await cancel_tasks(world.database, TENANT, [leases[1].id])
    beats = [Beat(lease.id, lease.fence, f'"{lease.id}"') for lease in reversed(leases)]
    beats.insert(1, Beat(leases[0].id, 77))
    beats.append(Beat(leases[0].id, leases[0].fence, '"the last word"'))
    answers = await extend_leases(world.database, HOLDER, beats, 15.0)
    assert [answer.status for answer in answers] == ["held", "stale", "cancel", "held", "held"]
    progress = [(await world.read(lease.id)).progress for lease in leases]
    assert progress == ['"the last word"', f'"{leases[1].id}"', f'"{leases[2].id}"']


async def test_no_beats_are_no_answers(world: World) -> None:
    """A worker without leases may ask all the same."""
    assert await extend_leases(world.database, HOLDER, [], 15.0) == []
