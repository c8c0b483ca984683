"""A running duly for the tests of the client's worker, and a pool for each test of its own."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from duly import AsyncClient, Worker
from tests.client.proxy import Proxy
from tests.servers import ServerOfTheRun
from tests.story.duly_up import RunningDuly, duly_up

numbers = itertools.count(1)
MakeWorker = Callable[..., Worker]
WAIT_S = 20.0
LOOK_EVERY_S = 0.01


@pytest.fixture(scope="module")
def duly(server: ServerOfTheRun) -> Iterator[RunningDuly]:
    """One for all tests of a file: each works in a pool of its own."""
    with server.database() as name:
        environ = {
            "DULY_DATABASE_URL": server.engine_url(name),
            "DULY_MIGRATION_DATABASE_URL": server.url(name),
        }
        with duly_up(environ=environ) as running:
            yield running


@pytest.fixture
def pool() -> str:
    return f"pool-{next(numbers)}"


@pytest.fixture
async def client(duly: RunningDuly) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(duly.url, duly.ready["api_key"]) as client:
        yield client


@pytest.fixture
def make_worker(duly: RunningDuly, pool: str) -> MakeWorker:
    """With short leases, so that losing one takes no time."""

    def make(url: str | None = None, **options: Any) -> Worker:
        options = {"pools": [pool], "concurrency": 10, "lease_s": 1.0, "drain_s": 5.0, **options}
        return Worker(url or duly.url, duly.ready["api_key"], **options)

    return make


@pytest.fixture
async def proxy(duly: RunningDuly) -> AsyncIterator[Proxy]:
    async with Proxy(duly.url) as proxy:
        yield proxy


@contextlib.asynccontextmanager
async def at_work(worker: Worker) -> AsyncIterator[Worker]:
    """Running while the block does, and drained after it."""
    serving = asyncio.create_task(worker.serve())
    try:
        yield worker
    finally:
        worker.stop()
        if worker.session is None:
            serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def true_within(is_true: Callable[[], Any], timeout_s: float = WAIT_S) -> None:
    """Look until it is true; `is_true` may be a coroutine function."""
    async with asyncio.timeout(timeout_s):
        while True:
            answer = is_true()
            if isinstance(answer, Awaitable):
                answer = await answer
            if answer:
                return
            await asyncio.sleep(LOOK_EVERY_S)
