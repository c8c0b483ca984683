"""A real duly for tests: `duly up` in a thread of this process, on a clock that can be moved.

| event | what happens |
|---|---|
| it cannot start | raised where it was started |
| the clock is moved | every role looks at once, so that a week passes in milliseconds |
| a lease is held while the clock is moved past it | lost, as it would be after a week |
"""

import asyncio
import concurrent.futures
import itertools
import shutil
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from duly.app import Ready, run_until
from duly.coordinator.ownership import Coordinator
from duly.environment import Environment
from duly.settings import Settings
from duly.store.keys import NewKey, create_key
from duly.store.tenants import create_tenant
from duly.testing.clock import MovableClock
from duly.testing.database import StatementGate, TimedDatabase, database_with

START_S = 120.0
STOP_S = 5.0
ADMIN_CONNECTIONS_MAX = 2

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class TestTenant:
    """A tenant for tests: the URL of duly, and an admin key of the tenant."""

    # No test, whatever its name looks like to pytest.
    __test__ = False

    name: str
    url: str
    api_key: str


class DulyServer:
    """`with DulyServer(folder) as server:`; everything that it made is gone afterwards."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.clock = MovableClock()
        self.environment = Environment(clock=self.clock)
        self.ready: concurrent.futures.Future[Ready] = concurrent.futures.Future()
        self.thread = threading.Thread(target=self.live, name="duly for tests", daemon=True)
        self.gate = StatementGate()
        self.database_kind = database_with(self.clock, self.gate)
        self.numbers = itertools.count(1)
        self.database: TimedDatabase | None = None

    def __enter__(self) -> "DulyServer":
        self.thread.start()
        ready = self.ready.result(START_S)
        self.clock.move = self.move_clock
        self.url = ready.url
        self.api_key = ready.key.first or ""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.clock.move = self.clock.jump
        if self.thread.is_alive():
            if self.database is not None:
                self.run(self.database.close())
            self.loop.call_soon_threadsafe(self.stop.set)
            self.thread.join(START_S)
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def live(self) -> None:
        try:
            asyncio.run(self.serve())
        except BaseException as error:
            if self.ready.done():
                raise
            self.ready.set_exception(error)

    async def serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.stop = asyncio.Event()
        await run_until(
            self.stop,
            Settings(data_dir=str(self.data_dir), port=0, stop_timeout_s=STOP_S),
            self.environment,
            self.ready.set_result,
            is_alone=True,
            database_kind=self.database_kind,
        )

    def move_clock(self, seconds: float) -> None:
        self.run(self.move_clock_here(seconds))

    async def move_clock_here(self, seconds: float) -> None:
        async with self.gate.shut():
            self.clock.jump(seconds)
            for loop in self.ready.result().loops:
                if isinstance(loop.role, Coordinator):
                    # No other process is there that could have claimed its slots meanwhile.
                    loop.role.trusted_until += seconds
        self.wake_here()

    def wake(self) -> None:
        """All roles, now: their pauses are counted by the system's clock."""
        self.loop.call_soon_threadsafe(self.wake_here)

    def wake_here(self) -> None:
        for loop in self.ready.result().loops:
            loop.wake()

    def make_tenant(self, name: str = "") -> TestTenant:
        """A tenant of its own, so that tests do not see each other's tasks."""
        return self.run(self.make_tenant_here(name or f"test-{next(self.numbers)}"))

    async def make_tenant_here(self, name: str) -> TestTenant:
        if self.database is None:
            target = self.ready.result().target
            opened = await self.database_kind.open(target.engine_url, ADMIN_CONNECTIONS_MAX)
            assert isinstance(opened, TimedDatabase)
            self.database = opened
        async with self.database.transaction() as session:
            tenant = await create_tenant(session, name)
            assert tenant is not None, f"there is a tenant {name} already"
            asked = NewKey("test", role="admin")
            made = await create_key(session, self.environment, tenant.id, asked, actor="test")
            assert made is not None
        return TestTenant(name, self.url, made[1])

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """In the server's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(START_S)
