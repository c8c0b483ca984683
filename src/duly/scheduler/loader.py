"""The loader: timers due within the horizon go to the ready state, queue by queue, from cursors and
from sweeps.

| event | what happens |
|---|---|
| a doorbell is lost | the next load from the cursor, or the sweep, finds the timer |
| a doorbell brings a timer of a queue that is being read | kept until all before it is read |
| it brings only a hint | read once more, from there; before the last page, the sweep finds it |
| a transaction commits late | loads overlap back to the oldest writer; the sweep finds the rest |
| a page ends inside a burst | the cursor is (due_at, id), so the next page goes on there |
| parked work was let go | read again from the first of it, once what blocked it lets work through |
| blocked work fills the first page | the sweep goes on behind it, a page at a time |
| a slot is gained or lost | the ready state is cleared and every queue starts from the beginning |
| a tenant gets or loses a cap or a rate | its queues start over where it is now dispatched |
"""

import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter

from duly.coordinator.ownership import Coordinator
from duly.domain.ids import SLOTS, shards_of, slot_of
from duly.environment import Environment
from duly.events import SlotsChanged
from duly.scheduler.database_time import DatabaseTime
from duly.scheduler.dispatch_scope import DispatchScope, home_shard
from duly.scheduler.load_schedule import LoadSchedule
from duly.scheduler.ready_state import ReadyState
from duly.scheduler.wakeups import SchedulerWakeups
from duly.store.database import Database
from duly.store.load import (
    PLACEMENTS_PAGE,
    Cursor,
    DueTimer,
    TimerQueue,
    list_placements,
    list_placements_of,
    load_due,
    read_frontier,
)
from duly.telemetry import get_logger

HORIZON_S = 10.0
# A queue that is caught up is loaded again this often; doorbells cover the time between.
RELOAD_S = 2.0
SWEEP_S = 5.0
SWEEP_PAGE_S = 1.0
PLACEMENTS_S = 5.0
# Timers of one queue, and of all queues, in one load; and the least that a queue gets.
PAGE = 2000
ROWS_PER_LOAD = 20_000
PAGE_MIN = 100
# A reload after a block: little more is kept than is parked, so no more is read.
RELOAD_PAGE = 400
QUEUES_PER_LOAD = 256
# The queue of a timer, as a plain tuple.
ADDRESS = attrgetter("tenant", "shard", "queue")

log = get_logger("duly.scheduler.loader")


@dataclass(slots=True)
class QueueState:
    cursor: Cursor = field(default_factory=Cursor)
    sweep: Cursor = field(default_factory=Cursor)
    is_caught_up: bool = False
    # While it is being loaded: from where a hint asks for more, and timers that a doorbell brought.
    is_being_read: bool = False
    hinted_from: Cursor | None = None
    admitted: list[DueTimer] = field(default_factory=list)

    def covers(self, due: DueTimer) -> bool:
        """Whether all that fires before it is loaded."""
        return self.is_caught_up or Cursor(due.due_at, due.id) <= self.cursor


class Loader:
    """A role: each tick loads one bounded batch of timer queues."""

    name = "loader"

    def __init__(
        self,
        database: Database,
        environment: Environment,
        coordinator: Coordinator,
        ready_state: ReadyState,
        time: DatabaseTime,
        scope: DispatchScope,
        wakeups: SchedulerWakeups,
    ) -> None:
        self.database = database
        self.environment = environment
        self.coordinator = coordinator
        self.scope = scope
        self.ready_state = ready_state
        self.time = time
        self.wakeups = wakeups
        self.wakeup = wakeups.loader
        self.timer_queues: dict[TimerQueue, QueueState] = {}
        self.loads = LoadSchedule()
        self.sweeps = LoadSchedule()
        self.slots: frozenset[int] = frozenset()
        # Tenants that one node dispatches as a whole, as of the last tick.
        self.at_home: frozenset[int] = frozenset()
        self.placements_at = 0.0

    async def tick(self) -> float:
        now = self.environment.clock.monotonic()
        self.notice_assignments()
        if not self.slots:
            return RELOAD_S
        if not self.time.is_known:
            self.observe((await read_frontier(self.database)).now)
        if now >= self.placements_at:
            await self.find_queues()
            self.placements_at = now + PLACEMENTS_S
        loaded = await self.load(now)
        loaded += await self.sweep(now)
        if loaded:
            self.wakeups.dispatcher.wake()
        return self.pause_s(self.environment.clock.monotonic())

    def lag_s(self) -> float | None:
        """How late the next load is; None without slots, where nothing is to be loaded."""
        if not self.slots:
            return None
        return max(0.0, self.environment.clock.monotonic() - self.loads.next_at())

    async def close(self) -> None:
        """Nothing to release: the ready state is a cache."""

    def observe(self, database_now: datetime) -> None:
        """Observe the database's time; the wheel starts at the first observation: a timer that is
        admitted before would lie decades ahead."""
        is_first = not self.time.is_known
        self.time.observe(database_now)
        if is_first:
            self.ready_state.clear(self.time.now())
            # Its inputs are read once the time is known.
            self.wakeups.bounds.wake()

    def on_slots(self, _event: SlotsChanged) -> None:
        """The next tick sees them."""
        self.wakeup.wake()

    def notice_assignments(self) -> None:
        """After a change of ownership, start over: what is loaded may belong to another owner."""
        slots = frozenset(self.coordinator.owned)
        if slots != self.slots:
            self.slots = slots
            self.timer_queues.clear()
            self.loads, self.sweeps = LoadSchedule(), LoadSchedule()
            self.placements_at = 0.0
            if self.time.is_known:
                self.ready_state.clear(self.time.now())
        if self.at_home != self.scope.at_home:
            self.restart_tenants(self.at_home ^ self.scope.at_home)
            self.at_home = self.scope.at_home

    def restart_tenants(self, tenants: frozenset[int]) -> None:
        """Load these tenants anew: their dispatcher changed. What is loaded here and dispatched
        elsewhere is dropped when its turn comes."""
        for queue in [queue for queue in self.timer_queues if queue.tenant in tenants]:
            del self.timer_queues[queue]
            self.loads.remove(queue)
            self.sweeps.remove(queue)
        self.placements_at = 0.0

    async def find_queues(self) -> None:
        for first, last in shard_ranges(self.slots):
            page = await list_placements(self.database, first, last)
            while page:
                self.add_dispatched(page)
                if len(page) < PLACEMENTS_PAGE:
                    break
                page = await list_placements(self.database, first, last, page[-1])
        if len(self.slots) == SLOTS:
            return
        # Of tenants that we dispatch as a whole, also what lies in the slots of other nodes.
        tenants = sorted(t for t in self.at_home if self.scope.includes(t, home_shard(t)))
        if tenants:
            page = await list_placements_of(self.database, tenants)
            while page:
                self.add_dispatched(page)
                if len(page) < PLACEMENTS_PAGE:
                    return
                page = await list_placements_of(self.database, tenants, page[-1])

    def add_dispatched(self, queues: list[TimerQueue]) -> None:
        for queue in queues:
            if self.scope.includes(queue.tenant, queue.shard):
                self.state_of(queue)

    def state_of(self, queue: TimerQueue, *, is_caught_up: bool = False) -> QueueState:
        """The state of a queue; a new one is loaded as soon as possible."""
        state = self.timer_queues.get(queue)
        if state is None:
            state = self.timer_queues[queue] = QueueState(is_caught_up=is_caught_up)
            self.loads.put(queue, 0.0)
            self.sweeps.put(queue, 0.0)
        return state

    def is_loaded(self, queue: TimerQueue) -> bool:
        """Whether all that is due in the queue is loaded. In a slot that is new to this node,
        timers of a doorbell are not all."""
        state = self.timer_queues.get(queue)
        is_listed = slot_of(queue.shard) in self.slots and self.placements_at > 0.0
        return is_listed and state is not None and state.is_caught_up and state.hinted_from is None

    def reload_from(self, queue: TimerQueue, due_at: datetime) -> None:
        """A doorbell without the timer itself: load this queue again from that instant."""
        state = self.state_of(queue)
        before = Cursor(due_at - timedelta(microseconds=1))
        state.cursor = min(state.cursor, before)
        state.hinted_from = before if state.hinted_from is None else min(state.hinted_from, before)
        # Behind those that were due before: hints for one queue do not starve the others.
        now = self.environment.clock.monotonic()
        self.loads.put(queue, min(self.loads.times[queue], now))

    def admit(self, timers: list[DueTimer]) -> None:
        """A doorbell with the timers: to the ready state, unless older work is unloaded. What
        lies ahead of the cursor is there already for the load that comes to it."""
        if not self.time.is_known:
            return
        now = self.time.now()
        for due in timers:
            queue = due.timer_queue
            state = self.state_of(queue, is_caught_up=True)
            if self.ready_state.room(queue) <= 0:
                # It may fire before what is in memory: the next load starts no later than here.
                state.is_caught_up = False
                self.reload_from(queue, due.due_at)
            elif state.covers(due):
                self.ready_state.add((due,), queue, now)
            elif state.is_being_read:
                state.admitted.append(due)

    async def load(self, now: float) -> int:
        wanted = self.loads.due(now, self.has_room, QUEUES_PER_LOAD)
        if not wanted:
            return 0
        # Read before the load: a transaction still open then may commit behind the cursor.
        frontier = await read_frontier(self.database)
        self.observe(frontier.now)
        oldest_writer = Cursor(frontier.oldest_writer_at - timedelta(microseconds=1))
        page = page_of(wanted)
        timers = await self.read(wanted, page)
        reads = self.add_loaded(timers)
        for queue in wanted:
            state = self.timer_queues[queue]
            read = reads.get(queue)
            if read is not None:
                state.cursor = read.cursor
            state.is_caught_up = read is None or read.count < page
            if state.is_caught_up:
                # Another transaction may still commit a timer before this instant.
                state.cursor = min(state.cursor, oldest_writer, state.hinted_from or state.cursor)
            is_done = state.is_caught_up and state.hinted_from is None
            # What is not done goes behind those that waited as long.
            self.loads.put(queue, next_round(now, RELOAD_S) if is_done else now)
            # Timers may have been admitted ahead of the cursor while it was loaded.
            self.admit([due for due in state.admitted if state.covers(due)])
        return len(timers)

    async def read(self, queues: list[TimerQueue], page: int) -> list[DueTimer]:
        """Load from their cursors; hints that come meanwhile are kept."""
        states = [self.timer_queues[queue] for queue in queues]
        for state in states:
            state.is_being_read, state.hinted_from, state.admitted = True, None, []
        try:
            cursors = {queue: self.timer_queues[queue].cursor for queue in queues}
            return await load_due(self.database, cursors, HORIZON_S, page)
        finally:
            for state in states:
                state.is_being_read = False

    async def sweep(self, now: float) -> int:
        """Load every queue from its beginning now and then, a page at a time where blocked work
        fills the first; and parked work that was let go, once it is no longer blocked."""
        reloads = self.ready_state.queues_to_reload()
        known = [queue for queue in reloads if queue in self.timer_queues and self.has_room(queue)]
        wanted = known[: QUEUES_PER_LOAD // 2]
        wanted += self.sweeps.due(now, self.has_room, QUEUES_PER_LOAD)
        wanted = list(dict.fromkeys(wanted))[:QUEUES_PER_LOAD]
        if not wanted:
            return 0
        page = min(page_of(wanted), RELOAD_PAGE if reloads else PAGE)
        cursors = {queue: reloads.get(queue, self.timer_queues[queue].sweep) for queue in wanted}
        timers = await load_due(self.database, cursors, HORIZON_S, page)
        reads = self.add_loaded(timers)
        for queue in wanted:
            read = reads.get(queue)
            more_after = read.cursor if read is not None and read.count == page else None
            if queue in reloads:
                self.ready_state.note_reloaded(queue, more_after)
            else:
                self.schedule_sweep(queue, more_after, now)
        return len(timers)

    def schedule_sweep(self, queue: TimerQueue, more_after: Cursor | None, now: float) -> None:
        """A queue that is not caught up needs no sweep behind its cursor: its sweep starts
        again."""
        state = self.timer_queues[queue]
        if more_after is not None and state.is_caught_up:
            state.sweep = more_after
            self.sweeps.put(queue, next_round(now, SWEEP_PAGE_S))
        else:
            state.sweep = Cursor()
            self.sweeps.put(queue, next_round(now, SWEEP_S))

    def add_loaded(self, timers: list[DueTimer]) -> dict[TimerQueue, "QueuePage"]:
        """Add loaded timers to the ready state; those of one queue follow each other. Beside a long
        backlog a sweep loads thousands that are known, and the process waits meanwhile: so little
        is done for each."""
        reads: dict[TimerQueue, QueuePage] = {}
        now = self.time.now()
        for address, group in groupby(timers, ADDRESS):
            queue, found = TimerQueue._make(address), list(group)
            read = reads.setdefault(queue, QueuePage())
            read.count += len(found)
            read.cursor = Cursor(found[-1].due_at, found[-1].id)
            self.ready_state.add(found, queue, now)
        return reads

    def has_room(self, queue: TimerQueue) -> bool:
        return self.ready_state.room(queue) >= PAGE

    def pause_s(self, now: float) -> float:
        if any(self.has_room(queue) for queue in self.ready_state.queues_to_reload()):
            return 0.0
        next_at = min(self.placements_at, self.loads.next_at(), self.sweeps.next_at())
        return max(0.0, next_at - now)


@dataclass(slots=True)
class QueuePage:
    """What one load read of one queue."""

    count: int = 0
    cursor: Cursor = field(default_factory=Cursor)


def page_of(queues: list[TimerQueue]) -> int:
    """Timers of each queue, so that one answer fits in memory however many queues are loaded."""
    return min(PAGE, max(PAGE_MIN, ROWS_PER_LOAD // len(queues)))


def next_round(now: float, period_s: float) -> float:
    """About a period from now, at an instant that all queues share: they are loaded together."""
    return math.ceil((now + period_s / 2) / period_s) * period_s


def shard_ranges(slots: frozenset[int]) -> list[tuple[int, int]]:
    """Neighbouring slots together, so that a lone owner of everything asks once."""
    ranges: list[tuple[int, int]] = []
    for slot in sorted(slots):
        shards = shards_of(slot)
        if ranges and ranges[-1][1] == shards.start - 1:
            ranges[-1] = (ranges[-1][0], shards.stop - 1)
        else:
            ranges.append((shards.start, shards.stop - 1))
    assert len(ranges) <= SLOTS
    return ranges
