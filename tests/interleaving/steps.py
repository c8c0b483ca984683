"""A store call taken step by step: each statement and each commit waits for leave to go on.

What a call finds here behaves as its Database, on one real session with explicit BEGIN and COMMIT.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import StrEnum
from typing import Any

import asyncpg

from duly.domain.errors import DulyError
from duly.store.connection_pool import Connections
from duly.store.database import Database, Session, translated_faults

COMMENT = re.compile(r"^--.*$", re.MULTILINE)
WROTE = "SELECT pg_current_xact_id_if_assigned() IS NOT NULL"


class Mood(StrEnum):
    """ASKING to run a statement, HOLDING its locks before the commit, WORKING, or DONE."""

    ASKING = "asking"
    HOLDING = "holding"
    WORKING = "working"
    DONE = "done"


class Step(StrEnum):
    EXECUTE = "execute"
    COMMIT = "commit"
    CRASH = "crash"


STEPS = {Mood.ASKING: (Step.EXECUTE,), Mood.HOLDING: (Step.COMMIT, Step.CRASH)}
CRASHED = "crashed"


class Crash(Exception):
    """The process died before its commit: the transaction is undone and nobody is answered."""


async def no_other() -> asyncpg.Connection:
    raise AssertionError("everything goes through the one session")


class SteppedDatabase(Database):
    """A Database of one session, whose owner decides when each step happens."""

    def __init__(
        self, name: str, url: str, connection: asyncpg.Connection, changed: asyncio.Event
    ) -> None:
        super().__init__(url, Connections(no_other, most=1))
        self.name = name
        self.connection = connection
        self.changed = changed
        self.pid: int = connection.get_server_pid()
        self.mood = Mood.DONE
        self.is_open = False
        self.leave: asyncio.Future[Step] | None = None

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        async with self.transaction() as session:
            return await session.fetch(statement, *arguments)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        with translated_faults(self.url):
            try:
                yield SteppedSession(self)
                # Without a transaction id it wrote nothing and locked no row: no step of its own.
                wrote = self.is_open and await self.connection.fetchval(WROTE)
                if wrote and await self.ask(Mood.HOLDING) is Step.CRASH:
                    raise Crash
                await self.end("COMMIT")
            except BaseException:
                await self.end("ROLLBACK")
                raise

    async def begin(self) -> None:
        if not self.is_open:
            await self.connection.execute("BEGIN")
            self.is_open = True

    async def end(self, how: str) -> None:
        if self.is_open:
            await self.connection.execute(how)
            self.is_open = False

    async def ask(self, mood: Mood) -> Step:
        self.leave = asyncio.get_running_loop().create_future()
        self.become(mood)
        return await self.leave

    def go(self, step: Step) -> None:
        assert self.leave is not None
        self.become(Mood.WORKING)
        self.leave.set_result(step)

    def become(self, mood: Mood) -> None:
        self.mood = mood
        self.changed.set()

    async def perform(self, call: Callable[[Database], Awaitable[str]]) -> str:
        """The call's answer in words, also when it was refused or died."""
        try:
            return await call(self)
        except Crash:
            return CRASHED
        except DulyError as error:
            return f"refused {error.facts.get('code')}"
        finally:
            self.become(Mood.DONE)


class SteppedSession:
    """An open transaction; a SET takes no lock, so it is no step."""

    def __init__(self, database: SteppedDatabase) -> None:
        self.database = database

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        if not COMMENT.sub("", statement).strip().startswith("SET "):
            await self.database.ask(Mood.ASKING)
        await self.database.begin()
        rows: list[asyncpg.Record] = await self.database.connection.fetch(statement, *arguments)
        return rows
