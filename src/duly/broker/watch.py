"""How the consumers of one process wait for a table: one of them polls for all, and less and less.

A consumer that waits costs nothing by itself; together they cost one bounded count per interval,
which grows from `POLL_FIRST_S` to `POLL_LAST_S` while nothing happens and starts again at a wake.

| event | what happens |
|---|---|
| tickets seen | as many consumers are woken as there is work for, the longest waiting first |
| consumer cancelled or out of time after it was woken | the next poll is at once, for the others |
| closed | everybody who waits is woken, and nobody waits any more |
| poll fails | everybody who waits is told, and the polling ends until somebody waits again |
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

from duly.broker.waiter import Waiter, to_reserve
from duly.domain.lanes import Lane, queue_of

POLL_FIRST_S = 0.005
POLL_LAST_S = 0.5
GROWTH = 2.0

CountTickets = Callable[[list[Lane]], Awaitable[Mapping[Lane, int]]]


class Watch:
    def __init__(self, count_tickets: CountTickets) -> None:
        self.count_tickets = count_tickets
        # In the order in which they came.
        self.waiters: dict[Waiter, None] = {}
        self.polling: asyncio.Task[None] | None = None
        self.interval_s = POLL_LAST_S
        self.signal = asyncio.Event()
        self.is_closed = False

    async def wait(self, waiter: Waiter, wait_s: float) -> bool:
        """Whether there seem to be tickets; another consumer may be quicker."""
        if self.is_closed or wait_s <= 0 or waiter.count <= 0:
            return False
        self.waiters[waiter] = None
        self.start()
        try:
            await waiter.wait(wait_s)
        except asyncio.CancelledError:
            if waiter.is_told and waiter.error is None:
                self.wake()
            raise
        finally:
            self.waiters.pop(waiter, None)
        if waiter.error is not None:
            raise waiter.error
        return waiter.is_told

    def reserve(self, lane: Lane, count: int) -> Waiter | None:
        waiter = to_reserve(self.waiters, lane, count)
        if waiter is not None:
            waiter.is_reserved = True
            del self.waiters[waiter]
        return waiter

    def wake(self) -> None:
        """Something may have happened: look now, and often for a while."""
        self.interval_s = POLL_FIRST_S
        self.signal.set()

    def hurry(self) -> None:
        """Something happened, and more may follow: look often for a while."""
        self.interval_s = POLL_FIRST_S

    def look(self, lanes: Iterable[Lane]) -> None:
        """Tickets came to these lanes: if anybody waits there, look now. Once: where others were
        quicker, there is nothing to hurry for."""
        awaited = {lane for waiter in self.waiters for lane in waiter.lanes}
        if not awaited.isdisjoint(map(queue_of, lanes)):
            self.signal.set()

    def wanted(self, tickets: Mapping[Lane, int]) -> dict[Lane, int]:
        """How many of these tickets those who wait would take at once."""
        left = dict(tickets)
        for _ in self.served(left):
            continue
        return {lane: number - left[lane] for lane, number in tickets.items()}

    def tell(self, tickets: Mapping[Lane, int]) -> list[Lane]:
        """Wake as many as these tickets can serve; answers where more of them are than that."""
        left = {lane: number for lane, number in tickets.items() if number > 0}
        for waiter in list(self.served(left)):
            del self.waiters[waiter]
            waiter.tell()
        return [lane for lane, number in left.items() if number]

    def served(self, left: dict[Lane, int]) -> Iterator[Waiter]:
        """Who gets some of them, in the order in which they came; `left` is what is left."""
        for waiter in self.waiters if left else ():
            by_queue: dict[Lane, list[Lane]] = {}
            for lane in left:
                by_queue.setdefault(queue_of(lane), []).append(lane)
            for most, left_out in waiter.slots.rounds(waiter.count):
                wanted = most
                for queue in waiter.lanes:
                    for lane in by_queue.get(queue, ()):
                        if lane.tenant not in left_out:
                            served = min(wanted, left[lane])
                            wanted -= served
                            left[lane] -= served
                if wanted < most:
                    yield waiter
                    break

    def start(self) -> None:
        if self.polling is None:
            loop = asyncio.get_running_loop()
            self.polling = loop.create_task(self.poll(), name="broker.watch")

    async def poll(self) -> None:
        """Lives as long as somebody waits."""
        try:
            while self.waiters:
                await self.pause()
                lanes = list(dict.fromkeys(lane for each in self.waiters for lane in each.lanes))
                if lanes:
                    self.tell(await self.count_tickets(lanes))
        except Exception as error:
            for waiter in self.waiters:
                waiter.tell(error)
            self.waiters.clear()
        finally:
            self.polling = None

    async def pause(self) -> None:
        pause_s = self.interval_s
        self.interval_s = min(pause_s * GROWTH, POLL_LAST_S)
        try:
            async with asyncio.timeout(pause_s):
                await self.signal.wait()
        except TimeoutError:
            return
        finally:
            self.signal.clear()

    async def close(self) -> None:
        # A consumer in the middle of its statement waits next, and would for its whole time.
        self.is_closed = True
        if self.polling is not None:
            self.polling.cancel()
            await asyncio.wait((self.polling,))
        for waiter in self.waiters:
            waiter.tell()
        self.waiters.clear()
