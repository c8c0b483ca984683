"""The loader: timers due within the horizon go to the ready state, queue by queue, from cursors and
from sweeps.

| event | what happens |
|---|---|
| a doorbell is lost | the next load from the cursor, or the sweep, finds the timer |
| a doorbell brings a timer of a queue that is being read | kept until all before it is read |
| it brings only a hint | read once more, from there; before the last page, the sweep finds it |
| a transaction commits late | loads overlap back to the oldest writer; the sweep finds the rest |
| a page ends inside a burst | the cursor is (due_at, id), so the next page goes on there |
| parked work was let go | read again from the first of it, once its obstacle has room |
| blocked work fills the first page | the sweep goes on behind it, a page at a time |
| a slot is gained or lost | the ready state is cleared and every queue starts from the beginning |
| a tenant gets or loses a cap or a rate | its places start over where it is now dispatched |
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
# A place that is caught up is looked at again this often; doorbells cover the time between.
RELOAD_S = 2.0
SWEEP_S = 5.0
SWEEP_PAGE_S = 1.0
PLACEMENTS_S = 5.0
# Timers of one place, and of all places, in one load; and the least that a place gets.
PAGE = 2000
ROWS_PER_LOAD = 20_000
PAGE_MIN = 100
# Of what an obstacle lets through again, little more is kept than is parked: read no more.
RELOAD_PAGE = 400
PLACES_PER_LOAD = 256
# Of a timer: its place, as a plain tuple.
ADDRESS = attrgetter("tenant", "shard", "queue")

log = get_logger("duly.scheduler.loader")


@dataclass(slots=True)
class QueueState:
    cursor: Cursor = field(default_factory=Cursor)
    sweep: Cursor = field(default_factory=Cursor)
    is_caught_up: bool = False
    # While it is being read: what a doorbell asked for, and what one brought.
    is_being_read: bool = False
    rung: Cursor | None = None
    brought: list[DueTimer] = field(default_factory=list)

    def covers(self, due: DueTimer) -> bool:
        """Whether all that fires before it is loaded."""
        return self.is_caught_up or Cursor(due.due_at, due.id) <= self.cursor


class Loader:
    """A role: each tick loads one bounded batch of places."""

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
        self.places: dict[TimerQueue, QueueState] = {}
        self.loads = LoadSchedule()
        self.sweeps = LoadSchedule()
        self.slots: frozenset[int] = frozenset()
        # Tenants that one node dispatches as a whole, as of the last tick.
        self.at_home: frozenset[int] = frozenset()
        self.placements_at = 0.0

    async def tick(self) -> float:
        now = self.environment.clock.monotonic()
        self.notice_slots()
        if not self.slots:
            return RELOAD_S
        if not self.time.is_known:
            self.observe((await read_frontier(self.database)).now)
        if now >= self.placements_at:
            await self.find_places()
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

    def notice_slots(self) -> None:
        """After a change of ownership, start over: what is loaded may belong to another owner."""
        slots = frozenset(self.coordinator.owned)
        if slots != self.slots:
            self.slots = slots
            self.places.clear()
            self.loads, self.sweeps = LoadSchedule(), LoadSchedule()
            self.placements_at = 0.0
            if self.time.is_known:
                self.ready_state.clear(self.time.now())
        if self.at_home != self.scope.at_home:
            self.move(self.at_home ^ self.scope.at_home)
            self.at_home = self.scope.at_home

    def move(self, tenants: frozenset[int]) -> None:
        """Another node dispatches these tenants from now on, or we do: start over with them. What
        is loaded and not ours is dropped when its turn comes."""
        for place in [place for place in self.places if place.tenant in tenants]:
            del self.places[place]
            self.loads.remove(place)
            self.sweeps.remove(place)
        self.placements_at = 0.0

    async def find_places(self) -> None:
        for first, last in shard_ranges(self.slots):
            page = await list_placements(self.database, first, last)
            while page:
                self.know_ours(page)
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
                self.know_ours(page)
                if len(page) < PLACEMENTS_PAGE:
                    return
                page = await list_placements_of(self.database, tenants, page[-1])

    def know_ours(self, places: list[TimerQueue]) -> None:
        for place in places:
            if self.scope.includes(place.tenant, place.shard):
                self.know(place)

    def know(self, place: TimerQueue, *, is_caught_up: bool = False) -> QueueState:
        """What is new is looked at as soon as possible."""
        state = self.places.get(place)
        if state is None:
            state = self.places[place] = QueueState(is_caught_up=is_caught_up)
            self.loads.put(place, 0.0)
            self.sweeps.put(place, 0.0)
        return state

    def has_read(self, place: TimerQueue) -> bool:
        """Whether all that is due there is loaded, as far as hints go. Where a
        slot is new to us, what a doorbell brought was not all."""
        state = self.places.get(place)
        is_listed = slot_of(place.shard) in self.slots and self.placements_at > 0.0
        return is_listed and state is not None and state.is_caught_up and state.rung is None

    def expect(self, place: TimerQueue, due_at: datetime) -> None:
        """A doorbell without the timer itself: read this place again from that instant."""
        state = self.know(place)
        before = Cursor(due_at - timedelta(microseconds=1))
        state.cursor = min(state.cursor, before)
        state.rung = before if state.rung is None else min(state.rung, before)
        # Behind those that were due before: however often one is rung for, all have their turn.
        now = self.environment.clock.monotonic()
        self.loads.put(place, min(self.loads.times[place], now))

    def admit(self, timers: list[DueTimer]) -> None:
        """A doorbell with the timers: to the ready state, unless older work is unloaded. What
        lies ahead of the cursor is there already for the load that comes to it."""
        if not self.time.is_known:
            return
        now = self.time.now()
        for due in timers:
            place = due.place
            state = self.know(place, is_caught_up=True)
            if self.ready_state.room(place) <= 0:
                # It may fire before what is in memory: the next load starts no later than here.
                state.is_caught_up = False
                self.expect(place, due.due_at)
            elif state.covers(due):
                self.ready_state.add((due,), place, now)
            elif state.is_being_read:
                state.brought.append(due)

    async def load(self, now: float) -> int:
        wanted = self.loads.due(now, self.has_room, PLACES_PER_LOAD)
        if not wanted:
            return 0
        # Read before the load: a transaction still open then may commit behind the cursor.
        frontier = await read_frontier(self.database)
        self.observe(frontier.now)
        oldest_writer = Cursor(frontier.oldest_writer_at - timedelta(microseconds=1))
        page = page_of(wanted)
        timers = await self.read(wanted, page)
        reads = self.take_in(timers)
        for place in wanted:
            state = self.places[place]
            read = reads.get(place)
            if read is not None:
                state.cursor = read.cursor
            state.is_caught_up = read is None or read.count < page
            if state.is_caught_up:
                # Another transaction may still commit a timer before this instant.
                state.cursor = min(state.cursor, oldest_writer, state.rung or state.cursor)
            is_done = state.is_caught_up and state.rung is None
            # What is not done goes behind those that waited as long.
            self.loads.put(place, next_round(now, RELOAD_S) if is_done else now)
            # We may have looked before they were there; what is ahead is still to be read.
            self.admit([due for due in state.brought if state.covers(due)])
        return len(timers)

    async def read(self, places: list[TimerQueue], page: int) -> list[DueTimer]:
        """From their cursors on; who rings meanwhile is not forgotten."""
        states = [self.places[place] for place in places]
        for state in states:
            state.is_being_read, state.rung, state.brought = True, None, []
        try:
            cursors = {place: self.places[place].cursor for place in places}
            return await load_due(self.database, cursors, HORIZON_S, page)
        finally:
            for state in states:
                state.is_being_read = False

    async def sweep(self, now: float) -> int:
        """Every place from its beginning now and then, a page at a time where blocked work fills
        the first; and where work was let go whose obstacle has room again, from there."""
        reloads = self.ready_state.queues_to_reload()
        known = [place for place in reloads if place in self.places and self.has_room(place)]
        wanted = known[: PLACES_PER_LOAD // 2]
        wanted += self.sweeps.due(now, self.has_room, PLACES_PER_LOAD)
        wanted = list(dict.fromkeys(wanted))[:PLACES_PER_LOAD]
        if not wanted:
            return 0
        page = min(page_of(wanted), RELOAD_PAGE if reloads else PAGE)
        cursors = {place: reloads.get(place, self.places[place].sweep) for place in wanted}
        timers = await load_due(self.database, cursors, HORIZON_S, page)
        reads = self.take_in(timers)
        for place in wanted:
            read = reads.get(place)
            more_after = read.cursor if read is not None and read.count == page else None
            if place in reloads:
                self.ready_state.read_on(place, more_after)
            else:
                self.sweep_on(place, more_after, now)
        return len(timers)

    def sweep_on(self, place: TimerQueue, more_after: Cursor | None, now: float) -> None:
        """What was not read yet needs no sweep: a place that is not caught up starts again."""
        state = self.places[place]
        if more_after is not None and state.is_caught_up:
            state.sweep = more_after
            self.sweeps.put(place, next_round(now, SWEEP_PAGE_S))
        else:
            state.sweep = Cursor()
            self.sweeps.put(place, next_round(now, SWEEP_S))

    def take_in(self, timers: list[DueTimer]) -> dict[TimerQueue, "QueuePage"]:
        """Timers of one place follow each other. Beside a long backlog a sweep brings back
        thousands that are known, and everybody in this process waits meanwhile: little is done
        for each of them."""
        reads: dict[TimerQueue, QueuePage] = {}
        now = self.time.now()
        for address, group in groupby(timers, ADDRESS):
            place, found = TimerQueue._make(address), list(group)
            read = reads.setdefault(place, QueuePage())
            read.count += len(found)
            read.cursor = Cursor(found[-1].due_at, found[-1].id)
            self.ready_state.add(found, place, now)
        return reads

    def has_room(self, place: TimerQueue) -> bool:
        return self.ready_state.room(place) >= PAGE

    def pause_s(self, now: float) -> float:
        if any(self.has_room(place) for place in self.ready_state.queues_to_reload()):
            return 0.0
        next_at = min(self.placements_at, self.loads.next_at(), self.sweeps.next_at())
        return max(0.0, next_at - now)


@dataclass(slots=True)
class QueuePage:
    """What one load saw of one place."""

    count: int = 0
    cursor: Cursor = field(default_factory=Cursor)


def page_of(places: list[TimerQueue]) -> int:
    """Timers of each place, so that one answer fits in memory however many places are asked."""
    return min(PAGE, max(PAGE_MIN, ROWS_PER_LOAD // len(places)))


def next_round(now: float, period_s: float) -> float:
    """About a period from now, at an instant that all places share: they are asked together."""
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
