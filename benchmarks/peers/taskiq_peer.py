"""taskiq with Redis streams: the broker that it recommends where tasks must be acknowledged.

Its PostgreSQL broker is not measured: it delivers only what is announced while a worker listens, so
a backlog from before the worker's start stays where it is.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from taskiq import TaskiqScheduler
from taskiq.api import run_receiver_task, run_scheduler_task
from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker

from benchmarks.peers.contract import Payload, note_start, read_order, run_async

ORDER = read_order()
# Its command's default is 100 asynchronous tasks; the stream is read 100 entries at a time.
ASYNC_TASKS = 100
# From the beginning of the stream: a backlog from before the first worker counts.
broker = RedisStreamBroker(ORDER.url, consumer_id="0", xread_count=ASYNC_TASKS)
source = ListRedisScheduleSource(ORDER.url)


async def noop(**_payload: object) -> None:
    """Nothing: what is left is the queue's own cost."""


async def timed(at: float, **_payload: object) -> None:
    note_start(at)


TASKS: dict[str, Any] = {
    "noop": broker.task(task_name="noop")(noop),
    "timed": broker.task(task_name="timed")(timed),
}


class TaskiqPeer:
    async def setup(self) -> None:
        """Redis needs none."""

    async def connect(self, callers: int) -> None:  # noqa: ARG002
        await broker.startup()
        await source.startup()

    async def submit_one(self, kind: str, payload: Payload) -> None:
        await TASKS[kind].kiq(**payload)

    async def submit_many(self, kind: str, payloads: list[Payload], run_at: float) -> None:
        """It has no bulk call: a batch sent side by side is its fastest way."""
        if run_at:
            due = datetime.fromtimestamp(run_at, UTC)
            sent = [TASKS[kind].schedule_by_time(source, due, **payload) for payload in payloads]
        else:
            sent = [TASKS[kind].kiq(**payload) for payload in payloads]
        for start in range(0, len(sent), ASYNC_TASKS):
            await asyncio.gather(*sent[start : start + ASYNC_TASKS])

    async def consume(self, _processes: int) -> None:
        """With the scheduler beside it, looking every second: the least that its command takes."""
        scheduler = TaskiqScheduler(broker, [source])
        second = timedelta(seconds=1)
        await asyncio.gather(
            run_receiver_task(broker, max_async_tasks=ASYNC_TASKS, run_startup=True),
            run_scheduler_task(scheduler, interval=second, loop_interval=second),
        )


if __name__ == "__main__":
    run_async(TaskiqPeer, ORDER)
