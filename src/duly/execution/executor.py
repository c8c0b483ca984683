"""Executor: runs tasks in this process. It takes leases from lanes, starts an attempt for each
within its slots, and sees to it that every attempt ends. What an attempt does is in `attempt.py`;
how its lease is kept meanwhile in `held_leases.py`.

| event | what happens |
|---|---|
| the handler answers at once | settled in batches, after what else waits was started |
| a lease comes when it is about to end | it is not begun, and released uncharged |
| the same lease comes again | dropped: it runs already |
| too many attempts run, or wait to be settled | nothing is taken until one has ended |
| stop | nothing more is taken; what runs may finish for a while, then is released uncharged |
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from uuid import UUID

from duly.broker.lease_queue import LeaseQueue
from duly.domain.errors import DulyError
from duly.domain.execution_shares import ExecutionShares, SlotClaim, equal_weight
from duly.domain.fairness import band_order
from duly.domain.lanes import Lane
from duly.environment import CrashPoint, Environment
from duly.execution.attempt import (
    RELEASED,
    Attempt,
    AttemptRecorder,
    AttemptResult,
    AttemptRunner,
    EndedAttempt,
    Handler,
    failure,
    wait_for,
)
from duly.execution.held_leases import LEASE_S, HeldLease, HeldLeases, StopReason
from duly.store.database import Database
from duly.store.lease import Lease
from duly.store.settle import BATCH_SIZE_MAX, SettleQueue
from duly.store.stats import StatsBook
from duly.store.task_metrics import note_started
from duly.telemetry import Metrics, get_logger

TAKE_MAX = 400
TAKE_WAIT_S = 1.0
RUNNING_MAX = 1000
# Attempts that ended at once and are not settled yet.
UNSETTLED_MAX = 4000
# While a burst is being started, what ended at once is settled after it: so much, and so long.
DEFERRED_MAX = 2000
DEFERRED_S = 0.1

log = get_logger("duly.execution.executor")


class Executor:
    """A role; several loops may tick it at once, to keep more than one statement in flight."""

    name = "executor"

    def __init__(
        self,
        database: Database,
        environment: Environment,
        lease_queue: LeaseQueue,
        lanes: Sequence[Lane],
        settle_queue: SettleQueue,
        handler: Handler,
        metrics: Metrics,
        stats: StatsBook,
        holder: UUID,
        running_max: int = RUNNING_MAX,
        drain_s: float = 0.0,
        heartbeat_database: Database | None = None,
        weight_of: Callable[[int], float] = equal_weight,
        lease_s: float = LEASE_S,
    ) -> None:
        self.environment = environment
        self.lease_queue = lease_queue
        self.lanes = lanes
        self.handler = handler
        self.holder = holder
        self.drain_s = drain_s
        # A slot is one attempt under way; tenants share them by weight.
        self.shares = ExecutionShares(running_max, weight_of)
        self.leases = HeldLeases(heartbeat_database or database, holder, lease_s)
        self.metrics = metrics
        self.stats = stats
        self.recorder = AttemptRecorder(settle_queue, metrics, stats, holder)
        self.runner = AttemptRunner(database, environment, self.recorder)
        self.turn = 0
        # Calls of the lease queue that are not answered yet.
        self.lease_calls = 0
        self.is_reconsidering = False
        self.has_room = asyncio.Event()
        # More tickets seem to wait than one call takes.
        self.is_burst = False
        # Attempts that ended at once: those that are deferred, and until when; batches under way.
        self.deferred: list[EndedAttempt] = []
        self.deferral: asyncio.TimerHandle | None = None
        self.unsettled = 0
        self.settling: set[asyncio.Task[None]] = set()

    async def tick(self) -> float:
        if self.shares.is_full or self.unsettled >= UNSETTLED_MAX:
            self.has_room.clear()
            await wait_for(self.has_room, TAKE_WAIT_S)
            return 0.0
        lanes = self.next_lanes()
        if self.is_burst and self.has_started_all(lanes):
            self.is_burst = False
            self.settle_deferred()
        claim = SlotClaim(self.shares)
        try:
            await self.take(lanes, claim)
        finally:
            claim.release()
            self.has_room.set()
        return 0.0

    async def take(self, lanes: list[Lane], claim: SlotClaim) -> None:
        asked_at = asyncio.get_running_loop().time()
        self.lease_calls += 1
        try:
            leases = await self.lease_queue.lease(
                lanes, self.holder, TAKE_MAX, self.leases.lease_s, TAKE_WAIT_S, claim
            )
        finally:
            self.lease_calls -= 1
        self.is_burst = len(leases) >= TAKE_MAX // 2
        if leases:
            await self.run(leases, asked_at)
        elif self.deferred:
            self.settle_deferred()

    def has_started_all(self, lanes: list[Lane]) -> bool:
        """Whether these lanes are empty and every loop of this executor waits for a ticket."""
        return self.lease_queue.waiting() >= self.lease_calls and not any(
            map(self.lease_queue.depth, lanes)
        )

    def next_lanes(self) -> list[Lane]:
        """Higher bands first, but not always: each keeps its share of this consumer."""
        self.turn += 1
        order = band_order(self.turn)
        return sorted(self.lanes, key=lambda lane: order.index(lane.band))

    async def run(self, leases: list[Lease], asked_at: float | None = None) -> None:
        """Call the handler for each. It may answer at once or be awaited."""
        held = self.leases.held
        if held:
            # A ticket that was repeated while an answer was lost brings the same lease again.
            leases = [lease for lease in leases if (lease.id, lease.fence) not in held]
        now = asyncio.get_running_loop().time()
        deadline = (now if asked_at is None else asked_at) + self.leases.lease_s
        # We stood still, or the database did: another holder may have them at any moment.
        is_late = now >= self.leases.stop_at(deadline)
        ended: list[EndedAttempt] = []
        for lease in leases:
            try:
                answer = RELEASED if is_late else self.handler(lease)
            except Exception as error:
                answer = failure(error)
            if isinstance(answer, AttemptResult):
                ended.append(EndedAttempt(lease, self.recorder.settlement(lease, answer)))
            else:
                self.start(lease, deadline, answer)
        if not is_late:
            note_started(self.metrics, self.stats, leases)
        if ended:
            await self.environment.crash_point(CrashPoint.EXECUTION_AFTER_EFFECT)
        self.defer(ended)

    def start(self, lease: Lease, deadline: float, pending: Awaitable[AttemptResult]) -> None:
        held = HeldLease(lease, deadline, lambda held: self.runner.run(Attempt(held, pending)))
        held.task.add_done_callback(partial(self.on_attempt_done, held))
        self.shares.add(lease.tenant, 1)
        self.leases.hold(held)

    def on_attempt_done(self, held: HeldLease, task: "asyncio.Task[object]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an attempt failed", task=str(held.lease.id), exc_info=error)
        self.leases.release(held)
        was_scarce = self.shares.is_scarce
        self.shares.add(held.lease.tenant, -1)
        self.has_room.set()
        if was_scarce and not self.is_reconsidering:
            # A consumer may wait beside tickets for which there was no slot. Once for all attempts
            # that end in this turn of the loop: each by itself would be a statement for one lease.
            self.is_reconsidering = True
            asyncio.get_running_loop().call_soon(self.reconsider)

    def reconsider(self) -> None:
        self.is_reconsidering = False
        self.lease_queue.reconsider(self.lanes)

    def defer(self, ended: list[EndedAttempt]) -> None:
        """Settle these now, or during a burst a moment later: starting waiting tasks goes before
        recording ended ones."""
        self.deferred += ended
        self.unsettled += len(ended)
        if not self.is_burst or len(self.deferred) >= DEFERRED_MAX:
            self.settle_deferred()
        elif self.deferred and self.deferral is None:
            loop = asyncio.get_running_loop()
            self.deferral = loop.call_later(DEFERRED_S, self.settle_deferred)

    def settle_deferred(self) -> None:
        if self.deferral is not None:
            self.deferral.cancel()
            self.deferral = None
        deferred, self.deferred = self.deferred, []
        for start in range(0, len(deferred), BATCH_SIZE_MAX):
            batch = deferred[start : start + BATCH_SIZE_MAX]
            task = asyncio.get_running_loop().create_task(self.recorder.settle(batch))
            self.settling.add(task)
            task.add_done_callback(partial(self.on_settled, len(batch)))

    def on_settled(self, count: int, task: "asyncio.Task[None]") -> None:
        self.settling.discard(task)
        self.unsettled -= count
        self.has_room.set()

    def stop_waiting(self) -> None:
        """A stop hands over only after every tick has ended: none may wait for work or room."""
        self.is_burst = False
        self.settle_deferred()
        self.has_room.set()

    async def close(self) -> None:
        """Release what still runs: another process starts it again, and no attempt is charged."""
        await self.drain()
        self.recorder.stopping.set()
        every = list(self.leases.held.values())
        for held in every:
            held.stop(StopReason.SHUTDOWN)
        self.settle_deferred()
        await asyncio.gather(*(held.task for held in every), *self.settling, return_exceptions=True)

    async def drain(self) -> None:
        """Let running attempts finish for `drain_s`, and extend their leases meanwhile."""
        ends_at = self.environment.clock.monotonic() + self.drain_s
        while self.leases.held and (left_s := ends_at - self.environment.clock.monotonic()) > 0:
            tasks = [held.task for held in self.leases.held.values()]
            await asyncio.wait(tasks, timeout=min(left_s, self.leases.heartbeat_s))
            try:
                await self.leases.tick()
            except (DulyError, TimeoutError) as error:
                log.warning("heartbeats failed while stopping", error=repr(error))
