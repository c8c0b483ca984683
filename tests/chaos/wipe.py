"""The ready queue is lost with everything in it: how soon is all of it dispatched again?

Tasks of many pools are due and nobody takes them, so that each has a ticket; then the tickets are
gone and the workers come.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg

from duly.domain.lanes import LANE_DEPTH_MAX
from duly.verify.history import Logs
from tests.chaos.cluster import Cluster
from tests.chaos.evidence import effects_of, judge, read_effects, read_tables
from tests.chaos.link import LinkFault
from tests.chaos.load import Load, Wish
from tests.chaos.plan import WORKERS
from tests.chaos.run import HEAL_S, reaches_zero
from tests.simulation.tables import LIVE

PRIORITIES = (9, 5, 1)
BATCH = 1000
SUBMITTERS = 4
FILL_S = 60.0
# All of them again, after the loss.
DISPATCHED_MAX_S = 60.0
POLL_S = 0.2
TICKETS = "SELECT count(DISTINCT id) FROM duly.ready_tickets"
WIPE = "TRUNCATE duly.ready_tickets"
UNDISPATCHED = """SELECT count(*) FROM duly.timers
                   WHERE tenant = ANY($1::integer[]) AND holder IS NULL AND fence = 0"""


async def wipe(count: int, seed: int, folder: Path) -> dict[str, Any]:
    pools = [f"p{number}" for number in range(-(-count // (LANE_DEPTH_MAX * len(PRIORITIES))) + 1)]
    cluster = Cluster(folder, seed, pools, {"plain": None}, is_near=True)
    async with cluster.running():
        load = Load(cluster, 0.0, seed, folder / "client.jsonl")
        async with without_workers(cluster):
            await submit_all(load, pools, count)
            connection = await cluster.connect()
            wiped = await fill(connection, count)
            await connection.execute(WIPE)
            wiped_at = time.monotonic()
        tenants = [tenant.id for tenant in cluster.tenants]
        await reaches_zero(connection, UNDISPATCHED, tenants, HEAL_S)
        dispatched_s = time.monotonic() - wiped_at
        await reaches_zero(connection, LIVE, tenants, HEAL_S)
        tables = await read_tables(connection, tenants)
        await connection.close()
    logs = Logs(tuple(load.entries), effects_of(read_effects(folder), tables))
    violations = [str(each) for each in judge(logs, tables, load.batches, datetime.now(UTC))]
    if dispatched_s > DISPATCHED_MAX_S:
        violations.append(f"all were dispatched after {dispatched_s:.1f} s")
    return {
        "seed": seed,
        "tasks": len(tables.tasks),
        "tickets_wiped": wiped,
        "all_dispatched_s": round(dispatched_s, 2),
        "most_allowed_s": DISPATCHED_MAX_S,
        "violations": violations,
    }


@contextlib.asynccontextmanager
async def without_workers(cluster: Cluster) -> AsyncIterator[None]:
    """They live, and cannot reach the API."""
    links = [cluster.links[f"{worker}>api"] for worker in WORKERS]
    cuts = [asyncio.create_task(link.suffer(LinkFault.CUT, HEAL_S)) for link in links]
    try:
        yield
    finally:
        for cut in cuts:
            cut.cancel()
        await asyncio.gather(*cuts, return_exceptions=True)


async def submit_all(load: Load, pools: list[str], count: int) -> None:
    wishes = [make_wish(load, pools, number) for number in range(count)]
    batches = iter([wishes[at : at + BATCH] for at in range(0, count, BATCH)])

    async def submit() -> None:
        for batch in batches:
            await load.submit_batch(batch)

    timeout = aiohttp.ClientTimeout(total=FILL_S)
    async with aiohttp.ClientSession(timeout=timeout) as load.session:
        await asyncio.gather(*(submit() for _ in range(SUBMITTERS)))


def make_wish(load: Load, pools: list[str], number: int) -> Wish:
    request = f"r{number}"
    body = {
        "type": "chaos.work",
        "payload": {"request": request},
        "target": {"pool": pools[number % len(pools)]},
        "priority": PRIORITIES[number // len(pools) % len(PRIORITIES)],
    }
    return Wish(load.cluster.tenants[0], request, body)


async def fill(connection: asyncpg.Connection, count: int) -> int:
    """Until each task has a ticket; tickets end, so that those of a slow machine are fewer."""
    give_up_at = time.monotonic() + FILL_S
    most = 0
    while most < count and time.monotonic() < give_up_at:
        most = max(most, int(await connection.fetchval(TICKETS)))
        await asyncio.sleep(POLL_S)
    return most
