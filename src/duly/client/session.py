"""One service of a worker, from its first poll to its last settlement.

| event | what happens |
|---|---|
| asked to stop | no more tasks; handlers may finish for a while; the rest is released |
| cancelled | the same, then the cancellation goes on |
| the server refuses the worker's key at the start | raised |
| the server hangs | the end comes within `drain_s` all the same; what was held runs out |
"""

import asyncio
import re
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from duly.client.clock import monotonic
from duly.client.errors import ApiError, Unreachable
from duly.client.handlers import Handler
from duly.client.heartbeat import HeartbeatLoop
from duly.client.leased_tasks import WorkerOrigin
from duly.client.leases import LeaseBook, Stop
from duly.client.logs import get_logger
from duly.client.middleware import HandlerCaller, Middleware
from duly.client.poller import Taking
from duly.client.resources import Resource, Values, started
from duly.client.runner import Runner
from duly.client.server import Server
from duly.client.server_clock import ServerClock
from duly.client.settle_queue import Settling
from duly.client.worker_api import WorkerApi

TIMEOUT_S = 10.0
CLOSE_S = 0.25
# The part of a drain that is kept for telling the server, once handlers were stopped.
TELL_SHARE, TELL_S_MAX = 0.25, 2.0
# For the last call, where handlers used up the whole drain.
DEREGISTER_S = 0.1


@dataclass(frozen=True)
class Plan:
    """How a worker works. What each means is said where it is given: in `Worker`."""

    worker_id: str
    pools: Sequence[str]
    bands: Sequence[str]
    concurrency: int
    prefetch: int
    processes: int
    lease_s: float
    drain_s: float
    origin: WorkerOrigin
    redactions: Sequence[re.Pattern[str]] = ()


class Session:
    def __init__(
        self,
        plan: Plan,
        server: Server,
        handlers: Mapping[str, Handler],
        middleware: Middleware,
        resources: Sequence[Resource[Any]],
    ) -> None:
        self.plan = plan
        self.resources = list(resources)
        self.values: Values = {}
        self.loop = asyncio.get_running_loop()
        self.stopping = asyncio.Event()
        self.is_asked_to_stop = False
        self.book = LeaseBook()
        self.worker_api = WorkerApi(server, plan.worker_id, plan.lease_s, TIMEOUT_S)
        self.settling = Settling(self.worker_api, self.book)
        self.runner = Runner(
            handlers,
            HandlerCaller(middleware, self.values),
            plan.concurrency,
            plan.prefetch,
            plan.processes,
            self.book,
            self.settling,
            plan.redactions,
        )
        clock = ServerClock()
        self.heartbeat_loop = HeartbeatLoop(
            server,
            plan.worker_id,
            plan.lease_s,
            self.book,
            clock,
            self.runner.stop,
            self.runner.abandon,
        )
        self.taking = Taking(
            self.worker_api,
            plan.pools,
            plan.bands,
            self.book,
            self.runner,
            self.heartbeat_loop,
            clock,
            plan.origin,
        )
        self.log = get_logger()

    def stop(self) -> None:
        """From any thread, and from a signal handler."""
        self.is_asked_to_stop = True
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.stopping.set)

    def end_process_after(self, seconds: float) -> None:
        """If the loop is blocked and the drain cannot even begin."""
        self.heartbeat_loop.end_process_by(monotonic() + seconds)

    async def until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Before the service itself: given up when the worker is asked to stop."""
        working = self.loop.create_task(work)
        stopping = self.loop.create_task(self.stopping.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.wait({working, stopping})

    async def serve(self) -> None:
        """Until it is asked to stop, or cancelled; its resources are there meanwhile."""
        async with started(self.resources, self.values):
            await self.lease_and_run()

    async def lease_and_run(self) -> None:
        self.heartbeat_loop.start()
        polling = self.loop.create_task(self.taking.run())
        stopping = self.loop.create_task(self.stopping.wait())
        try:
            await asyncio.wait({polling, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            await self.finish(polling)
        if not polling.cancelled() and (error := polling.exception()) is not None:
            raise error

    async def finish(self, polling: "asyncio.Task[None]") -> None:
        """All of it, also when we are cancelled; a second cancellation cuts it short."""
        draining = self.loop.create_task(self.drain(polling))
        try:
            await asyncio.shield(draining)
        finally:
            draining.cancel()
            self.runner.close()
            self.heartbeat_loop.close()
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self.worker_api.close()
            except TimeoutError:
                self.log.debug("connections did not close in time")

    async def drain(self, polling: "asyncio.Task[None]") -> None:
        runner, drain_s = self.runner, self.plan.drain_s
        ends_at = monotonic() + drain_s
        tell_s = min(drain_s * TELL_SHARE, TELL_S_MAX)
        if runner.running or runner.queue:
            self.log.info("worker stopping", running=len(runner.running), limit_s=drain_s)
        runner.release_queue()
        await self.taking.stop(polling, ends_at - tell_s)
        await runner.wait_idle(ends_at - tell_s)
        for run in list(runner.running):
            runner.stop(run, Stop.RELEASE)
        await runner.wait_idle(ends_at - tell_s / 2)
        for run in list(runner.running):
            runner.abandon_here(run)
        await self.settling.finish(ends_at)
        await runner.shipper.finish(max(ends_at - monotonic(), DEREGISTER_S))
        await self.deregister(max(ends_at - monotonic(), DEREGISTER_S))

    async def deregister(self, limit_s: float) -> None:
        """Its pools count as served until then; without it, until the server misses it."""
        try:
            async with asyncio.timeout(min(limit_s, TELL_S_MAX)):
                await self.worker_api.deregister()
        except (Unreachable, ApiError, TimeoutError) as error:
            self.log.debug("deregister failed", error=str(error))
