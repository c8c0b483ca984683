"""Failover detection: the database moved to another host of a URL that names several.

A server that is cut off says nothing: statements on its connections wait for their whole timeout,
and the pool lends such connections for as long. One small statement a second, on a connection of
its own, tells; then everything that leads to the old host is ended at once.

| event | what happens |
|---|---|
| the statement fails or takes too long | connected again, to whichever host takes writes |
| another host answers | the connections of all pools are ended: statements on them fail at once |
| no host takes writes | the role fails, and connections are left alone |
"""

import asyncio
from collections.abc import Sequence

import asyncpg

from duly.store.connection_pool import CONNECTION_FAULTS
from duly.store.database import Database, statement_options, translated_faults
from duly.store.statements import statements_beside
from duly.telemetry import get_logger

SQL = statements_beside(__file__)
LOOK_EVERY_S = 1.0
ANSWER_MAX_S = 2.0

log = get_logger("duly.failover")


class FailoverWatch:
    """A role: each tick asks the server it knows whether it still takes writes."""

    name = "failover"

    def __init__(self, pools: Sequence[Database]) -> None:
        self.pools = pools
        self.hosts = pools[0].hosts
        self.connection: asyncpg.Connection | None = None

    async def tick(self) -> float:
        if not await self.is_answering():
            await self.reconnect()
        return LOOK_EVERY_S

    async def is_answering(self) -> bool:
        if self.connection is None or self.connection.is_closed():
            return False
        try:
            async with asyncio.timeout(ANSWER_MAX_S):
                is_standby = await self.connection.fetchval(SQL.is_standby)
        except (*CONNECTION_FAULTS, asyncpg.PostgresError):
            return False
        return not is_standby

    async def reconnect(self) -> None:
        if self.connection is not None:
            self.connection.terminate()
        before = self.hosts.chosen
        with translated_faults(self.pools[0].url):
            self.connection = await self.hosts.connect(**statement_options(self.pools[0].is_pooled))
        if self.hosts.chosen != before:
            log.warning("database moved to another host", host=self.hosts.address())
        for pool in self.pools:
            pool.follow_host()

    async def close(self) -> None:
        if self.connection is not None:
            self.connection.terminate()
