"""A real `duly up` in a process of its own, asked over HTTP: submits, reads, and an SDK worker.

The load comes from this process, with as little HTTP as will do; server, PostgreSQL and load share
the machine, as they do wherever somebody tries it.
"""

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from benchmarks.engine import percentiles
from benchmarks.heart import Progress
from duly import AsyncClient, Worker

CALLERS = 64
BATCH = 500
BATCH_CALLERS = 4
LONE_TASKS_PER_S = 50
WORKER_CONCURRENCY = 500
FAR_S = 30 * 86400
PAYLOAD = {"data": "x" * 180}
TASK = {"type": "bench.noop", "payload": PAYLOAD, "delay_s": FAR_S}


@dataclass(frozen=True)
class Running:
    url: str
    api_key: str


@contextlib.asynccontextmanager
async def duly_up() -> AsyncIterator[Running]:
    with tempfile.TemporaryDirectory(prefix="duly-bench-http-") as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "duly", "up", "--json", "--port", "0", "--data-dir", folder),
            stdout=PIPE,
            stderr=DEVNULL,
        )
        try:
            assert process.stdout is not None
            ready = json.loads(await process.stdout.readline())
            yield Running(ready["url"], ready["api_key"])
        finally:
            process.terminate()
            await process.wait()


class Caller:
    """One connection that asks, waits for the answer, and asks again."""

    def __init__(self, running: Running, waits: list[float]) -> None:
        self.running = running
        self.waits = waits

    async def __aenter__(self) -> "Caller":
        parts = urlsplit(self.running.url)
        self.reader, self.writer = await asyncio.open_connection(parts.hostname, parts.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        began = time.perf_counter()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self.running.api_key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        answer = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.split(b"content-length: ")[1].split(b"\r\n")[0])
        content = await self.reader.readexactly(length)
        assert answer.startswith((b"http/1.1 200", b"http/1.1 201")), content
        self.waits.append(time.perf_counter() - began)
        return content


async def many_callers(
    running: Running,
    callers: int,
    asks: int,
    ask: Callable[[Caller, int], Awaitable[object]],
    progress: Progress,
) -> tuple[float, list[float]]:
    """Seconds for all of it, and of each."""
    waits: list[float] = []
    left = iter(range(asks))

    async def call() -> None:
        async with Caller(running, waits) as caller:
            for number in left:
                await ask(caller, number)
                if number % 500 == 0:
                    progress(number, asks)

    began = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    return time.perf_counter() - began, waits


async def run_submit_single(progress: Progress, tasks: int) -> dict[str, Any]:
    body = json.dumps(TASK).encode()
    async with duly_up() as running:
        await many_callers(running, CALLERS, tasks // 10, submit_one(body), progress)
        passed_s, waits = await many_callers(running, CALLERS, tasks, submit_one(body), progress)
    return {"tasks_per_s": tasks / passed_s, **percentiles(waits)}


def submit_one(body: bytes) -> Callable[[Caller, int], Awaitable[object]]:
    return lambda caller, _number: caller.ask("POST", "/v1/tasks", body)


async def run_submit_batch(progress: Progress, tasks: int) -> dict[str, Any]:
    body = json.dumps({"tasks": [TASK] * BATCH}).encode()

    async def ask(caller: Caller, _number: int) -> object:
        return await caller.ask("POST", "/v1/tasks/batch", body)

    async with duly_up() as running:
        await many_callers(running, BATCH_CALLERS, 10, ask, progress)
        passed_s, waits = await many_callers(running, BATCH_CALLERS, tasks // BATCH, ask, progress)
    return {"tasks_per_s": tasks // BATCH * BATCH / passed_s, **percentiles(waits)}


async def run_read(progress: Progress, tasks: int) -> dict[str, Any]:
    body = json.dumps({"tasks": [TASK] * BATCH}).encode()
    async with duly_up() as running:
        async with Caller(running, []) as caller:
            stored = json.loads(await caller.ask("POST", "/v1/tasks/batch", body))
        ids = [item["id"] for item in stored["items"]]

        async def ask(caller: Caller, number: int) -> object:
            return await caller.ask("GET", f"/v1/tasks/{ids[number % BATCH]}")

        await many_callers(running, CALLERS, tasks // 10, ask, progress)
        passed_s, waits = await many_callers(running, CALLERS, tasks, ask, progress)
    return {"tasks_per_s": tasks / passed_s, **percentiles(waits)}


async def run_client(progress: Progress, tasks: int) -> dict[str, Any]:
    """Every submit is a call of its own; the client batches them behind the scenes."""
    async with duly_up() as running, AsyncClient(running.url, running.api_key) as client:
        await client.submit("bench.noop", PAYLOAD, delay_s=FAR_S)
        began = time.perf_counter()
        await asyncio.gather(
            *(client.submit("bench.noop", PAYLOAD, delay_s=FAR_S) for _ in range(tasks))
        )
        passed_s = time.perf_counter() - began
        progress(tasks, tasks)
    return {"tasks_per_s": tasks / passed_s}


async def run_end_to_end(progress: Progress, tasks: int) -> dict[str, Any]:
    """Batches in, an SDK worker in this process, until the last one is settled."""
    async with duly_up() as running, AsyncClient(running.url, running.api_key) as client:
        worker = Worker(
            url=running.url,
            api_key=running.api_key,
            pools=["bench"],
            concurrency=WORKER_CONCURRENCY,
        )

        @worker.task("bench.noop")
        async def noop(_ctx: object, **_fields: object) -> None:
            """Nothing: what is measured is the way there and back."""

        serving = asyncio.create_task(worker.serve())
        began = time.perf_counter()
        await asyncio.gather(
            *(client.submit("bench.noop", PAYLOAD, pool="bench") for _ in range(tasks))
        )
        await all_settled(client, tasks, progress)
        passed_s = time.perf_counter() - began
        worker.stop()
        await serving
    return {"tasks_per_s": tasks / passed_s}


async def all_settled(client: AsyncClient, tasks: int, progress: Progress) -> None:
    """Asked of the server, not of the worker: nothing of the tenant is live."""
    while True:
        now = await client.call("GET", "/v1/stats/now")
        live = now["in_flight"] + sum(band["ready"] for band in now["bands"])
        progress(max(0, tasks - live), tasks)
        if live == 0:
            return
        await asyncio.sleep(0.05)


async def run_lone(progress: Progress, tasks: int) -> dict[str, Any]:
    """Submit over HTTP to the start of the handler, one task at a time."""
    waits: list[float] = []
    async with duly_up() as running, AsyncClient(running.url, running.api_key) as client:
        worker = Worker(url=running.url, api_key=running.api_key, pools=["bench"])

        @worker.task("bench.lone")
        async def lone(_ctx: object, payload: float) -> None:
            waits.append(time.time() - payload)

        serving = asyncio.create_task(worker.serve())
        for number in range(tasks):
            await client.submit("bench.lone", time.time(), pool="bench")
            await asyncio.sleep(1 / LONE_TASKS_PER_S)
            progress(number, tasks)
        worker.stop()
        await serving
    return percentiles(waits[tasks // 10 :])


Scenario = Callable[[Progress, int], Awaitable[dict[str, Any]]]

# name -> (scenario, tasks, tasks with --quick)
SCENARIOS: dict[str, tuple[Scenario, int, int]] = {
    "submit-single": (run_submit_single, 40_000, 5_000),
    "submit-batch": (run_submit_batch, 200_000, 20_000),
    "read": (run_read, 40_000, 5_000),
    "client": (run_client, 50_000, 10_000),
    "end-to-end-http": (run_end_to_end, 50_000, 10_000),
    "lone-http": (run_lone, 500, 100),
}
