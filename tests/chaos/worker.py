"""`python -m tests.chaos.worker`: SDK workers of two tenants in one process, to be killed.

Its handlers write a line to the effect log of this process before they do anything else.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from duly import Context, Worker
from duly.client.worker import LEASE_S, POOLS_MAX
from duly.execution.worker_leases import holder_of

CONCURRENCY = 40
# Poison has a pool and a short lease of its own: three losses in a row would take a minute else.
POISON_POOL = "poison"
POISON_LEASE_S = 2.0


class EffectLog:
    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, task: str, fence: int, holder: str | None) -> None:
        """One whole line, or, if we are killed in the middle of it, none."""
        line = [task, fence, holder, datetime.now(UTC).isoformat()]
        os.write(self.descriptor, (json.dumps(line) + "\n").encode())


def make_worker(
    url: str, key: str, tenant: int, pools: list[str], lease_s: float, effects: EffectLog
) -> Worker:
    worker = Worker(url, key, pools=pools, concurrency=CONCURRENCY, lease_s=lease_s)

    def note(ctx: Context) -> None:
        assert worker.session is not None
        holder = holder_of(tenant, worker.session.plan.worker_id)
        effects.write(ctx.id, ctx.fence, str(holder))

    @worker.task("chaos.work")
    async def work(
        ctx: Context,
        request: str,
        seconds: float = 0.0,
        failures: int = 0,
        says: dict[str, Any] | None = None,
        hands: str | None = None,
        item: int = 0,
        fails_from: int | None = None,
    ) -> Any:
        note(ctx)
        await asyncio.sleep(seconds)
        if hands is not None and says is not None:
            await ctx.amap_items(hands, says["items"])
        if ctx.attempt <= failures or (fails_from is not None and item >= fails_from):
            raise ValueError("as it was told")
        return says or request

    @worker.task("chaos.ended")
    async def hear(ctx: Context, /, **_: object) -> None:
        note(ctx)

    @worker.task("chaos.poison")
    async def die(ctx: Context, request: str) -> None:
        """After a heartbeat, so that the start is confirmed."""
        note(ctx)
        await asyncio.sleep(lease_s * 0.7)
        os.kill(os.getpid(), signal.SIGKILL)

    return worker


async def serve(workers: list[Worker]) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for worker in workers:
            worker.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.serve())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--pools", required=True)
    parser.add_argument("--effects", required=True, type=Path)
    arguments = parser.parse_args()
    effects = EffectLog(arguments.effects / f"effects-{os.getpid()}.jsonl")
    # Tenant numbers and their keys; not on the command line, which everybody can read.
    tenants = json.loads(os.environ["DULY_TEST_TENANTS"])
    pools = arguments.pools.split(",")
    chosen = [(pools[at : at + POOLS_MAX], LEASE_S) for at in range(0, len(pools), POOLS_MAX)]
    chosen.append(([POISON_POOL], POISON_LEASE_S))
    workers = [
        make_worker(arguments.url, key, tenant, names, lease_s, effects)
        for tenant, key in tenants
        for names, lease_s in chosen
    ]
    asyncio.run(serve(workers))


if __name__ == "__main__":
    main()
