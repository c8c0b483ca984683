"""The dispatcher: fair order, gates, tickets with a deadline, backpressure from full lanes.

| event | what happens |
|---|---|
| a lane has no consumer | it fills to its bound; its tasks wait in their rows |
| a ticket is lost or its consumer dies | void at its deadline; the sweep finds the task again |
| a key, a pause or a breaker blocks | parked aside, so that it cannot hide the work behind it |
| pauses and caps are not known yet | nothing is dispatched |
| the slot was lost | the entry is forgotten: its new owner loads it |
| it may have been lost, in an outage | nothing is dispatched, or forgotten, until that is known |
| publish fails | void in time, and found again by the sweep; the role backs off |
| the carrier is down, or blocks publishers | entries keep their places until it is up again |
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from uuid import UUID

from duly.broker.contract import Delivery
from duly.broker.lease_queue import LeaseQueue
from duly.coordinator.ownership import Coordinator
from duly.domain.errors import CarrierUnavailable
from duly.domain.gates import Gate, Refusal
from duly.domain.ids import shard_of
from duly.domain.lanes import (
    LANE_DEPTH_MAX,
    TICKET_S,
    Lane,
    Ticket,
    depth_max,
    is_open_again,
    queue_of,
)
from duly.domain.task import WEBHOOK_POOL
from duly.environment import Environment
from duly.events import (
    SettlementsReplayed,
    SlotsChanged,
    TasksFinished,
    TasksLeased,
    TasksRescheduled,
)
from duly.scheduler.database_time import DatabaseTime
from duly.scheduler.gatekeeper import Gatekeeper
from duly.scheduler.in_flight import Charge, key_of
from duly.scheduler.lane_backpressure import TenantPool
from duly.scheduler.ready_state import TICK_S, BlockReason, ReadyState, ReadyTimer
from duly.scheduler.wakeups import SchedulerWakeups
from duly.store.load import TimerQueue
from duly.store.task_metrics import note_ready_waits
from duly.telemetry import Metrics

Expect = Callable[[TimerQueue, datetime], None]
# Tickets of one publish.
DISPATCH_MAX = 400
# Fewer of one timer queue are not worth an expiry batch.
IN_PLACE_MIN = 16
IDLE_S = 1.0
# Void tickets that are remembered, to tell what is published again.
VOIDED_MAX = 100_000
# A full lane is asked about this often, unless its consumer is in this process and tells.
FULL_POLL_S = 0.05
# After an outage the first dispatch waits for the coordinator's word, or for the carrier.
UNCERTAIN_POLL_S = 0.1
# Gates that hold a task back without counting it: tasks with the same concurrency key need not wait
# for it.
PASSED_ON = frozenset({Gate.PAUSED, Gate.EXPIRED, Gate.BREAKER})


@dataclass(slots=True)
class LaneCapacity:
    """During one round: how many tickets a lane has, and how many it may have."""

    depth: int
    most: int


class Dispatcher:
    """A role: each tick publishes one bounded batch of what is due."""

    name = "dispatcher"

    def __init__(
        self,
        environment: Environment,
        coordinator: Coordinator,
        ready_state: ReadyState,
        time: DatabaseTime,
        lease_queue: LeaseQueue,
        metrics: Metrics,
        gatekeeper: Gatekeeper,
        wakeups: SchedulerWakeups,
        reload_from: Expect,
        lane_depth: int = LANE_DEPTH_MAX,
    ) -> None:
        self.environment = environment
        self.coordinator = coordinator
        self.ready_state = ready_state
        self.time = time
        self.lease_queue = lease_queue
        self.metrics = metrics
        self.lane_depth = lane_depth
        self.gatekeeper = gatekeeper
        self.counts = gatekeeper.counts
        self.scope = gatekeeper.scope
        self.wakeups = wakeups
        self.wakeup = wakeups.dispatcher
        # Makes the loader load a queue again from that instant.
        self.reload_from = reload_from
        # To be finished as expired, each with its tenant.
        self.expired: list[tuple[int, Ticket]] = []
        self.has_parked = False
        # While a lane is full, when its depth is asked about again, by the node's monotonic clock.
        self.refresh_at = -math.inf
        # When the next parked hand-over is to be looked at.
        self.transfer_at = math.inf
        # Members that wait for an instant: a refilled bucket, a hand-over.
        self.until: dict[TenantPool, float] = {}
        # Lanes that were ever used, by (tenant, pool, band).
        self.lanes: dict[tuple[int, int, int], Lane] = {}
        # Tickets that expired unleased, by task and fence: the next one is a republication.
        self.voided: dict[UUID, int] = {}

    @property
    def is_informed(self) -> bool:
        """Until pauses, caps and the time are known, nothing is dispatched."""
        return self.time.is_known and self.gatekeeper.is_informed

    async def tick(self) -> float:
        if not self.is_informed:
            return IDLE_S
        if not self.coordinator.is_trusted or not self.lease_queue.is_up:
            return UNCERTAIN_POLL_S
        now = self.time.now()
        moment = self.environment.clock.monotonic()
        if self.void_tickets(now) or (self.ready_state.full and moment >= self.refresh_at):
            # Others take from the lanes too, and void tickets lie in them: ask how deep they are.
            self.refresh_at = moment + FULL_POLL_S
            await self.lease_queue.refresh(sorted(set(map(queue_of, self.lanes.values()))))
        self.reopen(now)
        self.ready_state.advance(now)
        chosen = self.choose(now)
        try:
            if chosen:
                await self.publish(now, chosen)
        except CarrierUnavailable:
            return UNCERTAIN_POLL_S
        if chosen or self.has_parked:
            # There is room in memory for what lies behind.
            self.has_parked = False
            self.wakeups.loader.wake()
        return self.pause_s(self.time.now(), is_full=len(chosen) == DISPATCH_MAX)

    def is_idle(self) -> bool:
        """Whether no task that could be dispatched waits for its turn."""
        return (
            self.is_informed and not self.ready_state.turns and not self.ready_state.may_readmit()
        )

    async def close(self) -> None:
        """Tickets that are out stay valid until their deadline; there is nothing to take back."""

    def choose(self, now: float) -> list[tuple[Lane, ReadyTimer]]:
        """The next tasks in fair order that pass every gate."""
        chosen: list[tuple[Lane, ReadyTimer]] = []
        rooms: dict[Lane, LaneCapacity] = {}
        self.ready_state.readmit()
        # By timer queue, as all of its tasks share a lane; None if its slot is not ours.
        lanes: dict[TimerQueue, Lane | None] = {}
        gatekeeper, backpressure = self.gatekeeper, self.ready_state.backpressure
        while len(chosen) < DISPATCH_MAX:
            entry = self.ready_state.next_ready(now)
            if entry is None:
                break
            due, timer_queue = entry.due, entry.timer_queue
            if timer_queue not in lanes:
                is_ours = self.scope.includes(timer_queue.tenant, timer_queue.shard)
                lanes[timer_queue] = self.lane_of(entry) if is_ours else None
            lane = lanes[timer_queue]
            if lane is None:
                self.ready_state.forget(entry)
                continue
            room = rooms.get(lane)
            if room is None:
                room = rooms[lane] = self.capacity_of(lane, len(chosen))
            if room.depth >= room.most or not gatekeeper.is_ungated(due.tenant, due):
                refusal = gatekeeper.ask(entry, room.depth, room.most)
                if refusal is not None:
                    self.apply_refusal(entry, lane if room.most else queue_of(lane), refusal)
                    continue
                if gatekeeper.is_counted(due):
                    self.counts.ticketed(due, now + TICKET_S)
            room.depth += 1
            # What was held back or let go is no turn.
            if backpressure.unserved:
                backpressure.served(entry.tenant_pool)
            chosen.append((lane, entry))
        return chosen

    def lane_of(self, entry: ReadyTimer) -> Lane:
        """The lane of an entry; each lane object is made once."""
        key = (*entry.tenant_pool, entry.band)
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(*key)
        return lane

    def capacity_of(self, lane: Lane, chosen: int) -> LaneCapacity:
        """Capacity of a lane after `chosen` tickets of this round, not yet in the lease queue."""
        queue_depth = self.lease_queue.depth(queue_of(lane)) + chosen
        most = depth_max(lane, self.weight_of(lane), queue_depth, self.lane_depth)
        return LaneCapacity(self.lease_queue.depth(lane), most)

    def weight_of(self, lane: Lane) -> float:
        return self.ready_state.weight_of((lane.tenant, lane.pool))

    async def publish(self, now: float, chosen: Sequence[tuple[Lane, ReadyTimer]]) -> None:
        deadline_s = now + TICKET_S
        deadline = datetime.fromtimestamp(deadline_s, UTC)
        counts = Counter([entry.timer_queue for _, entry in chosen])
        staying = {
            timer_queue
            for timer_queue, count in counts.items()
            if self.in_place_allowed(timer_queue, count)
        }
        tickets = [
            Ticket(
                (due := entry.due).id,
                due.fence,
                deadline,
                entry.timer_queue in staying and due.concurrency_key is None,
                entry.fires_at,
            )
            for _, entry in chosen
        ]
        self.ready_state.ticketed(deadline_s, counts, tickets)
        try:
            await self.lease_queue.publish(
                [Delivery(lane, ticket) for (lane, _), ticket in zip(chosen, tickets, strict=True)]
            )
        except CarrierUnavailable:
            # Of a task that was published after all, the row takes one of two tickets. What counts
            # against a cap counts until its ticket must be void.
            kept = [entry for _, entry in chosen if entry.due.id not in self.counts.tickets]
            self.ready_state.take_back(tickets, kept)
            raise
        except BaseException:
            # Whatever became of them, they are void in time and found again by the sweep. They may
            # be loaded again; in the accounts they count until they must be void.
            self.ready_state.taken(tickets)
            raise
        again = self.count_republished(tickets) if self.voided else 0
        self.metrics.dispatched.add(len(chosen) - again)
        self.metrics.republished.add(again)

    def count_republished(self, tickets: Iterable[Ticket]) -> int:
        """How many of these replace a ticket of the same fence that became void in this process."""
        return sum(self.voided.pop(ticket.id, None) == ticket.fence for ticket in tickets)

    def in_place_allowed(self, timer_queue: TimerQueue, count: int) -> bool:
        """Whether the leases of tasks without a key may leave their rows where they are: many of
        one queue, which share an expiry batch, which no cap counts. Those of users' workers are
        looked for by their holder."""
        return (
            count >= IN_PLACE_MIN
            and timer_queue.tenant not in self.gatekeeper.bounds.capped
            and self.ready_state.pool_and_band(timer_queue)[0][1] == WEBHOOK_POOL
        )

    def apply_refusal(self, entry: ReadyTimer, lane: Lane, refusal: Refusal) -> None:
        """Let a refused task wait as its gate wants, without blocking another tenant."""
        self.metrics.refused.add(1, refusal.gate.value)
        match refusal.gate:
            case Gate.EXPIRED:
                self.expired.append((entry.due.tenant, Ticket(entry.due.id, entry.due.fence)))
                self.ready_state.forget(entry)
            case Gate.LANE_FULL:
                self.ready_state.put_back(entry)
                self.ready_state.close(lane)
            case Gate.TENANT_RATE:
                self.ready_state.put_back(entry)
                self.block_until(entry.tenant_pool, refusal)
            case Gate.TENANT_IN_FLIGHT:
                self.ready_state.put_back(entry)
                self.ready_state.block(entry.tenant_pool)
            case _:
                self.ready_state.park(block_reason_of(entry, refusal.gate), entry)
                self.has_parked = True
                if refusal.gate is Gate.OWNERSHIP_TRANSFER and refusal.until is not None:
                    self.transfer_at = min(self.transfer_at, refusal.until.timestamp())
        if refusal.gate in PASSED_ON and entry.due.concurrency_key is not None:
            # It was let through for its key and does not use it: the next one may.
            self.ready_state.unpark(block_reason_of(entry, Gate.CONCURRENCY_KEY), 1)

    def block_until(self, tenant_pool: TenantPool, refusal: Refusal) -> None:
        assert refusal.until is not None
        self.until[tenant_pool] = refusal.until.timestamp()
        self.ready_state.block(tenant_pool)

    def reopen(self, now: float) -> None:
        """Readmit pools that waited for this instant, or for capacity in a lane."""
        if self.transfer_at <= now:
            # The old tickets are void; now their leases can be counted.
            self.transfer_at = math.inf
            self.wakeups.reaper.wake()
        passed = [tenant_pool for tenant_pool, until in self.until.items() if until <= now]
        for tenant_pool in passed:
            del self.until[tenant_pool]
        self.ready_state.unblock(passed)
        for lane in [*self.ready_state.full]:
            depth, queue_depth = (
                self.lease_queue.depth(lane),
                self.lease_queue.depth(queue_of(lane)),
            )
            if is_open_again(lane, self.weight_of(lane), depth, queue_depth, self.lane_depth):
                self.ready_state.open(lane)

    def release_parked(self) -> None:
        """Unpark everything that bounds or time held back: the gates judge it again."""
        for reason in [o for o in self.ready_state.parked if o[0] != Gate.CONCURRENCY_KEY]:
            self.ready_state.unpark(reason, len(self.ready_state.parked[reason]))
        self.ready_state.unblock(list(self.ready_state.blocked))
        self.until.clear()

    def void_tickets(self, now: float) -> bool:
        self.counts.pass_deadlines(now)
        voided = self.ready_state.void_tickets(now)
        for entry in voided:
            # Last, whenever it was there before.
            self.voided.pop(entry.due.id, None)
            self.voided[entry.due.id] = entry.due.fence
        for task_id in [*islice(self.voided, max(len(self.voided) - VOIDED_MAX, 0))]:
            del self.voided[task_id]
        return bool(voided)

    def on_leased(self, event: TasksLeased) -> None:
        """What became of the tickets of this process's consumers. One that was not leased was
        stale, or a moment early: its queue is loaded again."""
        tickets, leases = event.tickets, event.leases
        if not tickets:
            # Direct leases were ready for no time at all, and that counts, too.
            note_ready_waits(self.metrics, [(lease.priority, 0.0) for lease in leases])
            return
        is_whole = len(leases) == len(tickets)
        leased = None if is_whole and not self.counts.tickets else {each.id for each in leases}
        if leased is not None:
            self.count_taken(tickets, leased)
        self.ready_state.taken(tickets)
        if leases:
            # They became leases in one statement.
            started_at = leases[0].started_at.timestamp()
            if not is_whole:
                by_id = {ticket.id: ticket for ticket in tickets}
                tickets = [by_id[lease.id] for lease in leases]
            waits = [
                (lease.priority, started_at - ticket.fires_at)
                for lease, ticket in zip(leases, tickets, strict=True)
                if ticket.fires_at is not None
            ]
            note_ready_waits(self.metrics, waits)
        if self.ready_state.full or self.ready_state.turns:
            self.wakeup.wake()

    def count_taken(self, tickets: Iterable[Ticket], leased: set[UUID]) -> None:
        """Count tickets that became leases as such. One that became none counts on: the carrier may
        deliver it again before its deadline."""
        for ticket in tickets:
            if ticket.id in leased:
                self.counts.leased(ticket.id, ticket.fence)
                continue
            entry = self.ready_state.known.get(ticket.id)
            if entry is None:
                continue
            self.reload_from(entry.timer_queue, entry.due.due_at)
            wasted = map(self.gatekeeper.probes.wasted, self.gatekeeper.breakers_of(entry))
            if sum(wasted):
                # Cancelled while it was parked: its receiver was not asked, so the next one is.
                self.ready_state.unpark(block_reason_of(entry, Gate.BREAKER), 1)

    def on_ended(self, event: TasksFinished | TasksRescheduled | SettlementsReplayed) -> None:
        """Leases ended in this process: their caps have room."""
        if event.ended and (self.counts.leases or self.counts.tickets):
            self.free((task.id, task.fence) for task in event.ended)

    def free(self, leases: Iterable[tuple[UUID, int]]) -> None:
        """Free the capacity of leases that ended, as (id, fence)."""
        freed = [self.counts.settled(task_id, fence) for task_id, fence in leases]
        self.free_capacity([charge for charge in freed if charge is not None])
        self.wakeup.wake()

    def capped_shards(self, timer_queues: Iterable[TimerQueue]) -> list[tuple[int, int]]:
        """Shards whose leases count: those of capped tenants, and those where keys were seen."""
        capped = self.gatekeeper.bounds.capped
        return sorted(
            {(p.tenant, p.shard) for p in timer_queues if p.tenant in capped}
            | self.gatekeeper.keyed
        )

    def free_capacity(self, freed: Iterable[Charge]) -> None:
        for charge in freed:
            if charge.key is not None:
                self.ready_state.unpark((Gate.CONCURRENCY_KEY, charge.tenant, charge.key[1]), 1)
            self.ready_state.unblock_tenant(charge.tenant)

    def counted(self, shards: Iterable[tuple[int, int]], asked_at: float) -> None:
        """Record that the leases of these shards were counted: hand-overs may be complete."""
        self.gatekeeper.counted_at.update(dict.fromkeys(shards, asked_at))
        for reason in [o for o in self.ready_state.parked if o[0] == Gate.OWNERSHIP_TRANSFER]:
            self.ready_state.unpark(reason, len(self.ready_state.parked[reason]))
        self.wakeup.wake()

    def on_slots(self, _event: SlotsChanged) -> None:
        self.forget_foreign()

    def on_limits(self) -> None:
        """Pauses, caps, rates or breakers may have changed: the gates judge everything again."""
        self.forget_foreign()
        self.release_parked()
        self.show_gauges()
        self.wakeup.wake()

    def forget_foreign(self) -> None:
        """Another node counts what is in flight of the queues that it dispatches."""
        self.counts.forget(
            lambda task_id, tenant: not self.scope.includes(tenant, shard_of(task_id))
        )
        self.gatekeeper.forget_foreign()

    def show_gauges(self) -> None:
        """Show the depth of the lanes, as far as this process knows."""
        tenants = self.gatekeeper.bounds.tenants
        names = {tenant.id: tenant.name for tenant in tenants.values()}
        depths: dict[tuple[str, int], float] = {}
        for lane in set(self.lanes.values()):
            pair = (names.get(lane.tenant, str(lane.tenant)), lane.band)
            depths[pair] = depths.get(pair, 0.0) + self.lease_queue.depth(lane)
        self.metrics.show_lane_depth({pair: depth for pair, depth in depths.items() if depth})

    def pause_s(self, now: float, *, is_full: bool) -> float:
        if is_full or self.ready_state.turns or self.ready_state.may_readmit():
            return 0.0
        waits = [FULL_POLL_S if self.ready_state.full else IDLE_S]
        tick = self.ready_state.wheel.next_tick()
        if tick is not None:
            waits.append(tick * TICK_S - now)
        waits.append(self.transfer_at - now)
        if self.until:
            waits.append(min(self.until.values()) - now)
        if self.ready_state.tickets:
            waits.append(self.ready_state.tickets[0][0] - now)
        return max(0.0, min(waits))


def block_reason_of(entry: ReadyTimer, gate: Gate) -> BlockReason:
    """Why an entry is blocked: its concurrency key, a pause of its type, a breaker of its host."""
    due = entry.due
    match gate:
        case Gate.CONCURRENCY_KEY:
            key = key_of(due)
            assert key is not None
            return gate.value, due.tenant, key[1]
        case Gate.BREAKER:
            return gate.value, due.tenant, due.host or f"{due.type}|{entry.tenant_pool[1]}"
        case Gate.PAUSED:
            return gate.value, due.tenant, f"{due.type}|{entry.tenant_pool[1]}"
        case _:
            return gate.value, due.tenant, ""
