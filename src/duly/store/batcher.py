"""Natural batching: what arrives while a statement is in flight forms the next batch.

A single caller never waits for a batch to fill, and callers are answered after the commit. The
batcher has no SQL: a `flush` function answers one batch, item by item.

| event | what happens |
|---|---|
| two items with one key arrive together | the second waits for the next batch |
| a caller is cancelled while waiting | its item is dropped, unless it is in flight already |
| a batch is refused (data, too many pools) | split in halves: it fails one caller alone |
| a deadlock or serialization failure | the same; a single caller's are tried again, a few times |
| the connection fails | the outcome is unknown: every caller of that batch gets the error |
| too many wait | Overloaded, at once |
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

from duly.domain.errors import DulyError, Overloaded, StatementRefused, TooManyPools
from duly.metric_families import Buckets
from duly.store.database import CONFLICT_CODES

Item = TypeVar("Item")
Answer = TypeVar("Answer")

CONFLICT_TRIES_MAX = 5


class BatchEntry(NamedTuple, Generic[Item, Answer]):
    """The items of one caller, which are sent together and fail together."""

    items: Sequence[Item]
    answers: "asyncio.Future[list[Answer]]"


class Batcher(Generic[Item, Answer]):
    def __init__(
        self,
        name: str,
        flush: Callable[[list[Item]], Awaitable[list[Answer]]],
        *,
        batch_size_max: int,
        waiting_max: int,
        batches_max: int = 1,
        parallel_min: int = 1,
        key: Callable[[Item], Hashable] | None = None,
        sizes: Buckets | None = None,
    ) -> None:
        self.name = name
        self.flush = flush
        self.batch_size_max = batch_size_max
        self.waiting_max = waiting_max
        self.batches_max = batches_max
        # Items that must wait before another batch starts beside running ones: two half-empty
        # batches cost more than a full one.
        self.parallel_min = parallel_min
        self.key = key
        # How many items share a flight, for the metrics.
        self.sizes = sizes
        self.waiting: deque[BatchEntry[Item, Answer]] = deque()
        # Items, not callers.
        self.waiting_count = 0
        self.flights: set[asyncio.Task[None]] = set()

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.flights

    async def submit(self, item: Item) -> Answer:
        """Wait for the answer to one item."""
        (answer,) = await self.enqueue([item])
        return answer

    async def submit_all(self, items: Sequence[Item]) -> list[Answer]:
        """Wait for the answers to one caller's items, unique by key. They share statements with
        other callers; more than a batch are sent in several."""
        if len(items) <= self.batch_size_max:
            return await self.enqueue(items) if items else []
        self.check_room(len(items))
        size = self.batch_size_max
        parts = [self.enqueue(items[at : at + size]) for at in range(0, len(items), size)]
        return [answer for part in await asyncio.gather(*parts) for answer in part]

    def enqueue(self, items: Sequence[Item]) -> "asyncio.Future[list[Answer]]":
        self.check_room(len(items))
        answers: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self.waiting.append(BatchEntry(items, answers))
        self.waiting_count += len(items)
        self.start_batches()
        return answers

    def check_room(self, count: int) -> None:
        if self.waiting_count + count > self.waiting_max:
            raise Overloaded(what=self.name, most=self.waiting_max)

    def start_batches(self) -> None:
        """Start a flight for the callers that wait, if one is free."""
        while self.waiting and len(self.flights) < self.batches_max:
            if self.flights and self.waiting_count < self.parallel_min:
                return
            batch = self.next_batch()
            if not batch:
                return
            if self.sizes is not None:
                self.sizes.observe(sum(len(entry.items) for entry in batch))
            flight = asyncio.get_running_loop().create_task(self.run_batch(batch), name=self.name)
            self.flights.add(flight)
            flight.add_done_callback(self.on_batch_done)

    def on_batch_done(self, flight: "asyncio.Task[None]") -> None:
        self.flights.discard(flight)
        self.start_batches()

    def next_batch(self) -> list[BatchEntry[Item, Answer]]:
        """The oldest entries whose callers still wait, no two items with the same key."""
        batch: list[BatchEntry[Item, Answer]] = []
        postponed: list[BatchEntry[Item, Answer]] = []
        taken: set[Hashable] = set()
        room = self.batch_size_max
        while self.waiting and room > 0:
            entry = self.waiting.popleft()
            if entry.answers.done():
                self.waiting_count -= len(entry.items)
                continue
            if len(entry.items) > room:
                postponed.append(entry)
                break
            # The items of one entry are unique: an entry that is alone is not asked for keys.
            if self.key is not None and (batch or self.waiting):
                keys = set(map(self.key, entry.items))
                if not taken.isdisjoint(keys):
                    postponed.append(entry)
                    continue
                taken |= keys
            room -= len(entry.items)
            batch.append(entry)
        self.waiting.extendleft(reversed(postponed))
        self.waiting_count -= self.batch_size_max - room
        return batch

    async def run_batch(self, batch: list[BatchEntry[Item, Answer]], tries: int = 1) -> None:
        items = [item for entry in batch for item in entry.items]
        try:
            answers = await self.flush(items)
            assert len(answers) == len(items)
        except (StatementRefused, TooManyPools) as refusal:
            await self.split(batch, refusal, tries)
        except BaseException as error:
            for entry in batch:
                if not entry.answers.done():
                    entry.answers.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            start = 0
            for entry in batch:
                end = start + len(entry.items)
                if not entry.answers.done():
                    entry.answers.set_result(answers[start:end])
                start = end

    async def split(
        self, batch: list[BatchEntry[Item, Answer]], refusal: DulyError, tries: int
    ) -> None:
        """One caller's bad item must not fail the others."""
        if len(batch) > 1:
            middle = len(batch) // 2
            await self.run_batch(batch[:middle])
            await self.run_batch(batch[middle:])
        elif refusal.facts.get("code") in CONFLICT_CODES and tries < CONFLICT_TRIES_MAX:
            await self.run_batch(batch, tries + 1)
        elif not batch[0].answers.done():
            batch[0].answers.set_exception(refusal)

    async def close(self) -> None:
        """Run all remaining batches; waiting callers get their answers."""
        while self.flights:
            await asyncio.wait(self.flights)
