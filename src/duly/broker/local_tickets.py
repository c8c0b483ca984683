"""Local tickets: those that stay in the memory of the process that wrote them, for its own
consumers: as many as these wait for, or took a moment ago and came back for more. Through the
carrier each would cost a trip there and back. What is not taken here after all is soon for any
process, and other processes' tickets are overlooked for no longer than a moment."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from uuid import UUID

from duly.broker.contract import Delivery
from duly.broker.lane_queue import LANE, LaneQueues
from duly.domain.lanes import Lane, queue_of
from duly.environment import Clock

# A consumer that comes back within this time comes for more; and so long the carrier is not asked,
# as long as there are tickets here.
MOMENT_S = 0.05
# How long a ticket is kept for consumers that came for more, and then did not.
KEPT_S = 0.2
NEVER_TAKEN: tuple[float, Counter[Lane]] = (-math.inf, Counter())


class LocalTickets(LaneQueues):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
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
        batch: Sequence[Delivery],
        rooms: Mapping[Lane, int],
        passed_on: Collection[Lane] = (),
    ) -> list[Delivery]:
        """Those for which their queue has room stay here, the oldest; answers the others, and those
        of the lanes that are not for here."""
        left = dict(rooms)
        kept: list[Delivery] = []
        others: list[Delivery] = []
        for lane, run in groupby(batch, LANE):
            queue, deliveries = queue_of(lane), list(run)
            most = 0 if lane in passed_on else left.get(queue, 0)
            left[queue] = left.get(queue, 0) - min(most, len(deliveries))
            kept += deliveries[:most]
            others += deliveries[most:]
        self.put(kept, self.clock.monotonic())
        return others

    def accept(self, batch: Sequence[Delivery]) -> None:
        """What the carrier delivered."""
        self.put(batch, self.clock.monotonic())

    def room(self, lane: Lane, waited_for: int) -> int:
        self.pass_time()
        lately = self.took[lane] + self.took_before[lane]
        return max(max(waited_for, lately) - self.depth(lane), 0)

    def take_late(self) -> list[Delivery]:
        """The queues from which no consumer here took in time."""
        return self.take_put_before(self.clock.monotonic() - KEPT_S)

    def note_came(self, holder: UUID) -> None:
        """It came for tickets: if it took some a moment ago, it will take as many again."""
        self.pass_time()
        taken_at, numbers = self.gone.pop(holder, NEVER_TAKEN)
        if self.clock.monotonic() - taken_at < MOMENT_S:
            self.took.update(numbers)

    def note_taken(self, holder: UUID, numbers: Mapping[Lane, int]) -> None:
        """Several consumers may share a holder: what they took is added up."""
        _, before = self.gone.get(holder, NEVER_TAKEN)
        total = Counter(before)
        for lane, number in numbers.items():
            total[queue_of(lane)] += number
        self.gone[holder] = (self.clock.monotonic(), total)

    def note_looked(self, lanes: Iterable[Lane]) -> None:
        self.looked_at.update(dict.fromkeys(lanes, self.clock.monotonic()))

    def look_again(self, lanes: Iterable[Lane]) -> None:
        """The carrier had as much as was asked for: there is more."""
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
