"""The ready state: timers in memory (loaded, ready, parked, ticketed), pools that wait for lanes.

Everything here is a cache of timer rows and may be thrown away at any time. No input or output:
the loader fills it, the dispatcher empties it. A task is known under its fence from its load until
its ticket is taken or void, so that a sweep, a doorbell and a load make one entry of it.
"""

from collections import Counter, deque
from collections.abc import Iterable
from uuid import UUID

import msgspec

from duly.domain.fairness import AGING_S, NONE_CLOSED, BandQueue, RoundRobin
from duly.domain.lanes import LANE_DEPTH_MAX, WEBHOOK_QUEUES, Lane, Ticket, queue_of
from duly.domain.task import BANDS, WEBHOOK_POOL
from duly.domain.wheel import Wheel
from duly.scheduler.lane_backpressure import LaneBackpressure, TenantPool
from duly.store.load import Cursor, DueTimer, TimerQueue

# Half of what a person could notice, and a start is at most this late because of it.
TICK_S = 0.005
# Entries of one timer queue in memory, and parked entries of one blocked key or pause.
QUEUE_ENTRIES_MAX = 20_000
PARKED_MAX = 64
# Why entries are parked: ("key", tenant, key), ("type", tenant, type), ("pool", tenant, pool), ...
BlockReason = tuple[str, int, str]


class ReadyTimer(msgspec.Struct, frozen=True, gc=False):
    due: DueTimer
    timer_queue: TimerQueue
    tenant_pool: TenantPool
    band: int
    fires_at: float


class ReadyState:
    def __init__(
        self, now: float, *, aging_s: float = AGING_S, lane_depth: int = LANE_DEPTH_MAX
    ) -> None:
        self.aging_s = aging_s
        # Of those who wait for a lane, how many come back at once: as many as it has room for.
        self.readmit_max = max(1, lane_depth // 2)
        self.weights: dict[int, float] = {}
        self.clear(now)

    def clear(self, now: float) -> None:
        """Forget everything, as after a change of owned slots: the loader starts over."""
        self.wheel: Wheel[ReadyTimer] = Wheel(int(now / TICK_S))
        self.queues: dict[TenantPool, BandQueue[ReadyTimer]] = {}
        self.turns: RoundRobin[TenantPool] = RoundRobin(self.weight_of)
        self.known: dict[UUID, ReadyTimer] = {}
        self.per_queue: dict[TimerQueue, int] = {}
        self.pools_and_bands: dict[TimerQueue, tuple[TenantPool, int]] = {}
        self.parked: dict[BlockReason, deque[ReadyTimer]] = {}
        # Parked work that was let go, the earliest of it in each queue; and which reasons have
        # since let all they had through.
        self.overflowed: dict[BlockReason, dict[TimerQueue, Cursor]] = {}
        self.drained: set[BlockReason] = set()
        self.blocked: set[TenantPool] = set()
        # Lanes and shared queues that are full; and their bands, by whose lanes they are.
        self.full: dict[Lane, int] = {}
        # How often a lane was closed so far: one that opened in between has another number.
        self.closings = 0
        self.closed: dict[TenantPool, frozenset[int]] = {}
        # Lanes with capacity again, for which pools still wait.
        self.opened: dict[Lane, None] = {}
        self.backpressure = LaneBackpressure()
        self.tickets: deque[tuple[float, list[Ticket]]] = deque()

    def sizes(self) -> dict[str, int]:
        """Of the timers in memory: those whose instant comes, and those that are due."""
        waiting = len(self.wheel)
        return {"waiting": waiting, "due": max(len(self.known) - waiting, 0)}

    def weight_of(self, tenant_pool: TenantPool) -> float:
        return self.weights.get(tenant_pool[0], 1.0)

    def room(self, timer_queue: TimerQueue) -> int:
        return QUEUE_ENTRIES_MAX - self.per_queue.get(timer_queue, 0)

    def add(self, timers: Iterable[DueTimer], timer_queue: TimerQueue, now: float) -> int:
        """Add timers of one queue; answers how many were not known already. What is due needs
        no wheel."""
        known, wheel = self.known, self.wheel
        tenant_pool, band = self.pool_and_band(timer_queue)
        ready: dict[int, list[tuple[float, ReadyTimer]]] = {}
        added = 0
        for due in timers:
            before = known.get(due.id)
            if before is not None and before.due.fence == due.fence:
                continue
            fires_at = due.due_at.timestamp()
            entry = known[due.id] = ReadyTimer(due, timer_queue, tenant_pool, band, fires_at)
            added += 1
            if fires_at <= now:
                ready.setdefault(due.priority, []).append((fires_at, entry))
            else:
                wheel.add(tick_of(fires_at), entry)
        if added:
            self.per_queue[timer_queue] = self.per_queue.get(timer_queue, 0) + added
        if ready:
            queue = self.queue_of(tenant_pool)
            for priority, entries in ready.items():
                queue.extend(band, priority, entries)
            self.join(tenant_pool, band)
        return added

    def pool_and_band(self, timer_queue: TimerQueue) -> tuple[TenantPool, int]:
        """Pool and band of all timers of a queue."""
        pool_and_band = self.pools_and_bands.get(timer_queue)
        if pool_and_band is None:
            pool, band = divmod(timer_queue.queue - 1, BANDS)
            pool_and_band = self.pools_and_bands[timer_queue] = (timer_queue.tenant, pool), band
        return pool_and_band

    def advance(self, now: float) -> int:
        """Move what has become due into the queues; answers how many."""
        entries = self.wheel.advance(int(now / TICK_S))
        for entry in entries:
            self.enqueue(entry)
        return len(entries)

    def enqueue(self, entry: ReadyTimer) -> None:
        queue = self.queue_of(entry.tenant_pool)
        queue.push(entry.band, entry.due.priority, entry.fires_at, entry)
        self.join(entry.tenant_pool, entry.band)

    def queue_of(self, tenant_pool: TenantPool) -> BandQueue[ReadyTimer]:
        queue = self.queues.get(tenant_pool)
        if queue is None:
            queue = self.queues[tenant_pool] = BandQueue(aging_s=self.aging_s)
        return queue

    def join(self, tenant_pool: TenantPool, band: int) -> None:
        """A pool has work in this band. If it waits for the lane of another band it gets a turn; if
        it waits for this one it is readmitted in order, also where the lane just got room."""
        if tenant_pool in self.blocked:
            return
        if tenant_pool in self.backpressure:
            is_awaited = self.backpressure.waits_for[tenant_pool].band == band
            if is_awaited or band in self.closed_bands(tenant_pool):
                return
            self.backpressure.release(tenant_pool)
        self.turns.join(tenant_pool)

    def next_ready(self, now: float) -> ReadyTimer | None:
        """The next task in fair order whose lane has room, taken out of its queue."""
        while (tenant_pool := self.next_pool()) is not None:
            queue = self.queues[tenant_pool]
            popped = queue.pop(now, self.closed_bands(tenant_pool))
            if popped is not None:
                return popped[2]
            self.turns.leave(tenant_pool)
            if waiting := queue.waiting():
                self.backpressure.hold(tenant_pool, self.full_lane(Lane(*tenant_pool, waiting[0])))
            else:
                self.backpressure.served(tenant_pool)
                del self.queues[tenant_pool]
        return None

    def closed_bands(self, tenant_pool: TenantPool) -> frozenset[int]:
        if not self.closed:
            return NONE_CLOSED
        closed = self.closed.get(tenant_pool, NONE_CLOSED)
        if tenant_pool[1] == WEBHOOK_POOL:
            closed |= self.closed.get(WEBHOOK_QUEUES, NONE_CLOSED)
        return closed

    def full_lane(self, lane: Lane) -> Lane:
        """The full lane that a task waits for: the queue that it shares, or the lane itself."""
        return queue if (queue := queue_of(lane)) in self.full else lane

    def next_pool(self) -> TenantPool | None:
        tenant_pool = self.turns.pick()
        if tenant_pool is None and self.may_readmit():
            self.readmit()
            tenant_pool = self.turns.pick()
        return tenant_pool

    def readmit(self) -> None:
        """Readmit some pools that wait for a lane with capacity; not only when no other pool
        has work."""
        for lane in list(self.opened):
            for tenant_pool in self.backpressure.readmit(lane, self.readmit_max):
                self.turns.join(tenant_pool, self.deficit_of(tenant_pool))
            if lane not in self.backpressure.queues:
                del self.opened[lane]

    def deficit_of(self, tenant_pool: TenantPool) -> float:
        """Deficit of a readmitted pool: with a weight below one a task needs several turns, which
        may have ended at a full lane."""
        weight, fruitless = self.weight_of(tenant_pool), self.backpressure.unserved[tenant_pool] - 1
        return min(fruitless * weight, 1.0) if weight < 1.0 else 0.0

    def close(self, lane: Lane) -> None:
        """Close a full lane: only its own tasks wait."""
        self.closings += 1
        self.full[lane] = self.closings
        self.opened.pop(lane, None)
        lanes = (lane.tenant, lane.pool)
        self.closed[lanes] = self.closed.get(lanes, NONE_CLOSED) | {lane.band}

    def open(self, lane: Lane) -> None:
        """Open a lane that has room again."""
        del self.full[lane]
        if lane in self.backpressure.queues:
            self.opened[lane] = None
        lanes = (lane.tenant, lane.pool)
        self.closed[lanes] -= {lane.band}
        if not self.closed[lanes]:
            del self.closed[lanes]

    def may_readmit(self) -> bool:
        """Whether a pool waits for a lane with capacity."""
        return bool(self.opened)

    def put_back(self, entry: ReadyTimer) -> None:
        """Put back a task that cannot be dispatched now: to the front, and its pool keeps its
        turn."""
        self.turns.take_back(entry.tenant_pool)
        queue = self.queues[entry.tenant_pool]
        queue.push_front(entry.band, entry.due.priority, entry.fires_at, entry)

    def block(self, tenant_pool: TenantPool) -> None:
        """Dispatch nothing of this pool until it is unblocked."""
        self.blocked.add(tenant_pool)
        self.turns.leave(tenant_pool)

    def unblock(self, tenant_pools: Iterable[TenantPool]) -> None:
        for tenant_pool in tenant_pools:
            if tenant_pool in self.blocked:
                self.blocked.discard(tenant_pool)
                if self.queues.get(tenant_pool):
                    self.turns.join(tenant_pool)

    def unblock_tenant(self, tenant: int) -> None:
        self.unblock([tenant_pool for tenant_pool in self.blocked if tenant_pool[0] == tenant])

    def park(self, reason: BlockReason, entry: ReadyTimer) -> None:
        """Set aside blocked work, so that it does not hide the work behind it. A bounded number
        stays in memory; the rest is loaded again from the database."""
        waiting = self.parked.setdefault(reason, deque())
        if len(waiting) < PARKED_MAX:
            waiting.append(entry)
            self.note_removed(entry.timer_queue)
        else:
            self.drained.discard(reason)
            timer_queues, before = self.overflowed.setdefault(reason, {}), just_before(entry.due)
            timer_queues[entry.timer_queue] = min(
                before, timer_queues.get(entry.timer_queue, before)
            )
            self.forget(entry)

    def unpark(self, reason: BlockReason, count: int) -> int:
        """Parked entries that may pass again go to the front of their queues, oldest first."""
        waiting = self.parked.get(reason)
        if not waiting:
            return 0
        chosen = [waiting.popleft() for _ in range(min(count, len(waiting)))]
        if not waiting:
            del self.parked[reason]
            if reason in self.overflowed:
                self.drained.add(reason)
        for entry in reversed(chosen):
            self.requeue(entry)
        return len(chosen)

    def queues_to_reload(self) -> dict[TimerQueue, Cursor]:
        """Queues, and from which cursor, with more work that is no longer blocked."""
        reloads: dict[TimerQueue, Cursor] = {}
        for reason in self.drained:
            for timer_queue, cursor in self.overflowed[reason].items():
                reloads[timer_queue] = min(cursor, reloads.get(timer_queue, cursor))
        return reloads

    def note_reloaded(self, timer_queue: TimerQueue, cursor: Cursor | None) -> None:
        """Everything in the queue up to the cursor (None: all) is loaded again; what is still
        blocked will be parked, and what is let go once more is let go from there."""
        for reason in list(self.drained):
            timer_queues = self.overflowed[reason]
            if cursor is None:
                timer_queues.pop(timer_queue, None)
            elif timer_queue in timer_queues:
                timer_queues[timer_queue] = max(timer_queues[timer_queue], cursor)
            if not timer_queues:
                del self.overflowed[reason]
                self.drained.discard(reason)

    def forget(self, entry: ReadyTimer) -> None:
        """Remove an entry from memory: its row remains."""
        self.known.pop(entry.due.id, None)
        self.note_removed(entry.timer_queue)

    def note_removed(self, timer_queue: TimerQueue, count: int = 1) -> None:
        left = self.per_queue.get(timer_queue, 0) - count
        if left > 0:
            self.per_queue[timer_queue] = left
        else:
            self.per_queue.pop(timer_queue, None)

    def ticketed(self, deadline: float, counts: Counter[TimerQueue], tickets: list[Ticket]) -> None:
        """Record published tickets: known until taken or void, and no longer counted as in
        memory."""
        for timer_queue, count in counts.items():
            self.note_removed(timer_queue, count)
        self.tickets.append((deadline, tickets))

    def take_back(self, tickets: list[Ticket], entries: list[ReadyTimer]) -> None:
        """Put back unpublished tickets: these entries go to the front of their queues,
        unless they were forgotten meanwhile; the others will be loaded again."""
        if self.tickets and self.tickets[-1][1] is tickets:
            self.tickets.pop()
        again = [entry for entry in entries if self.known.get(entry.due.id) is entry]
        self.taken(tickets)
        for entry in reversed(again):
            self.known[entry.due.id] = entry
            self.requeue(entry)

    def requeue(self, entry: ReadyTimer) -> None:
        self.per_queue[entry.timer_queue] = self.per_queue.get(entry.timer_queue, 0) + 1
        queue = self.queue_of(entry.tenant_pool)
        queue.push_front(entry.band, entry.due.priority, entry.fires_at, entry)
        self.join(entry.tenant_pool, entry.band)

    def taken(self, tickets: Iterable[Ticket]) -> list[ReadyTimer]:
        """Forget entries whose tickets left the lanes; answers those that were known."""
        known, taken = self.known, []
        for ticket in tickets:
            entry = known.get(ticket.id)
            if entry is not None and entry.due.fence == ticket.fence:
                del known[ticket.id]
                taken.append(entry)
        return taken

    def void_tickets(self, now: float) -> list[ReadyTimer]:
        """Tickets past their deadline; whatever is still due will be found by a sweep. Under
        another fence a task is known for another reason."""
        voided: list[ReadyTimer] = []
        while self.tickets and self.tickets[0][0] <= now:
            voided += self.taken(self.tickets.popleft()[1])
        return voided


def just_before(due: DueTimer) -> Cursor:
    """The cursor from which a load begins with this timer."""
    return Cursor(due.due_at, UUID(int=max(due.id.int - 1, 0)))


def tick_of(instant: float) -> int:
    """Rounded up: a slot becomes due only when every entry in it is."""
    return -int(-instant // TICK_S)
