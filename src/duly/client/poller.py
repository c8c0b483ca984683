"""The poller: one long poll at a time, for as many tasks as may run.

One poll is enough: it is answered as soon as there is a task, and the next one is on its way while
handlers run. Two would make it impossible for the server to tell which answer got lost.

| event | what happens |
|---|---|
| no answer | the same request id again: leases that were granted and never seen come back |
| it brings what we have, or had | left alone: a lease is started once |
| an answer to a repeated request | its leases may be old: each is confirmed before it starts |
| a server that never saw us finds leases of ours | it says so; the same |
| the worker stops | the poll is given a moment, then cut and asked once more; all of it goes back |
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from duly.client.clock import monotonic
from duly.client.errors import ApiError, RateLimited, Unavailable, Unreachable
from duly.client.heartbeat import HeartbeatLoop
from duly.client.leased_tasks import LEASE_MAX, Beat, LeasedTask, LeaseRequest, WorkerOrigin
from duly.client.leases import LeaseBook, Run
from duly.client.logs import get_logger
from duly.client.runner import Runner
from duly.client.server_clock import ServerClock
from duly.client.wire import jittered, new_key
from duly.client.worker_api import WorkerApi
from duly.domain.limits import LEASE_S_MIN

WAIT_S = 20.0
REPEATED_WAIT_S = 1.0
PAUSE_FIRST_S = 0.1
# Also what a task waits for its worker after an outage.
PAUSE_MAX_S = 2.0
# What a poll that is not waiting, but being answered, needs to come home.
GRACE_S = 0.25


class Taking:
    def __init__(
        self,
        worker_api: WorkerApi,
        pools: Sequence[str],
        bands: Sequence[str],
        book: LeaseBook,
        runner: Runner,
        heartbeat_loop: HeartbeatLoop,
        clock: ServerClock,
        origin: WorkerOrigin = WorkerOrigin(),  # noqa: B008 (a tuple)
    ) -> None:
        self.worker_api = worker_api
        self.pools = list(pools)
        self.bands = list(bands)
        self.lease_s = worker_api.lease_s
        self.book = book
        self.runner = runner
        self.heartbeat_loop = heartbeat_loop
        self.clock = clock
        self.origin = origin
        self.has_succeeded = False
        self.is_stopping = False
        self.request: LeaseRequest | None = None
        self.log = get_logger()

    async def run(self) -> None:
        runner = self.runner
        while not self.is_stopping:
            room = runner.room()
            if room <= 0:
                runner.has_changed.clear()
                await runner.has_changed.wait()
                continue
            # What was accepted begins first: a handler that blocks leaves no request behind it.
            await asyncio.sleep(0)
            await self.take(room)

    async def take(self, room: int) -> None:
        """One request, until it is answered."""
        self.request = request = LeaseRequest(
            worker_id=self.worker_api.worker_id,
            pools=self.pools,
            bands=self.bands,
            max=min(room, LEASE_MAX),
            # The first is answered at once: then the worker is known to have started.
            wait_s=WAIT_S if self.has_succeeded else 0.0,
            lease_s=self.lease_s,
            request_id=new_key(),
            **self.origin._asdict(),
        )
        self.book.gone.clear()
        pause_s = PAUSE_FIRST_S
        is_repeated = False
        failed_at = 0.0
        while True:
            asked_at = monotonic()
            try:
                tasks = await self.ask(request)
                break
            except (Unreachable, ApiError) as error:
                if not self.has_succeeded and is_refusal(error):
                    raise
                self.log.warning("lease request failed", error=str(error))
                await asyncio.sleep(jittered(pause_s))
                pause_s = min(pause_s * 2, PAUSE_MAX_S)
                failed_at = failed_at or monotonic()
                is_repeated = True
                # Answered soon, with or without tasks: then the server is known to be back.
                request.wait_s = REPEATED_WAIT_S
                await self.confirm()
        self.request = None
        if not self.has_succeeded:
            self.has_succeeded = True
            self.log.info("worker started", worker_id=self.worker_api.worker_id, pools=self.pools)
        elif is_repeated:
            self.log.info("server reachable again", away_s=round(monotonic() - failed_at, 1))
        if is_repeated:
            await self.accept_confirmed(tasks)
        else:
            await self.accept_all(tasks, asked_at)

    async def accept_all(self, tasks: list[LeasedTask], asked_at: float) -> None:
        now = monotonic()
        in_doubt = []
        for task in tasks:
            granted_at = self.clock.granted_at(task.started_at, asked_at, now)
            if task.again or granted_at is None:
                in_doubt.append(task)
            else:
                self.accept(task, granted_at)
        await self.accept_confirmed(in_doubt)
        # What is handed out again was granted before we asked.
        if fresh := [task.started_at for task in tasks if not task.again]:
            self.clock.note(asked_at, min(fresh))

    def accept(self, task: LeasedTask, granted_at: float) -> Run | None:
        run = self.runner.accept(task, granted_at)
        if run is not None:
            self.heartbeat_loop.notice(run)
        return run

    async def accept_confirmed(self, tasks: list[LeasedTask]) -> None:
        """Their age is unknown here; the answer to a heartbeat tells it."""
        # Apart from each other: a short task's moment is too short a lease for its neighbours.
        alike: dict[float, list[LeasedTask]] = {}
        for task in tasks:
            alike.setdefault(confirmed_for_s(self.lease_s, task.timeout_s), []).append(task)
        for lease_s in sorted(alike):
            await self.accept_confirmed_for(alike[lease_s], lease_s)

    async def accept_confirmed_for(self, tasks: list[LeasedTask], lease_s: float) -> None:
        asked_at = monotonic()
        try:
            items = await self.worker_api.heartbeat([Beat(*task.key) for task in tasks], lease_s)
        except (Unreachable, ApiError) as error:
            self.log.warning("leases could not be confirmed", error=str(error))
            return
        for task, item in zip(tasks, items, strict=True):
            if item.lease_until is None:
                continue
            age_s = task.age_s(item.lease_until, lease_s)
            # One whose time is half over already is too old to be begun here.
            run = self.accept(task, asked_at - (task.timeout_s if age_s is None else age_s))
            if age_s is not None:
                self.clock.note(asked_at, task.started_at + timedelta(seconds=age_s))
            if run is not None:
                run.extend(asked_at, lease_s)
        self.heartbeat_loop.beat_now()

    async def confirm(self) -> None:
        """Then what the server finds unconfirmed is exactly what we never saw."""
        try:
            await asyncio.wrap_future(self.heartbeat_loop.beat_now())
        except (Unreachable, ApiError) as error:
            self.log.debug("leases could not be confirmed", error=str(error))

    async def ask(self, request: LeaseRequest) -> list[LeasedTask]:
        tasks = await self.worker_api.lease(request)
        return [task for task in tasks if not self.book.is_known(task.key)]

    async def stop(self, polling: "asyncio.Task[None]", until: float) -> None:
        """No more tasks. What a poll in flight brings is released by the runner."""
        self.is_stopping = True
        self.runner.has_changed.set()
        await asyncio.wait({polling}, timeout=min(GRACE_S, max(until - monotonic(), 0.0)))
        if polling.done():
            return
        polling.cancel()
        await asyncio.wait({polling})
        request = self.request
        if request is None or not self.has_succeeded:
            return
        request.wait_s = 0.0
        try:
            async with asyncio.timeout(max(until - monotonic(), 0.0)):
                await asyncio.wrap_future(self.heartbeat_loop.beat_now())
                for task in await self.ask(request):
                    self.runner.accept(task, monotonic())
        except (Unreachable, ApiError, TimeoutError) as error:
            self.log.warning("last lease request unanswered", error=str(error))


def is_refusal(error: Exception) -> bool:
    """The key or the request is wrong; trying again changes nothing."""
    is_busy = isinstance(error, RateLimited | Unavailable)
    return isinstance(error, ApiError) and error.status < 500 and not is_busy


def confirmed_for_s(lease_s: float, timeout_s: float) -> float:
    """Half of an attempt's time at most: what that limit cuts short says nothing. Found by halving,
    so that many different limits need few different calls."""
    while lease_s > timeout_s / 2:
        lease_s /= 2
    return max(lease_s, LEASE_S_MIN)
