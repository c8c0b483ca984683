"""Load schedule: when each timer queue is loaded next. A tick costs only the queues that are due:
with ten thousand queues, going through all of them in every tick took most of the time."""

import math
from collections.abc import Callable
from heapq import heappop, heappush

from duly.store.load import TimerQueue


class LoadSchedule:
    """Between two calls, every queue has an entry of its time in the heap, or is in `full`."""

    def __init__(self) -> None:
        self.times: dict[TimerQueue, float] = {}
        # Also entries of earlier times of a queue, dropped when they come up; each once.
        self.heap: list[tuple[float, TimerQueue]] = []
        self.entries: set[tuple[float, TimerQueue]] = set()
        # Due, but memory is full: readmitted when there is capacity.
        self.full: set[TimerQueue] = set()

    def put(self, queue: TimerQueue, at: float) -> None:
        if self.times.get(queue) != at:
            self.times[queue] = at
            self.full.discard(queue)
            self.push(at, queue)

    def remove(self, queue: TimerQueue) -> None:
        """Its entries in the heap are dropped when they come up."""
        self.times.pop(queue, None)
        self.full.discard(queue)

    def push(self, at: float, queue: TimerQueue) -> None:
        if (at, queue) not in self.entries:
            self.entries.add((at, queue))
            heappush(self.heap, (at, queue))

    def pop(self) -> tuple[float, TimerQueue]:
        entry = heappop(self.heap)
        self.entries.discard(entry)
        return entry

    def due(
        self, now: float, has_room: Callable[[TimerQueue], bool], most: int
    ) -> list[TimerQueue]:
        """Those whose time has come, the earliest first; they stay due until they are put off."""
        for queue in [queue for queue in self.full if has_room(queue)]:
            self.full.discard(queue)
            self.push(self.times[queue], queue)
        chosen: dict[TimerQueue, float] = {}
        while self.heap and self.heap[0][0] <= now and len(chosen) < most:
            at, queue = self.pop()
            if self.times.get(queue) != at:
                continue
            if has_room(queue):
                chosen[queue] = at
            else:
                self.full.add(queue)
        for queue, at in chosen.items():
            self.push(at, queue)
        return list(chosen)

    def next_at(self) -> float:
        """When the next is due that has room, as far as is known."""
        while self.heap and self.times.get(self.heap[0][1]) != self.heap[0][0]:
            self.pop()
        return self.heap[0][0] if self.heap else math.inf
