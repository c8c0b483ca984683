"""Tickets that stay in the memory of the process that wrote them, for its own consumers: as many as
these wait for, or took a moment ago and came back for more. Through the table that all processes
share, each would cost an insert and a delete. What is not taken here after all is soon for anybody,
and other processes' tickets are overlooked for no longer than a moment.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from uuid import UUID

from duly.broker.lane_queue import Entries, LaneQueue
from duly.domain.execution_shares import NO_TENANTS
from duly.domain.lanes import ALL_TENANTS, Lane, Ticket, queue_of
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
        # By queue, as everything here; only those with tickets.
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
        self,
        tickets: Sequence[tuple[Lane, Ticket]],
        rooms: Mapping[Lane, int],
        passed_on: Collection[Lane] = (),
    ) -> Entries:
        """Those for which their queue has room stay here, the oldest; answers the others, and those
        of the lanes that are not for here."""
        kept: dict[Lane, Entries] = {}
        others: Entries = []
        for entry in tickets:
            queue = queue_of(entry[0])
            here = kept.setdefault(queue, [])
            if len(here) < rooms.get(queue, 0) and entry[0] not in passed_on:
                here.append(entry)
            else:
                others.append(entry)
        moment = self.clock.monotonic()
        for queue, batch in kept.items():
            if batch:
                self.queues.setdefault(queue, LaneQueue()).put(batch, moment)
        return others

    def room(self, lane: Lane, waited_for: int) -> int:
        self.pass_time()
        lately = self.took[lane] + self.took_before[lane]
        return max(max(waited_for, lately) - self.depth(lane), 0)

    def depth(self, lane: Lane) -> int:
        queue = self.queues.get(queue_of(lane))
        if queue is None:
            return 0
        return queue.size if lane.tenant == ALL_TENANTS else queue.counts.get(lane, 0)

    def tickets(self, queues: Iterable[Lane]) -> dict[Lane, int]:
        """How many of each lane lie in these queues."""
        kept = [self.queues[queue] for queue in queues if queue in self.queues]
        return {lane: number for queue in kept for lane, number in queue.counts.items()}

    def has(self, queue: Lane, left_out: Collection[int]) -> bool:
        """Whether there are tickets of other tenants than these."""
        kept = self.queues.get(queue)
        return kept is not None and kept.has(left_out)

    def take(
        self, queues: Iterable[Lane], count: int, left_out: Collection[int] = NO_TENANTS
    ) -> Entries:
        """Queues in the order given, oldest ticket first in each."""
        taken: Entries = []
        for lane in queues:
            queue = self.queues.get(lane)
            if queue is None or len(taken) == count:
                continue
            taken += queue.take(count - len(taken), left_out)
            if not queue.size:
                del self.queues[lane]
        return taken

    def take_late(self) -> Entries:
        """The queues from which nobody here took in time: whole, for a lane has an order."""
        moment = self.clock.monotonic() - KEPT_S
        late: Entries = []
        for lane, queue in list(self.queues.items()):
            if queue.batches[0][0] <= moment:
                late += queue.take(queue.size)
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
