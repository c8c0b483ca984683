"""One victim: a whole scheduler and executor in a process of its own, on a shared PostgreSQL.

Its handler writes a line for each start into the node's own effect log before it does anything.
"""

import argparse
import asyncio
import json
import os
import signal
from datetime import UTC, datetime
from pathlib import Path

from duly.domain.errors import DatabaseUnavailable
from duly.domain.states import Outcome
from duly.environment import Environment
from duly.execution.executor import DONE, Verdict
from duly.store.database import Database
from duly.store.lease import Lease
from duly.telemetry import configure_logs
from duly.testing.engine import Engine

CONNECTIONS = 12
FAILURES = 0.05
WORK_S = 0.03


class Handler:
    """Works for a moment and sometimes fails, as handlers do."""

    def __init__(self, effects: Path, environment: Environment) -> None:
        self.descriptor = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.random = environment.random
        self.holder = ""

    async def __call__(self, lease: Lease) -> Verdict:
        started_at = datetime.now(UTC).isoformat()
        line = [str(lease.id), lease.fence, self.holder, started_at]
        os.write(self.descriptor, (json.dumps(line) + "\n").encode())
        await asyncio.sleep(self.random.random() * WORK_S)
        if self.random.random() < FAILURES:
            return Verdict(Outcome.FAILED, error="chance")
        return DONE


async def live(url: str, effects: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    environment = Environment()
    handler = Handler(effects, environment)
    database = await open_patiently(url)
    engine = Engine(database, environment, handler, is_alone=False)
    handler.holder = str(engine.executor.holder)
    async with engine:
        await stop.wait()
    await database.close()


async def open_patiently(url: str) -> Database:
    """The server may be down just now: that is what this is all about."""
    while True:
        try:
            return await Database.open(url, CONNECTIONS)
        except DatabaseUnavailable:
            await asyncio.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--effects", required=True, type=Path)
    arguments = parser.parse_args()
    configure_logs("error", "json")
    asyncio.run(live(arguments.url, arguments.effects))


if __name__ == "__main__":
    main()
