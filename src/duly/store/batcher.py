"""Natural batching: what arrives while a statement is in flight forms the next batch.

A lone caller never waits for a batch to fill, and nobody is answered before the commit. The batcher
knows nothing of SQL: it is handed a `flush` that answers one batch, item by item.

| event | what happens |
|---|---|
| two items with one key arrive together | the second waits for the next batch |
| a caller is cancelled while waiting | its item is dropped, unless it is in flight already |
| a batch is refused (data, too many pools) | split in halves: one bad item fails no neighbour |
| a deadlock or serialization failure | the same, and a single item is tried a few times |
| the connection fails | the outcome is unknown: every caller of that batch is told so |
| too many wait | Overloaded, at once |
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from duly.domain.errors import DulyError, Overloaded, StatementRefused, TooManyPools
from duly.metric_families import Buckets
from duly.store.database import CONFLICT_CODES

Item = TypeVar("Item")
Answer = TypeVar("Answer")

CONFLICT_TRIES_MAX = 5


class BatchItem(NamedTuple, Generic[Item, Answer]):
    item: Item
    answer: "asyncio.Future[Answer]"


class Batcher(Generic[Item, Answer]):
    def __init__(
        self,
        name: str,
        flush: Callable[[list[Item]], Awaitable[list[Answer]]],
        *,
        batch_size_max: int,
        waiting_max: int,
        flights_max: int = 1,
        company_min: int = 1,
        key: Callable[[Item], Hashable] | None = None,
        sizes: Buckets | None = None,
    ) -> None:
        self.name = name
        self.flush = flush
        self.batch_size_max = batch_size_max
        self.waiting_max = waiting_max
        self.flights_max = flights_max
        # How many must wait before a flight takes off beside others: two half-empty ones cost more
        # than one that is full.
        self.company_min = company_min
        self.key = key
        # How many calls share a flight, for the metrics.
        self.sizes = sizes
        self.waiting: deque[BatchItem[Item, Answer]] = deque()
        self.flights: set[asyncio.Task[None]] = set()

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.flights

    async def submit(self, item: Item) -> Answer:
        """Wait for the answer to one item."""
        if len(self.waiting) >= self.waiting_max:
            raise Overloaded(what=self.name, most=self.waiting_max)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.waiting.append(BatchItem(item, answer))
        self.start_batches()
        return await answer

    def start_batches(self) -> None:
        """Start a flight for whoever waits, if one is free."""
        while self.waiting and len(self.flights) < self.flights_max:
            if self.flights and len(self.waiting) < self.company_min:
                return
            batch = self.next_batch()
            if not batch:
                return
            if self.sizes is not None:
                self.sizes.observe(len(batch))
            flight = asyncio.get_running_loop().create_task(self.run_batch(batch), name=self.name)
            self.flights.add(flight)
            flight.add_done_callback(self.on_batch_done)

    def on_batch_done(self, flight: "asyncio.Task[None]") -> None:
        self.flights.discard(flight)
        self.start_batches()

    def next_batch(self) -> list[BatchItem[Item, Answer]]:
        """The oldest items whose callers still wait, no two with the same key."""
        batch: list[BatchItem[Item, Answer]] = []
        postponed: list[BatchItem[Item, Answer]] = []
        taken: set[Hashable] = set()
        while self.waiting and len(batch) < self.batch_size_max:
            entry = self.waiting.popleft()
            if entry.answer.done():
                continue
            if self.key is not None:
                key = self.key(entry.item)
                if key in taken:
                    postponed.append(entry)
                    continue
                taken.add(key)
            batch.append(entry)
        self.waiting.extendleft(reversed(postponed))
        return batch

    async def run_batch(self, batch: list[BatchItem[Item, Answer]], tries: int = 1) -> None:
        try:
            answers = await self.flush([entry.item for entry in batch])
            assert len(answers) == len(batch)
        except (StatementRefused, TooManyPools) as refusal:
            await self.split(batch, refusal, tries)
        except BaseException as error:
            for entry in batch:
                if not entry.answer.done():
                    entry.answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            for entry, answer in zip(batch, answers, strict=True):
                if not entry.answer.done():
                    entry.answer.set_result(answer)

    async def split(
        self, batch: list[BatchItem[Item, Answer]], refusal: DulyError, tries: int
    ) -> None:
        if len(batch) > 1:
            middle = len(batch) // 2
            await self.run_batch(batch[:middle])
            await self.run_batch(batch[middle:])
        elif refusal.facts.get("code") in CONFLICT_CODES and tries < CONFLICT_TRIES_MAX:
            await self.run_batch(batch, tries + 1)
        elif not batch[0].answer.done():
            batch[0].answer.set_exception(refusal)

    async def close(self) -> None:
        """Land every flight; callers that still wait are answered by the flights they get."""
        while self.flights:
            await asyncio.wait(self.flights)
