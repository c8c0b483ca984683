"""`python -m benchmarks.status_with_a_million [--tasks N] [--looks N] [--json]`: what looking costs
when a million tasks are live: `duly status`, lists and metrics, each as its own process or call.

The tasks are stored, leased and settled by the store's own statements, then `duly up` is started on
them. A look should take less than 300 ms.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

from duly.bench.children import Running
from duly.bench.over_http import Caller
from duly.client.server import LOCAL_FILE, read_local
from duly.domain.lanes import Ticket
from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome
from duly.domain.task import Policy, Submission
from duly.environment import Environment, SystemClock
from duly.settings import Settings
from duly.store.bootstrap import open_target, prepare_target
from duly.store.database import Database
from duly.store.finish import Settlement
from duly.store.lease import Lease, lease_tasks
from duly.store.settle import Settler
from duly.store.submit import Stored, Submitter
from duly.store.tenants import create_tenant

LIMIT_MS = 300.0
# The first is the one that `duly up` and its key belong to.
TENANTS = ("default", "acme", "globex", "initech", "umbrella")
# Of every hundred: the rest is live, and most of that in the future.
COMPLETED, FAILED, RUNNING, READY = 5, 3, 2, 20
# Of all tasks, how many are the first tenant's.
LARGEST_SHARE = 0.6
SPREAD = 64
BATCH = 1000
SUBMITTERS = 2
LEASE_S = 3600.0
DAY_S = 86400.0
PAYLOAD = '{"invoice_id": "inv_8829031", "note": "' + "x" * 120 + '"}'
ONCE = Policy(retry=RetryPolicy(max_attempts=1), timeout_s=LEASE_S)

COMMANDS = (
    "status",
    "status --json",
    "tasks list",
    "tasks list --state READY",
    "tasks list --state SCHEDULED",
    "tasks list --state COMPLETED",
    "tasks list --state FAILED",
    "tasks list --type report.make",
    "tasks list --type nobody.asked",
    "tasks list --tag env:nowhere",
    "dead-letters list",
    "dead-letters list --type nobody.asked",
    "dead-letters groups",
)
PATHS = (
    "/v1/stats/now",
    "/v1/stats/now?count_max=10000",
    "/v1/stats",
    "/v1/nodes",
    "/v1/shards?limit=200",
    "/v1/tenants",
    "/v1/tasks",
    "/v1/tasks?state=READY",
    "/v1/tasks?state=SCHEDULED",
    "/v1/tasks?state=COMPLETED",
    "/v1/tasks?state=CANCELLED",
    "/v1/tasks?state=WAITING",
    "/v1/tasks?state=RUNNING",
    "/v1/tasks?type=nobody.asked",
    "/v1/tasks?tag=env:nowhere",
    "/v1/dead-letters",
    "/v1/dead-letters?type=nobody.asked",
    "/v1/dead-letters?group_by=fingerprint",
    "/v1/search?q=nobody-wrote-this",
    "/v1/bulk",
    "/metrics",
)
# What the dashboard asks for before its first view stands: the page asks three at a time.
FIRST_VIEW = (
    "/v1/session",
    "/v1/stats/now",
    "/v1/stats",
    "/v1/dead-letters?group_by=fingerprint&limit=5",
    "/v1/pauses?limit=20",
    "/v1/stats/tenants?limit=10",
    "/v1/workers?limit=200",
)


class Filler:
    """Stores tasks of several tenants, and brings some of them to their ends."""

    def __init__(self, database: Database, tenants: list[int]) -> None:
        self.database = database
        self.environment = Environment()
        self.random = Random(1)
        self.tenants = tenants
        self.submitter = Submitter(database, self.environment)
        self.submitter.tenant_shards.spreads = {tenants[0]: SPREAD}
        self.settler = Settler(database, self.environment)
        self.holder = uuid4()

    async def fill(self, tasks: int) -> None:
        batches = iter(range(tasks // BATCH))

        async def work() -> None:
            for _ in batches:
                await self.store_batch()

        await asyncio.gather(*(work() for _ in range(SUBMITTERS)))

    async def store_batch(self) -> None:
        begun = await self.lease_some(BATCH * (COMPLETED + FAILED + RUNNING) // 100)
        answers = await self.submitter.submit([self.task() for _ in range(BATCH - len(begun))])
        assert all(isinstance(answer, Stored) for answer in answers)
        completed, failed = BATCH * COMPLETED // 100, BATCH * FAILED // 100
        await self.end(begun[:completed], Outcome.COMPLETED, None)
        ended = begun[completed : completed + failed]
        await self.end(ended, Outcome.FAILED, "ValueError: no such invoice")

    async def lease_some(self, count: int) -> list[Lease]:
        answers = await self.submitter.submit([self.task(is_due=True) for _ in range(count)])
        tickets = [Ticket(answer.id, 0) for answer in answers]
        leases = await lease_tasks(self.database, self.environment, self.holder, tickets, LEASE_S)
        # They come in the order of their shards, which would give each tenant ends of one kind.
        return self.random.sample(leases, len(leases))

    async def end(self, leases: list[Lease], outcome: Outcome, error: str | None) -> None:
        await self.settler.settle(
            [Settlement(each.id, each.fence, self.holder, outcome, error=error) for each in leases]
        )

    def task(self, *, is_due: bool = False) -> Submission:
        chance = self.random.random()
        is_first = chance < LARGEST_SHARE
        is_due = is_due or self.random.random() * 100 < READY
        return Submission(
            tenant=self.tenants[0] if is_first else self.random.choice(self.tenants[1:]),
            type=self.random.choice(("invoice.charge", "mail.send", "report.make")),
            payload=PAYLOAD,
            priority=self.random.randrange(10),
            delay_s=0.0 if is_due else self.random.uniform(3600.0, 20 * DAY_S),
            pool=self.random.choice(("default", "billing")),
            tags={"env": self.random.choice(("prod", "test"))},
            policy=ONCE,
        )


async def fill_place(folder: str, tasks: int) -> None:
    settings = Settings(data_dir=folder)
    async with open_target(settings, Environment()) as target:
        await prepare_target(target, settings, Environment())
        database = await Database.open(target.engine_url, SUBMITTERS + 1)
        try:
            await Filler(database, await make_tenants(database)).fill(tasks)
        finally:
            await database.close()


async def make_tenants(database: Database) -> list[int]:
    made = [await create_tenant(database, name) for name in TENANTS]
    return [tenant.id for tenant in made if tenant is not None]


@contextlib.asynccontextmanager
async def duly_up(folder: str) -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "duly", "up", "--json", "--port", "0", "--data-dir", folder),
        stdout=PIPE,
        stderr=DEVNULL,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline()
        local = read_local(Path(folder) / LOCAL_FILE)
        assert local is not None
        yield Running(local.url, local.api_key)
    finally:
        process.terminate()
        await process.wait()


async def measure(running: Running, looks: int) -> list[dict[str, Any]]:
    waits: list[float] = []
    figures = []
    async with Caller(running, SystemClock(), waits) as caller:
        for path in PATHS:
            waits.clear()
            for _ in range(looks):
                await caller.ask("GET", path)
            figures.append(figure(f"GET {path}", waits))
        views = []
        for _ in range(looks):
            waits.clear()
            for path in FIRST_VIEW:
                await caller.ask("GET", path)
            views.append(sum(waits))
        figures.append(figure("dashboard: first view, one call after the other", views))
    for command in COMMANDS:
        waits = [await run_command(running, command) for _ in range(looks)]
        figures.append(figure(f"duly {command}", waits))
    return figures


async def run_command(running: Running, command: str) -> float:
    """Seconds of the whole process."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "duly", *command.split()),
        *("--url", running.url, "--api-key", running.api_key),
        stdout=DEVNULL,
        stderr=DEVNULL,
    )
    assert await process.wait() == 0, command
    return time.perf_counter() - began


def figure(look: str, waits: list[float]) -> dict[str, Any]:
    """The first look finds cold caches; the median is what somebody at a screen sees."""
    median_ms = statistics.median(waits) * 1000
    return {
        "look": look,
        "first_ms": round(waits[0] * 1000, 1),
        "median_ms": round(median_ms, 1),
        "is_slow": median_ms > LIMIT_MS,
    }


async def run(tasks: int, looks: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="duly-bench-million-") as folder:
        await fill_place(folder, tasks)
        async with duly_up(folder) as running:
            return await measure(running, looks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--looks", type=int, default=5)
    parser.add_argument("--json", action="store_true", dest="as_json")
    given = parser.parse_args()
    figures = asyncio.run(run(given.tasks, given.looks))
    if given.as_json:
        sys.stdout.write(json.dumps({"tasks": given.tasks, "looks": figures}) + "\n")
        return
    for each in figures:
        mark = "  over 300 ms" if each["is_slow"] else ""
        sys.stdout.write(
            f"{each['median_ms']:9.1f} {each['first_ms']:9.1f}  {each['look']}{mark}\n"
        )


if __name__ == "__main__":
    main()
