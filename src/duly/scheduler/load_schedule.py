"""Load schedule: when each timer queue is loaded next. A tick costs only the queues that are due:
with ten thousand queues, going through all of them in every tick took most of the time."""

import math
from collections.abc import Callable
from heapq import heappop, heappush

from duly.store.load import TimerQueue


class LoadSchedule:
    """Between two calls, every place has an entry of its time in the heap, or is among the full."""

    def __init__(self) -> None:
        self.times: dict[TimerQueue, float] = {}
        # Also entries of other times that a place had, dropped when they come up; each once.
        self.heap: list[tuple[float, TimerQueue]] = []
        self.entries: set[tuple[float, TimerQueue]] = set()
        # Due, but memory is full: readmitted when there is capacity.
        self.full: set[TimerQueue] = set()

    def put(self, place: TimerQueue, at: float) -> None:
        if self.times.get(place) != at:
            self.times[place] = at
            self.full.discard(place)
            self.push(at, place)

    def remove(self, place: TimerQueue) -> None:
        """Its entries in the heap are dropped when they come up."""
        self.times.pop(place, None)
        self.full.discard(place)

    def push(self, at: float, place: TimerQueue) -> None:
        if (at, place) not in self.entries:
            self.entries.add((at, place))
            heappush(self.heap, (at, place))

    def pop(self) -> tuple[float, TimerQueue]:
        entry = heappop(self.heap)
        self.entries.discard(entry)
        return entry

    def due(
        self, now: float, has_room: Callable[[TimerQueue], bool], most: int
    ) -> list[TimerQueue]:
        """Those whose time has come, the earliest first; they stay due until they are put off."""
        for place in [place for place in self.full if has_room(place)]:
            self.full.discard(place)
            self.push(self.times[place], place)
        chosen: dict[TimerQueue, float] = {}
        while self.heap and self.heap[0][0] <= now and len(chosen) < most:
            at, place = self.pop()
            if self.times.get(place) != at:
                continue
            if has_room(place):
                chosen[place] = at
            else:
                self.full.add(place)
        for place, at in chosen.items():
            self.push(at, place)
        return list(chosen)

    def next_at(self) -> float:
        """When the next is due that has room, as far as is known."""
        while self.heap and self.times.get(self.heap[0][1]) != self.heap[0][0]:
            self.pop()
        return self.heap[0][0] if self.heap else math.inf
