"""A process that only owns slots: `python -m tests.coordinator.node_process URL NUMBER LEASE_S`.

It says one JSON line for each change, `{"held": n}`, and hands over at SIGTERM.
"""

import asyncio
import json
import logging
import signal
import sys
from uuid import UUID

from duly.coordinator.ownership import Coordinator
from duly.coordinator.postgres import PostgresOwnership
from duly.environment import Environment
from duly.events import SlotsChanged
from duly.role import RoleLoop, stop_roles
from duly.store.database import Database
from duly.store.notify import OWNERSHIP, Channel
from duly.store.ownership import Node
from duly.telemetry import Metrics, configure_logs

STOP_LIMIT_S = 5.0


async def run(url: str, number: int, lease_s: float) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    environment, metrics = Environment(), Metrics()
    database = await Database.open(url, 2)
    node = Node(UUID(int=number), f"node-{number}", "1", ("scheduler", "maintenance"))
    store = PostgresOwnership(database, lease_s=lease_s, ticket_s=lease_s)
    coordinator = Coordinator(store, environment, node)
    listeners = {OWNERSHIP: coordinator.on_notify}
    channel = Channel(database, environment, listeners, coordinator.refresh)
    coordinator.events.subscribe(SlotsChanged, lambda _: say({"held": len(coordinator.owned)}))
    loops = [RoleLoop(role, environment, metrics) for role in (coordinator, channel)]
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(loop.run()) for loop in loops]
        await stop.wait()
        await stop_roles(loops, running, STOP_LIMIT_S)
    await database.close()


def say(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    configure_logs("warning", "json")
    logging.captureWarnings(True)
    asyncio.run(run(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
