"""Lane backpressure: tenants that wait for a full lane, per lane. All webhooks of an installation
share three queues, and asking each of ten thousand tenants whenever two hundred tasks find room
took most of the time: so they come back a few at a time, in the order in which they left."""

from collections import deque

from duly.domain.lanes import Lane

# One pool of one tenant.
Member = tuple[int, int]


class Queue:
    """Of one lane. Who came back and found it full again goes before the others."""

    def __init__(self) -> None:
        self.first: deque[Member] = deque()
        self.others: deque[Member] = deque()
        self.members: set[Member] = set()


class LaneBackpressure:
    def __init__(self) -> None:
        self.queues: dict[Lane, Queue] = {}
        # For which lane each waits. Who went on with something else keeps its place in a queue.
        self.waits_for: dict[Member, Lane] = {}
        # How often each came back since something of theirs was dispatched.
        self.unserved: dict[Member, int] = {}

    def __contains__(self, member: Member) -> bool:
        return member in self.waits_for

    def hold(self, member: Member, lane: Lane) -> None:
        self.waits_for[member] = lane
        queue = self.queues.setdefault(lane, Queue())
        if member not in queue.members:
            queue.members.add(member)
            (queue.first if member in self.unserved else queue.others).append(member)

    def release(self, member: Member) -> None:
        """There is something else that it can do."""
        del self.waits_for[member]

    def served(self, member: Member) -> None:
        self.unserved.pop(member, None)

    def come_back(self, lane: Lane, most: int) -> list[Member]:
        """The next of those who wait for this lane."""
        members: list[Member] = []
        queue = self.queues[lane]
        while len(members) < most and (waiting := queue.first or queue.others):
            member = waiting.popleft()
            queue.members.discard(member)
            if self.waits_for.get(member) == lane:
                del self.waits_for[member]
                members.append(member)
                self.unserved[member] = self.unserved.get(member, 0) + 1
        if not queue.members:
            del self.queues[lane]
        return members
