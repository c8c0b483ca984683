"""What a peer's program is told and what it answers, one JSON line at a time.

Runs inside the peers' own virtual environment: nothing here may import duly or the driver.
The first line on stdin is the order; a consumer says that it is ready and waits for a second line.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import uvloop

PAYLOAD_BYTES = 200
# A fan-out of two: a node, two after it, and one after both.
DIAMOND = 2
# Peers that look for future work at intervals look this often for the herd: far more eagerly than
# their defaults of seconds, so that what is measured is their dispatch and not their patience.
FUTURE_POLL_S = 0.05
LAGS_VARIABLE = "DULY_PEER_LAGS"
# With the digits of an instant in place of as many of these, a payload has its size.
FILLING = "x" * (PAYLOAD_BYTES - len('{"at": , "data": ""}'))

Payload = dict[str, Any]


@dataclass(frozen=True)
class Order:
    """One step: `setup`, `single`, `bulk`, `pace`, `herd`, `chain`, `fan`, `diamonds` or
    `consume`."""

    step: str
    url: str
    count: int = 0
    callers: int = 1
    batch: int = 1000
    per_s: float = 50.0
    # The herd's instant, counted from when the producer begins to submit it.
    lead_s: float = 0.0
    # How many consumers drain together: some systems are told.
    processes: int = 1
    # Nodes of a chain, or side by side in a fan-out.
    width: int = 0


class Peer(Protocol):
    """What each system must be able to do. `timed` tasks call `note_start` when they start."""

    async def setup(self) -> None: ...
    async def connect(self, callers: int) -> None: ...
    async def submit_one(self, kind: str, payload: Payload) -> None: ...
    async def submit_many(self, kind: str, payloads: list[Payload], run_at: float) -> None:
        """A `run_at` of 0 means now."""

    async def consume(self, processes: int) -> None:
        """Until the process is ended from outside."""


class BlockingPeer(Protocol):
    """The same for systems whose API blocks: callers are threads."""

    def setup(self) -> None: ...
    def connect(self, callers: int) -> None: ...
    def submit_one(self, kind: str, payload: Payload) -> None: ...
    def submit_many(self, kind: str, payloads: list[Payload], run_at: float) -> None: ...
    def consume(self, processes: int) -> None: ...


class FlowPeer(Protocol):
    """What a system with workflows must be able to do. Of the shape `fan`: one node, as many after
    it as it is wide, and one after all of these."""

    async def connect(self, callers: int) -> None: ...
    async def run_flow(self, shape: str, width: int) -> None:
        """Start one, and wait for its end."""

    async def close(self) -> None: ...


class BlockingFlowPeer(Protocol):
    """The same for systems whose API blocks: callers are threads."""

    def connect(self, callers: int) -> None: ...
    def run_flow(self, shape: str, width: int) -> None: ...


def read_order() -> Order:
    return Order(**json.loads(sys.stdin.readline()))


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def wait_for_go() -> None:
    """Everything is imported and connected to nothing: from here on the clock runs."""
    say(ready=True)
    sys.stdin.readline()


def make_payload(at: float = 0.0) -> Payload:
    """200 bytes of JSON; `at` is the instant from which the start is counted. Made quickly: what it
    takes is in everybody's figure, and hides how they differ."""
    return {"at": at, "data": FILLING[len(repr(at)) :]}


def note_start(at: float) -> None:
    """One short append: whole lines even when several processes write."""
    os.write(_lags(), f"{time.time() - at:.6f}\n".encode())


_descriptor: int | None = None


def _lags() -> int:
    global _descriptor
    if _descriptor is None:
        path = os.environ[LAGS_VARIABLE]
        _descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    return _descriptor


def slices(order: Order) -> Iterator[list[Payload]]:
    """Batches made one at a time, so that no system is charged for a list of everything."""
    for start in range(0, order.count, order.batch):
        size = min(order.batch, order.count - start)
        yield [make_payload() for _ in range(size)]


def run_async(make: "type[Peer]", order: Order) -> None:
    async def run() -> None:
        peer = make()
        if order.step == "setup":
            await peer.setup()
        elif order.step == "consume":
            wait_for_go()
            await peer.consume(order.processes)
        else:
            await peer.connect(order.callers)
            say(tasks=order.count, seconds=await produce(peer, order))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def produce(peer: Peer, order: Order) -> float:
    if order.step == "herd":
        run_at = time.time() + order.lead_s
        payloads = [make_payload(run_at) for _ in range(order.count)]
        return await timed(peer.submit_many("timed", payloads, run_at))
    if order.step == "pace":
        return await timed(pace(peer, order))
    if order.step == "bulk":
        batches = slices(order)

        async def call_bulk() -> None:
            for payloads in batches:
                await peer.submit_many("noop", payloads, 0.0)

        return await timed(gather(call_bulk, order.callers))
    numbers = iter(range(order.count))

    async def call_single() -> None:
        for _ in numbers:
            await peer.submit_one("noop", make_payload())

    return await timed(gather(call_single, order.callers))


def run_flows(make: "type[FlowPeer]", order: Order) -> None:
    async def run() -> None:
        peer = make()
        if order.step == "setup":
            return
        await peer.connect(order.callers)
        try:
            say(seconds=await time_flows(peer, order))
        finally:
            await peer.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def time_flows(peer: FlowPeer, order: Order) -> list[float]:
    """One after another, each timed; diamonds all together. Some before, to warm up."""
    await gather(lambda: peer.run_flow("fan", DIAMOND), order.callers)
    if order.step != "diamonds":
        return [await timed(peer.run_flow(order.step, order.width)) for _ in range(order.count)]
    left = iter(range(order.count))

    async def call() -> None:
        for _ in left:
            await peer.run_flow("fan", DIAMOND)

    return [await timed(gather(call, order.callers))]


def run_blocking_flows(make: "type[BlockingFlowPeer]", order: Order) -> None:
    peer = make()
    peer.connect(order.callers)
    warm = iter(range(order.callers))
    in_threads(lambda _: peer.run_flow("fan", DIAMOND), warm, order.callers)
    seconds: list[float] = []
    for _ in range(1 if order.step == "diamonds" else order.count):
        began = time.perf_counter()
        if order.step == "diamonds":
            many = iter(range(order.count))
            in_threads(lambda _: peer.run_flow("fan", DIAMOND), many, order.callers)
        else:
            peer.run_flow(order.step, order.width)
        seconds.append(time.perf_counter() - began)
    say(seconds=seconds)


async def gather(call: Any, callers: int) -> None:
    await asyncio.gather(*(call() for _ in range(callers)))


async def timed(work: Any) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def pace(peer: Peer, order: Order) -> None:
    """At fixed instants: a slow answer does not slow the next one down."""
    began = time.perf_counter()
    for number in range(order.count):
        await asyncio.sleep(max(0.0, began + number / order.per_s - time.perf_counter()))
        await peer.submit_one("timed", make_payload(time.time()))


def run_blocking(make: "type[BlockingPeer]", order: Order) -> None:
    peer = make()
    if order.step == "setup":
        peer.setup()
    elif order.step == "consume":
        wait_for_go()
        peer.consume(order.processes)
    else:
        peer.connect(order.callers)
        say(tasks=order.count, seconds=produce_blocking(peer, order))


def produce_blocking(peer: BlockingPeer, order: Order) -> float:
    began = time.perf_counter()
    if order.step == "herd":
        run_at = time.time() + order.lead_s
        peer.submit_many("timed", [make_payload(run_at) for _ in range(order.count)], run_at)
    elif order.step == "pace":
        for number in range(order.count):
            time.sleep(max(0.0, began + number / order.per_s - time.perf_counter()))
            peer.submit_one("timed", make_payload(time.time()))
    elif order.step == "bulk":
        in_threads(lambda work: peer.submit_many("noop", work, 0.0), slices(order), order.callers)
    else:
        singles = (make_payload() for _ in range(order.count))
        in_threads(lambda work: peer.submit_one("noop", work), singles, order.callers)
    return time.perf_counter() - began


Work = TypeVar("Work")


def in_threads(call: Callable[[Work], None], works: Iterator[Work], callers: int) -> None:
    """Every caller takes the next piece of work when it is done with its last."""
    lock = threading.Lock()

    def take() -> Iterator[Work]:
        while True:
            with lock:
                work = next(works, None)
            if work is None:
                return
            yield work

    def run() -> None:
        for work in take():
            call(work)

    threads = [threading.Thread(target=run) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
