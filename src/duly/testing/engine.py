"""A whole duly in this process: scheduler, ready queue, and an executor with a handler of yours.

For tests and benchmarks: no HTTP, everything else as `duly up` runs it. Webhook tasks (any URL) are
handed to the handler instead of being sent.
"""

import asyncio
from types import TracebackType
from uuid import UUID

from duly.composition import Parts, make_parts
from duly.domain.lanes import WEBHOOK_LANES
from duly.environment import Environment
from duly.execution.assembly import executor_roles
from duly.execution.attempt import Handler
from duly.execution.executor import Executor
from duly.role import RoleLoop, stop_roles
from duly.store.database import Database
from duly.store.submit import GroupCommit
from duly.telemetry import Metrics

STOP_S = 10.0


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
        self.group_commit = GroupCommit(self.submitter)
        self.settle_queue = self.parts.settle_queue
        self.executor = Executor(
            database,
            environment,
            self.parts.lease_queue,
            WEBHOOK_LANES,
            self.settle_queue,
            handler,
            self.metrics,
            self.parts.stats,
            UUID(int=environment.random.getrandbits(128)),
            running_max,
            weight_of=self.scheduler.dispatcher.gatekeeper.weight_of,
        )
        self.loops: list[RoleLoop] = []
        self.running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Engine":
        roles = [*self.parts.roles, *executor_roles(self.executor)]
        self.loops = [RoleLoop(role, self.environment, self.metrics) for role in roles]
        self.running = [asyncio.create_task(loop.run()) for loop in self.loops]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.parts.lease_queue.close()
        # Each role once, though the executor has several loops.
        await stop_roles(self.loops, self.running, STOP_S)

    async def kill(self) -> None:
        """End every loop where it stands, without any hand-over: what kill -9 leaves behind."""
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)
