"""Roles that every process runs for itself: its embedded server, and its statistics."""

import asyncio

from duly.store.database import Database
from duly.store.embedded import EmbeddedPostgres
from duly.store.stats import StatsBook
from duly.store.worker_history import WorkerBook
from duly.telemetry import get_logger

LOOK_S = 0.5
FLUSH_S = 15.0

log = get_logger("duly.maintenance.process_roles")


class EmbeddedServerRole:
    """Starts an embedded PostgreSQL that died again, at the same address.

    PostgreSQL recovers by itself, so nothing that was acknowledged is lost.
    """

    name = "server"

    def __init__(self, embedded: EmbeddedPostgres) -> None:
        self.embedded = embedded

    async def tick(self) -> float:
        if not self.embedded.is_alive():
            log.warning("embedded PostgreSQL died, restarting")
            server = await asyncio.to_thread(self.embedded.attach)
            log.info("embedded PostgreSQL restarted", pid=server.pid)
        return LOOK_S

    async def close(self) -> None:
        """Nothing: `app` leaves the server as the last step of the process."""


class StatsRole:
    """Adds this process's counts to the tables: per minute, and per worker."""

    name = "stats"

    def __init__(self, database: Database, stats: StatsBook, workers: WorkerBook) -> None:
        self.database = database
        self.stats = stats
        self.workers = workers

    async def tick(self) -> float:
        await self.stats.flush(self.database)
        await self.workers.flush(self.database)
        return FLUSH_S

    async def close(self) -> None:
        await self.tick()
