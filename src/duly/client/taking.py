"""Coming for tasks: one long poll at a time, for as many as there is room for.

One poll is enough: it is answered as soon as there is a task, and the next one is on its way while
handlers run. Two would make it impossible for the server to tell which answer got lost.

| event | what happens |
|---|---|
| no answer | the same request id again: leases that were granted and never seen come back |
| it brings what we have, or had | left alone: a lease is started once |
| an answer to a repeated request | its leases may be old: each is confirmed before it starts |
| the worker stops | the poll is given a moment, then cut and asked once more; all of it goes back |
"""

import asyncio
from collections.abc import Sequence

from duly.client.desk import Desk
from duly.client.errors import ApiError, RateLimited, Unavailable, Unreachable
from duly.client.heart import Heart
from duly.client.leased_tasks import LEASE_MAX, Beat, LeasedTask, LeaseRequest
from duly.client.leases import LeaseBook
from duly.client.logs import get_logger
from duly.client.running import Runner
from duly.client.wire import jittered, new_key
from duly.client.world import monotonic

WAIT_S = 20.0
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0
# What a poll that is not waiting, but being answered, needs to come home.
GRACE_S = 0.25


class Taking:
    def __init__(
        self,
        desk: Desk,
        pools: Sequence[str],
        book: LeaseBook,
        runner: Runner,
        heart: Heart,
    ) -> None:
        self.desk = desk
        self.pools = list(pools)
        self.lease_s = desk.lease_s
        self.book = book
        self.runner = runner
        self.heart = heart
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
            await self.take(room)

    async def take(self, room: int) -> None:
        """One request, until it is answered."""
        self.request = request = LeaseRequest(
            worker_id=self.desk.worker_id,
            pools=self.pools,
            max=min(room, LEASE_MAX),
            wait_s=WAIT_S,
            lease_s=self.lease_s,
            request_id=new_key(),
        )
        self.book.gone.clear()
        taken_at = monotonic()
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                tasks = await self.ask(request)
                break
            except (Unreachable, ApiError) as error:
                if not self.has_succeeded and is_refusal(error):
                    raise
                self.log.warning("asking for tasks failed", error=str(error))
                await asyncio.sleep(jittered(pause_s))
                pause_s = min(pause_s * 2, PAUSE_MAX_S)
                await self.confirm()
        self.request = None
        if not self.has_succeeded:
            self.has_succeeded = True
            self.log.info("at work", worker_id=self.desk.worker_id, pools=self.pools)
        if pause_s == PAUSE_FIRST_S:
            for task in tasks:
                self.accept(task, taken_at)
        elif tasks:
            await self.accept_confirmed(tasks, taken_at)

    async def confirm(self) -> None:
        """Then what the server finds unconfirmed is exactly what we never saw."""
        try:
            await asyncio.wrap_future(self.heart.beat_now())
        except (Unreachable, ApiError) as error:
            self.log.debug("leases could not be confirmed", error=str(error))

    async def ask(self, request: LeaseRequest) -> list[LeasedTask]:
        tasks = await self.desk.lease(request)
        return [task for task in tasks if not self.book.is_known(task.key)]

    def accept(self, task: LeasedTask, taken_at: float) -> None:
        run = self.runner.accept(task, taken_at)
        if run is not None:
            self.heart.notice(run)

    async def accept_confirmed(self, tasks: list[LeasedTask], taken_at: float) -> None:
        """When each was granted nobody knows; the answer to a heartbeat says how old it is."""
        sent_at = monotonic()
        try:
            items = await self.desk.heartbeat([Beat(*task.key) for task in tasks])
        except (Unreachable, ApiError) as error:
            self.log.warning("leases could not be confirmed", error=str(error))
            return
        for task, item in zip(tasks, items, strict=True):
            if item.status == "stale" or item.lease_until is None:
                continue
            age_s = (item.lease_until - task.started_at).total_seconds() - self.lease_s
            is_bounded = age_s + self.lease_s >= task.timeout_s
            granted_at = taken_at if is_bounded else sent_at - max(age_s, 0.0)
            run = self.runner.accept(task, granted_at)
            if run is not None:
                run.extend(sent_at, self.lease_s)
                self.heart.notice(run)

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
                await asyncio.wrap_future(self.heart.beat_now())
                for task in await self.ask(request):
                    self.runner.accept(task, monotonic())
        except (Unreachable, ApiError, TimeoutError) as error:
            self.log.warning("the last request for tasks is unanswered", error=str(error))


def is_refusal(error: Exception) -> bool:
    """The key or the request is wrong; trying again changes nothing."""
    is_busy = isinstance(error, RateLimited | Unavailable)
    return isinstance(error, ApiError) and error.status < 500 and not is_busy
