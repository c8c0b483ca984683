"""How long the event loop was held, in processor time: a busy machine does not lengthen that."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

TICK_S = 0.001


class LoopWatch:
    longest_s = 0.0


@contextlib.asynccontextmanager
async def watched_loop() -> AsyncIterator[LoopWatch]:
    watch = LoopWatch()

    async def tick() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(TICK_S)
            watch.longest_s = max(watch.longest_s, time.thread_time() - before)

    ticking = asyncio.ensure_future(tick())
    await asyncio.sleep(TICK_S)
    try:
        yield watch
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
