"""Puts one peer through a row: programs started, told, listened to, and always ended.

Producers and consumers are processes of their own. Whether a backlog is gone is asked of the
database by us; how long a task waited is written by its handler.
"""

import asyncio
import contextlib
import json
import os
import signal
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.catalogue import PeerInfo
from benchmarks.peers.contract import LAGS_VARIABLE, Order
from benchmarks.peers.installation import PROJECT, command_of
from benchmarks.peers.services import Postgres, Redis, Temporal

CALLERS = 64
BATCH_MAX = 1_000
PER_S = 50.0
WARM_UP = 20
# Long enough for the slowest of them to submit the herd before its instant.
HERD_LEAD_S = 6.0
READY_MAX_S = 60.0
STEP_MAX_S = 900.0
LAGS_MAX_S = 180.0
END_MAX_S = 15.0
POLL_S, POLL_MAX_S = 0.02, 0.25

Show = Callable[[str], None]


class PeerFailed(Exception):
    """A peer's program ended or stayed silent; what it said last."""


@dataclass(frozen=True)
class Sizes:
    single: int
    backlog: int
    paced: int
    herd: int
    chains: int = 10
    fans: int = 3
    diamonds: int = 500


FULL = Sizes(single=20_000, backlog=60_000, paced=1_000, herd=2_000)
QUICK = Sizes(single=2_000, backlog=10_000, paced=100, herd=2_000, chains=2, fans=1, diamonds=100)
CHAIN_NODES, FAN_WIDTH = 40, 1_000


class Child:
    """One program of a peer, in a process group of its own."""

    def __init__(self, process: Process, errors: Path) -> None:
        self.process = process
        self.errors = errors

    async def hear(self, timeout_s: float) -> dict[str, Any]:
        """Its next line that is ours; a library may print too."""
        assert self.process.stdout is not None
        async with asyncio.timeout(timeout_s):
            async for line in self.process.stdout:
                if line.startswith(b"{"):
                    facts: dict[str, Any] = json.loads(line)
                    return facts
        raise PeerFailed(self.complaint())

    async def done(self, timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            if await self.process.wait() != 0:
                raise PeerFailed(self.complaint())

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")

    def complaint(self) -> str:
        lines = self.errors.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "ended without a word"

    async def end(self) -> None:
        """SIGTERM first; whatever is left of its own group goes with it."""
        if self.process.returncode is None:
            self.process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_MAX_S):
                    await self.process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()


class Bench:
    """One peer on its store."""

    def __init__(self, peer: PeerInfo, store: Postgres | Redis | Temporal, sizes: Sizes) -> None:
        self.name = peer.name
        self.peer = peer
        self.store = store
        self.sizes = sizes
        self.folder = Path()
        every: dict[str, Callable[[], Awaitable[dict[str, float]]]] = {
            "chain": lambda: self.flows(Order("chain", "", sizes.chains, width=CHAIN_NODES)),
            "fan": lambda: self.flows(Order("fan", "", sizes.fans, width=FAN_WIDTH)),
            "diamonds": lambda: self.flows(Order("diamonds", "", sizes.diamonds, CALLERS)),
            "single": self.single,
            "drain_1": lambda: self.drain(1),
            "drain_2": lambda: self.drain(2),
            "latency": self.latency,
            "herd": self.herd,
        }
        self.rows = {name: row for name, row in every.items() if name in peer.rows}

    async def measure(self, row: str) -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="duly-peer-") as folder:
            self.folder = Path(folder)
            return await self.rows[row]()

    async def single(self) -> dict[str, float]:
        """One caller, then 64: the better of the two counts."""
        url = await self.fresh()
        few = max(1, self.sizes.single // 5)
        alone = await self.tell(Order("single", url, count=few))
        many = await self.tell(Order("single", url, count=self.sizes.single, callers=CALLERS))
        return {
            "single_per_s": max(alone, many),
            "single_1_caller_per_s": alone,
            "single_64_callers_per_s": many,
        }

    async def drain(self, processes: int) -> dict[str, float]:
        """From the word to start until the driver finds nothing that has not ended."""
        url = await self.fresh()
        bulk = await self.tell(self.bulk(url))
        assert not isinstance(self.store, Temporal)
        await self.store.calm(self.peer)
        async with self.store.watch(self.peer) as watch:
            stored = await watch.count()
            if stored != self.sizes.backlog:
                raise PeerFailed(f"stored {stored} tasks instead of {self.sizes.backlog}")
            async with self.consumers(url, processes) as children:
                began = asked = time.perf_counter()
                for child in children:
                    child.go()
                async with asyncio.timeout(STEP_MAX_S):
                    while not await watch.is_empty():
                        self.check(children)
                        asked_s = time.perf_counter() - asked
                        # A costly question is asked less often: looking must not slow the drain,
                        # nor add much to it.
                        pauses_s = (POLL_S, min(asked_s * 10, POLL_MAX_S), asked_s * 3)
                        await asyncio.sleep(max(pauses_s))
                        asked = time.perf_counter()
                passed_s = time.perf_counter() - began
            left = await watch.count()
            if left:
                raise PeerFailed(f"{left} tasks came back after the end")
        return {
            f"drain_{processes}_per_s": self.sizes.backlog / passed_s,
            "bulk_per_s": bulk,
        }

    def bulk(self, url: str) -> Order:
        """Batches of 1,000, or smaller ones where every caller should have some."""
        callers, count = self.peer.bulk_callers, self.sizes.backlog
        batch = max(1, min(BATCH_MAX, count // callers // 4))
        return Order("bulk", url, count=count, callers=callers, batch=batch)

    async def latency(self) -> dict[str, float]:
        """From just before the submit to the start of the handler, 50 a second."""
        url = await self.fresh()
        async with self.consumers(url, 1) as children:
            children[0].go()
            await self.warm_up(url, children)
            order = Order("pace", url, count=self.sizes.paced, per_s=PER_S)
            await self.tell(order)
            lags = await self.lags(self.sizes.paced, children)
        return latency_figures(lags)

    async def herd(self) -> dict[str, float]:
        """From the instant on which all of them are due to the start of each."""
        url = await self.fresh()
        async with self.consumers(url, 1) as children:
            children[0].go()
            await self.warm_up(url, children)
            herd = Order("herd", url, count=self.sizes.herd, lead_s=HERD_LEAD_S)
            if herd.count / await self.tell(herd) > HERD_LEAD_S:
                raise PeerFailed("could not submit the herd before its instant")
            lags = await self.lags(self.sizes.herd, children)
        return {
            "herd_p50_ms": percentile(lags, 50) * 1000,
            "herd_p99_ms": percentile(lags, 99) * 1000,
            "herd_earliest_ms": min(lags) * 1000,
        }

    async def flows(self, order: Order) -> dict[str, float]:
        """Workflows from before their start to the answer that they have ended."""
        order = replace(order, url=await self.fresh())
        async with contextlib.AsyncExitStack() as stack:
            if self.peer.has_flow_worker:
                (consumer,) = await stack.enter_async_context(self.consumers(order.url, 1))
                consumer.go()
            child = await stack.enter_async_context(self.child(order))
            seconds = (await child.hear(STEP_MAX_S))["seconds"]
        if order.step == "diamonds":
            return {"diamonds_per_s": order.count / seconds[0]}
        return {f"{order.step}_ms": median(seconds) * 1000}

    async def warm_up(self, url: str, children: list[Child]) -> None:
        """Until the consumer has run some: from here on it listens."""
        self.lags_path.unlink(missing_ok=True)
        self.lags_path.touch()
        await self.tell(Order("pace", url, count=WARM_UP, per_s=PER_S))
        await self.lags(WARM_UP, children)
        # Emptied, not removed: the consumer has it open for appending.
        os.truncate(self.lags_path, 0)

    @property
    def lags_path(self) -> Path:
        return self.folder / "lags"

    async def lags(self, count: int, children: list[Child]) -> list[float]:
        async with asyncio.timeout(LAGS_MAX_S):
            while len(lines := self.lags_path.read_text().splitlines()) < count:
                self.check(children)
                await asyncio.sleep(POLL_S)
        return [float(line) for line in lines]

    def check(self, children: list[Child]) -> None:
        for child in children:
            if child.process.returncode is not None:
                raise PeerFailed(child.complaint())

    async def fresh(self) -> str:
        url = await self.store.fresh(self.peer)
        async with self.child(Order("setup", url)) as child:
            await child.done(READY_MAX_S)
        return url

    async def tell(self, order: Order) -> float:
        """Tasks a second of one producer's step."""
        async with self.child(order) as child:
            facts = await child.hear(STEP_MAX_S)
        return float(facts["tasks"] / facts["seconds"])

    @contextlib.asynccontextmanager
    async def consumers(self, url: str, processes: int) -> AsyncIterator[list[Child]]:
        async with contextlib.AsyncExitStack() as stack:
            order = Order("consume", url, processes=processes)
            children = [
                await stack.enter_async_context(self.child(order)) for _ in range(processes)
            ]
            for child in children:
                await child.hear(READY_MAX_S)
            yield children

    @contextlib.asynccontextmanager
    async def child(self, order: Order) -> AsyncIterator[Child]:
        errors = self.folder / "errors"
        with errors.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command_of(self.peer),
                stdin=PIPE,
                stdout=PIPE,
                stderr=output,
                cwd=PROJECT,
                env=os.environ | {LAGS_VARIABLE: str(self.lags_path)},
                start_new_session=True,
            )
        child = Child(process, errors)
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
            yield child
        finally:
            await child.end()


def latency_figures(waits: list[float]) -> dict[str, float]:
    return {
        "latency_p50_ms": percentile(waits, 50) * 1000,
        "latency_p99_ms": percentile(waits, 99) * 1000,
    }


def percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
