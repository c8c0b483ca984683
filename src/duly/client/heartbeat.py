"""The heartbeat thread of a worker, with its own loop and connection: it extends the leases.

It runs while a handler blocks the main loop, and stops handlers whose leases it cannot keep.

| event | what happens |
|---|---|
| a heartbeat is answered `held` | the lease lasts longer, counted from before it was sent |
| `cancel`, or `stale` | the handler is stopped |
| no answer | tried again soon; handlers are stopped before their leases run out |
| this process was paused past a lease | the same, as soon as it runs again |
| a handler ignores it, and the lease ends | the attempt is settled without it |
| the process has to end, and its loop is blocked | the leases are released here; it ends |
"""

import asyncio
import concurrent.futures
import math
import os
import threading
from collections.abc import Callable
from datetime import timedelta

import msgspec

from duly.client.clock import monotonic
from duly.client.errors import ApiError, Unreachable
from duly.client.leased_tasks import HEARTBEATS_MAX, NULL, Beat
from duly.client.leases import LeaseBook, Run, Stop
from duly.client.logs import get_logger
from duly.client.outcomes import RELEASED
from duly.client.server import Server
from duly.client.server_clock import ServerClock
from duly.client.settle_queue import settlement_of
from duly.client.wire import jittered
from duly.client.worker_api import WorkerApi

# Three beats in a lease: two may get lost.
BEATS_PER_LEASE = 3.0
LOOK_EVERY_S = 0.5
PAUSE_S = 0.2
JOIN_S = 0.5
# For telling the server what goes back, when the process has to end.
RELEASE_S = 1.0
# A task that was taken ahead and is still not begun is given back for others.
QUEUED_S_MAX = 2.0
EXIT_LATE = 1


class HeartbeatLoop:
    def __init__(
        self,
        server: Server,
        worker_id: str,
        lease_s: float,
        book: LeaseBook,
        clock: ServerClock,
        stop: Callable[[Run, Stop], None],
        abandon: Callable[[Run], None],
    ) -> None:
        self.server = server
        self.worker_id = worker_id
        self.lease_s = lease_s
        self.book = book
        self.clock = clock
        self.stop = stop
        self.abandon = abandon
        self.beat_every_s = lease_s / BEATS_PER_LEASE
        self.wakes_at = 0.0
        # When the process must be gone, whatever the main loop does.
        self.exit_by = math.inf
        self.is_started = threading.Event()
        self.thread = threading.Thread(target=self.live, name="duly heartbeat", daemon=True)
        self.log = get_logger()

    def start(self) -> None:
        self.thread.start()
        self.is_started.wait()

    def live(self) -> None:
        asyncio.run(self.run())

    async def run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.awake = asyncio.Event()
        self.closed = asyncio.Event()
        self.worker_api = WorkerApi(self.server, self.worker_id, self.lease_s, self.beat_every_s)
        work = [self.loop.create_task(self.watch()), self.loop.create_task(self.beat_on())]
        self.is_started.set()
        try:
            await self.closed.wait()
        finally:
            for task in work:
                task.cancel()
            await asyncio.wait(work)
            await self.worker_api.close()

    def close(self) -> None:
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.closed.set)
            self.thread.join(JOIN_S)

    def notice(self, run: Run) -> None:
        """From the main thread: a lease that may need us before we would look next."""
        if run.stop_at < self.wakes_at:
            self.loop.call_soon_threadsafe(self.awake.set)

    def end_process_by(self, instant: float) -> None:
        """From any thread, and from a signal handler."""
        self.exit_by = instant
        # A signal may come before there is a loop to wake; its first look sees the instant.
        if self.is_started.is_set():
            self.loop.call_soon_threadsafe(self.awake.set)

    async def watch(self) -> None:
        while True:
            now = monotonic()
            self.awake.clear()
            next_at = now + LOOK_EVERY_S
            for run in self.book.runs():
                next_at = min(next_at, self.look_at(run, now))
            if now >= self.exit_by:
                await self.end_process()
            self.wakes_at = min(next_at, self.exit_by)
            try:
                async with asyncio.timeout(max(self.wakes_at - now, 0.001)):
                    await self.awake.wait()
            except TimeoutError:
                continue

    def look_at(self, run: Run, now: float) -> float:
        """Stop it if it has to be; answers when to look again."""
        if run.has_ended:
            return math.inf
        if run.stop is None:
            reason = run.reason_to_stop(now)
            if reason is None:
                is_late = not run.has_left_queue and now > run.granted_at + QUEUED_S_MAX
                reason = Stop.RELEASE if is_late else None
            if reason is not None:
                self.stop(run, reason)
            return run.stop_at
        given_up_at = run.deadline - run.lease_margin_s / 2
        if now >= given_up_at:
            self.abandon(run)
            return math.inf
        return given_up_at

    async def beat_on(self) -> None:
        pause_s = self.beat_every_s
        while True:
            await asyncio.sleep(pause_s)
            pause_s = self.beat_every_s
            try:
                await self.beat()
            except Exception as error:
                # Heartbeats go on after any error; handlers are stopped if that takes too long.
                self.log.warning("heartbeat failed", error=str(error) or repr(error))
                pause_s = min(jittered(PAUSE_S), self.beat_every_s)

    def beat_now(self) -> "concurrent.futures.Future[None]":
        """From the main thread."""
        return asyncio.run_coroutine_threadsafe(self.beat(), self.loop)

    async def beat(self) -> None:
        runs = self.book.runs()
        for start in range(0, len(runs), HEARTBEATS_MAX):
            await self.beat_for(runs[start : start + HEARTBEATS_MAX])

    async def beat_for(self, runs: list[Run]) -> None:
        said = [run.progress for run in runs]
        beats = [
            Beat(*run.key, NULL if news is None or news is run.progress_sent else msgspec.Raw(news))
            for run, news in zip(runs, said, strict=True)
        ]
        sent_at = monotonic()
        items = await self.worker_api.heartbeat(beats)
        for run, news, item in zip(runs, said, items, strict=True):
            if item.lease_until is not None:
                run.extend(sent_at, self.lease_s)
                run.progress_sent = news
                if (age_s := run.task.age_s(item.lease_until, self.lease_s)) is not None:
                    self.clock.note(sent_at, run.task.started_at + timedelta(seconds=age_s))
            if run.has_ended or item.status == "held":
                continue
            self.stop(run, Stop.CANCEL if item.status == "cancel" else Stop.STALE)

    async def end_process(self) -> None:
        """The main loop did not end in time: what it holds goes back, and the process ends."""
        self.log.error("shutdown timed out, exiting", held=len(self.book.held))
        runs = self.book.runs()
        settlements = [settlement_of(*run.key, run.verdict or RELEASED) for run in runs]
        try:
            async with asyncio.timeout(RELEASE_S):
                for start in range(0, len(settlements), HEARTBEATS_MAX):
                    await self.worker_api.settle(settlements[start : start + HEARTBEATS_MAX])
        except (Unreachable, ApiError, TimeoutError) as error:
            self.log.warning("leases not released", error=str(error))
        os._exit(EXIT_LATE)
