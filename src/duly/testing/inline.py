"""A worker's handlers, run here and now instead of in a process of their own.

Everything else is as in production: tasks pass the scheduler and its gates, are leased over HTTP,
and are settled. One at a time, in the order in which duly hands them out.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import msgspec

from duly.client.asynchronous import AsyncClient, AsyncTask
from duly.client.clock import chance
from duly.client.context import Context
from duly.client.inline_mode import NoHandler, Ran, TooManyRuns, ran, verdict_of
from duly.client.leased_tasks import Beat, LeasedTask, LeaseRequest
from duly.client.middleware import HandlerCaller
from duly.client.outcomes import RELEASED, HandlerOutcome, with_policy
from duly.client.resources import Values, started
from duly.client.server import Server
from duly.client.settle_queue import settlement_of
from duly.client.wire import new_key
from duly.client.worker import Worker
from duly.client.worker_api import WorkerApi
from duly.domain.errors import DulyError
from duly.domain.gates import Gate
from duly.domain.limits import LEASE_S_MAX
from duly.testing.server import DulyServer, TestTenant

# One look for a task that should be on its way.
WAIT_S = 0.2
# Of the system's time: duly hands out what is due well within it.
PATIENCE_S = 10.0
TIMEOUT_S = 30.0
RUNS_MAX = 10_000
# Gates that no patience opens.
HELD_BACK = frozenset({Gate.PAUSED, Gate.TENANT_IN_FLIGHT, Gate.CONCURRENCY_KEY})


class NotHandedOut(DulyError):
    """task {id} is due and was not handed out within {patience_s:g} s: {summary}"""


class Inline:
    """For one tenant of a server: `run_inline(worker)` and, where a loop runs, `arun_inline`."""

    def __init__(self, server: DulyServer, tenant: TestTenant) -> None:
        self.server = server
        self.clock = server.clock
        self.tenant = tenant

    def run(self, worker: Worker, until: datetime | timedelta | None = None) -> list[Ran]:
        """Until nothing is due; with `until`, move the clock from task to task up to there."""
        return asyncio.run(self.arun(worker, until))

    async def arun(self, worker: Worker, until: datetime | timedelta | None = None) -> list[Ran]:
        """`run`, awaited."""
        end = self.clock.now() + until if isinstance(until, timedelta) else until
        worker.plan()
        worker_api = WorkerApi(
            Server(self.tenant.url, self.tenant.api_key),
            f"inline:{new_key()}",
            LEASE_S_MAX,
            TIMEOUT_S,
        )
        values: Values = {}
        async with AsyncClient(self.tenant.url, self.tenant.api_key) as client:
            try:
                async with started(worker.resources(), values):
                    caller = HandlerCaller(worker.middleware, values)
                    return await Shift(self, worker, client, worker_api, caller).work(end)
            finally:
                await worker_api.close()


class Shift:
    """One call of `run`."""

    def __init__(
        self,
        inline: Inline,
        worker: Worker,
        client: AsyncClient,
        worker_api: WorkerApi,
        caller: HandlerCaller,
    ) -> None:
        self.inline = inline
        self.clock = inline.clock
        self.worker = worker
        self.client = client
        self.worker_api = worker_api
        self.caller = caller
        self.ran: list[Ran] = []

    async def work(self, end: datetime | None) -> list[Ran]:
        await self.run_due()
        while end is not None:
            next_at = await self.next_at()
            if next_at is None or next_at > end:
                self.clock.advance_to(end)
                break
            self.clock.advance_to(next_at)
            await self.run_due(WAIT_S)
        return self.ran

    async def run_due(self, wait_s: float = 0.0) -> None:
        """Run until no task is due, except those that are held back."""
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + PATIENCE_S
        while True:
            task = await self.lease(wait_s)
            if task is not None:
                await self.run_one(task)
                wait_s, patient_until = 0.0, loop.time() + PATIENCE_S
                continue
            late = await self.not_handed_out()
            if late is None:
                return
            if loop.time() > patient_until:
                task_id, summary = late
                raise NotHandedOut(id=task_id, patience_s=PATIENCE_S, summary=summary)
            self.inline.server.wake()
            wait_s = WAIT_S

    async def lease(self, wait_s: float) -> LeasedTask | None:
        request = LeaseRequest(
            worker_id=self.worker_api.worker_id,
            pools=self.worker.pools,
            bands=self.worker.bands,
            max=1,
            wait_s=wait_s,
            lease_s=LEASE_S_MAX,
            request_id=new_key(),
        )
        tasks = await self.worker_api.lease(request)
        return tasks[0] if tasks else None

    async def run_one(self, task: LeasedTask) -> None:
        if len(self.ran) >= RUNS_MAX:
            await self.settle(task, RELEASED)
            raise TooManyRuns(most=RUNS_MAX)
        handler = self.worker.handlers.get(task.type)
        if handler is None:
            await self.settle(task, RELEASED)
            raise NoHandler(type=task.type, id=task.id)
        said: list[bytes] = []
        context = Context(task, said.append)
        verdict = await verdict_of(self.caller, handler, task, context)
        if handler.retry is not None:
            verdict = with_policy(verdict, handler.retry, task.attempt, chance)
        self.caller.ended(context, verdict)
        if said:
            await self.worker_api.heartbeat([Beat(*task.key, msgspec.Raw(said[-1]))])
        await self.settle(task, verdict)
        self.ran.append(ran(task, verdict))

    async def settle(self, task: LeasedTask, verdict: HandlerOutcome) -> None:
        await self.worker_api.settle([settlement_of(*task.key, verdict)])

    async def not_handed_out(self) -> tuple[str, str] | None:
        """A task that should come, and what duly says of it; what a gate holds back need not."""
        async for task in self.tasks("READY"):
            explained = await self.client.explain(task.id)
            if explained.state == "READY" and explained.binding not in HELD_BACK:
                return task.id, explained.summary
        return None

    async def next_at(self) -> datetime | None:
        instants = [task.next_at async for task in self.tasks("SCHEDULED") if task.next_at]
        return min(instants, default=None)

    async def tasks(self, state: str) -> AsyncIterator[AsyncTask[Any]]:
        async for task in self.client.tasks(state=state):
            if task.target.get("pool") in self.worker.pools:
                yield task
