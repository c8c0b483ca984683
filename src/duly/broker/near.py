"""Tickets that stay in the memory of the process that wrote them, for its own consumers: as many as
these wait for, or took a moment ago and came back for more. Through the table that all processes
share, each would cost an insert and a delete. What is not taken here after all is soon for anybody,
and other processes' tickets are overlooked for no longer than a moment.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from duly.broker.lane_queue import LaneQueue
from duly.domain.lanes import Lane, Ticket
from duly.environment import Clock

# Who comes back within this time comes for more; and so long nobody looks into the table, as long
# as there are tickets here.
MOMENT_S = 0.05
# How long a ticket is kept for consumers that came for more, and then did not.
KEPT_S = 0.2
NEVER_TAKEN: tuple[float, Counter[Lane]] = (-math.inf, Counter())


class NearLanes:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        # Only lanes with tickets.
        self.queues: dict[Lane, LaneQueue] = {}
        # What our consumers took, from wherever, until they came back: in this moment, and in the
        # one before.
        self.took: Counter[Lane] = Counter()
        self.took_before: Counter[Lane] = Counter()
        self.turn_at = clock.monotonic() + MOMENT_S
        # What each has taken since it last came, and when.
        self.gone: dict[UUID, tuple[float, Counter[Lane]]] = {}
        # When other processes' tickets of these lanes were last looked for.
        self.looked_at: dict[Lane, float] = {}

    def keep(
        self, tickets: Sequence[tuple[Lane, Ticket]], rooms: Mapping[Lane, int]
    ) -> list[tuple[Lane, Ticket]]:
        """Those for which there is room stay here, the oldest of each lane; answers the others."""
        kept: dict[Lane, list[Ticket]] = {}
        others: list[tuple[Lane, Ticket]] = []
        for lane, ticket in tickets:
            here = kept.setdefault(lane, [])
            if len(here) < rooms.get(lane, 0):
                here.append(ticket)
            else:
                others.append((lane, ticket))
        moment = self.clock.monotonic()
        for lane, batch in kept.items():
            if batch:
                self.queues.setdefault(lane, LaneQueue()).put(batch, moment)
        return others

    def room(self, lane: Lane, waited_for: int) -> int:
        self.pass_time()
        lately = self.took[lane] + self.took_before[lane]
        return max(max(waited_for, lately) - self.depth(lane), 0)

    def depth(self, lane: Lane) -> int:
        queue = self.queues.get(lane)
        return 0 if queue is None else len(queue.tickets)

    def take(self, lanes: Iterable[Lane], count: int) -> list[tuple[Lane, Ticket]]:
        """Lanes in the order given, oldest ticket first in each."""
        taken: list[tuple[Lane, Ticket]] = []
        for lane in lanes:
            queue = self.queues.get(lane)
            if queue is None or len(taken) == count:
                continue
            taken += [(lane, ticket) for ticket in queue.take(count - len(taken))]
            if not queue.tickets:
                del self.queues[lane]
        return taken

    def take_late(self) -> list[tuple[Lane, Ticket]]:
        """The lanes from which nobody here took in time: whole, for a lane has an order."""
        moment = self.clock.monotonic() - KEPT_S
        late: list[tuple[Lane, Ticket]] = []
        for lane, queue in list(self.queues.items()):
            if queue.marks[0][0] <= moment:
                late += [(lane, ticket) for ticket in queue.take(len(queue.tickets))]
                del self.queues[lane]
        return late

    def note_came(self, holder: UUID) -> None:
        """It came for tickets: if it took some a moment ago, it will take as many again."""
        self.pass_time()
        taken_at, numbers = self.gone.pop(holder, NEVER_TAKEN)
        if self.clock.monotonic() - taken_at < MOMENT_S:
            self.took.update(numbers)

    def note_taken(self, holder: UUID, numbers: Counter[Lane]) -> None:
        """Several consumers may share a holder: what they took is added up."""
        _, before = self.gone.get(holder, NEVER_TAKEN)
        self.gone[holder] = (self.clock.monotonic(), before + numbers)

    def note_looked(self, lanes: Iterable[Lane]) -> None:
        self.looked_at.update(dict.fromkeys(lanes, self.clock.monotonic()))

    def look_again(self, lanes: Iterable[Lane]) -> None:
        """The table had as much as was asked for: there is more."""
        for lane in lanes:
            self.looked_at.pop(lane, None)

    def is_look_due(self, lanes: Iterable[Lane]) -> bool:
        """Whether other processes have waited long enough beside what lies here."""
        looked_before = self.clock.monotonic() - MOMENT_S
        return any(self.looked_at.get(lane, -math.inf) <= looked_before for lane in lanes)

    def pass_time(self) -> None:
        now = self.clock.monotonic()
        if now < self.turn_at:
            return
        # After a pause of more than a moment, what was taken before it says nothing.
        self.took_before = self.took if now < self.turn_at + MOMENT_S else Counter()
        self.took = Counter()
        self.turn_at = now + MOMENT_S
        before = now - MOMENT_S
        self.looked_at = {lane: at for lane, at in self.looked_at.items() if at > before}
        self.gone = {holder: each for holder, each in self.gone.items() if each[0] > before}
