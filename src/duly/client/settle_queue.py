"""The settle queue: attempts that end while a call is in flight go with the next one.

| event | what happens |
|---|---|
| no answer, 429, 5xx | tried again, until the lease has been over for as long as it lasted |
| `stale` | another holder has the task; logged and dropped |
| one settlement is refused | halved until it is found, and told again as a rejection |
"""

import asyncio
from collections import deque

import msgspec

from duly.client.clock import monotonic
from duly.client.errors import Invalid
from duly.client.leased_tasks import NULL, SETTLE_BYTES_MAX, SETTLE_MAX, Beat, Settlement
from duly.client.leases import LeaseBook, Run
from duly.client.logs import get_logger
from duly.client.outcomes import HandlerOutcome, rejected
from duly.client.wire import jittered
from duly.client.worker_api import WorkerApi
from duly.domain.states import Outcome

PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 2.0


class Settling:
    def __init__(self, worker_api: WorkerApi, book: LeaseBook) -> None:
        self.worker_api = worker_api
        self.lease_s = worker_api.lease_s
        self.book = book
        self.pending: deque[Run] = deque()
        self.flight: asyncio.Task[None] | None = None
        self.pause_s = PAUSE_FIRST_S
        self.log = get_logger()

    def add(self, run: Run) -> None:
        self.pending.append(run)
        if self.flight is None:
            self.flight = asyncio.get_running_loop().create_task(self.run_batch())

    async def run_batch(self) -> None:
        """One call after the other, as long as there is something to tell."""
        try:
            while self.pending:
                batch = self.next_batch()
                try:
                    await self.send(batch)
                    self.pause_s = PAUSE_FIRST_S
                except Exception as error:
                    await self.put_back(batch, error)
        finally:
            self.flight = None

    def next_batch(self) -> list[Run]:
        batch: list[Run] = []
        size = 0
        while self.pending and len(batch) < SETTLE_MAX and size < SETTLE_BYTES_MAX:
            run = self.pending.popleft()
            assert run.verdict is not None
            size += len(run.verdict.result or b"") + len(run.verdict.error or "")
            batch.append(run)
        return batch

    async def put_back(self, batch: list[Run], error: Exception) -> None:
        now = monotonic()
        kept = [run for run in batch if now < run.deadline + self.lease_s]
        for run in batch:
            if now >= run.deadline + self.lease_s:
                self.forget(run, "its lease is long over")
        self.pending.extendleft(reversed(kept))
        self.log.warning("settle request failed", attempts=len(batch), error=str(error))
        await asyncio.sleep(jittered(self.pause_s))
        self.pause_s = min(self.pause_s * 2, PAUSE_MAX_S)

    async def send(self, batch: list[Run]) -> None:
        await self.send_progress(batch)
        settlements = [settlement_of(run.task.id, run.task.fence, run.verdict) for run in batch]
        try:
            items = await self.worker_api.settle(settlements)
        except Invalid as error:
            await self.set_aside(batch, error)
            return
        for run, item in zip(batch, items, strict=True):
            if item.status == "stale":
                self.forget(run, "its lease was lost")
            else:
                self.book.remove(run)

    async def send_progress(self, batch: list[Run]) -> None:
        """What a handler said last is for the next attempt; a settlement cannot carry it."""
        beats = [
            Beat(run.task.id, run.task.fence, msgspec.Raw(run.progress))
            for run in batch
            if run.progress is not None
            and run.progress is not run.progress_sent
            and run.verdict is not None
            and run.verdict.outcome != Outcome.COMPLETED
        ]
        if beats:
            await self.worker_api.heartbeat(beats)

    async def set_aside(self, batch: list[Run], error: Invalid) -> None:
        if len(batch) > 1:
            middle = len(batch) // 2
            await self.send(batch[:middle])
            await self.send(batch[middle:])
            return
        (run,) = batch
        reason = f"the server refused how this attempt ended: {error}"
        if run.verdict is not None and run.verdict.kind == "Refused":
            self.forget(run, reason)
            return
        run.verdict = rejected(reason, "Refused")
        run.progress_sent = run.progress
        await self.send(batch)

    def forget(self, run: Run, reason: str) -> None:
        assert run.verdict is not None
        self.book.remove(run)
        self.log.warning(
            "settlement refused",
            task_id=run.task.id,
            type=run.task.type,
            attempt=run.task.attempt,
            fence=run.task.fence,
            outcome=run.verdict.outcome,
            reason=reason,
        )

    async def finish(self, until: float) -> None:
        """Wait until everything is told, or that instant of our clock."""
        flight = self.flight
        if flight is None:
            return
        await asyncio.wait({flight}, timeout=max(until - monotonic(), 0.0))
        if not flight.done():
            self.log.warning("attempts not settled in time", attempts=len(self.book.held))
            flight.cancel()
            await asyncio.wait({flight})


def settlement_of(task_id: str, fence: int, verdict: HandlerOutcome | None) -> Settlement:
    assert verdict is not None
    return Settlement(
        task_id,
        fence,
        verdict.outcome,
        NULL if verdict.result is None else msgspec.Raw(verdict.result),
        verdict.error,
        verdict.kind,
        verdict.retry_in_s,
    )
