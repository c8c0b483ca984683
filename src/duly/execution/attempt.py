"""One attempt of a task, from its lease to its settlement: a column of steps over one record.

The handler decides what running means (a webhook call; nothing, in a benchmark).

| event | what happens |
|---|---|
| the handler raises | settled as failed, with the error's name as its kind |
| the handler outlives its time limit | cancelled and settled as failed |
| it is stopped because its lease was lost | over: a settlement would change nothing |
| it is stopped because its task was cancelled | settled as cancelled |
| it is stopped because this process stops | released, and not charged |
| its receiver accepts asynchronously | recorded, tried until the lease ends; no settlement |
| the attempt is stopped while it records or settles | that is finished first |
| the database is away while it settles | settled again: the same settlement twice is a replay |
| settling fails for too long | the lease runs out, and the attempt is recorded as lost |
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from duly.domain.errors import DulyError, StatementRefused
from duly.domain.limits import ERROR_BYTES_MAX
from duly.domain.states import Outcome
from duly.environment import CrashPoint, Environment
from duly.execution.held_leases import HeldLease, StopReason
from duly.store.async_webhooks import accept_async as record_accept_async
from duly.store.database import Database
from duly.store.finish import SettleAnswer, Settlement, SettleStatus
from duly.store.lease import Lease
from duly.store.settle import SettleQueue
from duly.store.stats import StatsBook, ending_of
from duly.telemetry import Metrics, get_logger

RETRY_PAUSE_S = 0.5
# An outage that is longer has the attempt reaped.
SETTLE_FOR_S = 60.0

log = get_logger("duly.execution.attempt")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How an attempt ended, as its handler answers."""

    outcome: Outcome = Outcome.COMPLETED
    result: str | None = None
    error: str | None = None
    error_kind: str = ""
    retry_in_s: float | None = None
    # A retry waits so long at least, whatever its policy or its receiver says.
    at_least_s: float | None = None
    # The receiver accepted the task asynchronously and will settle it itself.
    is_accepted_async: bool = False


DONE, RELEASED = AttemptResult(), AttemptResult(Outcome.RELEASED)
CANCELLED = AttemptResult(Outcome.CANCELLED)
TIMED_OUT = AttemptResult(Outcome.FAILED, error="timed out", error_kind="timeout")
Handler: TypeAlias = Callable[[Lease], AttemptResult | Awaitable[AttemptResult]]


class Attempt(NamedTuple):
    """What is known of an attempt after each step."""

    held: HeldLease
    pending: Awaitable[AttemptResult]
    # None: the handler was stopped before it answered.
    result: AttemptResult | None = None
    run_s: float = 0.0
    # The steps that follow return it untouched.
    is_over: bool = False

    @property
    def lease(self) -> Lease:
        return self.held.lease


class AttemptRunner:
    """The steps, and what they need."""

    def __init__(
        self, database: Database, environment: Environment, recorder: "AttemptRecorder"
    ) -> None:
        self.database = database
        self.environment = environment
        self.recorder = recorder

    async def run(self, attempt: Attempt) -> Attempt:
        for step in (self.invoke, self.judge, self.accept_async, self.settle):
            attempt = await step(attempt)
            if attempt.is_over:
                break
        return attempt

    async def invoke(self, attempt: Attempt) -> Attempt:
        """Await the handler, within the attempt's time limit."""
        held, began = attempt.held, self.environment.clock.monotonic()
        if held.stop_reason is not None:
            held.has_ended = True
            discard(attempt.pending)
            return attempt
        held.has_begun = True
        result: AttemptResult | None = None
        try:
            async with asyncio.timeout(attempt.lease.policy.timeout_s):
                result = await attempt.pending
        except TimeoutError:
            result = TIMED_OUT
        except asyncio.CancelledError:
            held.stop_reason = held.stop_reason or StopReason.SHUTDOWN
        except Exception as error:
            result = failure(error)
        finally:
            held.has_ended = True
        return attempt._replace(result=result, run_s=self.environment.clock.monotonic() - began)

    async def judge(self, attempt: Attempt) -> Attempt:
        """Decide the result of an attempt whose handler was stopped."""
        if attempt.held.stop_reason is StopReason.LOST:
            return attempt._replace(is_over=True)
        if attempt.result is None:
            is_cancelled = attempt.held.stop_reason is StopReason.CANCELLED
            return attempt._replace(result=CANCELLED if is_cancelled else RELEASED)
        return attempt

    async def accept_async(self, attempt: Attempt) -> Attempt:
        """Record that the receiver accepted the task; repeated, it changes nothing."""
        if attempt.result is None or not attempt.result.is_accepted_async:
            return attempt
        await finish_although_cancelled(self.record_acceptance(attempt))
        return attempt._replace(is_over=True)

    async def record_acceptance(self, attempt: Attempt) -> None:
        held, loop = attempt.held, asyncio.get_running_loop()
        while loop.time() < held.deadline:
            try:
                async with asyncio.timeout_at(held.deadline):
                    if not await record_accept_async(self.database, [held.key]):
                        log.info("lease lost before asynchronous accept", task=str(held.lease.id))
                    return
            except (DulyError, TimeoutError) as error:
                log.warning(
                    "asynchronous accept failed", task=str(held.lease.id), error=repr(error)
                )
            await asyncio.sleep(RETRY_PAUSE_S)

    async def settle(self, attempt: Attempt) -> Attempt:
        assert attempt.result is not None
        await self.environment.crash_point(CrashPoint.EXECUTION_AFTER_EFFECT)
        ended = EndedAttempt(attempt.lease, self.recorder.settlement(attempt.lease, attempt.result))
        await finish_although_cancelled(self.recorder.settle([ended], attempt.run_s))
        return attempt._replace(is_over=True)


class EndedAttempt(msgspec.Struct, frozen=True, gc=False):
    lease: Lease
    settlement: Settlement


class AttemptRecorder:
    """Settles attempts of one holder that ended in this process, and counts them."""

    def __init__(
        self, queue: SettleQueue, metrics: Metrics, stats: StatsBook, holder: UUID
    ) -> None:
        self.queue = queue
        self.metrics = metrics
        self.stats = stats
        self.holder = holder
        self.stopping = asyncio.Event()

    def settlement(self, lease: Lease, result: AttemptResult) -> Settlement:
        return Settlement(
            lease.id,
            lease.fence,
            self.holder,
            result.outcome,
            result.result,
            result.error,
            result.error_kind,
            result.retry_in_s,
            result.at_least_s,
        )

    async def settle(self, ended: Sequence[EndedAttempt], run_s: float = 0.0) -> None:
        """Settle in a shared batch. While the database is away, retry for `SETTLE_FOR_S`, but not
        while this process stops."""
        settlements = [each.settlement for each in ended]
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + SETTLE_FOR_S
        while True:
            try:
                answers = await self.queue.settle(settlements)
            except DulyError as error:
                is_final = isinstance(error, StatementRefused) or self.stopping.is_set()
                if is_final or loop.time() >= give_up_at:
                    task = str(settlements[0].id)
                    log.warning("settle failed", task=task, attempts=len(ended), error=str(error))
                    return None
            else:
                return self.note_settled(ended, answers, run_s)
            await wait_for(self.stopping, RETRY_PAUSE_S)

    def note_settled(
        self, ended: Sequence[EndedAttempt], answers: Sequence[SettleAnswer], run_s: float
    ) -> None:
        """Count settled attempts that took the same time: one, or many that ended at once."""
        ends = Counter(
            [
                (each.lease.tenant, each.lease.type, each.settlement.outcome, answer.state)
                for each, answer in zip(ended, answers, strict=True)
                if answer.status is SettleStatus.SETTLED
            ]
        )
        self.metrics.run_time.observe_same(run_s, ends.total())
        for (tenant, task_type, outcome, state), count in ends.items():
            row = (tenant, task_type, ending_of(outcome, state), run_s)
            self.stats.note_settled([row], count)


def failure(error: Exception) -> AttemptResult:
    text = f"{type(error).__name__}: {error}".encode()[:ERROR_BYTES_MAX].decode(errors="ignore")
    return AttemptResult(Outcome.FAILED, error=text, error_kind=type(error).__name__)


def discard(pending: Awaitable[AttemptResult]) -> None:
    """Drop a handler that is not going to be awaited."""
    if asyncio.iscoroutine(pending):
        pending.close()
    elif isinstance(pending, asyncio.Future):
        pending.cancel()


async def finish_although_cancelled(work: Coroutine[Any, Any, Value]) -> Value:
    """Await it to its end; a cancellation that comes meanwhile is raised after it."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    value = task.result()
    if cancelled is not None:
        raise cancelled
    return value


async def wait_for(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
