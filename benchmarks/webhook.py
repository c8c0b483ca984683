"""Webhooks to a local receiver in a process of its own: signed, sent, answered, settled.

The receiver speaks just enough HTTP; what is measured is duly, and the machine under both.
"""

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, cast

import uvloop

from benchmarks.engine import percentiles, settle_down
from benchmarks.heart import BATCH, PAYLOAD, Progress
from duly.domain.addresses import OutboundRules
from duly.domain.task import Submission
from duly.environment import Environment
from duly.execution.executor import Verdict
from duly.execution.webhooks import WebhookSender
from duly.store.database import Database
from duly.store.lease import Lease
from duly.testing.engine import Engine

TENANT = 1
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length: "


class Receiver(asyncio.Protocol):
    """Answers each whole request at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are no subclass of asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self.held = b""

    def data_received(self, data: bytes) -> None:
        self.held += data
        while (end := self.held.find(HEAD_END)) >= 0:
            head = self.held[:end].lower()
            at = head.index(LENGTH) + len(LENGTH)
            size = int(head[at:].split(b"\r\n", 1)[0])
            if len(self.held) < end + len(HEAD_END) + size:
                return
            self.held = self.held[end + len(HEAD_END) + size :]
            self.transport.write(ANSWER)


def receive(pipe: Connection) -> None:
    """The receiver's process; ends with its parent."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Receiver, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await loop.run_in_executor(None, pipe.poll, None)

    uvloop.run(serve())


@contextlib.contextmanager
def receiver() -> Iterator[int]:
    """Its port."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=receive, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send("over")
        process.join()


class Deliveries:
    """A sender that counts what it delivered, and how long each took."""

    def __init__(self, sender: WebhookSender, goal: int, progress: Progress) -> None:
        self.sender = sender
        self.goal = goal
        self.progress = progress
        self.waits: list[float] = []
        self.failed = 0
        self.reached = asyncio.Event()

    async def __call__(self, lease: Lease) -> Verdict:
        began = time.perf_counter()
        verdict = await self.sender(lease)
        if verdict.outcome == "completed":
            self.waits.append(time.perf_counter() - began)
        else:
            self.failed += 1
        if len(self.waits) % 500 == 0:
            self.progress(len(self.waits), self.goal)
        if len(self.waits) >= self.goal:
            self.reached.set()
        return verdict


async def run_webhooks(database: Database, progress: Progress, tasks: int) -> dict[str, Any]:
    """Submitted in batches while they are delivered, until the last one is answered."""
    sender = WebhookSender(database, Environment(), OutboundRules(allow_private=True))
    deliveries = Deliveries(sender, tasks, progress)
    with receiver() as port:
        async with Engine(database, Environment(), deliveries) as engine:
            await settle_down(engine)
            began = time.perf_counter()
            for start in range(0, tasks, BATCH):
                count = min(BATCH, tasks - start)
                await engine.submitter.submit([make_task(port) for _ in range(count)])
            await deliveries.reached.wait()
            passed_s = time.perf_counter() - began
        await sender.close()
    figures = {"tasks_per_s": tasks / passed_s, **percentiles(deliveries.waits)}
    return figures | {"given_back": deliveries.failed}


def make_task(port: int) -> Submission:
    url = f"http://127.0.0.1:{port}/hook"
    return Submission(tenant=TENANT, type="bench.webhook", payload=PAYLOAD, url=url)


Scenario = Callable[[Database, Progress, int], Awaitable[dict[str, Any]]]

# name -> (scenario, tasks, tasks with --quick)
SCENARIOS: dict[str, tuple[Scenario, int, int]] = {"webhook": (run_webhooks, 20_000, 5_000)}
