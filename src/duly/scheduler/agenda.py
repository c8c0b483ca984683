"""When each place is to be looked at next. Asking costs what there is to do, not what there is:
with ten thousand places, going through all of them in every tick took most of the time."""

import math
from collections.abc import Callable
from heapq import heappop, heappush

from duly.store.load import Place


class Agenda:
    """Between two calls, every place has an entry of its time in the heap, or is among the full."""

    def __init__(self) -> None:
        self.times: dict[Place, float] = {}
        # Also entries of earlier times, which are dropped when they come up.
        self.heap: list[tuple[float, Place]] = []
        # Due, and without room: whoever makes room asks again.
        self.full: set[Place] = set()

    def put(self, place: Place, at: float) -> None:
        if self.times.get(place) != at:
            self.times[place] = at
            self.full.discard(place)
            heappush(self.heap, (at, place))

    def due(self, now: float, has_room: Callable[[Place], bool], most: int) -> list[Place]:
        """Those whose time has come, the earliest first; they stay due until they are put off."""
        for place in [place for place in self.full if has_room(place)]:
            self.full.discard(place)
            heappush(self.heap, (self.times[place], place))
        chosen: dict[Place, float] = {}
        while self.heap and self.heap[0][0] <= now and len(chosen) < most:
            at, place = heappop(self.heap)
            if self.times[place] != at:
                continue
            if has_room(place):
                chosen[place] = at
            else:
                self.full.add(place)
        for place, at in chosen.items():
            heappush(self.heap, (at, place))
        return list(chosen)

    def next_at(self) -> float:
        """When the next is due that has room, as far as is known."""
        while self.heap and self.times[self.heap[0][1]] != self.heap[0][0]:
            heappop(self.heap)
        return self.heap[0][0] if self.heap else math.inf
