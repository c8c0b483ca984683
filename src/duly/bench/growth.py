"""Growth scenario: what happens to duly as the waiting tasks, or the tenants, become ten times as
many again and again: the rates of submit and drain, the lateness of starts, bytes on disk and in
memory."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from duly.bench.children import end, start_duly
from duly.bench.drive import submit_then_drain
from duly.bench.figures import Figures, percentiles
from duly.bench.latency import skew_of
from duly.bench.stage import PAYLOAD, TENANT, ScenarioContext
from duly.store.measure import fill_waiting, read_task_bytes

WAITING_MIN = 10_000
WAITING_MAX = 10_000_000
WAITING_MAX_QUICK = 100_000
TENANTS_MAX = 10_000
TENANTS_MAX_QUICK = 100
# So that no other tenant has them.
FIRST_TENANT = 1_000
# A scheduler that has started looks at everything within this time, again and again.
MEMORY_WATCH_S = 3.0
MEMORY_POLL_S = 0.1


async def run_growth(stage: ScenarioContext) -> Figures:
    is_quick = stage.order.is_quick
    waiting_max = stage.order.waiting or (WAITING_MAX_QUICK if is_quick else WAITING_MAX)
    tenants_max = TENANTS_MAX_QUICK if is_quick else TENANTS_MAX
    sizes = list(tenfold(min(WAITING_MIN, waiting_max), waiting_max))
    crowds = list(tenfold(1, tenants_max))
    steps = len(sizes) + len(crowds)
    by_tenants = []
    # First, while the table is empty.
    for number, tenants in enumerate(crowds):
        stage.show(number, steps)
        by_tenants.append({"tenants": tenants, **await measure(stage, tenants)})
    by_waiting = []
    empty = await weigh(stage)
    had = 0
    for number, waiting in enumerate(sizes):
        stage.show(len(crowds) + number, steps)
        await fill_waiting(
            stage.target.owner_url, TENANT, PAYLOAD, waiting - had, lambda _done: None
        )
        had = waiting
        full = await weigh(stage)
        by_waiting.append(
            {
                "waiting": waiting,
                **await measure(stage, tenants=1),
                "database_bytes_per_task": (full["database"] - empty["database"]) / waiting,
                "scheduler_bytes_per_task": max(0, full["memory"] - empty["memory"]) / waiting,
                "scheduler_mb": full["memory"] / 2**20,
            }
        )
    return {
        "by_waiting": by_waiting,
        "by_tenants": by_tenants,
        "backlog": had,
    }


def tenfold(first: int, last: int) -> Iterator[int]:
    """The last one too, whether or not it is ten times another."""
    while first < last:
        yield first
        first *= 10
    yield last


async def measure(stage: ScenarioContext, tenants: int) -> Figures:
    who = (TENANT,) if tenants == 1 else range(FIRST_TENANT, FIRST_TENANT + tenants)
    submitted, drained = await submit_then_drain(stage, stage.tasks, who)
    lags = await skew_of(stage, max(stage.tasks // 10, 1), who)
    return {
        "submit_tasks_per_s": submitted.rate,
        "drain_tasks_per_s": drained.rate,
        "skew_p50_ms": percentiles(lags)["p50_ms"],
        "skew_p99_ms": percentiles(lags)["p99_ms"],
    }


async def weigh(stage: ScenarioContext) -> dict[str, int]:
    """Bytes on disk, and the most that a scheduler process took after its start."""
    database = await read_task_bytes(stage.target.owner_url)
    memory = 0
    process, _ = await start_duly(stage, "up", "--data-dir", stage.folder)
    try:
        until = stage.now_s + MEMORY_WATCH_S
        while stage.now_s < until:
            memory = max(memory, memory_of(process.pid))
            await asyncio.sleep(MEMORY_POLL_S)
    finally:
        await end(process)
    return {"database": database, "memory": memory}


def memory_of(pid: int) -> int:
    """Bytes of a process that are in memory."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
