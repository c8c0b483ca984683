"""A whole duly in this process: scheduler, ready queue, and an executor with a handler of yours.

For tests and benchmarks: no HTTP, everything else as `duly up` runs it. Webhook tasks (any URL) are
handed to the handler instead of being sent.
"""

import asyncio
from types import TracebackType
from uuid import UUID

from duly.app import Parts, make_parts, start_loop
from duly.domain.lanes import ALL_TENANTS, Lane
from duly.domain.task import BANDS, WEBHOOK_POOL
from duly.environment import Environment
from duly.execution.executor import Executor, Handler, Heartbeat, Settling
from duly.execution.leasing import SettleDesk
from duly.role import Role, RoleLoop, stop_roles
from duly.store.database import Database
from duly.store.desk import SubmitDesk
from duly.telemetry import Metrics

# Ticks of the executor at once: one leases while another starts what it leased.
EXECUTOR_LOOPS = 3
STOP_S = 10.0
WEBHOOK_LANES = [Lane(ALL_TENANTS, WEBHOOK_POOL, band) for band in range(BANDS)]


class Engine:
    """`async with Engine(database, environment, handler) as engine: await engine.submit(task)`"""

    def __init__(
        self,
        database: Database,
        environment: Environment,
        handler: Handler,
        *,
        is_alone: bool = True,
        running_max: int = 1000,
    ) -> None:
        self.environment = environment
        self.metrics = Metrics()
        self.parts: Parts = make_parts(database, environment, self.metrics, is_alone=is_alone)
        self.scheduler = self.parts.scheduler
        self.submitter = self.parts.submitter
        self.desk = SubmitDesk(self.submitter)
        self.settling = SettleDesk(database, environment)
        self.settling.on_settled = self.scheduler.on_settled
        self.executor = Executor(
            database,
            environment,
            self.parts.broker,
            WEBHOOK_LANES,
            self.settling,
            handler,
            self.metrics,
            self.parts.stats,
            UUID(int=environment.random.getrandbits(128)),
            running_max,
        )
        self.loops: list[RoleLoop] = []
        self.running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Engine":
        executor: list[Role] = [self.executor] * EXECUTOR_LOOPS
        beside: list[Role] = [Settling(self.executor), Heartbeat(self.executor)]
        roles = [*self.parts.roles, *executor, *beside]
        self.loops = [start_loop(role, self.environment, self.metrics) for role in roles]
        self.running = [asyncio.create_task(loop.run()) for loop in self.loops]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.parts.broker.close()
        # Each role once, though the executor has several loops.
        await stop_roles(self.loops, self.running, STOP_S)

    async def kill(self) -> None:
        """End every loop where it stands, without any hand-over: what kill -9 leaves behind."""
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)
