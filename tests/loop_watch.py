"""A watchdog of the event loop: the longest time that one callback computed without a break.

It counts the processor time of the loop's thread, so that a busy machine does not look like a busy
loop. Everything else of the thread counts too: that of the test itself.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

LOOK_EVERY_S = 0.001
# No request of any tenant may hold the loop for longer.
HELD_S_MAX = 0.1


class LoopWatch:
    def __init__(self) -> None:
        self.longest_s = 0.0

    async def look(self) -> None:
        while True:
            began_s = time.thread_time()
            await asyncio.sleep(LOOK_EVERY_S)
            self.longest_s = max(self.longest_s, time.thread_time() - began_s)


@contextlib.asynccontextmanager
async def loop_watched() -> AsyncIterator[LoopWatch]:
    """Fails at its end if something held the loop."""
    watch = LoopWatch()
    looking = asyncio.create_task(watch.look())
    try:
        await asyncio.sleep(0)
        yield watch
        await asyncio.sleep(2 * LOOK_EVERY_S)
    finally:
        looking.cancel()
    assert watch.longest_s < HELD_S_MAX, f"the event loop was held for {watch.longest_s:.3f} s"
