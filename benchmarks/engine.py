"""The whole scheduler in one process: doorbell, wheel, gates, fair order, ready queue, executor.

The handler does nothing; what is measured is when and how often it is called.
"""

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from benchmarks.heart import BATCH, PAYLOAD, Progress
from duly.domain.task import Submission
from duly.environment import Environment
from duly.execution.executor import DONE, Verdict
from duly.scheduler.board import Board
from duly.store.database import Database
from duly.store.lease import Lease
from duly.store.load import Due, Place
from duly.store.tenants import TenantLimits, create_tenant
from duly.testing.engine import Engine

URL = "http://127.0.0.1/noop"
TENANT = 1
LONE_TASKS_PAUSE_S = 0.003
HERD_LEAD_S = 1.5
SKEW_RATE = 500
NOISE = 50


class Bench:
    """An engine with a handler that counts, and can be awaited for a number of starts."""

    def __init__(self, database: Database, owner_url: str, progress: Progress) -> None:
        self.database = database
        self.owner_url = owner_url
        self.progress = progress
        self.started = 0
        self.goal = 0
        self.total = 0
        self.reached = asyncio.Event()
        self.lags: dict[int, list[float]] | None = None
        self.order: list[int] | None = None

    def engine(self) -> Engine:
        return Engine(self.database, Environment(), self.handle)

    def handle(self, lease: Lease) -> Verdict:
        self.started += 1
        if self.lags is not None:
            lag = time.time() - lease.run_at.timestamp()
            self.lags.setdefault(lease.tenant, []).append(lag)
        if self.order is not None:
            self.order.append(lease.tenant)
        if self.started >= self.goal:
            self.reached.set()
        return DONE

    def expect(self, count: int) -> None:
        self.goal = self.started + count
        self.reached.clear()

    async def wait(self) -> None:
        while not self.reached.is_set():
            self.progress(self.total - (self.goal - self.started), self.total)
            try:
                await asyncio.wait_for(self.reached.wait(), 0.5)
            except TimeoutError:
                continue


def make_tasks(count: int, tenant: int = TENANT, **facts: Any) -> list[Submission]:
    return [
        Submission(tenant=tenant, type="bench.noop", payload=PAYLOAD, url=URL, **facts)
        for _ in range(count)
    ]


async def submit_all(engine: Engine, count: int, tenant: int = TENANT) -> None:
    for start in range(0, count, BATCH):
        await engine.submitter.submit(make_tasks(min(BATCH, count - start), tenant))


async def run_lone(bench: Bench, tasks: int) -> dict[str, Any]:
    """Submit to handler start, one task at a time."""
    waits = []
    async with bench.engine() as engine:
        await settle_down(engine)
        for number in range(tasks):
            bench.expect(1)
            before = time.perf_counter()
            await engine.desk.submit(make_tasks(1)[0])
            await bench.reached.wait()
            waits.append(time.perf_counter() - before)
            bench.progress(number, tasks)
            await asyncio.sleep(LONE_TASKS_PAUSE_S)
    return {"tasks_per_s": tasks / sum(waits), **percentiles(waits)}


async def run_skew(bench: Bench, tasks: int) -> dict[str, Any]:
    """Start minus fire time, 500 tasks a second at random instants."""
    span_s = tasks / SKEW_RATE
    environment = Environment()
    async with bench.engine() as engine:
        await settle_down(engine)
        bench.lags, bench.total = {}, tasks
        bench.expect(tasks)
        base = datetime.now(UTC) + timedelta(seconds=1)
        for _ in range(tasks // 100):
            batch = [
                make_tasks(1, run_at=base + timedelta(seconds=environment.random.random() * span_s))
                for _ in range(100)
            ]
            await engine.submitter.submit([task for (task,) in batch])
        await bench.wait()
    lags = bench.lags[TENANT]
    return {"tasks_per_s": SKEW_RATE, **percentiles(lags), "earliest_ms": min(lags) * 1000}


async def run_herd(bench: Bench, tasks: int) -> dict[str, Any]:
    """Start minus fire time of many tasks on one instant."""
    async with bench.engine() as engine:
        await settle_down(engine)
        bench.lags, bench.total = {}, tasks
        bench.expect(tasks)
        run_at = datetime.now(UTC) + timedelta(seconds=HERD_LEAD_S)
        for start in range(0, tasks, BATCH):
            batch = make_tasks(min(BATCH, tasks - start), run_at=run_at)
            await engine.submitter.submit(batch)
        await bench.wait()
    lags = bench.lags[TENANT]
    return {"tasks_per_s": tasks / max(lags), **percentiles(lags)}


async def run_drain(bench: Bench, tasks: int) -> dict[str, Any]:
    """A backlog from before the start, worked off."""
    engine = bench.engine()
    engine.submitter.on_stored = None
    await submit_all(engine, tasks)
    bench.total = tasks
    bench.expect(tasks)
    began = time.perf_counter()
    async with engine:
        await bench.wait()
        passed_s = time.perf_counter() - began
    return {"tasks_per_s": tasks / passed_s, "backlog": tasks}


async def run_end_to_end(bench: Bench, tasks: int) -> dict[str, Any]:
    """Submitted and started at the same time, in the same process."""
    async with bench.engine() as engine:
        await settle_down(engine)
        bench.total = tasks
        bench.expect(tasks)
        began = time.perf_counter()
        await submit_all(engine, tasks)
        await bench.wait()
        passed_s = time.perf_counter() - began
    return {"tasks_per_s": tasks / passed_s}


async def run_waiting(bench: Bench, tasks: int) -> dict[str, Any]:
    """Submit and drain beside a table full of timers that are not due for a year."""
    small = 50_000
    before = await run_submit_and_drain(bench, small)
    bytes_each = await fill_with_waiting(bench, tasks)
    after = await run_submit_and_drain(bench, small)
    return {
        "tasks_per_s": after["drain"],
        "submit_tasks_per_s": after["submit"],
        "drain_ratio": after["drain"] / before["drain"],
        "submit_ratio": after["submit"] / before["submit"],
        "bytes_per_waiting_timer": bytes_each,
    }


async def run_submit_and_drain(bench: Bench, tasks: int) -> dict[str, float]:
    engine = bench.engine()
    engine.submitter.on_stored = None
    began = time.perf_counter()
    await submit_all(engine, tasks)
    submit_s = time.perf_counter() - began
    bench.total = tasks
    bench.expect(tasks)
    began = time.perf_counter()
    async with engine:
        await bench.wait()
        drain_s = time.perf_counter() - began
    return {"submit": tasks / submit_s, "drain": tasks / drain_s}


async def fill_with_waiting(bench: Bench, count: int) -> float:
    """Timers of the same place as the benchmark's tasks, written by the server itself."""
    connection = await asyncpg.connect(bench.owner_url)
    try:
        for start in range(0, count, 500_000):
            await connection.execute(
                "INSERT INTO duly.timers (shard, id, tenant, lane, pool, priority, timeout_ms,"
                " due_at, type) SELECT 632, gen_random_uuid(), 1, 2, 0, 5, 60000,"
                " now() + interval '1 year' + n * interval '1 second', 'bench.wait'"
                " FROM generate_series(1, $1::integer) AS n",
                min(500_000, count - start),
                timeout=600,
            )
            bench.progress(start, count)
        size = await connection.fetchval("SELECT pg_total_relation_size('duly.timers')")
        await connection.execute("VACUUM ANALYZE duly.timers", timeout=600)
        return float(size) / count
    finally:
        await connection.close()


async def run_noisy(bench: Bench, tasks: int) -> dict[str, Any]:
    """What a tenant's tasks wait alone, and beside a tenant that submits fifty times as much."""
    quiet, noisy = 11, 12
    alone = await run_beside(bench, quiet, tasks, None)
    beside = await run_beside(bench, quiet, tasks, noisy)
    return {
        "tasks_per_s": tasks / 5.0,
        "p50_ms": beside["p50_ms"],
        "p99_ms": beside["p99_ms"],
        "alone_p99_ms": alone["p99_ms"],
        "ratio": beside["p99_ms"] / alone["p99_ms"],
    }


async def run_beside(bench: Bench, quiet: int, tasks: int, noisy: int | None) -> dict[str, float]:
    async with bench.engine() as engine:
        await settle_down(engine)
        bench.lags = {}
        noise = asyncio.create_task(make_noise(engine, noisy, tasks * NOISE)) if noisy else None
        for _ in range(tasks):
            await engine.submitter.submit(make_tasks(1, quiet))
            await asyncio.sleep(5.0 / tasks)
        while len(bench.lags.get(quiet, ())) < tasks:
            await asyncio.sleep(0.05)
        if noise is not None:
            noise.cancel()
            await asyncio.gather(noise, return_exceptions=True)
    lags, bench.lags = bench.lags, None
    return percentiles(lags[quiet])


async def make_noise(engine: Engine, tenant: int, count: int) -> None:
    """Fifty tasks for each of the quiet tenant's, over the same five seconds."""
    for _ in range(0, count, NOISE):
        await engine.submitter.submit(make_tasks(NOISE, tenant))
        await asyncio.sleep(5.0 * NOISE / count)


async def run_weights(bench: Bench, tasks: int) -> dict[str, Any]:
    """The share of a tenant with weight 3 beside one with weight 1, both with a backlog."""
    big = await create_tenant(bench.database, "bench-big", TenantLimits(weight=3.0))
    small = await create_tenant(bench.database, "bench-small", TenantLimits(weight=1.0))
    assert big is not None
    assert small is not None
    engine = bench.engine()
    engine.submitter.on_stored = None
    for _ in range(tasks // BATCH // 2):
        await engine.submitter.submit(make_tasks(BATCH, big.id))
        await engine.submitter.submit(make_tasks(BATCH, small.id))
    bench.order, bench.total = [], tasks
    bench.expect(tasks)
    began = time.perf_counter()
    async with engine:
        await bench.wait()
        passed_s = time.perf_counter() - began
    # From when both are loaded until the bigger one has nothing left.
    window = bench.order[tasks // 10 : tasks * 6 // 10]
    return {"tasks_per_s": tasks / passed_s, "share": window.count(big.id) / len(window)}


async def run_wheel(_bench: Bench, tasks: int) -> dict[str, Any]:
    """Memory of entries on the wheel."""
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    environment, now = Environment(), time.time()
    board, place = Board(now), Place(1, 632, 2)
    began = time.perf_counter()
    for _ in range(tasks):
        fires_at = datetime.fromtimestamp(now + environment.random.random() * 10, UTC)
        task_id = UUID(int=environment.random.getrandbits(128))
        due = Due(1, 632, 2, task_id, 0, fires_at, 5, None, "t", None, None, None)
        board.add(due, place, now)
    passed_s = time.perf_counter() - began
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    return {"tasks_per_s": tasks / passed_s, "memory_mb": grown_kb / 1024}


async def settle_down(engine: Engine) -> None:
    """Until the engine owns its slots and has looked once."""
    while not engine.scheduler.loader.slots or not engine.scheduler.dispatcher.time.is_known:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)


def percentiles(values_s: list[float]) -> dict[str, float]:
    ordered = sorted(values_s)
    return {
        "p50_ms": ordered[len(ordered) // 2] * 1000,
        "p99_ms": ordered[len(ordered) * 99 // 100] * 1000,
    }


Scenario = Callable[[Bench, int], Awaitable[dict[str, Any]]]

# name -> (scenario, tasks, tasks with --quick)
SCENARIOS: dict[str, tuple[Scenario, int, int]] = {
    "wheel": (run_wheel, 200_000, 200_000),
    "lone": (run_lone, 1000, 300),
    "skew": (run_skew, 5000, 2000),
    "herd": (run_herd, 2000, 2000),
    "drain": (run_drain, 200_000, 60_000),
    "end-to-end": (run_end_to_end, 200_000, 60_000),
    "weights": (run_weights, 40_000, 20_000),
    "noisy": (run_noisy, 500, 250),
    "waiting": (run_waiting, 5_000_000, 500_000),
}
