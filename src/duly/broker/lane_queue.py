"""One lane in this process's memory, oldest first. Who may take from it, and when, is the carriers'
business."""

from collections import deque

from duly.domain.lanes import Ticket


class LaneQueue:
    """Marks remember how much of it was there at which moment."""

    __slots__ = ("added", "marks", "taken", "tickets")

    def __init__(self) -> None:
        self.tickets: deque[Ticket] = deque()
        self.added = 0
        self.taken = 0
        self.marks: deque[tuple[float, int]] = deque()

    def put(self, tickets: list[Ticket], moment: float) -> None:
        self.tickets.extend(tickets)
        self.added += len(tickets)
        self.marks.append((moment, self.added))

    def put_back(self, tickets: list[Ticket]) -> None:
        self.tickets.extendleft(reversed(tickets))
        self.taken -= len(tickets)

    def take(self, count: int) -> list[Ticket]:
        if count >= len(self.tickets):
            tickets = list(self.tickets)
            self.tickets.clear()
        else:
            tickets = [self.tickets.popleft() for _ in range(count)]
        self.taken += len(tickets)
        while self.marks and self.marks[0][1] <= self.taken:
            self.marks.popleft()
        return tickets

    def drop_published_before(self, moment: float) -> None:
        while self.marks and self.marks[0][0] <= moment:
            _, number = self.marks.popleft()
            self.take(max(number - self.taken, 0))
