"""Running tasks in this process: take leases from lanes, call the handler, heartbeat, settle.

The handler decides what running means (a webhook call; nothing, in a benchmark). It may answer at
once or be awaited; either way its word is settled in batches.

| event | what happens |
|---|---|
| the handler raises | settled as failed, with the error's name as its kind |
| the handler outlives its time limit | cancelled and settled as failed |
| a heartbeat says stale | the handler is cancelled; its settlement would change nothing |
| a heartbeat says cancel | the handler is cancelled and settled as cancelled |
| no heartbeat gets through | the handler is cancelled shortly before its lease ends |
| a lease comes when it is about to end | it is not begun, and given back uncharged |
| settling fails | the lease runs out, and the attempt is recorded as lost |
| its receiver takes the task over | handed over, tried until the lease ends; no settlement |
| stop | nothing more is taken; what runs may finish for a while, then is released uncharged |
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from duly.broker.lease_queue import LeaseQueue
from duly.domain.errors import DulyError
from duly.domain.execution_shares import ExecutionShares, SlotClaim, equal_weight
from duly.domain.fairness import band_order
from duly.domain.lanes import Lane
from duly.domain.limits import ERROR_BYTES_MAX
from duly.domain.states import Outcome
from duly.environment import CrashPoint, Environment
from duly.execution.worker_leases import SettleQueue, ending_of
from duly.store.async_webhooks import hand_over
from duly.store.database import Database
from duly.store.finish import SettleAnswer, Settlement, SettleStatus
from duly.store.lease import Beat, HeartbeatStatus, Lease, extend_leases
from duly.store.stats import StatsBook
from duly.store.task_metrics import note_started
from duly.telemetry import Metrics, get_logger

LEASE_S = 15.0
HEARTBEAT_S = 5.0
# A run without heartbeats is stopped this much before its lease ends: whoever is next must find it
# stopped, though two clocks never agree.
SPARE_S, SPARE_SHARE = 1.0, 0.1
HAND_OVER_AGAIN_S = 0.5
TAKE_MAX = 400
TAKE_WAIT_S = 1.0
RUNNING_MAX = 1000
HEARTBEATS_MAX = 1000
SETTLE_MAX = 500
ENDED_MAX = 4000
# While a herd is being started, what ended at once is recorded after it: so much, and so long.
PUT_OFF_MAX = 2000
PUT_OFF_S = 0.1

log = get_logger("duly.execution.executor")


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """What a handler says of one attempt."""

    outcome: Outcome = Outcome.COMPLETED
    result: str | None = None
    error: str | None = None
    error_kind: str = ""
    retry_in_s: float | None = None
    # A retry waits so long at least, whatever its policy or its receiver says.
    at_least_s: float | None = None
    # Nothing is settled: whoever took the task over will.
    is_handed_over: bool = False


DONE, GIVEN_BACK = AttemptResult(), AttemptResult(Outcome.RELEASED)
Handler: TypeAlias = Callable[[Lease], AttemptResult | Awaitable[AttemptResult]]


@dataclass(slots=True)
class Run:
    lease: Lease
    task: "asyncio.Task[None]"
    # Until when the lease is ours at least, by the loop's clock: counted from before it was asked
    # for or extended.
    deadline: float
    is_cancel_requested: bool = False
    is_lost: bool = False
    # Its receiver has it; what is left is to write that down, and nothing interrupts that.
    is_handed_over: bool = False

    def stop(self, *, is_lost: bool) -> None:
        if self.is_handed_over:
            return
        self.is_lost = is_lost
        self.is_cancel_requested = not is_lost
        self.task.cancel()


class Executor:
    """A role; several loops may tick it at once, to keep more than one statement in flight."""

    name = "executor"

    def __init__(
        self,
        database: Database,
        environment: Environment,
        lease_queue: LeaseQueue,
        lanes: Sequence[Lane],
        desk: SettleQueue,
        handler: Handler,
        metrics: Metrics,
        stats: StatsBook,
        holder: UUID,
        running_max: int = RUNNING_MAX,
        drain_s: float = 0.0,
        beating: Database | None = None,
        weight_of: Callable[[int], float] = equal_weight,
    ) -> None:
        self.database = database
        # Connections that nothing else can use up: a heartbeat that waits is a lease lost.
        self.beating = beating or database
        self.environment = environment
        self.lease_queue = lease_queue
        self.lanes = lanes
        self.desk = desk
        self.handler = handler
        self.metrics = metrics
        self.stats = stats
        self.holder = holder
        # A slot is one attempt under way; tenants share them by weight.
        self.shares = ExecutionShares(running_max, weight_of)
        self.drain_s = drain_s
        self.turn = 0
        # By (id, fence): a lost lease may still run beside the next one of its task.
        self.running: dict[tuple[UUID, int], Run] = {}
        # Ticks that ask the lease queue and are not answered yet.
        self.asking = 0
        self.is_reconsidering = False
        self.room = asyncio.Event()
        # Attempts that ended at once and are not settled yet.
        self.ended: deque[tuple[Lease, Settlement]] = deque()
        self.has_ended = asyncio.Event()
        # More seems to wait than one look brings.
        self.is_herd = False
        self.settle_by = 0.0

    async def tick(self) -> float:
        if self.shares.is_full or len(self.ended) >= ENDED_MAX:
            self.room.clear()
            await wait_for(self.room, TAKE_WAIT_S)
            return 0.0
        lanes = self.next_lanes()
        if self.is_herd and self.has_started_all(lanes):
            self.is_herd = False
            self.has_ended.set()
        claim = SlotClaim(self.shares)
        try:
            await self.take(lanes, claim)
        finally:
            claim.release()
            self.room.set()
        return 0.0

    async def take(self, lanes: list[Lane], claim: SlotClaim) -> None:
        asked_at = asyncio.get_running_loop().time()
        self.asking += 1
        try:
            leases = await self.lease_queue.lease(
                lanes, self.holder, TAKE_MAX, LEASE_S, TAKE_WAIT_S, claim
            )
        finally:
            self.asking -= 1
        self.is_herd = len(leases) >= TAKE_MAX // 2
        if leases:
            await self.run(leases, asked_at)

    def has_started_all(self, lanes: list[Lane]) -> bool:
        """No ticket lies there, and no tick is about to make leases of some: all of ours wait."""
        return self.lease_queue.waiting() >= self.asking and not any(
            map(self.lease_queue.depth, lanes)
        )

    def next_lanes(self) -> list[Lane]:
        """Higher bands first, but not always: each keeps its share of this consumer."""
        self.turn += 1
        order = band_order(self.turn)
        return sorted(self.lanes, key=lambda lane: order.index(lane.band))

    async def run(self, leases: list[Lease], asked_at: float | None = None) -> None:
        """Call the handler for each. Those that answer at once are settled by the loop beside this
        one: starting what waits goes before recording what is done."""
        if self.running:
            # A ticket that was repeated while an answer was lost brings the same lease again.
            leases = [lease for lease in leases if key_of(lease) not in self.running]
        # We stood still, or the database did: somebody else may hold them at any moment.
        now = asyncio.get_running_loop().time()
        is_late = asked_at is not None and now >= stop_at(asked_at + LEASE_S)
        if not self.ended:
            self.settle_by = now + PUT_OFF_S
        for lease in leases:
            try:
                answer = GIVEN_BACK if is_late else self.handler(lease)
            except Exception as error:
                answer = failure(error)
            if isinstance(answer, AttemptResult):
                self.ended.append((lease, self.settlement(lease, answer)))
            else:
                self.start(lease, answer, asked_at)
        if not is_late:
            self.note_started(leases)
        if self.ended:
            await self.environment.crash_point(CrashPoint.EXECUTION_AFTER_EFFECT)
            self.has_ended.set()

    def start(
        self, lease: Lease, pending: Awaitable[AttemptResult], asked_at: float | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        deadline = (loop.time() if asked_at is None else asked_at) + LEASE_S
        run = Run(lease, loop.create_task(self.finish(lease, pending)), deadline)
        self.running[key_of(lease)] = run
        self.shares.add(lease.tenant, 1)
        # A task that is cancelled before its first step runs no cleanup of its own.
        run.task.add_done_callback(lambda _: self.leave(lease))
        self.watch(run)

    def leave(self, lease: Lease) -> None:
        del self.running[key_of(lease)]
        was_scarce = self.shares.is_scarce
        self.shares.add(lease.tenant, -1)
        self.room.set()
        if was_scarce and not self.is_reconsidering:
            # A consumer may wait beside tickets for which there was no slot. Once for all attempts
            # that end in this turn of the loop: each by itself would be a statement for one lease.
            self.is_reconsidering = True
            asyncio.get_running_loop().call_soon(self.reconsider)

    def reconsider(self) -> None:
        self.is_reconsidering = False
        self.lease_queue.reconsider(self.lanes)

    def watch(self, run: Run) -> None:
        """By the loop's own timer: it must work when nothing that can be asked answers."""
        loop, ends_at = asyncio.get_running_loop(), stop_at(run.deadline)
        if run.task.done():
            return
        if loop.time() < ends_at:
            loop.call_at(ends_at, self.watch, run)
        elif not run.is_handed_over:
            log.warning("stopped: its lease ends and could not be kept", task=str(run.lease.id))
            run.stop(is_lost=True)

    async def settle(self) -> float:
        """Settle a batch of what ended. A batch whose outcome is unknown is sent again: settling
        the same twice is a replay, and after its lease ran out it changes nothing."""
        self.has_ended.clear()
        if not self.ended:
            await wait_for(self.has_ended, TAKE_WAIT_S)
        elif self.puts_off():
            await wait_for(self.has_ended, PUT_OFF_S)
        if self.puts_off():
            return 0.0
        batch = [self.ended.popleft() for _ in range(min(len(self.ended), SETTLE_MAX))]
        if batch:
            leases, settlements = [lease for lease, _ in batch], [item for _, item in batch]
            try:
                answers = await self.desk.settle_batch(settlements)
            except BaseException:
                self.ended.extendleft(reversed(batch))
                raise
            self.note_settled(leases, settlements, answers, 0.0)
            self.room.set()
        return 0.0

    def puts_off(self) -> bool:
        """Starting what waits goes before recording what is done, for a moment."""
        is_soon = asyncio.get_running_loop().time() < self.settle_by
        return self.is_herd and is_soon and len(self.ended) < PUT_OFF_MAX

    async def finish(self, lease: Lease, pending: Awaitable[AttemptResult]) -> None:
        """One slow attempt: bounded in time, and settled whatever happens to it."""
        began = self.environment.clock.monotonic()
        try:
            verdict = await self.bounded(lease, pending)
            run_s = self.environment.clock.monotonic() - began
            if verdict.is_handed_over:
                await self.give_away(self.running[key_of(lease)])
            elif not self.running[key_of(lease)].is_lost:
                await self.environment.crash_point(CrashPoint.EXECUTION_AFTER_EFFECT)
                settlement = self.settlement(lease, verdict)
                answer = await asyncio.shield(self.desk.settle(settlement))
                self.note_settled([lease], [settlement], [answer], run_s)
        except DulyError as error:
            log.warning("could not settle", task=str(lease.id), error=str(error))

    async def give_away(self, run: Run) -> None:
        """Written down as the receiver's; the fence makes a repetition the same."""
        run.is_handed_over = True
        lease, loop = run.lease, asyncio.get_running_loop()
        while loop.time() < run.deadline:
            try:
                async with asyncio.timeout_at(run.deadline):
                    if not await hand_over(self.database, [key_of(lease)]):
                        log.info("lost before it was handed over", task=str(lease.id))
                    return
            except (DulyError, TimeoutError) as error:
                log.warning("could not hand over", task=str(lease.id), error=repr(error))
            await asyncio.sleep(HAND_OVER_AGAIN_S)

    async def bounded(self, lease: Lease, pending: Awaitable[AttemptResult]) -> AttemptResult:
        try:
            async with asyncio.timeout(lease.policy.timeout_s):
                return await pending
        except TimeoutError:
            return AttemptResult(Outcome.FAILED, error="timed out", error_kind="timeout")
        except asyncio.CancelledError:
            if self.running[key_of(lease)].is_cancel_requested:
                return AttemptResult(Outcome.CANCELLED)
            return GIVEN_BACK
        except Exception as error:
            return failure(error)

    async def beat(self) -> float:
        """Extend the leases of whatever still runs; stop what was lost or cancelled."""
        runs = list(self.running.values())
        for start in range(0, len(runs), HEARTBEATS_MAX):
            chunk = runs[start : start + HEARTBEATS_MAX]
            beats = [Beat(run.lease.id, run.lease.fence) for run in chunk]
            asked_at = asyncio.get_running_loop().time()
            async with asyncio.timeout(HEARTBEAT_S):
                answers = await extend_leases(self.beating, self.holder, beats, LEASE_S)
            for run, answer in zip(chunk, answers, strict=True):
                if answer.status is not HeartbeatStatus.STALE:
                    run.deadline = asked_at + LEASE_S
                if answer.status is not HeartbeatStatus.HELD:
                    run.stop(is_lost=answer.status is HeartbeatStatus.STALE)
        return HEARTBEAT_S

    def stop_waiting(self) -> None:
        """A stop hands over only after every tick has ended: none may wait for work or room."""
        self.is_herd = False
        self.room.set()
        self.has_ended.set()

    async def close(self) -> None:
        """Release what still runs: somebody else starts it again, and no attempt is charged."""
        await self.drain()
        runs = list(self.running.values())
        for run in runs:
            if not run.is_handed_over:
                run.task.cancel()
        await asyncio.gather(*(run.task for run in runs), return_exceptions=True)
        self.is_herd = False
        while self.ended:
            await self.settle()
        await self.desk.close()

    async def drain(self) -> None:
        """What runs may finish, for a while; its leases are kept meanwhile."""
        ends_at = self.environment.clock.monotonic() + self.drain_s
        while self.running and (left_s := ends_at - self.environment.clock.monotonic()) > 0:
            tasks = [run.task for run in self.running.values()]
            await asyncio.wait(tasks, timeout=min(left_s, HEARTBEAT_S))
            try:
                await self.beat()
            except (DulyError, TimeoutError) as error:
                log.warning("could not keep leases while stopping", error=repr(error))

    def settlement(self, lease: Lease, verdict: AttemptResult) -> Settlement:
        return Settlement(
            lease.id,
            lease.fence,
            self.holder,
            verdict.outcome,
            verdict.result,
            verdict.error,
            verdict.error_kind,
            verdict.retry_in_s,
            verdict.at_least_s,
        )

    def note_started(self, leases: list[Lease]) -> None:
        note_started(self.metrics, self.stats, leases)

    def note_settled(
        self,
        leases: Sequence[Lease],
        settlements: Sequence[Settlement],
        answers: Sequence[SettleAnswer],
        run_s: float,
    ) -> None:
        ends = Counter(
            (lease.tenant, lease.type, settlement.outcome, answer.status, answer.state)
            for lease, settlement, answer in zip(leases, settlements, answers, strict=True)
        )
        for (tenant, task_type, outcome, status, state), count in ends.items():
            if status is SettleStatus.SETTLED:
                self.metrics.run_time.observe_same(run_s, count)
                ending = ending_of(outcome, state)
                self.stats.note_settled([(tenant, task_type, ending, run_s)], count)


def key_of(lease: Lease) -> tuple[UUID, int]:
    return lease.id, lease.fence


def stop_at(deadline: float) -> float:
    return deadline - min(SPARE_S, LEASE_S * SPARE_SHARE)


def failure(error: Exception) -> AttemptResult:
    text = f"{type(error).__name__}: {error}".encode()[:ERROR_BYTES_MAX].decode(errors="ignore")
    return AttemptResult(Outcome.FAILED, error=text, error_kind=type(error).__name__)


async def wait_for(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
