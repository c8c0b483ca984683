"""A small installation for store tests: its tables, its movable clock, and verbs for one task.

The clock: `TimedDatabase` tells each session the world's instant (`duly.test_now`) before each
statement or transaction. So `advance` moves the database's clock for every session of the pool, at
once and without waiting; `node_clock` is what the process itself believes, and may be wrong.
"""

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import UUID

import asyncpg

from duly.domain.lanes import Ticket
from duly.domain.states import Outcome
from duly.domain.task import Submission
from duly.environment import Environment
from duly.events import TaskEvents
from duly.store.database import Database, Session, translated_faults
from duly.store.finish import SettleAnswer, Settlement
from duly.store.lease import Lease, lease_tasks
from duly.store.load import Cursor, DueTimer, list_placements, load_due
from duly.store.partitions import create_partitions
from duly.store.read import AttemptRecord, Task, read_attempts, read_task
from duly.store.reap import Reaped, reap_leases
from duly.store.settle import Settler
from duly.store.submit import Stored, SubmitAnswer, Submitter
from duly.testing.clock import ManualClock

# The middle of a month, so that nothing rests on a boundary unless a test says so.
START = datetime(2026, 1, 15, 12, tzinfo=UTC)
SEED = 20260115
TENANT = 1
OTHER_TENANT = 2
HOLDER = UUID("00000000-0000-4000-8000-000000000001")
OTHER_HOLDER = UUID("00000000-0000-4000-8000-000000000002")
LEASE_S = 15.0
CONNECTIONS_MAX = 10
SET_CLOCK = "SELECT set_config('duly.test_now', $1, false)"
LIST_PARTITIONS = """
SELECT inhrelid::regclass::text AS name
  FROM pg_inherits
 WHERE inhparent IN ('duly.tasks'::regclass, 'duly.attempts'::regclass)
"""


class TimedDatabase(Database):
    """A Database whose server believes the given clock."""

    clock: ManualClock

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        with translated_faults(self.url):
            async with self.connections.acquire() as connection:
                await connection.execute(SET_CLOCK, self.clock.now().isoformat())
                rows: list[asyncpg.Record] = await connection.fetch(statement, *arguments)
                return rows

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        with translated_faults(self.url):
            async with self.connections.acquire() as connection:
                await connection.execute(SET_CLOCK, self.clock.now().isoformat())
                async with connection.transaction():
                    yield connection


class World:
    """One process and its database; `submitter` and `settler` are what the process would hold."""

    def __init__(self, database: TimedDatabase) -> None:
        self.database = database
        self.clock = database.clock
        self.node_clock = ManualClock(START)
        self.environment = Environment(clock=self.node_clock, random=Random(SEED))
        self.events = TaskEvents()
        self.submitter = Submitter(database, self.environment, self.events)
        self.settler = Settler(database, self.environment, self.events)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        engine_url: str,
        owner_url: str,
        connections_max: int = CONNECTIONS_MAX,
        database: type[TimedDatabase] = TimedDatabase,
    ) -> AsyncIterator["World"]:
        await make_months(owner_url)
        opened = await database.open(engine_url, connections_max)
        assert isinstance(opened, TimedDatabase)
        opened.clock = ManualClock(START)
        try:
            yield cls(opened)
        finally:
            await opened.close()

    def node(self, seed: int) -> "World":
        """Another process on the same database, with its own ids and caches."""
        other = World(self.database)
        other.node_clock.advance(self.node_clock.monotonic())
        other.environment = Environment(clock=other.node_clock, random=Random(seed))
        other.submitter = Submitter(self.database, other.environment)
        other.settler = Settler(self.database, other.environment)
        return other

    def now(self) -> datetime:
        return self.clock.now()

    def advance(self, seconds: float) -> None:
        """Both clocks, so that the node's error stays what it is."""
        self.clock.advance(seconds)
        self.node_clock.advance(seconds)

    async def submit(self, **fields: Any) -> Stored:
        answer = await self.ask(**fields)
        assert isinstance(answer, Stored)
        return answer

    async def ask(self, **fields: Any) -> SubmitAnswer:
        """Submit one task and return whatever the answer is."""
        (answer,) = await self.submitter.submit([wish(**fields)])
        return answer

    async def read(self, task_id: UUID, tenant: int = TENANT) -> Task:
        task = await read_task(self.database, tenant, task_id)
        assert task is not None
        return task

    async def attempts(self, task_id: UUID, tenant: int = TENANT) -> list[AttemptRecord]:
        """Those on record: the one that runs is not yet."""
        found = await read_attempts(self.database, tenant, task_id)
        return [attempt for attempt in found if attempt.ended_at is not None]

    async def ticket(self, task_id: UUID, tenant: int = TENANT) -> Ticket:
        return Ticket(task_id, (await self.read(task_id, tenant)).fence)

    async def due(self, horizon_s: float = 0.0, limit: int = 1000) -> list[DueTimer]:
        places = await list_placements(self.database, 0, 1023)
        return await load_due(self.database, {p: Cursor() for p in places}, horizon_s, limit)

    async def lease_all(self, holder: UUID = HOLDER, lease_s: float = LEASE_S) -> list[Lease]:
        """Everything that is due now."""
        tickets = [Ticket(due.id, due.fence) for due in await self.due()]
        return await lease_tasks(self.database, self.environment, holder, tickets, lease_s)

    async def try_lease(
        self, ticket: Ticket, holder: UUID = HOLDER, lease_s: float = LEASE_S
    ) -> Lease | None:
        leases = await lease_tasks(self.database, self.environment, holder, [ticket], lease_s)
        return leases[0] if leases else None

    async def lease(
        self, task_id: UUID, holder: UUID = HOLDER, lease_s: float = LEASE_S, tenant: int = TENANT
    ) -> Lease:
        lease = await self.try_lease(await self.ticket(task_id, tenant), holder, lease_s)
        assert lease is not None, "the task was not to be had"
        return lease

    async def settle(
        self, lease: Lease, outcome: Outcome, holder: UUID = HOLDER, **words: Any
    ) -> SettleAnswer:
        (answer,) = await self.settler.settle(
            [Settlement(lease.id, lease.fence, holder, outcome, **words)]
        )
        return answer

    async def run(
        self, task_id: UUID, outcome: Outcome, tenant: int = TENANT, **words: Any
    ) -> SettleAnswer:
        """One whole attempt: lease it now and settle it at once."""
        return await self.settle(await self.lease(task_id, tenant=tenant), outcome, **words)

    async def reap(self, limit: int = 1000) -> Reaped:
        places = await list_placements(self.database, 0, 1023)
        pairs = sorted({(place.tenant, place.shard) for place in places})
        return await reap_leases(self.database, self.environment, pairs, limit, events=self.events)

    async def count(self, table: str) -> int:
        (row,) = await self.database.fetch(f"SELECT count(*) AS rows FROM duly.{table}")
        rows: int = row["rows"]
        return rows

    async def timer(self, task_id: UUID) -> dict[str, Any] | None:
        rows = await self.database.fetch("SELECT * FROM duly.timers WHERE id = $1", task_id)
        return dict(rows[0]) if rows else None


async def make_months(owner_url: str) -> None:
    """The template has months of the real calendar, and the world has its own."""
    owner = await asyncpg.connect(owner_url)
    try:
        names = {row["name"] for row in await owner.fetch(LIST_PARTITIONS)}
        if f"duly.tasks_{START:%Y_%m}" in names:
            return
        for name in names:
            await owner.execute(f"DROP TABLE {name}")
        await owner.execute(SET_CLOCK, START.isoformat())
        await create_partitions(owner)
    finally:
        await owner.close()


def wish(**fields: Any) -> Submission:
    """A submission of the usual tenant and type, except for what is said."""
    usual: dict[str, Any] = {"tenant": TENANT, "type": "mail.send"}
    return Submission(**(usual | fields))
