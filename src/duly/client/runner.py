"""Running handlers: at most `concurrency` at once, each from its lease to a verdict.

Everything here happens in the event loop's thread, except `stop` and `abandon`, which the heartbeat
thread calls, and `post`, which handler threads call.
"""

import asyncio
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from duly.client.attempt_logs import AttemptLog, LogShipper, capturing
from duly.client.clock import chance, monotonic
from duly.client.errors import InvalidPayload
from duly.client.handlers import Handler, perform
from duly.client.leased_tasks import LeasedTask
from duly.client.leases import LeaseBook, Run, Stop
from duly.client.logs import CompletionLog, get_logger
from duly.client.map_items import ItemHandover
from duly.client.middleware import HandlerCaller
from duly.client.outcomes import (
    RELEASED,
    HandlerOutcome,
    completed,
    judged,
    rejected,
    snoozed,
    with_policy,
)
from duly.client.processes import ProcessPool
from duly.client.settle_queue import Settling
from duly.client.threads import ThreadJob, ThreadPool
from duly.client.tracing import handler_span
from duly.domain.states import Outcome

# Tasks are taken ahead only while they are short: a long one would keep others from another worker.
SHORT_S = 0.05
# Each end moves the measured duration by this share.
WEIGHT = 0.05
# A task of a type without a handler here: another worker or a later version may have one.
UNKNOWN_DELAY_S = 30.0
UNKNOWN_TYPES_MAX = 1000
UNSETTLED_MAX = 2000


class Runner:
    def __init__(
        self,
        handlers: Mapping[str, Handler],
        caller: HandlerCaller,
        concurrency: int,
        prefetch: int,
        processes: int,
        book: LeaseBook,
        settling: Settling,
        redactions: Sequence[re.Pattern[str]] = (),
    ) -> None:
        self.handlers = handlers
        self.caller = caller
        self.concurrency = concurrency
        self.prefetch = prefetch
        self.book = book
        self.settling = settling
        self.loop = asyncio.get_running_loop()
        self.threads = ThreadPool(concurrency)
        self.processes = ProcessPool(processes)
        self.queue: deque[Run] = deque()
        self.running: set[Run] = set()
        self.mean_s = SHORT_S
        self.has_changed = asyncio.Event()
        self.is_draining = False
        self.posted: deque[tuple[Run, HandlerOutcome | None]] = deque()
        self.is_collecting = False
        self.unknown: set[str] = set()
        self.log = get_logger()
        self.completions = CompletionLog()
        self.shipper = LogShipper(settling.worker_api, redactions)

    def room(self) -> int:
        """How many more leases may be asked for."""
        if len(self.settling.pending) >= UNSETTLED_MAX or self.is_draining:
            return 0
        ahead = self.prefetch if self.mean_s < SHORT_S else 0
        return self.concurrency + ahead - len(self.running) - len(self.queue)

    def accept(self, task: LeasedTask, granted_at: float) -> Run | None:
        """The lease is ours now; what it became, or None for one that we cannot run."""
        handler = self.handlers.get(task.type)
        run = Run(task, handler or NO_HANDLER, granted_at)
        self.book.add(run)
        if handler is None:
            self.warn_unknown(task)
            self.settle(run, snoozed(UNKNOWN_DELAY_S * chance.uniform(0.5, 1.5)))
            return None
        if self.is_draining or run.reason_to_stop(monotonic()) is not None:
            # It cannot be ours for long enough, as far as our own clock can tell.
            self.settle(run, RELEASED)
            return None
        if len(self.running) < self.concurrency:
            self.start(run)
        else:
            self.queue.append(run)
        return run

    def warn_unknown(self, task: LeasedTask) -> None:
        if task.type not in self.unknown and len(self.unknown) < UNKNOWN_TYPES_MAX:
            self.unknown.add(task.type)
            self.log.warning(
                "no handler for this task type, snoozing its tasks",
                type=task.type,
                task_id=task.id,
                delay_s=UNKNOWN_DELAY_S,
            )

    def start(self, run: Run) -> None:
        run.start_clock(monotonic())
        run.context.attempt_log = AttemptLog(run.task, self.shipper)
        run.context.make_handover = self.make_handover
        self.running.add(run)
        handler = run.handler
        if handler.mode == "async":
            run.job = self.loop.create_task(self.run_async(run, handler))
            return
        work = self.in_thread if handler.mode == "thread" else self.in_process
        run.job = ThreadJob(
            lambda job: work(run, handler, job), lambda verdict: self.post(run, verdict)
        )
        self.threads.start(run.job)

    def make_handover(self, task: LeasedTask) -> ItemHandover:
        return ItemHandover(task, self.settling.worker_api, self.loop)

    async def run_async(self, run: Run, handler: Handler) -> None:
        verdict: HandlerOutcome | None = None
        try:
            if run.stop is None:
                run.has_begun = True
                with handler_span(run.task), capturing(run.context.attempt_log):
                    verdict = completed(await self.caller.acall(handler, run.context))
        except InvalidPayload as error:
            verdict = rejected(str(error), "InvalidPayload")
        except asyncio.CancelledError as error:
            verdict = None if run.stop is not None else judged(error)
        except BaseException as error:
            # SystemExit as well: one handler's wish to end is not that of its neighbours.
            verdict = judged(error)
        self.ended(run, verdict)

    def in_thread(self, run: Run, handler: Handler, _job: ThreadJob) -> HandlerOutcome:
        with handler_span(run.task), capturing(run.context.attempt_log):
            return perform(lambda: self.caller.call(handler, run.context), run.task)

    def in_process(self, run: Run, handler: Handler, job: ThreadJob) -> HandlerOutcome:
        with self.caller.surrounded(run.context):
            return self.processes.run(handler, run, job)

    def post(self, run: Run, verdict: HandlerOutcome | None) -> None:
        """From a handler's thread. One call wakes the loop for all that ended meanwhile."""
        self.posted.append((run, verdict))
        if not self.is_collecting and not self.loop.is_closed():
            self.is_collecting = True
            self.loop.call_soon_threadsafe(self.collect)

    def collect(self) -> None:
        self.is_collecting = False
        while self.posted:
            self.ended(*self.posted.popleft())

    def ended(self, run: Run, verdict: HandlerOutcome | None) -> None:
        """`verdict` is None for an attempt that stopped because it had to."""
        self.running.discard(run)
        # It leads back here; without it nothing of the attempt waits for the cycle collector.
        run.job = None
        self.mean_s += (monotonic() - run.started_at - self.mean_s) * WEIGHT
        if not run.is_abandoned:
            is_done = verdict is not None and verdict.outcome == Outcome.COMPLETED
            # What it says while it is being stopped is about the stopping.
            said = verdict if run.stop is None or is_done else run.forced_verdict()
            policy = run.handler.retry
            if said is not None and policy is not None:
                said = with_policy(said, policy, run.task.attempt, chance)
            self.settle(run, said)
        while self.queue and len(self.running) < self.concurrency:
            self.start(self.queue.popleft())
        self.has_changed.set()

    def settle(self, run: Run, verdict: HandlerOutcome | None) -> None:
        run.has_ended = True
        if verdict is not None and verdict.error is not None:
            self.log_failure(run, verdict)
        elif verdict is not None and verdict.outcome == Outcome.COMPLETED:
            self.completions.add(run.task, monotonic() - run.started_at)
        if verdict is not None and run.has_left_queue:
            self.caller.ended(run.context, verdict)
        if verdict is None:
            self.book.remove(run)
        else:
            run.verdict = verdict
            self.settling.add(run)

    def log_failure(self, run: Run, verdict: HandlerOutcome) -> None:
        task = run.task
        self.log.warning(
            "attempt failed",
            task_id=task.id,
            type=task.type,
            attempt=task.attempt,
            fence=task.fence,
            outcome=verdict.outcome,
            kind=verdict.kind,
            error=(verdict.error or "").partition("\n")[0],
        )

    def stop(self, run: Run, reason: Stop) -> None:
        """From any thread."""
        if run.stop is None:
            run.stop = reason
        run.context.cancelled.set()
        job = run.job
        if isinstance(job, ThreadJob):
            # At once, also while some handler blocks the loop.
            job.interrupt()
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.stop_here, run)

    def stop_here(self, run: Run) -> None:
        if run.has_ended:
            return
        if run.job is None:
            if run in self.queue:
                self.queue.remove(run)
                self.settle(run, run.forced_verdict())
                self.has_changed.set()
        elif isinstance(run.job, ThreadJob):
            run.job.interrupt()
        elif run.has_begun:
            run.job.cancel()

    def abandon(self, run: Run) -> None:
        """From any thread: it was told to stop, did not, and its lease is about to end."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.abandon_here, run)

    def abandon_here(self, run: Run) -> None:
        if not run.has_ended:
            run.is_abandoned = True
            self.log.warning(
                "handler does not stop",
                task_id=run.task.id,
                type=run.task.type,
                attempt=run.task.attempt,
                fence=run.task.fence,
            )
            self.settle(run, run.forced_verdict())

    def release_queue(self) -> None:
        self.is_draining = True
        while self.queue:
            self.settle(self.queue.popleft(), RELEASED)

    async def wait_idle(self, until: float) -> None:
        """Until nothing runs, or that instant of our clock."""
        while self.running and (left_s := until - monotonic()) > 0:
            self.has_changed.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self.has_changed.wait()
            except TimeoutError:
                return

    def close(self) -> None:
        self.completions.sum_up()
        self.shipper.detach()
        self.threads.close()
        self.processes.close()


async def refuse_to_run(*_: Any, **__: Any) -> None:
    raise AssertionError("a task without a handler is never started")


NO_HANDLER = Handler("none", refuse_to_run, "async")
