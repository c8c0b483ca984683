"""Lane queues in this process's memory, oldest ticket first: of one lane each, or of all tenants'
webhooks of a band. The lease queue decides which consumer takes from them."""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from duly.broker.contract import Delivery
from duly.domain.execution_shares import NO_TENANTS
from duly.domain.lanes import ALL_TENANTS, Lane, queue_of

# Of a delivery; neighbours are mostly of one lane.
LANE = itemgetter(0)


class LaneQueue:
    """Batches remember when they were put there."""

    __slots__ = ("batches", "counts", "size")

    def __init__(self) -> None:
        self.batches: deque[tuple[float, list[Delivery]]] = deque()
        self.counts: dict[Lane, int] = {}
        self.size = 0

    def put(self, batch: list[Delivery], moment: float) -> None:
        self.batches.append((moment, batch))
        self.count(batch, 1)

    def take(self, count: int, left_out: Collection[int] = NO_TENANTS) -> list[Delivery]:
        """The oldest, except those of the tenants left out."""
        if left_out and not self.has(left_out):
            return []
        taken: list[Delivery] = []
        passed: list[tuple[float, list[Delivery]]] = []
        while self.batches and len(taken) < count:
            moment, batch = self.batches.popleft()
            room = count - len(taken)
            if left_out:
                found, rest = divide(batch, room, left_out)
            else:
                found, rest = batch[:room], batch[room:]
            taken += found
            if rest:
                passed.append((moment, rest))
        self.batches.extendleft(reversed(passed))
        self.count(taken, -1)
        return taken

    def has(self, left_out: Collection[int]) -> bool:
        """Whether tickets of other tenants than these lie here."""
        return any(lane.tenant not in left_out for lane in self.counts)

    def drop_put_before(self, moment: float) -> None:
        while self.batches and self.batches[0][0] <= moment:
            self.count(self.batches.popleft()[1], -1)

    def count(self, batch: Iterable[Delivery], change: int) -> None:
        for lane, number in count_lanes(batch).items():
            self.size += change * number
            left = self.counts.get(lane, 0) + change * number
            if left:
                self.counts[lane] = left
            else:
                del self.counts[lane]


class LaneQueues:
    """By queue; only those with tickets: tenants come and go."""

    def __init__(self) -> None:
        self.queues: dict[Lane, LaneQueue] = {}

    def __bool__(self) -> bool:
        return bool(self.queues)

    def put(self, batch: Iterable[Delivery], moment: float) -> None:
        parts: dict[Lane, list[Delivery]] = {}
        for lane, run in groupby(batch, LANE):
            parts.setdefault(queue_of(lane), []).extend(run)
        for queue, part in parts.items():
            self.queues.setdefault(queue, LaneQueue()).put(part, moment)

    def take(
        self, queues: Iterable[Lane], count: int, left_out: Collection[int] = NO_TENANTS
    ) -> list[Delivery]:
        """Queues in the order given, oldest ticket first in each."""
        taken: list[Delivery] = []
        for lane in queues:
            queue = self.queues.get(lane)
            if queue is None or len(taken) >= count:
                continue
            taken += queue.take(count - len(taken), left_out)
            if not queue.size:
                del self.queues[lane]
        return taken

    def take_put_before(self, moment: float) -> list[Delivery]:
        """The queues whose oldest tickets are as old: whole, for a lane has an order."""
        late = [lane for lane, queue in self.queues.items() if queue.batches[0][0] <= moment]
        return [each for lane in late for each in self.take([lane], self.queues[lane].size)]

    def drop_put_before(self, moment: float, queues: Iterable[Lane]) -> None:
        for lane in queues:
            queue = self.queues.get(lane)
            if queue is not None:
                queue.drop_put_before(moment)
                if not queue.size:
                    del self.queues[lane]

    def has(self, queue: Lane, left_out: Collection[int]) -> bool:
        """Whether there are tickets of other tenants than these."""
        kept = self.queues.get(queue)
        return kept is not None and kept.has(left_out)

    def depth(self, lane: Lane) -> int:
        queue = self.queues.get(queue_of(lane))
        if queue is None:
            return 0
        return queue.size if lane.tenant == ALL_TENANTS else queue.counts.get(lane, 0)

    def tickets(self, queues: Iterable[Lane]) -> dict[Lane, int]:
        """How many of each lane lie in these queues."""
        kept = [self.queues[queue] for queue in queues if queue in self.queues]
        return {lane: number for queue in kept for lane, number in queue.counts.items()}

    def clear(self) -> None:
        self.queues.clear()


def divide(
    batch: Sequence[Delivery], room: int, left_out: Collection[int]
) -> tuple[list[Delivery], list[Delivery]]:
    """The first of other tenants, and the rest, both in order."""
    found: list[Delivery] = []
    rest: list[Delivery] = []
    for delivery in batch:
        is_taken = len(found) < room and delivery.lane.tenant not in left_out
        (found if is_taken else rest).append(delivery)
    return found, rest


def count_lanes(batch: Iterable[Delivery]) -> dict[Lane, int]:
    """Neighbours are mostly of one lane, and looking a lane up costs more than the rest."""
    counts: dict[Lane, int] = {}
    for lane, run in groupby(batch, LANE):
        counts[lane] = counts.get(lane, 0) + len(list(run))
    return counts
