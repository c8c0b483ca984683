"""A worker in a process of its own, for tests that kill, stop and signal it.

`python -m tests.client.worker_process '{"pools": ["p"], ...}' [SECONDS]`; its handlers say what
happens to them, one JSON object per line. After its worker it goes on for so many seconds.
"""

import asyncio
import json
import sys
import threading
import time
from typing import Any

from duly import Context, Worker

worker = Worker(**json.loads(sys.argv[1])) if __name__ == "__main__" else Worker()


def say(ctx: Context, event: str, **more: Any) -> None:
    facts = {
        "event": event,
        "id": ctx.id,
        "attempt": ctx.attempt,
        "fence": ctx.fence,
        "key": ctx.execution_key,
    }
    sys.stdout.write(json.dumps({**facts, **more}) + "\n")
    sys.stdout.flush()


@worker.task("wait")
async def wait(ctx: Context, seconds: float = 60.0, first: float | None = None) -> int:
    """`first` is how long the first attempt waits."""
    say(ctx, "started")
    try:
        await asyncio.sleep(seconds if first is None or ctx.attempt > 1 else first)
    except asyncio.CancelledError:
        say(ctx, "cancelled")
        raise
    say(ctx, "ended")
    return ctx.fence


@worker.task("block")
async def block(ctx: Context, seconds: float = 60.0) -> None:
    say(ctx, "started")
    time.sleep(seconds)  # noqa: ASYNC251 (it stands for the user's mistake)


@worker.task("sleep.in.thread")
def sleep_in_thread(ctx: Context, seconds: float = 60.0) -> None:
    say(ctx, "started")
    time.sleep(seconds)


@worker.task("sleep.in.executor")
async def sleep_in_executor(ctx: Context, seconds: float = 60.0) -> None:
    """The loop and the interpreter wait for such a thread at their end."""
    say(ctx, "started")
    await asyncio.to_thread(time.sleep, seconds)


@worker.task("leave.thread")
async def leave_thread(ctx: Context, seconds: float = 600.0) -> None:
    """The interpreter waits for it, as for one of some library."""
    threading.Thread(target=time.sleep, args=(seconds,)).start()
    say(ctx, "started")


if __name__ == "__main__":
    worker.run()
    for seconds in sys.argv[2:]:
        time.sleep(float(seconds))
        sys.stdout.write(json.dumps({"event": "after run"}) + "\n")
