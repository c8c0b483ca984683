"""One queue in this process's memory, oldest first: of one lane, or of all tenants' webhooks. Who
may take from it, and when, is the carriers' business."""

from collections import deque
from collections.abc import Collection

from duly.domain.execution_shares import NO_TENANTS
from duly.domain.lanes import Lane, Ticket

Entries = list[tuple[Lane, Ticket]]


class LaneQueue:
    """Batches remember when they were put there."""

    __slots__ = ("batches", "counts", "size")

    def __init__(self) -> None:
        self.batches: deque[tuple[float, Entries]] = deque()
        self.counts: dict[Lane, int] = {}
        self.size = 0

    def put(self, entries: Entries, moment: float) -> None:
        self.batches.append((moment, entries))
        self.count(entries, 1)

    def put_back(self, entries: Entries, moment: float) -> None:
        """To the front. They are let go no earlier than what is behind them."""
        self.batches.appendleft((self.batches[0][0] if self.batches else moment, entries))
        self.count(entries, 1)

    def take(self, count: int, left_out: Collection[int] = NO_TENANTS) -> Entries:
        """The oldest, except those of the tenants left out."""
        if left_out and not self.has(left_out):
            return []
        taken: Entries = []
        passed: list[tuple[float, Entries]] = []
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

    def drop_published_before(self, moment: float) -> None:
        while self.batches and self.batches[0][0] <= moment:
            self.count(self.batches.popleft()[1], -1)

    def count(self, entries: Entries, change: int) -> None:
        """Neighbours are mostly of one lane, and looking a lane up costs more than the rest."""
        self.size += change * len(entries)
        last, number = None, 0
        for lane, _ in entries:
            if lane is last:
                number += change
                continue
            if last is not None:
                self.add(last, number)
            last, number = lane, change
        if last is not None:
            self.add(last, number)

    def add(self, lane: Lane, number: int) -> None:
        left = self.counts.get(lane, 0) + number
        if left:
            self.counts[lane] = left
        else:
            del self.counts[lane]


def divide(batch: Entries, room: int, left_out: Collection[int]) -> tuple[Entries, Entries]:
    """The first of other tenants, and the rest, both in order."""
    found: Entries = []
    rest: Entries = []
    for entry in batch:
        is_taken = len(found) < room and entry[0].tenant not in left_out
        (found if is_taken else rest).append(entry)
    return found, rest
