"""Leases of the users' own workers: granted, kept and settled for them, behind the worker API.

| event | what happens |
|---|---|
| a worker hangs up while it waits | nothing is leased for it; it counts as live for 5 s more |
| a worker has drained | it says so, and is not live any more |
| its answer is lost on the way | the same request id again finds the leases it never saw |
| this process never saw it | the same; they may be old, and are marked as handed out again |
| it was paused past its lease | heartbeat and settlement answer STALE, and change nothing |
| another tenant's worker with the same id | another holder: it sees and settles nothing |
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, TypeVar
from uuid import UUID

from duly.broker.lease_queue import LeaseQueue
from duly.domain.fairness import band_order
from duly.domain.lanes import Lane
from duly.domain.states import Outcome, State
from duly.environment import Environment
from duly.execution.breakers import Breakers, is_worker_failure
from duly.store.async_webhooks import accept_async
from duly.store.database import Database
from duly.store.finish import SettleAnswer, Settlement, SettleStatus
from duly.store.lease import Beat, HeartbeatResult, Lease, extend_leases, read_held_by
from duly.store.pools import PoolNumbers
from duly.store.settle import SettleQueue, settlement_key
from duly.store.stats import Ending, StatsBook, ending_of
from duly.store.task_metrics import note_started
from duly.store.worker_history import WorkerBook, WorkerSeen
from duly.store.workers import deregister_worker, doubt_worker, see_worker, touch_worker
from duly.telemetry import Metrics

# Of each worker: its last request, and when its row was last written.
WORKERS_MAX = 100_000
RUNNING_MAX = 200_000
STARTED_ELSEWHERE_MAX = 20_000
SEEN_EVERY_S = 5.0
# A worker counts as live for so long after its longest wait, its heartbeat, and after a hang-up.
WAITED_FOR_S = 10.0
SEEN_FOR_S = 30.0
HUNG_UP_FOR_S = 5.0

Key = TypeVar("Key")
Value = TypeVar("Value")


class LeaseCall(NamedTuple):
    """One lease request of a worker."""

    tenant: int
    worker_id: str
    pools: tuple[str, ...]
    bands: tuple[int, ...]
    most: int
    wait_s: float
    lease_s: float
    request_id: str | None = None
    # What the worker says of itself, for its history.
    sdk: str = ""
    version: str = ""
    slots: int = 0


class Granted(NamedTuple):
    """The leases granted to a worker. `again`: granted earlier, so that it cannot know how old they
    are."""

    leases: list[Lease]
    again: bool = False


class WorkerLeases:
    """Leases of workers; a worker is identified by its tenant and the id it gave itself."""

    def __init__(
        self,
        database: Database,
        environment: Environment,
        lease_queue: LeaseQueue,
        settle_queue: SettleQueue,
        metrics: Metrics,
        stats: StatsBook,
        heartbeat_database: Database | None = None,
        breakers: Breakers | None = None,
        history: WorkerBook | None = None,
    ) -> None:
        self.database = database
        # Connections that nothing else can use up: a heartbeat that waits is a lease lost.
        self.heartbeat_database = heartbeat_database or database
        self.environment = environment
        self.lease_queue = lease_queue
        self.settle_queue = settle_queue
        self.metrics = metrics
        self.stats = stats
        self.breakers = breakers or Breakers(database, environment)
        self.history = history or WorkerBook(environment)
        self.pools = PoolNumbers(database)
        self.turn = 0
        self.requests: OrderedDict[UUID, str | None] = OrderedDict()
        self.seen: OrderedDict[UUID, float] = OrderedDict()
        # Type and start of leases granted here, for the statistics of their end.
        self.running: OrderedDict[tuple[UUID, int], tuple[str, float]] = OrderedDict()
        # Settled here and leased elsewhere: the attempt's record has its start (foreign_starts.py).
        self.started_elsewhere: list[tuple[UUID, int]] = []

    async def lease(self, asked: LeaseCall) -> Granted:
        holder = holder_of(asked.tenant, asked.worker_id)
        await self.note_worker(asked, holder)
        known = self.requests.get(holder, "")
        remember(self.requests, holder, asked.request_id, WORKERS_MAX)
        # A repeated request, or a worker that this process never saw: it may have leases that it
        # does not know of.
        if asked.request_id is not None and known in ("", asked.request_id):
            unseen = await read_held_by(self.database, asked.tenant, holder, asked.most)
            if unseen:
                return Granted(unseen, again=True)
        numbers = await self.pools.resolve({(asked.tenant, pool) for pool in asked.pools})
        self.turn += 1
        lanes = [
            Lane(asked.tenant, numbers[asked.tenant, pool], band)
            for band in band_order(self.turn)
            if band in asked.bands
            for pool in asked.pools
        ]
        leases = await self.lease_queue.lease(
            lanes, holder, asked.most, asked.lease_s, asked.wait_s
        )
        self.note_started(leases)
        return Granted(leases)

    async def note_worker(self, asked: LeaseCall, holder: UUID) -> None:
        """Record now and then that a worker lives, and its pools: for lists and for `explain`."""
        if not self.is_note_due(holder):
            return
        worker = WorkerSeen(asked.worker_id, asked.sdk, asked.version, asked.pools, asked.slots)
        self.history.note_seen(asked.tenant, holder, worker)
        alive_s = max(SEEN_FOR_S, asked.wait_s + WAITED_FOR_S)
        await see_worker(self.database, asked.tenant, asked.worker_id, holder, asked.pools, alive_s)

    def is_note_due(self, holder: UUID) -> bool:
        now = self.environment.clock.monotonic()
        if now < self.seen.get(holder, 0.0):
            return False
        remember(self.seen, holder, now + SEEN_EVERY_S, WORKERS_MAX)
        return True

    async def doubt(self, tenant: int, worker_id: str) -> None:
        """Record that a worker may be dead: it hung up. A living one asks again at once."""
        self.seen.pop(holder_of(tenant, worker_id), None)
        await doubt_worker(self.database, tenant, worker_id, HUNG_UP_FOR_S)

    async def deregister(self, tenant: int, worker_id: str) -> None:
        holder = holder_of(tenant, worker_id)
        self.seen.pop(holder, None)
        self.requests.pop(holder, None)
        self.history.note_seen(tenant, holder, WorkerSeen(worker_id))
        await deregister_worker(self.database, tenant, worker_id)

    async def heartbeat(
        self, tenant: int, worker_id: str, beats: Sequence[Beat], lease_s: float
    ) -> list[HeartbeatResult]:
        holder = holder_of(tenant, worker_id)
        answers = await extend_leases(self.heartbeat_database, holder, beats, lease_s)
        if self.is_note_due(holder):
            self.history.note_seen(tenant, holder, WorkerSeen(worker_id))
            await touch_worker(self.heartbeat_database, tenant, worker_id, SEEN_FOR_S)
        return answers

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        """One answer for each, in order; the same one twice in a call counts once."""
        unique = {settlement_key(item): item for item in settlements}
        answers = dict(
            zip(unique, await self.settle_queue.settle(list(unique.values())), strict=True)
        )
        self.note_settled(unique, answers)
        return [answers[settlement_key(item)] for item in settlements]

    async def accept_async(self, task_id: UUID, fence: int) -> bool:
        """Record that a receiver accepted the task asynchronously, when it settles first; False:
        its lease is gone."""
        return bool(await accept_async(self.database, [(task_id, fence)]))

    def expect_end(self, task_id: UUID, fence: int, task_type: str, run_s: float) -> None:
        """A task that the executor started and its receiver settles here: for the statistics."""
        began = self.environment.clock.monotonic() - run_s
        remember(self.running, (task_id, fence), (task_type, began), RUNNING_MAX)

    def note_started(self, leases: Sequence[Lease]) -> None:
        now = self.environment.clock.monotonic()
        note_started(self.metrics, self.stats, leases)
        for lease in leases:
            remember(self.running, (lease.id, lease.fence), (lease.type, now), RUNNING_MAX)

    def note_settlement(self, settlement: Settlement, answer: SettleAnswer) -> None:
        """Of a lease that was settled in a commit of its own."""
        key = settlement_key(settlement)
        self.note_settled({key: settlement}, {key: answer})

    def note_settled(
        self,
        settlements: dict[tuple[UUID, int], Settlement],
        answers: dict[tuple[UUID, int], SettleAnswer],
    ) -> None:
        now = self.environment.clock.monotonic()
        rows: list[tuple[int, str, Ending, float]] = []
        for key, answer in answers.items():
            known = self.running.pop(key, None)
            if answer.status is not SettleStatus.SETTLED:
                continue
            settlement = settlements[key]
            if settlement.outcome is Outcome.FAILED and is_worker_failure(answer):
                tenant = answer.tenant or 0
                self.breakers.on_worker_failure(tenant, answer.type, answer.pool, settlement.id)
            if known is not None and answer.tenant is not None:
                ending = ending_of(settlement.outcome, answer.state)
                rows.append((answer.tenant, known[0], ending, now - known[1]))
            elif len(self.started_elsewhere) < STARTED_ELSEWHERE_MAX:
                self.started_elsewhere.append(key)
        self.metrics.run_time.observe_many(run_s for _, _, _, run_s in rows)
        self.stats.note_settled(rows)
        self.note_history(settlements, rows)
        if counted := self.breakers.counted_workers():
            completed = [
                (answer.tenant or 0, task)
                for (task, _), answer in answers.items()
                if answer.state is State.COMPLETED and answer.tenant in counted
            ]
            if completed:
                self.breakers.on_worker_successes(completed)

    def note_history(
        self,
        settlements: dict[tuple[UUID, int], Settlement],
        rows: Sequence[tuple[int, str, Ending, float]],
    ) -> None:
        """The settlements of one call are those of one worker."""
        if rows:
            holder = next(iter(settlements.values())).holder
            ends = ((ending, run_s) for _, _, ending, run_s in rows)
            self.history.note_settled(rows[0][0], holder, ends)


def holder_of(tenant: int, worker_id: str) -> UUID:
    """Another tenant's worker with the same id is another holder: it can settle nothing of ours."""
    digest = hashlib.sha256(f"{tenant}:{worker_id}".encode()).digest()
    return UUID(bytes=digest[:16])


def remember(kept: OrderedDict[Key, Value], key: Key, value: Value, most: int) -> None:
    """Bounded: what was not touched for longest is forgotten."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)
