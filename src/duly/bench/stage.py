"""Scenario context: a durable PostgreSQL of its own in a temporary folder, and how large to be.

Whatever happens, the server is stopped and the folder removed when the scenario is over.
"""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

from duly.bench.processor_time import Costs
from duly.environment import Clock, Environment
from duly.settings import Settings
from duly.store.bootstrap import (
    EMBEDDED_LOGIN,
    DatabaseTarget,
    create_database,
    open_target,
    prepare_target,
)
from duly.store.database import Database
from duly.store.measure import make_wal_segments

POOL_CONNECTIONS = 20
PAYLOAD = '{"invoice_id": "inv_8829031", "note": "' + "x" * 159 + '"}'
BATCH = 500
# Of 16 MB; a scenario writes up to 20 MB a second.
WAL_SEGMENTS = 32
# The tenant that every database has.
TENANT = 1
URL = "http://127.0.0.1/noop"
# No progress for so long means a stall, however slow the machine.
STALLED_S = 120.0

# How much is done, and of how much.
Show = Callable[[int, int], None]


@dataclass(frozen=True)
class BenchOptions:
    """What the user asked of every scenario."""

    is_quick: bool = False
    # Instead of the scenario's own size.
    tasks: int | None = None
    # How many wait, for the scenarios that have a backlog of those.
    waiting: int | None = None
    pg_bin: str = ""


class StallWatch:
    """For waits of unknown length: as long as there is progress, and STALLED_S longer."""

    def __init__(self, clock: Clock, what: str) -> None:
        self.clock = clock
        self.what = what
        self.seen: object = None
        self.moved_s = clock.monotonic()

    def look(self, done: object, goal: int) -> None:
        if done != self.seen:
            self.seen, self.moved_s = done, self.clock.monotonic()
        elif self.clock.monotonic() - self.moved_s > STALLED_S:
            raise TimeoutError(
                f"{self.what} stopped at {done} of {goal}: nothing moved for {STALLED_S:.0f} s"
            )


@dataclass(frozen=True)
class ScenarioContext:
    folder: str
    target: DatabaseTarget
    database: Database
    environment: Environment
    order: BenchOptions
    tasks: int
    show: Show

    @property
    def now_s(self) -> float:
        return self.environment.clock.monotonic()

    def patience(self, what: str) -> StallWatch:
        return StallWatch(self.environment.clock, what)

    def costs(self) -> Costs:
        assert self.target.embedded is not None
        return Costs(self.target.embedded.pid)

    @contextlib.asynccontextmanager
    async def beside(self, name: str) -> AsyncIterator["ScenarioContext"]:
        """Another database of the same server, to be measured in turn with this one."""
        server = self.target.embedded
        assert server is not None
        await create_database(server, name)
        target = replace(
            self.target, owner_url=server.url(name), engine_url=server.url(name, EMBEDDED_LOGIN)
        )
        async with opened(target, self.environment) as database:
            yield replace(self, target=target, database=database)


@contextlib.asynccontextmanager
async def open_stage(
    tasks: int, order: BenchOptions, environment: Environment, show: Show
) -> AsyncIterator[ScenarioContext]:
    with tempfile.TemporaryDirectory(prefix="duly-bench-") as folder:
        settings = Settings(data_dir=folder, pg_bin=order.pg_bin)
        async with (
            open_target(settings, environment) as target,
            opened(target, environment) as database,
        ):
            await make_wal_segments(target.owner_url, WAL_SEGMENTS)
            yield ScenarioContext(folder, target, database, environment, order, tasks, show)


@contextlib.asynccontextmanager
async def opened(target: DatabaseTarget, environment: Environment) -> AsyncIterator[Database]:
    await prepare_target(target, Settings(), environment)
    database = await Database.open(target.engine_url, POOL_CONNECTIONS)
    try:
        yield database
    finally:
        await database.close()
