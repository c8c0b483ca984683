"""Items of a map, handed over by the handler that runs the node before it, page by page.

| event | what happens |
|---|---|
| an answer is lost | the page is sent again: the server has it, and compares places |
| an attempt is not the first | it says again what the one before said, which stays as it is |
| the attempt has lost its lease | the server refuses the page, and the handler hears it |
"""

import asyncio
from collections.abc import AsyncIterable, Iterable, Iterator
from typing import Any
from uuid import UUID

import msgspec

from duly.client.json_values import encode
from duly.client.leased_tasks import LeasedTask
from duly.client.paths import path
from duly.client.worker_api import WorkerApi
from duly.domain.ids import workflow_of
from duly.domain.map_plan import PAGE_ITEMS_MAX

# Half of what the server takes in one call.
PAGE_BYTES_MAX = 512 * 1024


class ItemHandover:
    """Of one attempt, for the maps that come after its node."""

    def __init__(
        self, task: LeasedTask, worker_api: WorkerApi, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.task = task
        self.worker_api = worker_api
        # The worker's own, which sends.
        self.loop = loop
        # How many items this attempt has handed over, by the name of the map.
        self.handed: dict[str, int] = {}

    def send(self, name: str, items: Iterable[Any]) -> int:
        """From the thread of a plain handler."""
        for content in pages(items):
            sending = asyncio.run_coroutine_threadsafe(self.send_page(name, content), self.loop)
            sending.result()
        return self.handed.get(name, 0)

    async def asend(self, name: str, items: Iterable[Any] | AsyncIterable[Any]) -> int:
        if isinstance(items, AsyncIterable):
            page = PendingPage()
            async for item in items:
                if content := page.add(encode(item)):
                    await self.send_page(name, content)
            if page.items:
                await self.send_page(name, page.items)
        else:
            for content in pages(items):
                await self.send_page(name, content)
        return self.handed.get(name, 0)

    async def send_page(self, name: str, items: list[bytes]) -> None:
        task, first = self.task, self.handed.get(name, 0)
        body = {
            "task": task.id,
            "fence": task.fence,
            "first": first,
            "items": [msgspec.Raw(item) for item in items],
        }
        at = path("workflows", str(workflow_of(UUID(task.id))), "nodes", name, "items")
        await self.worker_api.hand_over(at, msgspec.json.encode(body))
        self.handed[name] = first + len(items)


class PendingPage:
    """Items that are not sent yet."""

    def __init__(self) -> None:
        self.items: list[bytes] = []
        self.size = 0

    def add(self, item: bytes) -> list[bytes] | None:
        """A full page before this item, to be sent."""
        full = None
        if len(self.items) == PAGE_ITEMS_MAX or self.size + len(item) > PAGE_BYTES_MAX:
            full, self.items, self.size = self.items, [], 0
        self.items.append(item)
        self.size += len(item) + 1
        return full


def pages(items: Iterable[Any]) -> Iterator[list[bytes]]:
    page = PendingPage()
    for item in items:
        if content := page.add(encode(item)):
            yield content
    if page.items:
        yield page.items
