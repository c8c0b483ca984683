"""A real `duly up` in a process of its own, asked over HTTP: submits, reads, and an SDK worker.

The load comes from this process, with as little HTTP as will do; server, PostgreSQL and load share
the machine, as they do on a laptop.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from duly.bench.children import Running, duly_up
from duly.bench.figures import Figures, Meter, percentiles
from duly.bench.stage import BATCH, STALLED_S, ScenarioContext
from duly.client.asynchronous import AsyncClient
from duly.client.request import TaskSpec
from duly.client.worker import Worker
from duly.environment import Clock

CALLERS = 64
BATCH_CALLERS = 4
LONE_TASKS_PER_S = 50
WORKER_CONCURRENCY = 500
SETTLED_POLL_S = 0.02
BATCHES_AT_ONCE = 2
AHEAD_MAX, AHEAD_POLL_S = 5000, 0.005
FAR_S = 30 * 86400
POOL = "bench"
PAYLOAD = {"data": "x" * 180}
TASK = {"type": "bench.noop", "payload": PAYLOAD, "delay_s": FAR_S}

Ask = Callable[["Caller", int], Awaitable[object]]


class Caller:
    """One connection that asks, waits for the answer, and asks again."""

    def __init__(self, running: Running, clock: Clock, waits: list[float]) -> None:
        self.running = running
        self.clock = clock
        self.waits = waits

    async def __aenter__(self) -> "Caller":
        parts = urlsplit(self.running.url)
        self.reader, self.writer = await asyncio.open_connection(parts.hostname, parts.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        began = self.clock.monotonic()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self.running.api_key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        answer = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.split(b"content-length: ")[1].split(b"\r\n")[0])
        content = await self.reader.readexactly(length)
        assert answer.startswith((b"http/1.1 200", b"http/1.1 201")), content
        self.waits.append(self.clock.monotonic() - began)
        return content


@dataclass
class CallResults:
    """What many callers saw together."""

    meter: Meter
    waits: list[float] = field(default_factory=list)

    def figures(self) -> Figures:
        return {**self.meter.figures(), **percentiles(self.waits)}


async def many_callers(
    stage: ScenarioContext, running: Running, callers: int, asks: int, ask: Ask, size: int = 1
) -> CallResults:
    """`size` tasks are in each of the asks, which the callers share out between them."""
    asked = CallResults(Meter(stage.environment.clock))
    left = iter(range(asks))

    async def call() -> None:
        async with Caller(running, stage.environment.clock, asked.waits) as caller:
            for number in left:
                await ask(caller, number)
                asked.meter.add(size)
                if number % 100 == 0:
                    stage.show(asked.meter.count, asks * size)

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(call())
    return asked


async def run_submit_single(stage: ScenarioContext) -> Figures:
    body = msgspec.json.encode(TASK)

    async def ask(caller: Caller, _number: int) -> None:
        await caller.ask("POST", "/v1/tasks", body)

    async with duly_up(stage) as running:
        await many_callers(stage, running, CALLERS, stage.tasks // 10, ask)
        asked = await many_callers(stage, running, CALLERS, stage.tasks, ask)
    return asked.figures()


async def run_submit_batch(stage: ScenarioContext) -> Figures:
    body = msgspec.json.encode({"tasks": [TASK] * BATCH})

    async def ask(caller: Caller, _number: int) -> None:
        await caller.ask("POST", "/v1/tasks/batch", body)

    batches = max(stage.tasks // BATCH, 1)
    async with duly_up(stage) as running:
        await many_callers(stage, running, BATCH_CALLERS, batches // 10, ask, BATCH)
        asked = await many_callers(stage, running, BATCH_CALLERS, batches, ask, BATCH)
    return {**asked.figures(), "batch_size": BATCH}


async def run_read(stage: ScenarioContext) -> Figures:
    body = msgspec.json.encode({"tasks": [TASK] * BATCH})
    async with duly_up(stage) as running:
        async with Caller(running, stage.environment.clock, []) as caller:
            stored = msgspec.json.decode(await caller.ask("POST", "/v1/tasks/batch", body))
        ids = [item["id"] for item in stored["items"]]

        async def ask(caller: Caller, number: int) -> None:
            await caller.ask("GET", f"/v1/tasks/{ids[number % BATCH]}")

        await many_callers(stage, running, CALLERS, stage.tasks // 10, ask)
        asked = await many_callers(stage, running, CALLERS, stage.tasks, ask)
    return asked.figures()


async def run_client(stage: ScenarioContext) -> Figures:
    """Every submit is a call of its own; the client batches them behind the scenes."""
    async with duly_up(stage) as running, AsyncClient(running.url, running.api_key) as client:
        await client.submit("bench.noop", PAYLOAD, delay_s=FAR_S)
        meter = Meter(stage.environment.clock)

        async def submit() -> None:
            await client.submit("bench.noop", PAYLOAD, delay_s=FAR_S)
            meter.add()

        async with asyncio.TaskGroup() as group:
            for _ in range(stage.tasks):
                group.create_task(submit())
        stage.show(stage.tasks, stage.tasks)
    return meter.figures()


async def run_end_to_end_http(stage: ScenarioContext) -> Figures:
    """Batches through the SDK as fast as the worker keeps up, until the last one is settled; a
    tenth of them before, to warm up."""
    async with duly_up(stage) as running, AsyncClient(running.url, running.api_key) as client:
        worker = make_worker(running, concurrency=WORKER_CONCURRENCY)
        meter = Meter(stage.environment.clock)

        @worker.task("bench.noop")
        async def noop(_ctx: object, /, **_fields: object) -> None:
            meter.add()

        async with serving(worker):
            for tasks in (max(stage.tasks // 10, 1), stage.tasks):
                meter = Meter(stage.environment.clock)
                async with asyncio.TaskGroup() as group:
                    group.create_task(sustain(client, meter, tasks))
                    group.create_task(all_settled(stage, client, meter, tasks))
                passed_s = stage.now_s - meter.began
    return meter.figures() | {"tasks_per_s": stage.tasks / passed_s}


async def sustain(client: AsyncClient, meter: Meter, tasks: int) -> None:
    """Two batches on their way, and no more ahead of the worker than it takes in a moment."""
    starts = iter(range(0, tasks, BATCH))

    async def submit() -> None:
        for start in starts:
            task = TaskSpec(type="bench.noop", payload=PAYLOAD, pool=POOL)
            await client.submit_many([task] * min(BATCH, tasks - start))
            while start - meter.count > AHEAD_MAX:
                await asyncio.sleep(AHEAD_POLL_S)

    async with asyncio.TaskGroup() as group:
        for _ in range(BATCHES_AT_ONCE):
            group.create_task(submit())


async def all_settled(
    stage: ScenarioContext, client: AsyncClient, meter: Meter, tasks: int
) -> None:
    """Asked of the server, not of the worker: every task was run, and nothing is live."""
    live, patience = tasks, stage.patience("the worker")
    while live:
        await asyncio.sleep(SETTLED_POLL_S)
        patience.look(f"{meter.count} run, {live} live", tasks)
        stage.show(meter.count, stage.tasks)
        if meter.count >= tasks:
            now: dict[str, Any] = await client.call("GET", "/v1/stats/now")
            live = now["in_flight"] + sum(band["ready"] for band in now["bands"])


async def run_lone_http(stage: ScenarioContext) -> Figures:
    """Submit over HTTP to the start of the handler, one task at a time."""
    clock, waits = stage.environment.clock, list[float]()
    has_started = asyncio.Event()
    async with duly_up(stage) as running, AsyncClient(running.url, running.api_key) as client:
        worker = make_worker(running)

        @worker.task("bench.lone")
        async def lone(_ctx: object, payload: float) -> None:
            waits.append(clock.monotonic() - payload)
            has_started.set()

        async with serving(worker):
            for number in range(stage.tasks + stage.tasks // 10):
                has_started.clear()
                await client.submit("bench.lone", clock.monotonic(), pool=POOL)
                async with asyncio.timeout(STALLED_S):
                    await has_started.wait()
                await asyncio.sleep(1 / LONE_TASKS_PER_S)
                stage.show(number, stage.tasks)
    # The first tenth is warm-up.
    return percentiles(waits[stage.tasks // 10 :])


def make_worker(running: Running, **facts: Any) -> Worker:
    return Worker(url=running.url, api_key=running.api_key, pools=[POOL], **facts)


@contextlib.asynccontextmanager
async def serving(worker: Worker) -> AsyncIterator[None]:
    work = asyncio.create_task(worker.serve())
    try:
        yield
    finally:
        worker.stop()
        await work
