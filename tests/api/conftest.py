"""A front door on a real port, before a database of the test's own, with a key for each role."""

import asyncio
import contextlib
import io
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import UUID

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from duly.api.admission import Admission
from duly.api.bearer_tokens import JwtSettings
from duly.api.health import HealthRoutes
from duly.api.routes import ApiRoutes
from duly.api.server import Listener, make_server
from duly.broker.contract import Delivery
from duly.broker.lease_queue import LeaseQueue
from duly.broker.memory import MemoryCarrier
from duly.domain.lanes import Lane, Ticket
from duly.domain.task import BANDS
from duly.environment import Environment, SystemClock
from duly.events import TaskEvents, TasksFinished, TasksRescheduled, TasksStored
from duly.execution.worker_leases import WorkerLeases
from duly.role import RoleLoop, stop_roles
from duly.store.database import Database
from duly.store.keys import NewKey, create_key
from duly.store.load import Hint
from duly.store.migrate import read_migrations
from duly.store.settle import SettleQueue
from duly.store.stats import StatsBook
from duly.store.submit import Submitter
from duly.store.tenants import Tenant, create_tenant
from duly.telemetry import Metrics
from duly.testing.clock import ManualClock, MovableClock
from duly.testing.database import StatementGate, database_with
from tests.servers import ServerOfTheRun

# In instants that must lie ahead, whenever the tests are run.
NEXT_YEAR = datetime.now(UTC).year + 1
STOP_S = 5.0
NOT_FOUND = re.compile(
    rb'"detail":"(task|task type|key|tenant|schedule|dead letter|webhook secret|pause of|pool|'
    rb'open breaker for host|bulk operation|notification) [^"]+ was not found"'
)
CONNECTIONS_MAX = 10
PIECES_FROM = 512 * 1024


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def unnamed(self) -> bytes:
        """Without the name that was asked for, which a `not_found` repeats: all the rest must be
        the same for what is another tenant's and what never was."""
        return NOT_FOUND.sub(rb'"detail":"\1 ? was not found"', self.body)

    @property
    def code(self) -> str:
        """The stable name of a problem."""
        assert self.headers["Content-Type"] == "application/problem+json", self.body
        code: str = self.json["code"]
        return code


@dataclass
class Front:
    """`hints` collects what would be sent to the schedulers."""

    url: str
    database: Database
    environment: Environment
    door: ApiRoutes
    client: aiohttp.ClientSession
    tenant: Tenant
    other: Tenant
    hints: list[Hint]
    queue: LeaseQueue
    # Schedules that would be expected to fire, as they were told.
    expecting: list[tuple[UUID, datetime | None, datetime]] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)

    def __getattr__(self, name: str) -> str:
        """The text of a key: admin, operator, producer, worker, other_producer, other_admin."""
        try:
            return self.keys[name]
        except KeyError:
            raise AttributeError(name) from None

    async def make_ready(self) -> None:
        """What a scheduler does: a ticket for everything that is due and unleased."""
        rows = await self.database.fetch(
            "SELECT tenant, pool, queue, id, fence FROM duly.timers"
            " WHERE holder IS NULL AND due_at <= duly.now() ORDER BY due_at"
        )
        await self.queue.publish(
            [
                Delivery(
                    Lane(row["tenant"], row["pool"], (row["queue"] - 1) % BANDS),
                    Ticket(row["id"], row["fence"]),
                )
                for row in rows
            ]
        )

    async def make_keys(self) -> None:
        self.keys = {
            "admin": await self.make_key(self.tenant, "admin", reach="installation"),
            "operator": await self.make_key(self.tenant, "operator"),
            "producer": await self.make_key(self.tenant, "producer"),
            "worker": await self.make_key(self.tenant, "worker"),
            "other_producer": await self.make_key(self.other, "producer"),
            "other_admin": await self.make_key(self.other, "admin"),
        }

    async def make_key(self, tenant: Tenant, role: str, **more: Any) -> str:
        made = await create_key(
            self.database, self.environment, tenant.id, NewKey(role, role, **more), "test"
        )
        assert made is not None
        return made[1]

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = "",
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Reply:
        """As the admin unless another key is given; None sends no credential."""
        sent = dict(headers or {})
        if key is not None:
            sent.setdefault("Authorization", f"Bearer {key or self.keys['admin']}")
        data = raw if raw is not None else None if body is None else msgspec.json.encode(body)
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        # In pieces: the client says that a large body in one would hold the loop.
        body = data if data is None or len(data) < PIECES_FROM else io.BytesIO(data)
        async with self.client.request(
            method, self.url + path, data=body, headers=sent, skip_auto_headers=["Content-Type"]
        ) as response:
            return Reply(response.status, response.headers, await response.read())


def events_with_hints(hints: list[Hint]) -> TaskEvents:
    """Its doorbell only remembers the hints."""
    events = TaskEvents()
    events.subscribe(TasksStored, lambda event: hints.extend(event.hints))
    events.subscribe(TasksRescheduled, lambda event: hints.extend(event.hints))
    return events


async def make_tenant(database: Database, name: str) -> Tenant:
    tenant = await create_tenant(database, name)
    assert tenant is not None
    return tenant


@contextlib.asynccontextmanager
async def open_front(
    database: Database,
    environment: Environment,
    tokens: JwtSettings | None = None,
    admission: Admission | None = None,
    *,
    is_furnished: bool = False,
) -> AsyncIterator[Front]:
    """`is_furnished`: its configuration has a mail relay and a notification command."""
    hints: list[Hint] = []
    expecting: list[tuple[UUID, datetime | None, datetime]] = []
    metrics = Metrics()
    health = HealthRoutes(database, metrics, len(read_migrations()), dict)
    queue = LeaseQueue(MemoryCarrier(environment.clock), database, environment)
    events = events_with_hints(hints)
    settling = SettleQueue(database, environment, events)
    workers = WorkerLeases(database, environment, queue, settling, metrics, StatsBook(environment))
    door = ApiRoutes(
        database,
        environment,
        metrics,
        Submitter(database, environment),
        events,
        lambda *expected: expecting.append(expected),
        health,
        tokens,
        workers=workers,
        admission=admission,
        has_relay=is_furnished,
        has_command=is_furnished,
    )
    events.subscribe(TasksFinished, door.waiting.on_finished)
    tenant, other = [await make_tenant(database, name) for name in ("default", "other")]
    listener = Listener("127.0.0.1", 0)
    server = make_server(door.application(), STOP_S)
    async with aiohttp.ClientSession() as client, asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve([listener.socket]))
        loop = RoleLoop(door.waiting, environment, metrics)
        waiting = group.create_task(loop.run())
        parts = (listener.url, database, environment, door, client, tenant, other)
        front = Front(*parts, hints, queue, expecting)
        await front.make_keys()
        while not server.started:  # noqa: ASYNC110 (uvicorn has no signal)
            await asyncio.sleep(0.005)
        try:
            yield front
        finally:
            await stop_roles([loop], [waiting], STOP_S)
            await client.close()
            await queue.close()
            server.should_exit = True
            await serving
            await door.close()
            listener.close()


@pytest.fixture
async def front(database: Database) -> AsyncIterator[Front]:
    """With the system's clock: what the database says and what the door says agree."""
    environment = Environment(clock=SystemClock(), random=Random(7))
    async with open_front(database, environment) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_url(server: ServerOfTheRun) -> Iterator[str]:
    with server.database() as name:
        yield server.engine_url(name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_front(shared_url: str) -> AsyncIterator[Front]:
    """One for a whole module, where no test depends on what is stored."""
    database = await Database.open(shared_url, CONNECTIONS_MAX)
    environment = Environment(clock=SystemClock(), random=Random(7))
    async with open_front(database, environment) as opened:
        yield opened
    await database.close()


@pytest.fixture
async def still_front(database: Database) -> AsyncIterator[tuple[Front, ManualClock]]:
    """With a clock that the test moves, for what ages inside the process."""
    clock = ManualClock()
    environment = Environment(clock=clock, random=Random(7))
    async with open_front(database, environment) as opened:
        yield opened, clock


@pytest.fixture
async def moving_front(engine_url: str) -> AsyncIterator[tuple[Front, MovableClock]]:
    """With a clock that the test moves ahead, for the door and the database alike."""
    clock = MovableClock()
    database = await database_with(clock, StatementGate()).open(engine_url, CONNECTIONS_MAX)
    environment = Environment(clock=clock, random=Random(7))
    async with open_front(database, environment) as opened:
        yield opened, clock
    await database.close()
