"""Circuit breakers on the execution side: count outcomes of attempts, open and close breaker rows.

A process judges by the attempts that end in it: its own deliveries, what workers settle there, and
leases that it found lost. What it finds is a row that every scheduler reads.

| event | what happens |
|---|---|
| nearly everything to a host, of a type or in a pool fails | opened: it gets nothing for a minute |
| the probe fails | open for another minute |
| the probe succeeds | ramp: the host gets its work back at a growing rate, then the row is over |
| the probe is lost with its executor | another one is let through a minute later |
| failures go on during the ramp | opened again; failures of before the ramp do not count |
| how the rows stand is not known (restart, a quiet time) | results are kept until they were read |
| the database is away | results are kept, and written when it is back |
| this process restarts | the rows stand; its own counts begin anew |
| a worker completes a task | counted only if its tenant's workers failed lately or have a breaker |
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime
from uuid import UUID

from duly.domain.breaker import (
    ATTEMPTS_MIN,
    OPEN_S,
    RETRY_STRETCH_S,
    WINDOW_S,
    FailureWindow,
    PoolWindow,
    TypeWindow,
    make_window,
    pool_subject,
    type_subject,
)
from duly.domain.states import State
from duly.domain.task import WEBHOOK_POOL
from duly.environment import Environment
from duly.events import TasksFinished, TasksRescheduled
from duly.role import Wakeup
from duly.store.breakers import (
    open_breaker,
    ramp_breaker,
    read_watched,
    read_worker_tasks,
    reopen_breaker,
)
from duly.store.database import Database
from duly.store.finish import SettleAnswer
from duly.telemetry import get_logger

HOSTS_MAX = 10_000
WATCH_EVERY_S = 5.0
# What was read longer ago says nothing about a row that is not in it.
STALE_S = 2 * WATCH_EVERY_S
# Without a delivery for so long, the rows need not be read.
QUIET_S = 120.0
IDLE_S = 60.0
RAMP_ATTEMPTS_MIN = 5
# Completed tasks of workers looked up in one tick; of more, these stand for all.
COMPLETED_MAX = 1000

log = get_logger("duly.execution.breakers")
BreakerKey = tuple[int, str]


def no_tenants() -> Collection[int]:
    return ()


class Breakers:
    """A role; `on_outcome` is called for each delivery. `watched_workers`: tenants with a breaker
    of a type or a pool, as far as the gates know."""

    name = "breakers"

    def __init__(
        self,
        database: Database,
        environment: Environment,
        watched_workers: Callable[[], Collection[int]] = no_tenants,
    ) -> None:
        self.watched_workers = watched_workers
        # Tenants whose workers failed, and when they last did.
        self.failing_workers: dict[int, float] = {}
        # Tasks that their workers completed meanwhile, and how many more there were.
        self.completed: list[tuple[int, UUID]] = []
        self.completed_more = 0
        self.database = database
        self.environment = environment
        self.windows: OrderedDict[BreakerKey, FailureWindow] = OrderedDict()
        # Rows that exist, with the beginning of their ramp.
        self.watched: dict[BreakerKey, datetime | None] = {}
        self.read_at = float("-inf")
        self.failed: set[BreakerKey] = set()
        self.recovered: set[BreakerKey] = set()
        self.traffic_at = float("-inf")
        self.watch_at = 0.0
        self.wakeup = Wakeup()

    def on_outcome(self, tenant: int, host: str, ok: bool, attempt: int = 1) -> None:
        now = self.environment.clock.monotonic()
        key = (tenant, host)
        self.window_of(key).note(now, ok=ok, is_retry=attempt > 1)
        is_news = self.judge(key, now, ok=ok)
        if self.note_traffic(now) or is_news:
            self.wakeup.wake()

    def note_traffic(self, now: float) -> bool:
        """Whether it was quiet before."""
        was_quiet = now - self.traffic_at > QUIET_S
        self.traffic_at = now
        return was_quiet

    def judge(self, key: BreakerKey, now: float, *, ok: bool) -> bool:
        """Keep a result that the breaker's row needs; answers whether it is new."""
        # It may have been a probe: until the rows are read, that cannot be excluded.
        may_be_watched = key in self.watched or now - self.read_at > STALE_S
        if may_be_watched or (not ok and self.window_of(key).is_failing(now)):
            return self.add_result(self.recovered if ok else self.failed, key)
        return False

    def on_worker_failure(self, tenant: int, task_type: str, pool: int, task: UUID) -> None:
        """An attempt of a worker failed, or its lease was lost."""
        now = self.environment.clock.monotonic()
        self.failing_workers[tenant] = now
        of_type, of_pool = (tenant, type_subject(task_type)), (tenant, pool_subject(pool))
        type_window, pool_window = self.window_of(of_type), self.window_of(of_pool)
        assert isinstance(type_window, TypeWindow)
        assert isinstance(pool_window, PoolWindow)
        type_window.note_failure(now, task)
        pool_window.note_failure(now, task_type)
        news = [self.judge(key, now, ok=False) for key in (of_type, of_pool)]
        if self.note_traffic(now) or any(news):
            self.wakeup.wake()

    def on_ended(self, event: TasksFinished | TasksRescheduled) -> None:
        """Count leases of workers that ran out; those of webhooks are the installation's own."""
        if event.is_reaped:
            for task, answer in zip(event.ended, event.answers, strict=True):
                if is_worker_failure(answer):
                    self.on_worker_failure(answer.tenant or 0, answer.type, answer.pool, task.id)

    def counted_workers(self) -> Collection[int]:
        """Tenants whose workers' successes count: mostly none."""
        watched = self.watched_workers()
        return {*self.failing_workers, *watched} if watched else self.failing_workers

    def on_worker_successes(self, completed: Sequence[tuple[int, UUID]]) -> None:
        """Tasks of these tenants; of which type and pool they were is looked up later."""
        room = COMPLETED_MAX - len(self.completed)
        self.completed += completed[:room]
        self.completed_more += max(len(completed) - room, 0)
        if self.note_traffic(self.environment.clock.monotonic()):
            self.wakeup.wake()

    async def count_completed(self, now: float) -> None:
        """Count successes before anything is judged: failures alone would always be a breaker."""
        self.failing_workers = {
            tenant: at for tenant, at in self.failing_workers.items() if at > now - WINDOW_S
        }
        if not self.completed:
            return
        completed, more = self.completed, self.completed_more
        found = await read_worker_tasks(self.database, [task for _, task in completed])
        self.completed, self.completed_more = self.completed[len(completed) :], 0
        each_counts = 1 + more // len(completed)
        for tenant, task in completed:
            task_type, pool = found.get(task, ("", WEBHOOK_POOL))
            if pool == WEBHOOK_POOL:
                continue
            for subject in (type_subject(task_type), pool_subject(pool)):
                key = (tenant, subject)
                if key in self.windows or key in self.watched:
                    self.window_of(key).note(now, ok=True, count=each_counts)
                    self.judge(key, now, ok=True)

    def add_result(self, results: set[BreakerKey], key: BreakerKey) -> bool:
        """Add to the results to write; answers whether it is new. Bounded by `HOSTS_MAX`."""
        if key in results or len(results) >= HOSTS_MAX:
            return False
        results.add(key)
        return True

    def window_of(self, key: BreakerKey) -> FailureWindow:
        window = self.windows.get(key)
        if window is None:
            window = self.windows[key] = make_window(key[1])
            if len(self.windows) > HOSTS_MAX:
                self.windows.popitem(last=False)
        self.windows.move_to_end(key)
        return window

    def stretch_s(self, tenant: int, host: str) -> float | None:
        """Put a retry off by at least this, where retries are most of the traffic already."""
        window = self.windows.get((tenant, host))
        if window is None or not window.is_over_budget(self.environment.clock.monotonic()):
            return None
        return self.environment.random.uniform(RETRY_STRETCH_S / 2, RETRY_STRETCH_S)

    async def tick(self) -> float:
        now = self.environment.clock.monotonic()
        if now - self.traffic_at > QUIET_S:
            return IDLE_S
        if now >= self.watch_at:
            self.update_watched(await read_watched(self.database), now)
        await self.count_completed(now)
        for key in list(self.recovered):
            self.recovered.discard(key)
            if key not in self.failed:
                await self.keep_on_failure(self.recovered, key, self.recover(key, now))
        for key in list(self.failed):
            self.failed.discard(key)
            await self.keep_on_failure(self.failed, key, self.fail(key, now))
        return WATCH_EVERY_S

    def update_watched(self, watched: dict[BreakerKey, datetime | None], now: float) -> None:
        """Take over the rows as read. A ramp of another process is judged by what comes after
        it."""
        for key, ramp_at in watched.items():
            if ramp_at is not None and self.watched.get(key) is None:
                self.windows.pop(key, None)
        self.watched = watched
        self.read_at = now
        self.watch_at = now + WATCH_EVERY_S

    async def keep_on_failure(
        self, results: set[BreakerKey], key: BreakerKey, writing: Awaitable[None]
    ) -> None:
        try:
            await writing
        except BaseException:
            results.add(key)
            raise

    async def recover(self, key: BreakerKey, now: float) -> None:
        if key not in self.watched or self.watched[key] is not None:
            return
        if await ramp_breaker(self.database, *key):
            log.info("breaker ramp started: a probe succeeded", tenant=key[0], of=key[1])
            self.windows[key] = make_window(key[1])
            # Ours: what is read next must not look like a ramp that began elsewhere.
            self.watched[key] = self.environment.clock.now()
            self.watch_at = now

    async def fail(self, key: BreakerKey, now: float) -> None:
        is_watched = key in self.watched
        if is_watched and self.watched[key] is None:
            # A probe: one failure is enough.
            await reopen_breaker(self.database, *key, OPEN_S)
            return
        window = self.window_of(key)
        if not window.is_failing(now, RAMP_ATTEMPTS_MIN if is_watched else ATTEMPTS_MIN):
            return
        total = window.total(now)
        reason = f"{total.failures} of {total.attempts} attempts failed"
        if await open_breaker(self.database, *key, OPEN_S, reason) is not None:
            log.warning("breaker opened", tenant=key[0], of=key[1], why=reason)
            self.windows[key] = make_window(key[1])
            self.watch_at = now

    async def close(self) -> None:
        """Nothing is held: the rows are written."""


def is_worker_failure(answer: SettleAnswer) -> bool:
    """Whether a failed or lost attempt counts against a worker's type and pool."""
    return answer.pool != WEBHOOK_POOL and answer.state is not State.CANCELLED
