"""Webhooks to a receiver in a process of its own: signed, sent, answered, settled.

The receiver speaks just enough HTTP; what is measured is duly, and the machine under both.
"""

import asyncio
import contextlib
import multiprocessing
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import cast

import uvloop

from duly.bench.drive import Driver
from duly.bench.figures import Figures, percentiles
from duly.bench.stage import BATCH, PAYLOAD, TENANT, ScenarioContext
from duly.domain.addresses import OutboundRules
from duly.domain.task import Submission
from duly.execution.attempt import AttemptResult
from duly.execution.webhooks.sender import WebhookSender
from duly.store.lease import Lease

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length: "


async def run_webhook(stage: ScenarioContext) -> Figures:
    """Submitted in batches while they are delivered, until the last one is answered."""
    sender = WebhookSender(stage.database, stage.environment, OutboundRules(allow_private=True))
    waits: list[float] = []
    given_back = 0

    async def deliver(lease: Lease) -> AttemptResult:
        nonlocal given_back
        began = stage.now_s
        verdict = await sender(lease)
        if verdict.outcome == "completed":
            waits.append(stage.now_s - began)
        else:
            given_back += 1
            # It comes again, and is settled again.
            driver.goal += 1
        return verdict

    driver = Driver(stage, deliver)
    with receiver() as port:
        async with driver.running():
            driver.restart_meter(stage.tasks)
            for start in range(0, stage.tasks, BATCH):
                count = min(BATCH, stage.tasks - start)
                await driver.engine.submitter.submit([make_webhook(port) for _ in range(count)])
            await driver.all_settled()
        await sender.close()
    rate = len(waits) / driver.meter.passed_s
    return driver.meter.figures() | {
        "tasks_per_s": rate,
        **percentiles(waits),
        "given_back": given_back,
    }


def make_webhook(port: int) -> Submission:
    url = f"http://127.0.0.1:{port}/hook"
    return Submission(tenant=TENANT, type="bench.webhook", payload=PAYLOAD, url=url)


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
        with contextlib.suppress(BrokenPipeError):
            ours.send("over")
        process.join()


def receive(pipe: Connection) -> None:
    """The receiver's process; ends when its parent says so, or is gone."""
    # A Ctrl-C on the terminal is for the benchmark, which then ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Receiver, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await loop.run_in_executor(None, pipe.poll, None)

    uvloop.run(serve())


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
