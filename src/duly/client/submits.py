"""Submits of many callers, batched behind the scenes: what arrives while a call is on its way forms
the next batch. A single caller never waits for a batch to fill, and callers are answered after the
server.

One bad task in a batch is told so by itself; the others are sent again without it.
"""

import asyncio
from collections import deque
from typing import NamedTuple

import msgspec

from duly.client.errors import ApiError, Conflict, IdempotencyMismatch, Invalid
from duly.client.http_async import Connection
from duly.client.wire import new_key

BATCH_MAX = 500
BATCH_BYTES_MAX = 8 * 1024 * 1024
# Two calls on their way: one is decoded here while the other is stored there.
FLIGHTS_MAX = 2
WAITING_MAX = 100_000


class PendingSubmit(NamedTuple):
    """`key` is the caller's own; without one, the call that carries the task is given one."""

    body: bytes
    key: str | None
    answer: "asyncio.Future[bytes]"


class Items(msgspec.Struct):
    items: list[msgspec.Raw]


class SubmitQueue:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.waiting: deque[PendingSubmit] = deque()
        self.flights: set[asyncio.Task[None]] = set()
        self.has_room = asyncio.Event()

    async def put(self, body: bytes, key: str | None) -> "asyncio.Future[bytes]":
        """In line, once there is room; what it becomes is the server's description of the task."""
        while len(self.waiting) >= WAITING_MAX:
            self.has_room.clear()
            await self.has_room.wait()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        self.waiting.append(PendingSubmit(body, key, answer))
        if len(self.waiting) == 1:
            # After a caller that puts several in a row has put them all.
            loop.call_soon(self.start_batches)
        return answer

    def start_batches(self) -> None:
        while self.waiting and len(self.flights) < FLIGHTS_MAX:
            flight = asyncio.get_running_loop().create_task(self.run_batch(self.next_batch()))
            self.flights.add(flight)
            flight.add_done_callback(self.on_batch_done)

    def on_batch_done(self, flight: "asyncio.Task[None]") -> None:
        self.flights.discard(flight)
        self.has_room.set()
        self.start_batches()

    def next_batch(self) -> list[PendingSubmit]:
        batch: list[PendingSubmit] = []
        size = 0
        while self.waiting and len(batch) < BATCH_MAX and size < BATCH_BYTES_MAX:
            entry = self.waiting.popleft()
            if not entry.answer.done():
                batch.append(entry)
                size += len(entry.body)
        return batch

    async def run_batch(self, batch: list[PendingSubmit]) -> None:
        try:
            if len(batch) == 1:
                resolve(batch[0], await self.send_one(batch[0]))
            elif batch:
                for entry, item in zip(batch, await self.send_many(batch), strict=True):
                    resolve(entry, bytes(item))
        except (Invalid, Conflict) as error:
            if stored_nothing(error):
                await self.set_aside(batch, error)
            else:
                fail(batch, error)
        except BaseException as error:
            fail(batch, error)
            if not isinstance(error, Exception):
                raise

    async def send_one(self, entry: PendingSubmit) -> bytes:
        return await self.connection.request(
            "POST", "/v1/tasks", entry.body, idempotency_key=entry.key
        )

    async def send_many(self, batch: list[PendingSubmit]) -> list[msgspec.Raw]:
        body = b'{"tasks":[' + b",".join(entry.body for entry in batch) + b"]}"
        # Within one try-again loop the batch is the same, so one key for all of it is enough.
        answer = await self.connection.request(
            "POST", "/v1/tasks/batch", body, idempotency_key=new_key()
        )
        return msgspec.json.decode(answer, type=Items).items

    async def set_aside(self, batch: list[PendingSubmit], error: ApiError) -> None:
        """The server stored nothing of the batch; those it pointed at fail, the rest go on."""
        if len(batch) == 1:
            fail(batch, error)
            return
        guilty = {ordinal for item in error.errors if (ordinal := ordinal_of(item)) is not None}
        if not guilty or len(guilty) == len(batch):
            middle = len(batch) // 2
            await self.run_batch(batch[:middle])
            await self.run_batch(batch[middle:])
            return
        for ordinal in guilty:
            # Alone, its pointers are those of one task.
            await self.run_batch([batch[ordinal]])
        await self.run_batch(
            [entry for ordinal, entry in enumerate(batch) if ordinal not in guilty]
        )

    async def close(self) -> None:
        while self.waiting or self.flights:
            self.start_batches()
            await asyncio.wait(self.flights)


def resolve(entry: PendingSubmit, answer: bytes) -> None:
    if not entry.answer.done():
        entry.answer.set_result(answer)


def fail(batch: list[PendingSubmit], error: BaseException) -> None:
    for entry in batch:
        if not entry.answer.done():
            entry.answer.set_exception(error)


def stored_nothing(error: ApiError) -> bool:
    """What is sent again without this proof may be there twice. A conflict that points at its tasks
    was found before the commit; another may be about tasks that are there."""
    return isinstance(error, Invalid | IdempotencyMismatch) or bool(error.errors)


def ordinal_of(item: dict[str, str]) -> int | None:
    """`/tasks/3/priority` points at the fourth task."""
    _, _, rest = item.get("pointer", "").partition("/tasks/")
    text = rest.partition("/")[0]
    return int(text) if text.isdigit() else None
