"""The ready state: timers in memory (loaded, ready, parked, ticketed), members waiting for lanes.

Everything here is a cache of timer rows and may be thrown away at any time. No input or output:
the loader fills it, the dispatcher empties it.

A task is known under its fence from the moment it is loaded until its ticket is taken or void, so
that a sweep, a doorbell and a load that all bring it make one entry.
"""

from collections import Counter, deque
from collections.abc import Iterable
from uuid import UUID

import msgspec

from duly.domain.fairness import AGING_S, NONE_CLOSED, BandQueue, RoundRobin
from duly.domain.lanes import LANE_DEPTH_MAX, WEBHOOK_QUEUES, Lane, Ticket, queue_of
from duly.domain.task import BANDS, WEBHOOK_POOL
from duly.domain.wheel import Wheel
from duly.scheduler.lane_backpressure import LaneBackpressure, Member
from duly.store.load import Cursor, DueTimer, TimerQueue

# Half of what a person could notice, and a start is at most this late because of it.
TICK_S = 0.005
# Entries of one place held in memory, and of one blocked key or pause kept at hand.
PLACE_ENTRIES_MAX = 20_000
PARKED_MAX = 64
# Why entries are parked: ("key", tenant, key), ("type", tenant, type), ("pool", tenant, pool), ...
Obstacle = tuple[str, int, str]


class ReadyTimer(msgspec.Struct, frozen=True, gc=False):
    due: DueTimer
    place: TimerQueue
    member: Member
    band: int
    fires_at: float


class ReadyState:
    def __init__(
        self, now: float, *, aging_s: float = AGING_S, lane_depth: int = LANE_DEPTH_MAX
    ) -> None:
        self.aging_s = aging_s
        # Of those who wait for a lane, how many come back at once: as many as it has room for.
        self.come_back_max = max(1, lane_depth // 2)
        self.weights: dict[int, float] = {}
        self.clear(now)

    def clear(self, now: float) -> None:
        """Forget everything, as after a change of owned slots: the loader starts over."""
        self.wheel: Wheel[ReadyTimer] = Wheel(int(now / TICK_S))
        self.queues: dict[Member, BandQueue[ReadyTimer]] = {}
        self.turns: RoundRobin[Member] = RoundRobin(self.weight_of)
        self.known: dict[UUID, ReadyTimer] = {}
        self.per_place: dict[TimerQueue, int] = {}
        self.assignments: dict[TimerQueue, tuple[Member, int]] = {}
        self.parked: dict[Obstacle, deque[ReadyTimer]] = {}
        # Where parked work was let go, the earliest of it in each place, and which obstacles have
        # since let all they had through.
        self.overflowed: dict[Obstacle, dict[TimerQueue, Cursor]] = {}
        self.drained: set[Obstacle] = set()
        self.blocked: set[Member] = set()
        # Lanes and shared queues that are full; and their bands, by whose lanes they are.
        self.full: dict[Lane, int] = {}
        # How often a lane was closed so far: one that opened in between has another number.
        self.closings = 0
        self.closed: dict[Member, frozenset[int]] = {}
        # Lanes with capacity again, for which members still wait.
        self.opened: dict[Lane, None] = {}
        self.held = LaneBackpressure()
        self.tickets: deque[tuple[float, list[Ticket]]] = deque()

    def sizes(self) -> dict[str, int]:
        """Of the timers in memory: those whose instant comes, and those that are due."""
        waiting = len(self.wheel)
        return {"waiting": waiting, "due": max(len(self.known) - waiting, 0)}

    def weight_of(self, member: Member) -> float:
        return self.weights.get(member[0], 1.0)

    def room(self, place: TimerQueue) -> int:
        return PLACE_ENTRIES_MAX - self.per_place.get(place, 0)

    def add(self, timers: Iterable[DueTimer], place: TimerQueue, now: float) -> int:
        """Take in timers of one place; answers how many were not known already. What is due needs
        no wheel."""
        known, wheel = self.known, self.wheel
        member, band = self.member_and_band(place)
        ready: dict[int, list[tuple[float, ReadyTimer]]] = {}
        added = 0
        for due in timers:
            before = known.get(due.id)
            if before is not None and before.due.fence == due.fence:
                continue
            fires_at = due.due_at.timestamp()
            entry = known[due.id] = ReadyTimer(due, place, member, band, fires_at)
            added += 1
            if fires_at <= now:
                ready.setdefault(due.priority, []).append((fires_at, entry))
            else:
                wheel.add(tick_of(fires_at), entry)
        if added:
            self.per_place[place] = self.per_place.get(place, 0) + added
        if ready:
            queue = self.queue_of(member)
            for priority, entries in ready.items():
                queue.extend(band, priority, entries)
            self.join(member, band)
        return added

    def member_and_band(self, place: TimerQueue) -> tuple[Member, int]:
        """Whose queue and which band the timers of a place go to; the same for all of them."""
        assignment = self.assignments.get(place)
        if assignment is None:
            pool, band = divmod(place.queue - 1, BANDS)
            assignment = self.assignments[place] = (place.tenant, pool), band
        return assignment

    def advance(self, now: float) -> int:
        """Move what has become due into the queues; answers how many."""
        entries = self.wheel.advance(int(now / TICK_S))
        for entry in entries:
            self.enqueue(entry)
        return len(entries)

    def enqueue(self, entry: ReadyTimer) -> None:
        queue = self.queue_of(entry.member)
        queue.push(entry.band, entry.due.priority, entry.fires_at, entry)
        self.join(entry.member, entry.band)

    def queue_of(self, member: Member) -> BandQueue[ReadyTimer]:
        queue = self.queues.get(member)
        if queue is None:
            queue = self.queues[member] = BandQueue(aging_s=self.aging_s)
        return queue

    def join(self, member: Member, band: int) -> None:
        """It has work in this band. Who waits for the lane of another may go on with this; who
        waits for this one waits for its turn, also where the lane has just got room."""
        if member in self.blocked:
            return
        if member in self.held:
            is_awaited = self.held.waits_for[member].band == band
            if is_awaited or band in self.closed_bands(member):
                return
            self.held.release(member)
        self.turns.join(member)

    def next_ready(self, now: float) -> ReadyTimer | None:
        """The next task in fair order whose lane has room, taken out of its queue."""
        while (member := self.next_member()) is not None:
            queue = self.queues[member]
            popped = queue.pop(now, self.closed_bands(member))
            if popped is not None:
                return popped[2]
            self.turns.leave(member)
            if waiting := queue.waiting():
                self.held.hold(member, self.full_lane(Lane(*member, waiting[0])))
            else:
                self.held.served(member)
                del self.queues[member]
        return None

    def closed_bands(self, member: Member) -> frozenset[int]:
        if not self.closed:
            return NONE_CLOSED
        closed = self.closed.get(member, NONE_CLOSED)
        if member[1] == WEBHOOK_POOL:
            closed |= self.closed.get(WEBHOOK_QUEUES, NONE_CLOSED)
        return closed

    def full_lane(self, lane: Lane) -> Lane:
        """What a task of a lane waits for: the queue that it shares, or the lane itself."""
        return queue if (queue := queue_of(lane)) in self.full else lane

    def next_member(self) -> Member | None:
        member = self.turns.pick()
        if member is None and self.may_go_on():
            self.readmit()
            member = self.turns.pick()
        return member

    def readmit(self) -> None:
        """Readmit some members that wait for a lane with capacity; not only when no other member
        has work."""
        for lane in list(self.opened):
            for member in self.held.come_back(lane, self.come_back_max):
                self.turns.join(member, self.deficit_of(member))
            if lane not in self.held.queues:
                del self.opened[lane]

    def deficit_of(self, member: Member) -> float:
        """A weight below one needs several turns for a task, and they may end at a full lane."""
        weight, fruitless = self.weight_of(member), self.held.unserved[member] - 1
        return min(fruitless * weight, 1.0) if weight < 1.0 else 0.0

    def close(self, lane: Lane) -> None:
        """It is full: its tasks wait, and nothing else does."""
        self.closings += 1
        self.full[lane] = self.closings
        self.opened.pop(lane, None)
        lanes = (lane.tenant, lane.pool)
        self.closed[lanes] = self.closed.get(lanes, NONE_CLOSED) | {lane.band}

    def open(self, lane: Lane) -> None:
        """It has room again."""
        del self.full[lane]
        if lane in self.held.queues:
            self.opened[lane] = None
        lanes = (lane.tenant, lane.pool)
        self.closed[lanes] -= {lane.band}
        if not self.closed[lanes]:
            del self.closed[lanes]

    def may_go_on(self) -> bool:
        """Whether a member waits for a lane with capacity."""
        return bool(self.opened)

    def put_back(self, entry: ReadyTimer) -> None:
        """It could not be dispatched now: it keeps its place, and its member its turn."""
        self.turns.take_back(entry.member)
        queue = self.queues[entry.member]
        queue.push_front(entry.band, entry.due.priority, entry.fires_at, entry)

    def block(self, member: Member) -> None:
        """Nothing of this member can be dispatched until it is unblocked."""
        self.blocked.add(member)
        self.turns.leave(member)

    def unblock(self, members: Iterable[Member]) -> None:
        for member in members:
            if member in self.blocked:
                self.blocked.discard(member)
                if self.queues.get(member):
                    self.turns.join(member)

    def unblock_tenant(self, tenant: int) -> None:
        self.unblock([member for member in self.blocked if member[0] == tenant])

    def park(self, obstacle: Obstacle, entry: ReadyTimer) -> None:
        """Set aside, so that it cannot hide the work behind it; a bounded number stays at hand, and
        the rest is let go, to be found again in the database."""
        waiting = self.parked.setdefault(obstacle, deque())
        if len(waiting) < PARKED_MAX:
            waiting.append(entry)
            self.leave_place(entry.place)
        else:
            self.drained.discard(obstacle)
            places, before = self.overflowed.setdefault(obstacle, {}), just_before(entry.due)
            places[entry.place] = min(before, places.get(entry.place, before))
            self.forget(entry)

    def unpark(self, obstacle: Obstacle, count: int) -> int:
        """The obstacle let some through: back to the front of their queues, oldest first."""
        waiting = self.parked.get(obstacle)
        if not waiting:
            return 0
        chosen = [waiting.popleft() for _ in range(min(count, len(waiting)))]
        if not waiting:
            del self.parked[obstacle]
            if obstacle in self.overflowed:
                self.drained.add(obstacle)
        for entry in reversed(chosen):
            self.bring_back(entry)
        return len(chosen)

    def queues_to_reload(self) -> dict[TimerQueue, Cursor]:
        """Where to look, and from where on, for more of what an obstacle would now let through."""
        reloads: dict[TimerQueue, Cursor] = {}
        for obstacle in self.drained:
            for place, cursor in self.overflowed[obstacle].items():
                reloads[place] = min(cursor, reloads.get(place, cursor))
        return reloads

    def read_on(self, place: TimerQueue, cursor: Cursor | None) -> None:
        """Everything in the place up to the cursor (None: all) is loaded again; what is still
        blocked will be parked, and what is let go once more is let go from there."""
        for obstacle in list(self.drained):
            places = self.overflowed[obstacle]
            if cursor is None:
                places.pop(place, None)
            elif place in places:
                places[place] = max(places[place], cursor)
            if not places:
                del self.overflowed[obstacle]
                self.drained.discard(obstacle)

    def forget(self, entry: ReadyTimer) -> None:
        """Not ours to remember any more: the row knows."""
        self.known.pop(entry.due.id, None)
        self.leave_place(entry.place)

    def leave_place(self, place: TimerQueue, count: int = 1) -> None:
        left = self.per_place.get(place, 0) - count
        if left > 0:
            self.per_place[place] = left
        else:
            self.per_place.pop(place, None)

    def ticketed(self, deadline: float, counts: Counter[TimerQueue], tickets: list[Ticket]) -> None:
        """Published: known until taken or void, but no longer in the way of loading more."""
        for place, count in counts.items():
            self.leave_place(place, count)
        self.tickets.append((deadline, tickets))

    def take_back(self, tickets: list[Ticket], entries: list[ReadyTimer]) -> None:
        """Tickets that were not published: these entries go back to the front of their queues,
        unless they were forgotten meanwhile; the others will be loaded again."""
        if self.tickets and self.tickets[-1][1] is tickets:
            self.tickets.pop()
        again = [entry for entry in entries if self.known.get(entry.due.id) is entry]
        self.taken(tickets)
        for entry in reversed(again):
            self.known[entry.due.id] = entry
            self.bring_back(entry)

    def bring_back(self, entry: ReadyTimer) -> None:
        self.per_place[entry.place] = self.per_place.get(entry.place, 0) + 1
        queue = self.queue_of(entry.member)
        queue.push_front(entry.band, entry.due.priority, entry.fires_at, entry)
        self.join(entry.member, entry.band)

    def taken(self, tickets: Iterable[Ticket]) -> list[ReadyTimer]:
        """They are out of the lanes: what comes next is a new entry. Answers what was known."""
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
    """A load from here begins with this timer."""
    return Cursor(due.due_at, UUID(int=max(due.id.int - 1, 0)))


def tick_of(instant: float) -> int:
    """Rounded up: a slot becomes due only when every entry in it is."""
    return -int(-instant // TICK_S)
