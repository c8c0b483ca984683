"""`python -m benchmarks.brokers [--tasks N] [--json]`: how fast each carrier publishes and leases.

The tasks lie submitted; measured is publishing their tickets and turning these into leases, first
one after the other, then both at once. No handler, no settlement, no scheduler.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import uvloop

from benchmarks.store_alone import PIPELINES, StorePipeline
from duly.bench.machine import machine_facts
from duly.bench.stage import BATCH, TENANT
from duly.broker.contract import Delivery
from duly.broker.lease_queue import LeaseQueue
from duly.broker.memory import MemoryCarrier
from duly.broker.postgres import PostgresCarrier
from duly.domain.lanes import Lane, Ticket
from duly.environment import Environment
from duly.settings import Settings
from duly.store.bootstrap import open_target, prepare_target
from duly.store.database import Database
from duly.store.load import BEFORE_ALL, Cursor, list_placements, load_due
from duly.store.measure import read_server_settings

POOL_CONNECTIONS = 10
LANE = Lane(TENANT, 1, 1)
LEASE_S = 600.0
WAIT_S = 5.0
# Short, so that the last consumers notice soon that everything is leased.
END_WAIT_S = 0.05
Tickets = list[Delivery]
CARRIERS: dict[str, Callable[[Database, Environment], MemoryCarrier | PostgresCarrier]] = {
    "memory": lambda _database, environment: MemoryCarrier(environment.clock),
    "postgres": PostgresCarrier,
}


async def measure(name: str, database: Database, tasks: int) -> dict[str, Any]:
    environment = Environment()
    queue = LeaseQueue(CARRIERS[name](database, environment), database, environment)
    try:
        tickets = await fresh_tickets(database, tasks)
        publish_s = await timed(publish(queue, tickets))
        lease_s = await timed(consume(queue, tasks))
        tickets = await fresh_tickets(database, tasks)
        both_s = await timed(asyncio.gather(publish(queue, tickets), consume(queue, tasks)))
        waits = await lone_tickets(queue, await fresh_tickets(database, BATCH))
    finally:
        await queue.close()
    return {
        "carrier": name,
        "tasks": tasks,
        "publish_per_s": round(tasks / publish_s),
        "lease_per_s": round(tasks / lease_s),
        "both_per_s": round(tasks / both_s),
        "lone_ms_p50": round(waits[len(waits) // 2] * 1000, 2),
        "lone_ms_p99": round(waits[len(waits) * 99 // 100] * 1000, 2),
    }


async def fresh_tickets(database: Database, tasks: int) -> Tickets:
    """New tasks, all due; what earlier measurements leased is not due any more."""
    await StorePipeline(database, Environment(), lambda _done, _total: None).submit_bulk(tasks)
    timer_queues = await list_placements(database, 0, 1023, BEFORE_ALL)
    due = await load_due(
        database, {timer_queue: Cursor() for timer_queue in timer_queues}, 0.0, tasks
    )
    assert len(due) == tasks
    # No deadline of their own, so that a slow machine measures leases and not voids.
    return [Delivery(LANE, Ticket(timer.id, timer.fence)) for timer in due]


async def publish(queue: LeaseQueue, tickets: Tickets) -> None:
    for start in range(0, len(tickets), BATCH):
        await queue.publish(tickets[start : start + BATCH])
        await asyncio.sleep(0)


async def consume(queue: LeaseQueue, tasks: int) -> None:
    holder = uuid4()
    had = 0

    async def take() -> None:
        nonlocal had
        while had < tasks:
            leases = await queue.lease([LANE], holder, BATCH, LEASE_S, END_WAIT_S)
            had += len(leases)

    async with asyncio.timeout(600.0):
        await asyncio.gather(*(take() for _ in range(PIPELINES)))


async def lone_tickets(queue: LeaseQueue, tickets: Tickets) -> list[float]:
    """From publish to lease, one ticket at a time, with a consumer that waits."""
    holder = uuid4()
    waits = []
    for ticket in tickets:
        consumer = asyncio.create_task(queue.lease([LANE], holder, 1, LEASE_S, WAIT_S))
        while not queue.waiting():
            await asyncio.sleep(0)
        before = time.perf_counter()
        await queue.publish([ticket])
        await consumer
        waits.append(time.perf_counter() - before)
    return sorted(waits)


async def timed(work: Any) -> float:
    before = time.perf_counter()
    await work
    return time.perf_counter() - before


async def run(tasks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="duly-bench-") as folder:
        settings = Settings(data_dir=folder)
        async with open_target(settings, Environment()) as timer_queue:
            await prepare_target(timer_queue, settings, Environment())
            database = await Database.open(timer_queue.engine_url, POOL_CONNECTIONS)
            try:
                results = [await measure(name, database, tasks) for name in CARRIERS]
                settings_used = await read_server_settings(timer_queue.owner_url)
            finally:
                await database.close()
    facts = {**machine_facts(), "postgresql": settings_used}
    return {"machine": facts, "results": results}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.brokers", description=__doc__)
    parser.add_argument("--tasks", type=int, default=50_000)
    parser.add_argument("--json", action="store_true", dest="as_json")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(run(arguments.tasks))
    if arguments.as_json:
        json.dump(report, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        for result in report["results"]:
            print(", ".join(f"{name} {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
