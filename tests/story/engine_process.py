"""A process that schedules and works: `python -m tests.story.engine_process URL FILE`.

It appends a line to its own file when a task starts and when it ends, `start|end ID FENCE`, and is
otherwise one node of an installation. Leases and tickets are short, so that a story fits a minute.
"""

import asyncio
import signal
import sys
from pathlib import Path
from typing import TextIO

import uvloop

from duly.environment import Environment
from duly.execution.attempt import DONE, AttemptResult
from duly.scheduler import dispatcher
from duly.store.database import Database
from duly.store.lease import Lease
from duly.telemetry import configure_logs
from duly.testing.engine import Engine

WORK_S = 0.25
LEASE_S = 3.0
TICKET_S = 2.0
SLOT_LEASE_S = 3.0
CONNECTIONS_MAX = 8


async def run(url: str, path: Path) -> None:
    vars(dispatcher)["TICKET_S"] = TICKET_S
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    database = await Database.open(url, CONNECTIONS_MAX)
    with path.open("a", encoding="utf-8") as file:
        engine = Engine(database, Environment(), Diary(file), is_alone=False)
        engine.executor.leases.lease_s = LEASE_S
        coordinator = engine.scheduler.coordinator
        coordinator.store.lease_s, coordinator.store.ticket_s = SLOT_LEASE_S, TICKET_S
        async with engine:
            sys.stdout.write("{}\n")
            sys.stdout.flush()
            await stop.wait()
    await database.close()


class Diary:
    """A handler whose effect is a line in a file: what really happened, whatever was recorded."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    async def __call__(self, lease: Lease) -> AttemptResult:
        self.write("start", lease)
        await asyncio.sleep(WORK_S)
        self.write("end", lease)
        return DONE

    def write(self, word: str, lease: Lease) -> None:
        self.file.write(f"{word} {lease.id} {lease.fence}\n")
        self.file.flush()


if __name__ == "__main__":
    configure_logs("warning", "json")
    uvloop.run(run(sys.argv[1], Path(sys.argv[2])))
