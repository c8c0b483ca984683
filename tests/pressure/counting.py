"""A Database that counts what is asked of it, for bounds on being idle."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import asyncpg

from duly.store.connection_pool import Connections
from duly.store.database import Database, Session


class CountingDatabase(Database):
    """Counts statements and transactions by their first line."""

    def __init__(self, url: str, connections: Connections) -> None:
        super().__init__(url, connections)
        self.asked: Counter[str] = Counter()

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        self.asked[first_line(statement)] += 1
        return await super().fetch(statement, *arguments)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        self.asked["transaction"] += 1
        async with super().transaction() as session:
            yield session

    async def statements_in(self, seconds: float) -> Counter[str]:
        """What is asked during the next so many seconds: the passing of time is the point here."""
        before = self.asked.copy()
        await asyncio.sleep(seconds)
        return self.asked - before


def first_line(statement: str) -> str:
    return statement.strip().partition("\n")[0]
