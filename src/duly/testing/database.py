"""A Database whose server believes a given clock, told to each session before it is used."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg

from duly.environment import Clock
from duly.store.database import SQL, Database, Session, translated_faults

# Longest wait for what is under way; a transaction that waits for another would wait for ever.
CALM_S = 2.0


class StatementGate:
    """Blocks statements while the database's clock is moved: an answer from before the move, held
    against a clock from after it, would make a node believe that time ran backwards."""

    def __init__(self) -> None:
        self.inside = 0
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.is_empty = asyncio.Event()
        self.is_empty.set()

    @contextlib.asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        await self.is_open.wait()
        self.inside += 1
        self.is_empty.clear()
        try:
            yield
        finally:
            self.inside -= 1
            if not self.inside:
                self.is_empty.set()

    @contextlib.asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        self.is_open.clear()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CALM_S):
                    await self.is_empty.wait()
            yield
        finally:
            self.is_open.set()


class TimedDatabase(Database):
    """Only for tests: a production server refuses a database whose clock was set for all."""

    clock: Clock
    gate: StatementGate

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        async with self.on_time() as connection:
            rows: list[asyncpg.Record] = await connection.fetch(statement, *arguments)
            return rows

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        async with self.on_time() as connection, connection.transaction():
            yield connection

    @contextlib.asynccontextmanager
    async def on_time(self) -> AsyncIterator[asyncpg.Connection]:
        with translated_faults(self.url):
            async with self.gate.passing(), self.connections.acquire() as connection:
                await connection.fetch(SQL.set_test_clock, self.clock.now().isoformat())
                yield connection


def database_with(clock: Clock, gate: StatementGate) -> type[TimedDatabase]:
    """A Database class with this clock."""
    return type("TimedByTest", (TimedDatabase,), {"clock": clock, "gate": gate})
