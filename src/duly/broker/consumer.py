"""Idle consumers of this process: how they wait, and which of them are woken."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from duly.domain.execution_shares import UNSHARED, UnsharedSlots
from duly.domain.lanes import Lane, queue_of
from duly.domain.task import WEBHOOK_POOL
from duly.store.lease import Lease


class WaitingConsumer:
    """An idle consumer: woken once, to look for tickets or with leases of the submit that reserved
    it."""

    __slots__ = (
        "count",
        "error",
        "holder",
        "is_reserved",
        "is_woken",
        "lanes",
        "lease_s",
        "leases",
        "slots",
        "waking",
    )

    def __init__(
        self,
        lanes: Sequence[Lane],
        holder: UUID,
        count: int,
        lease_s: float,
        slots: UnsharedSlots = UNSHARED,
    ) -> None:
        self.lanes = lanes
        self.slots = slots
        self.holder = holder
        self.count = count
        self.lease_s = lease_s
        self.is_reserved = False
        self.is_woken = False
        self.error: Exception | None = None
        self.leases: list[Lease] = []
        self.waking: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self, wait_s: float) -> None:
        """Wakes at the first turn of the loop after it is told: `asyncio.wait` would take two, and
        the submitter of the task would come before its handler."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(wait_s, self.end_wait)
        try:
            await self.waking
        finally:
            timer.cancel()
        if self.is_reserved and not self.is_woken:
            # A statement is in flight that may give it leases.
            self.waking = loop.create_future()
            await self.waking

    def wake(self, error: Exception | None = None) -> None:
        self.is_woken = True
        self.error = error
        self.end_wait()

    def end_wait(self) -> None:
        # One that is interrupted, or out of time, is awake already.
        if not self.waking.done():
            self.waking.set_result(None)

    def take(self, leases: list[Lease]) -> None:
        """See `IdleConsumer`."""
        self.leases = leases
        self.wake()


class Demand(NamedTuple):
    """What consumers wait for: so many tickets of these queues, and of these tenants none."""

    queues: list[Lane]
    credit: int
    left_out: frozenset[int]


class WaitingConsumers:
    """By queue, in the order in which they came; only queues with consumers."""

    def __init__(self) -> None:
        self.by_queue: dict[Lane, dict[WaitingConsumer, None]] = {}
        self.all_consumers: dict[WaitingConsumer, None] = {}

    def __len__(self) -> int:
        return len(self.all_consumers)

    def join(self, consumer: WaitingConsumer) -> None:
        self.all_consumers[consumer] = None
        for queue in consumer.lanes:
            self.by_queue.setdefault(queue, {})[consumer] = None

    def leave(self, consumer: WaitingConsumer) -> None:
        """Safe to call again: who wakes a consumer takes it out before it leaves by itself."""
        if consumer not in self.all_consumers:
            return
        del self.all_consumers[consumer]
        for queue in dict.fromkeys(consumer.lanes):
            waiting = self.by_queue[queue]
            del waiting[consumer]
            if not waiting:
                del self.by_queue[queue]

    def reserve(self, lane: Lane, count: int) -> WaitingConsumer | None:
        """The one that has waited longest of those that may get so many of a lane; its slots are
        claimed. One of a queue that all tenants share stays free: a submit of one tenant that hangs
        must not hold up the others."""
        fit = (each for each in self.by_queue.get(queue_of(lane), ()) if each.count >= count)
        first = next(fit, None)
        if first is None or not first.slots.admits(lane.tenant, count):
            return None
        if lane.pool == WEBHOOK_POOL and next(fit, None) is None:
            return None
        first.slots.take([lane] * count)
        first.is_reserved = True
        self.leave(first)
        return first

    def wanted(self, tickets: Mapping[Lane, int]) -> dict[Lane, int]:
        """How many of these tickets the consumers would take at once."""
        left = dict(tickets)
        for _ in self.served(left):
            continue
        return {lane: number - left[lane] for lane, number in tickets.items()}

    def wake(self, tickets: Mapping[Lane, int]) -> list[Lane]:
        """Wake as many as these tickets can serve; answers where more of them are than that."""
        left = {lane: number for lane, number in tickets.items() if number > 0}
        for consumer in list(self.served(left)):
            self.leave(consumer)
            consumer.wake()
        return [lane for lane, number in left.items() if number]

    def wake_all(self, error: Exception | None = None) -> None:
        for consumer in list(self.all_consumers):
            self.leave(consumer)
            consumer.wake(error)

    def served(self, left: dict[Lane, int]) -> Iterator[WaitingConsumer]:
        """Those that get some, the longest waiting first; `left` is what is left."""
        lanes: dict[Lane, list[Lane]] = {}
        for lane in left:
            lanes.setdefault(queue_of(lane), []).append(lane)
        served: set[WaitingConsumer] = set()
        for queue, its_lanes in lanes.items():
            for consumer in self.by_queue.get(queue, ()):
                if not any(left[lane] for lane in its_lanes):
                    break
                if consumer not in served and serve(consumer, lanes, left):
                    served.add(consumer)
                    yield consumer

    def demands(self) -> list[Demand]:
        """One for each set of tenants that consumers leave out: mostly one for an executor, and one
        for all workers."""
        queues: dict[frozenset[int], dict[Lane, None]] = {}
        credit_of: dict[frozenset[int], int] = {}
        for consumer in self.all_consumers:
            # The last round leaves out the fewest.
            for most, left_out in consumer.slots.rounds(consumer.count)[-1:]:
                queues.setdefault(left_out, {}).update(dict.fromkeys(consumer.lanes))
                credit_of[left_out] = credit_of.get(left_out, 0) + most
        return [Demand([*lanes], credit_of[each], each) for each, lanes in queues.items()]

    def awaits_any(self, queues: Iterable[Lane]) -> bool:
        return any(queue in self.by_queue for queue in queues)


def serve(
    consumer: WaitingConsumer, lanes: Mapping[Lane, list[Lane]], left: dict[Lane, int]
) -> bool:
    """Take from `left`, by queue, what the consumer may have."""
    for most, left_out in consumer.slots.rounds(consumer.count):
        wanted = most
        for queue in consumer.lanes:
            for lane in lanes.get(queue, ()):
                if lane.tenant not in left_out:
                    served = min(wanted, left[lane])
                    wanted -= served
                    left[lane] -= served
        if wanted < most:
            return True
    return False
