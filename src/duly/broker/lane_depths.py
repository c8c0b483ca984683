"""Lane depths: how many tickets of each lane lie in a table, as far as this process knows, and how
many in each queue."""

from collections.abc import Collection, Iterable, Mapping

from duly.domain.lanes import ALL_TENANTS, Lane, queue_of


class LaneDepths:
    def __init__(self) -> None:
        # By queue, then by lane; only those with tickets.
        self.queues: dict[Lane, dict[Lane, int]] = {}

    def of(self, lane: Lane) -> int:
        """Of one lane, or of one of `WEBHOOK_LANES`, which are queues."""
        lanes = self.queues.get(queue_of(lane))
        if lanes is None:
            return 0
        return sum(lanes.values()) if lane.tenant == ALL_TENANTS else lanes.get(lane, 0)

    def tickets(self, queues: Iterable[Lane]) -> dict[Lane, int]:
        known = [self.queues[queue] for queue in queues if queue in self.queues]
        return {lane: number for lanes in known for lane, number in lanes.items()}

    def add(self, lane: Lane, number: int) -> None:
        """A negative number was taken; perhaps of more than was known."""
        queue = queue_of(lane)
        lanes = self.queues.setdefault(queue, {})
        lanes[lane] = lanes.get(lane, 0) + number
        if lanes[lane] <= 0:
            del lanes[lane]
        if not lanes:
            del self.queues[queue]

    def forget(self, queues: Iterable[Lane], left_out: Collection[int]) -> None:
        """Of other tenants than these there are none."""
        for queue in queues:
            lanes = self.queues.pop(queue, {})
            left = {lane: number for lane, number in lanes.items() if lane.tenant in left_out}
            if left:
                self.queues[queue] = left

    def learn(self, queues: Iterable[Lane], counted: Mapping[Lane, int]) -> None:
        """The whole truth about these queues."""
        for queue in queues:
            self.queues.pop(queue, None)
        for lane, number in counted.items():
            self.add(lane, number)

    def clear(self) -> None:
        self.queues.clear()
