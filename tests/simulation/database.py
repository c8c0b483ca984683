"""The database as a simulated node sees it: real statements, seeded faults, no real waiting.

One connection, one statement or transaction at a time. The session's clock is set to the virtual
instant before each statement, so everything that PostgreSQL decides by time replays as well.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import asyncpg

from duly.domain.errors import DatabaseUnavailable, StatementRefused
from duly.store import (
    audit,
    control,
    dead_letters,
    finish,
    fire_schedules,
    insert,
    lease,
    load,
    ownership,
    partitions,
    pools,
    purge,
    read,
    ready_tickets,
    reap,
    retry,
    schedules,
    settle,
    tenants,
    workflow_appends,
    workflow_compensations,
    workflow_control,
    workflow_handovers,
    workflow_maps,
    workflow_nodes,
    workflow_pauses,
    workflow_resumes,
    workflow_signals,
    workflow_timers,
    workflows,
)
from duly.store.database import Database, translated_faults
from tests.simulation.loop import RealWorld
from tests.simulation.plan import FaultKind

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster, Node

# A cascade of skips goes on by a timer after so many of them: in a seed, a few.
SHORT_CASCADE = ("skipped_max CONSTANT integer := 1000;", "skipped_max CONSTANT integer := 2;")
RELEASE_CHILDREN = "SELECT pg_get_functiondef('duly.release_children'::regproc)"
SET_CLOCK = "SELECT set_config('duly.test_now', $1, false)"
MODULES = (
    *(audit, control, dead_letters, finish, insert, lease, load, ownership, partitions, pools),
    *(purge, read, ready_tickets, reap, retry, fire_schedules, schedules, settle, tenants),
    *(workflow_control, workflow_nodes, workflow_timers, workflows, workflow_appends),
    workflow_compensations,
    *(workflow_handovers, workflow_maps, workflow_pauses, workflow_resumes, workflow_signals),
)
DEADLOCK = "40P01"
# In a transaction each statement is short; only single statements are slow.
QUICK = 0.1


class Postgres:
    """The one real connection. Calls block: virtual time stands still while PostgreSQL works."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.world = RealWorld()
        self.connection: asyncpg.Connection = self.world.run(asyncpg.connect(url))
        self.world.run(self.connection.execute("SET synchronous_commit = off"))
        self.instant: datetime | None = None
        self.statements = 0

    def fetch(self, now: datetime, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        with translated_faults(self.url):
            return self.world.run(self.fetch_at(now, statement, *arguments))

    async def fetch_at(
        self, now: datetime, statement: str, *arguments: Any
    ) -> list[asyncpg.Record]:
        self.statements += 1
        if now != self.instant:
            await self.connection.fetch(SET_CLOCK, now.isoformat())
            self.instant = now
        rows: list[asyncpg.Record] = await self.connection.fetch(statement, *arguments)
        return rows

    def execute(self, command: str) -> None:
        # A rollback takes the session's clock back too, so it is set again.
        self.instant = None
        self.world.run(self.connection.execute(command))

    def end_transaction(self) -> None:
        """A seed that got stuck leaves its transaction open, and with it the role of a tenant."""
        if self.connection.is_in_transaction():
            self.execute("ROLLBACK")

    def close(self) -> None:
        self.world.run(self.connection.close())
        self.world.close()


def shorten_cascades(owner_url: str) -> None:
    """No seed has a thousand nodes."""

    async def shorten() -> None:
        owner = await asyncpg.connect(owner_url)
        try:
            text = await owner.fetchval(RELEASE_CHILDREN)
            assert SHORT_CASCADE[0] in text, "release_children has another bound"
            await owner.execute(text.replace(*SHORT_CASCADE))
        finally:
            await owner.close()

    world = RealWorld()
    try:
        world.run(shorten())
    finally:
        world.close()


class SimulatedDatabase(Database):
    """One node's handle. When the node is killed it is dead: not even a `finally` gets through."""

    def __init__(self, cluster: "Cluster", node: "Node") -> None:
        self.cluster = cluster
        self.node = node
        self.url = cluster.postgres.url

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        await self.arrive(statement)
        async with self.turn():
            rows = self.run(statement, *arguments)
        await self.leave(statement)
        return rows

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator["SimulatedTransaction"]:
        await self.arrive("transaction")
        async with self.turn():
            self.command("BEGIN")
            try:
                yield SimulatedTransaction(self)
                self.break_before_commit()
            except BaseException:
                # What the server does when it hears no more of us.
                self.command("ROLLBACK")
                raise
            self.command("COMMIT")
        await self.leave("transaction")

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """No node is frozen here: all the others would wait for it."""
        mine = asyncio.current_task()
        # There is one connection here; in a pool, enough callers like this wait for each other.
        assert self.cluster.turn_of is not mine, "waits for a connection while it holds one"
        self.node.turns += 1
        try:
            async with self.cluster.turn:
                self.cluster.turn_of = mine
                try:
                    yield
                finally:
                    self.cluster.turn_of = None
        finally:
            self.node.turns -= 1

    def break_before_commit(self) -> None:
        """Everything was answered, and nothing of it is kept."""
        if self.cluster.strikes(FaultKind.ERROR_BEFORE, self.node):
            self.cluster.recorder.note(f"{self.node.name} lost its connection before the commit")
            raise DatabaseUnavailable(address="simulated", problem="connection lost")

    async def arrive(self, statement: str) -> None:
        """On the way there: what breaks here has changed nothing."""
        await self.travel(1.0)
        if self.cluster.is_away or self.cluster.strikes(FaultKind.ERROR_BEFORE, self.node):
            self.cluster.recorder.note(f"{self.node.name} cannot reach the database")
            raise DatabaseUnavailable(address="simulated", problem="connection refused")
        if self.cluster.strikes(FaultKind.CONFLICT, self.node):
            raise StatementRefused(problem="deadlock detected", code=DEADLOCK)

    async def leave(self, statement: str) -> None:
        """On the way back: what breaks here has been committed."""
        await self.travel(1.0)
        if self.cluster.strikes(FaultKind.ANSWER_LOST, self.node):
            self.cluster.recorder.note(f"{self.node.name} did not hear: {self.name_of(statement)}")
            raise DatabaseUnavailable(address="simulated", problem="connection lost")

    async def travel(self, share: float) -> None:
        self.refuse_the_dead()
        await asyncio.sleep(self.cluster.latency_s() * share)
        self.refuse_the_dead()

    def refuse_the_dead(self) -> None:
        if self.node.is_dead:
            raise asyncio.CancelledError

    def run(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        self.refuse_the_dead()
        self.cluster.recorder.note(f"{self.node.name} runs {self.name_of(statement)}")
        return self.cluster.postgres.fetch(self.cluster.database_now(), statement, *arguments)

    def command(self, command: str) -> None:
        self.cluster.recorder.note(f"{self.node.name} {command}")
        self.cluster.postgres.execute(command)

    def name_of(self, statement: str) -> str:
        return self.cluster.statement_names.get(statement, statement.split("\n", 1)[0])


class SimulatedTransaction:
    def __init__(self, database: SimulatedDatabase) -> None:
        self.database = database

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        await self.database.travel(QUICK)
        if self.database.cluster.strikes(FaultKind.ERROR_BEFORE, self.database.node):
            raise DatabaseUnavailable(address="simulated", problem="connection lost")
        rows = self.database.run(statement, *arguments)
        await self.database.travel(QUICK)
        return rows


def statement_names() -> dict[str, str]:
    """Read anew for every run, because a test of the suite's teeth changes statements."""
    return {text: name for module in MODULES for name, text in module.SQL.blocks.items()}
