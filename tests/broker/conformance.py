"""What every carrier of the ready queue must do, whatever carries it. Nothing here names one."""

import asyncio
import time
from uuid import UUID

import pytest

from duly.broker.contract import Delivery
from duly.domain.lanes import TICKET_S, WEBHOOK_LANES, Lane, Ticket
from duly.domain.states import Outcome
from duly.events import TasksLeased
from duly.store.lease import Lease
from tests.broker.stage import (
    HIGH_LANE,
    LANE,
    WAIT_MAX_S,
    CountedStatements,
    Stage,
    ids,
    until,
)
from tests.store.world import HOLDER, LEASE_S, OTHER_HOLDER, OTHER_TENANT

MANY = 5_000
STATEMENTS_WHILE_WAITING_MAX = 10


class Conformance:
    """A carrier's test class inherits this; its `stage` fixture has a lease queue over it."""

    async def test_tickets_of_a_lane_come_oldest_first(self, stage: Stage) -> None:
        """A lane is already in fair order; a carrier that shuffles undoes it."""
        tickets = list(reversed(await stage.submit(6)))
        await stage.publish(tickets[:2])
        await stage.publish(tickets[2:])
        assert ids(await stage.lease(3)) == ids(tickets[:3])
        assert ids(await stage.lease(10)) == ids(tickets[3:])

    async def test_lanes_are_emptied_in_the_order_given(self, stage: Stage) -> None:
        """A consumer that names its high band first must not get the low one."""
        low, high = await stage.submit(3), await stage.submit(3)
        await stage.publish(low)
        await stage.publish(high, HIGH_LANE)
        assert ids(await stage.lease(4, HIGH_LANE, LANE)) == ids([*high, low[0]])
        await stage.publish(high, HIGH_LANE)
        assert ids(await stage.lease(1, LANE, HIGH_LANE)) == [low[1].id]

    async def test_a_publish_of_several_lanes_keeps_each_in_order(self, stage: Stage) -> None:
        """The scheduler publishes a whole round of tenants at once."""
        tickets = await stage.submit(6)
        lanes = [LANE, HIGH_LANE] * 3
        await stage.queue.publish(list(map(Delivery, lanes, tickets)))
        assert ids(await stage.lease(9, HIGH_LANE)) == ids(tickets[1::2])
        assert ids(await stage.lease(9, LANE)) == ids(tickets[0::2])

    async def test_never_more_leases_than_asked_for(self, stage: Stage) -> None:
        """A worker with one free hand that gets two leases loses one to the clock."""
        await stage.publish(await stage.submit(3))
        assert await stage.lease(0) == []
        assert len(await stage.lease(2)) == 2
        assert len(await stage.lease(2)) == 1

    async def test_a_lease_is_really_held(self, stage: Stage) -> None:
        """A lease that the row does not know lets a second holder in (I2)."""
        (ticket,) = await stage.submit(1)
        await stage.publish([ticket])
        (lease,) = await stage.lease(1)
        assert (lease.id, lease.fence, lease.attempt) == (ticket.id, 1, 1)
        timer = await stage.world.timer(ticket.id)
        assert timer is not None
        assert (timer["holder"], timer["fence"], timer["queue"]) == (HOLDER, lease.fence, 0)
        assert timer["lease_until"] == timer["due_at"] == lease.lease_until
        assert (lease.lease_until - lease.started_at).total_seconds() == LEASE_S

    async def test_a_repeated_ticket_becomes_one_lease(self, stage: Stage) -> None:
        """Every carrier repeats itself some day, also within one batch (I2)."""
        (ticket,) = await stage.submit(1)
        await stage.publish([ticket, ticket])
        await stage.publish([ticket, ticket])
        assert ids(await stage.lease(2)) == [ticket.id]
        assert await stage.lease(9, holder=OTHER_HOLDER) == []

    async def test_a_stale_ticket_is_gone_and_spoils_nothing(self, stage: Stage) -> None:
        """The fence has moved on: the ticket speaks of an attempt that is over."""
        stale, fresh = await stage.submit(2)
        # A short lease, so that its row is due again and only its holder speaks against taking it.
        assert await stage.world.try_lease(stale, OTHER_HOLDER, lease_s=1.0)
        stage.world.clock.advance(1.0)
        # The second knows the fence of the running lease, and must not be able to take it.
        await stage.publish([stale, stale._replace(fence=1), fresh])
        assert ids(await stage.lease(3)) == [fresh.id]
        timer = await stage.world.timer(stale.id)
        assert timer is not None
        assert (timer["holder"], timer["fence"]) == (OTHER_HOLDER, 1)
        assert stage.queue.depth(LANE) == 0

    async def test_a_ticket_from_before_a_retry_is_void(self, stage: Stage) -> None:
        """The row is free and due again, yet its accounts belong to another ticket (I2)."""
        (old,) = await stage.submit(1)
        await stage.world.run(old.id, Outcome.RELEASED)
        new = old._replace(fence=2)
        assert await stage.world.ticket(old.id) == Ticket(old.id, new.fence)
        await stage.publish([old])
        assert await stage.lease(1) == []
        await stage.publish([new])
        assert ids(await stage.lease(1)) == [old.id]

    async def test_a_ticket_past_its_deadline_is_void(self, stage: Stage) -> None:
        """Its scheduler may have been replaced, and the successor counts on it (I10)."""
        good, late = await stage.submit(2)
        await stage.publish([good])
        stage.world.clock.advance(TICKET_S - 0.001)
        assert ids(await stage.lease(1)) == [good.id]
        await stage.publish([late])
        stage.world.clock.advance(0.001)
        assert await stage.lease(1) == []
        assert (await stage.world.read(late.id)).holder is None

    async def test_no_lease_before_the_fire_time_by_the_databases_clock(self, stage: Stage) -> None:
        """A scheduler whose clock is fast publishes early (I12)."""
        (ticket,) = await stage.submit(1, delay_s=5.0)
        stage.world.node_clock.advance(3600)
        await stage.publish([ticket])
        assert await stage.lease(1) == []
        stage.world.clock.advance(5.0)
        await stage.publish([ticket])
        assert ids(await stage.lease(1)) == [ticket.id]

    async def test_an_empty_lane_costs_the_wait_and_little_else(self, stage: Stage) -> None:
        """A consumer that spins on an empty lane takes the processor from those with work."""
        with CountedStatements(stage.world.database) as statements:
            before = time.monotonic()
            assert await stage.lease(1, wait_s=0.4) == []
            waited_s = time.monotonic() - before
        assert 0.39 <= waited_s < 5.0
        assert statements.count <= STATEMENTS_WHILE_WAITING_MAX

    async def test_no_wait_asked_for_is_no_wait(self, stage: Stage) -> None:
        """A consumer with other lanes to look at must not be kept."""
        before = time.monotonic()
        assert await stage.lease(1, wait_s=0.0) == []
        assert time.monotonic() - before < 1.0

    async def test_a_waiting_consumer_gets_what_is_published(self, stage: Stage) -> None:
        """A lone task must not wait for anybody's next poll."""
        tickets = await stage.submit(2)
        consumer = await stage.wait_in_turn(2)
        before = time.monotonic()
        await stage.publish(tickets)
        assert ids(await consumer) == ids(tickets)
        assert time.monotonic() - before < 0.4
        assert stage.queue.waiting() == 0

    async def test_worthless_tickets_do_not_end_a_wait(self, stage: Stage) -> None:
        """Returning empty for each stale ticket would make the consumer spin."""
        stale, fresh = await stage.submit(2)
        await stage.world.try_lease(stale, OTHER_HOLDER)
        consumer = await stage.wait_in_turn(1)
        await stage.publish([stale])
        await until(lambda: stage.queue.depth(LANE) == 0 and stage.queue.waiting() == 1)
        await stage.publish([fresh])
        assert ids(await consumer) == [fresh.id]

    async def test_the_longest_waiting_is_served_first(self, stage: Stage) -> None:
        """A consumer that waits behind newcomers waits for ever."""
        tickets = await stage.submit(2)
        first = await stage.wait_in_turn(1)
        second = await stage.wait_in_turn(1)
        await stage.publish(tickets[:1])
        assert ids(await first) == [tickets[0].id]
        assert not second.done()
        await stage.publish(tickets[1:])
        assert ids(await second) == [tickets[1].id]

    @pytest.mark.parametrize("is_served", [False, True])
    async def test_a_cancelled_wait_loses_no_ticket(self, stage: Stage, is_served: bool) -> None:
        """A worker that hangs up takes with it what was meant for it, unless it is given back."""
        tickets = await stage.submit(2)
        leaving = await stage.wait_in_turn(2)
        staying = await stage.wait_in_turn(2)
        if not is_served:
            leaving.cancel()
            await asyncio.wait([leaving])
        await stage.publish(tickets)
        # It was woken by the publish, and has not run since.
        leaving.cancel()
        assert ids(await staying) == ids(tickets)
        with pytest.raises(asyncio.CancelledError):
            await leaving

    async def test_two_consumers_never_get_the_same_task(self, stage: Stage) -> None:
        """The whole point (I2), with every ticket repeated and the takers truly at once."""
        tickets = await stage.submit(300)
        await stage.publish([ticket for ticket in tickets for _ in range(2)])

        async def drain(holder: UUID) -> list[Lease]:
            had: list[Lease] = []
            while more := await stage.lease(7, holder=holder):
                had += more
            return had

        parts = await asyncio.gather(*(drain(UUID(int=number)) for number in range(1, 7)))
        had = sorted(lease.id for part in parts for lease in part)
        # A taker may meet repeats only, and stop; whatever is left is still there.
        had += sorted(lease.id for lease in await drain_all(stage))
        assert sorted(had) == sorted(ids(tickets))

    async def test_a_wipe_loses_nothing(self, stage: Stage) -> None:
        """The queue is a cache: without it work is late, not lost (I11)."""
        tickets = await stage.submit(20)
        before = await stage.timers()
        await stage.publish(tickets)
        await stage.queue.purge()
        await stage.queue.refresh([LANE])
        assert stage.queue.depth(LANE) == 0
        assert await stage.lease(20) == []
        assert await stage.timers() == before
        await stage.publish(tickets)
        assert ids(await stage.lease(20)) == ids(tickets)

    async def test_a_large_publish_is_carried_whole(self, stage: Stage) -> None:
        """A herd of one instant arrives as one publish."""
        tickets = await stage.submit(MANY)
        await stage.publish(tickets)
        await stage.queue.refresh([LANE])
        assert stage.queue.depth(LANE) == MANY
        leases = await stage.lease(MANY)
        while len(leases) < MANY:
            # A broker on a busy machine hands over a large queue in parts.
            more = await stage.lease(MANY - len(leases), wait_s=WAIT_MAX_S)
            assert more
            leases += more
        assert ids(leases) == ids(tickets)
        assert stage.queue.depth(LANE) == 0

    async def test_a_lane_of_another_tenant_is_not_touched(self, stage: Stage) -> None:
        """One tenant's worker must never see another tenant's work (I9)."""
        theirs = Lane(OTHER_TENANT, LANE.pool, LANE.band)
        tickets = await stage.submit(2, tenant=OTHER_TENANT)
        consumer = await stage.wait_in_turn(1)
        await stage.publish(tickets, theirs)
        assert await stage.lease(9, LANE, HIGH_LANE) == []
        assert not consumer.done()
        consumer.cancel()
        await asyncio.wait([consumer])
        # Nor may theirs, which are older, stand in the way of one's own.
        mine = await stage.submit(1)
        await stage.publish(mine)
        assert ids(await stage.lease(1)) == ids(mine)
        assert stage.queue.depth(theirs) == 2
        assert ids(await stage.lease(9, theirs)) == ids(tickets)

    async def test_tickets_that_nobody_took_are_let_go(self, stage: Stage) -> None:
        """Void tickets that fill a lane keep fresh ones out of it."""
        old = await stage.submit(3)
        await stage.publish(old)
        stage.world.advance(TICKET_S)
        fresh = await stage.submit(2)
        await stage.publish(fresh)
        await stage.queue.refresh([LANE, HIGH_LANE])
        assert stage.queue.depth(LANE) == 2
        assert ids(await stage.lease(9)) == ids(fresh)

    async def test_the_scheduler_learns_what_was_taken_and_leased(self, stage: Stage) -> None:
        """Without it, caps are only corrected by the next look at the database."""
        told: list[TasksLeased] = []
        stage.queue.events.subscribe(TasksLeased, told.append)
        stale, fresh = await stage.submit(2)
        await stage.world.try_lease(stale, OTHER_HOLDER)
        await stage.publish([stale, fresh])
        leases = await stage.lease(2)
        assert told == [TasksLeased([stale, fresh], leases)]

    async def test_closing_sends_waiting_consumers_home(self, stage: Stage) -> None:
        """A process that stops must not wait for its longest poll."""
        consumers = [await stage.wait_in_turn(1), await stage.wait_in_turn(1)]
        await stage.queue.close()
        assert await asyncio.gather(*consumers) == [[], []]
        assert stage.queue.waiting() == 0

    async def test_a_reserved_consumer_gets_what_was_stored_for_it(self, stage: Stage) -> None:
        """Its lease came with the task: asking for one more would be a second commit."""
        consumer = await stage.wait_in_turn(2, LANE)
        reserved = stage.queue.reserve(LANE, 2)
        assert reserved is not None
        assert (reserved.holder, reserved.lease_s, stage.queue.waiting()) == (HOLDER, LEASE_S, 0)
        tickets = await stage.submit(2)
        leases = [lease for ticket in tickets if (lease := await stage.world.try_lease(ticket))]
        reserved.take(leases)
        assert await consumer == leases

    async def test_a_reserved_consumer_is_handed_no_ticket(self, stage: Stage) -> None:
        """With one free hand it would get two tasks, and lose one to the clock."""
        first = await stage.wait_in_turn(1, LANE)
        reserved = stage.queue.reserve(LANE, 1)
        assert reserved is not None
        (stored, published) = await stage.submit(2)
        await stage.publish([published])
        second = stage.wait_or_take(1, LANE)
        assert ids(await second) == [published.id]
        assert not first.done()
        lease = await stage.world.try_lease(stored)
        assert lease is not None
        reserved.take([lease])
        assert await first == [lease]

    async def test_a_reserved_consumer_that_gets_nothing_waits_on(self, stage: Stage) -> None:
        """The submit that reserved it stored nothing: it still wants the next ticket."""
        consumer = await stage.wait_in_turn(1, LANE)
        reserved = stage.queue.reserve(LANE, 1)
        assert reserved is not None
        reserved.take([])
        await until(lambda: stage.queue.waiting() == 1)
        (ticket,) = await stage.submit(1)
        await stage.publish([ticket])
        assert ids(await consumer) == [ticket.id]

    async def test_a_reserved_consumer_outlasts_its_time(self, stage: Stage) -> None:
        """Out of time while the statement is under way: a lease of its would have no holder."""
        consumer = asyncio.create_task(stage.lease(1, LANE, wait_s=0.3))
        await until(lambda: stage.queue.waiting() == 1)
        reserved = stage.queue.reserve(LANE, 1)
        assert reserved is not None
        await asyncio.sleep(0.4)
        assert not consumer.done()
        (ticket,) = await stage.submit(1)
        lease = await stage.world.try_lease(ticket)
        assert lease is not None
        reserved.take([lease])
        assert await consumer == [lease]

    async def test_a_reserved_consumer_may_leave(self, stage: Stage) -> None:
        """Cancelled meanwhile: whoever reserved it is not disturbed, and what it got runs out."""
        consumer = await stage.wait_in_turn(1, LANE)
        reserved = stage.queue.reserve(LANE, 1)
        assert reserved is not None
        consumer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consumer
        reserved.take([])
        assert stage.queue.waiting() == 0

    async def test_the_last_consumer_of_a_shared_lane_stays_free(self, stage: Stage) -> None:
        """One tenant's submit that hangs would keep everybody's webhooks waiting."""
        (shared, *_) = WEBHOOK_LANES
        first = await stage.wait_in_turn(1, shared)
        assert stage.queue.reserve(shared, 1) is None
        second = await stage.wait_in_turn(1, shared)
        reserved = stage.queue.reserve(shared, 1)
        assert reserved is not None
        assert stage.queue.reserve(shared, 1) is None
        reserved.take([])
        await stage.queue.close()
        assert await first == await second == []

    async def test_only_who_waits_for_the_lane_with_room_is_reserved(self, stage: Stage) -> None:
        """Another tenant's worker must never get it (I9), nor one with too few reserved."""
        consumer = await stage.wait_in_turn(2, HIGH_LANE)
        assert stage.queue.reserve(LANE, 1) is None
        assert stage.queue.reserve(Lane(OTHER_TENANT, 1, 0), 1) is None
        assert stage.queue.reserve(HIGH_LANE, 3) is None
        await stage.queue.close()
        assert await consumer == []
        assert stage.queue.reserve(HIGH_LANE, 1) is None


async def drain_all(stage: Stage) -> list[Lease]:
    """A carrier may deliver the rest only once the first is acknowledged."""
    had: list[Lease] = []
    await stage.queue.refresh([LANE])
    while stage.queue.depth(LANE):
        had += await stage.lease(100, wait_s=0.05)
        await stage.queue.refresh([LANE])
    return had
