"""Submitting: tasks and their timers, of many callers in one commit.

| event | what happens |
|---|---|
| killed before the commit | nothing is stored, and no caller was answered |
| killed after the commit | stored; the retry with the same key is answered with the same task |
| outcome unknown | the caller gets that error; sent again with its key, it is one task |
| the same ids again | refused as a whole: nothing is stored twice, and nothing is revived |
| same key, same request | one task; every caller learns its id (I8) |
| same key, another request | Mismatch, and nothing is stored |
| same key, its task gone since | one call: Replayed; a batch: Gone, and nothing is stored |
| key held by an open transaction | the batch of that one tenant waits at most the lock timeout |
| outcome unknown, with a consumer that waits | `read_held` is asked; else such leases run out |
| key held by an open transaction, with a consumer | the consumer is released, the rest waits |
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import msgspec
from asyncpg.pgproto import pgproto

from duly.domain.errors import DatabaseUnavailable, StatementRefused
from duly.domain.ids import CALLBACK_BIT, key_shard, make_octets, milliseconds, tenant_shard
from duly.domain.lanes import Ticket
from duly.domain.task import (
    WEBHOOK_POOL,
    Submission,
    concurrency_limit_of,
    host_of,
    request_hash,
    timer_queue,
)
from duly.environment import CrashPoint, Environment
from duly.events import TaskEvents, TasksLeased, TasksStored
from duly.metric_families import Buckets
from duly.store.batcher import Batcher
from duly.store.call_idempotency import CallKey, Remembered, claim_call, keep_answer
from duly.store.database import LOCK_NOT_AVAILABLE, SERIALIZATION_FAILURE, Database, Session
from duly.store.insert import (
    Claim,
    IdleConsumer,
    InsertRow,
    claim_of,
    first_lease,
    future_ms,
    insert_tasks,
    jittered_start,
    lanes_of,
    read_keys,
    read_stored,
)
from duly.store.lease import Lease, read_held
from duly.store.load import DueTimer
from duly.store.partitions import PlacementRange, placement_range
from duly.store.pools import PoolNumbers
from duly.store.tenant_shards import TenantShards
from duly.store.tenants import read_gate_inputs

# Of the streams of single submits. Two statements in flight keep the server busy while the answers
# of one are handed out.
BATCH_SIZE_MAX = 500
WAITING_MAX = 20_000
BATCHES_MAX = 2
PARALLEL_MIN = 100
# How a remembered batch is marked: its answer is the list of its tasks.
STORED_STATUS = 201
# Timers further away are found by loading.
DOORBELL_REACH = timedelta(seconds=10)
# A key that was taken and is free again when it is asked about is claimed anew.
CLAIM_TRIES_MAX = 3
# How long a node trusts what it knows of the partitions.
RANGE_AGE_MAX_S = 300.0


class Stored(msgspec.Struct, frozen=True, gc=False):
    """The task is durable and will fire at `run_at`."""

    id: UUID
    created_at: datetime
    run_at: datetime
    # Leased to an idle consumer in the same commit: it needs no ticket.
    is_leased: bool = False


class Replayed(NamedTuple):
    """The key was known with the same request: this is its task."""

    id: UUID


class Mismatch(NamedTuple):
    """The key was known with another request; nothing was stored."""

    id: UUID


class Gone(NamedTuple):
    """The key was known with the same request, and outlived its task; nothing was stored."""

    id: UUID


SubmitAnswer = Stored | Replayed | Mismatch | Gone


class RollBackBatch(Exception):
    """Rolls back a call of which one part was refused; never leaves this module."""

    def __init__(self, answers: dict[int, SubmitAnswer]) -> None:
        super().__init__()
        self.answers = answers


FindConsumer = Callable[[list[InsertRow]], IdleConsumer | None]


def no_consumer(_rows: list[InsertRow]) -> None:
    """For a submitter without a scheduler in its process."""


class Submitter:
    """Stores tasks, and publishes each commit."""

    def __init__(
        self,
        database: Database,
        environment: Environment,
        events: TaskEvents | None = None,
        tenant_shards: TenantShards | None = None,
        find_consumer: FindConsumer = no_consumer,
    ) -> None:
        """`find_consumer` is asked before the commit for one that takes all of the rows."""
        self.database = database
        self.environment = environment
        self.events = events or TaskEvents()
        self.tenant_shards = tenant_shards or TenantShards()
        self.find_consumer = find_consumer
        self.pools = PoolNumbers(database)
        self.placements: set[tuple[int, int, int]] = set()
        self.range: PlacementRange | None = None
        self.range_until = 0.0

    async def submit(self, tasks: Sequence[Submission]) -> list[SubmitAnswer]:
        """One commit for everything without a key; one for each tenant's tasks with keys.

        Keys are unique within one call: the caller (or the batcher) sees to it.
        """
        entries = await self.assign_ids(tasks)
        keyed = [entry for entry in entries if entry.task.idempotency_key is not None]
        if not keyed:
            return in_order(await self.store(self.database, entries))
        answers: dict[int, SubmitAnswer] = {}
        # Keys first: a refused call is sent again with new ids, and only a key makes that harmless.
        for tenant in sorted({entry.task.tenant for entry in keyed}):
            own = [entry for entry in keyed if entry.task.tenant == tenant]
            answers |= await self.store_claimed(self.database, own)
        # Who loses a key is not stored, but its place is.
        self.placements |= lanes_of(keyed)
        plain = [entry for entry in entries if entry.task.idempotency_key is None]
        if plain:
            answers |= await self.store(self.database, plain)
        return in_order(answers)

    async def submit_all(
        self, tasks: Sequence[Submission], call: CallKey | None = None
    ) -> list[SubmitAnswer]:
        """All of it or nothing, in one commit: with a Mismatch or Gone among the answers, nothing.

        Of one tenant, and its keys are unique within the call. With a key of the whole call, a
        second call with that key finds the tasks of the first.
        """
        entries = await self.assign_ids(tasks)
        keyed = [entry for entry in entries if entry.task.idempotency_key is not None]
        if not keyed and call is None:
            return in_order(await self.store(self.database, entries))
        try:
            async with self.database.transaction() as session:
                answers = await self.store_once(session, entries, call)
        except RollBackBatch as undone:
            return in_order(undone.answers)
        self.placements |= lanes_of(entries)
        stored = [entry for entry in entries if isinstance(answers[entry.ordinal], Stored)]
        await self.publish_stored(stored, answers)
        return in_order(answers)

    async def store_once(
        self, session: Session, entries: list[InsertRow], call: CallKey | None
    ) -> dict[int, SubmitAnswer]:
        if call is not None:
            known = await claim_call(session, entries[0].task.tenant, *call)
            if known is not None:
                raise RollBackBatch(answers_again(known, call, len(entries)))
        answers = await self.store_claimed(session, entries)
        answers |= await gone_among(session, answers)
        if any(isinstance(answer, Mismatch | Gone) for answer in answers.values()):
            raise RollBackBatch(answers)
        if call is not None:
            ids = " ".join(str(answers[ordinal].id) for ordinal in range(len(entries)))
            await keep_answer(session, entries[0].task.tenant, call.key, STORED_STATUS, ids)
        return answers

    async def publish_stored(
        self, stored: list[InsertRow], answers: dict[int, SubmitAnswer]
    ) -> None:
        """After the commit; a caller with a transaction of its own does it after that."""
        self.placements |= lanes_of(stored)
        await self.environment.crash_point(CrashPoint.SUBMIT_AFTER_COMMIT)
        if stored:
            first = answers[stored[0].ordinal]
            assert isinstance(first, Stored)
            timers = near_timers(stored, answers)
            self.events.publish(TasksStored(stored, timers, first.created_at))

    async def assign_ids(
        self, tasks: Sequence[Submission], session: Session | None = None
    ) -> list[InsertRow]:
        """Give every task its id, in id order, so that two batches never lock crosswise. A caller
        in a transaction gives its session, and waits for no other connection."""
        await self.environment.crash_point(CrashPoint.SUBMIT_BEFORE)
        await self.learn_tenants()
        placement = await self.current_range(session or self.database)
        wanted = {(task.tenant, task.pool) for task in tasks if task.url is None}
        told = [task for task in tasks if task.policy.callback is not None]
        if told:
            wanted |= pools_of_callbacks(told)
        numbers = await self.pools.resolve(wanted, session) if wanted else {}
        now, random = self.environment.clock.now(), self.environment.random
        now_ms = milliseconds(placement.clamp(now))
        entries = []
        for ordinal, task in enumerate(tasks):
            shard = self.choose_shard(task)
            is_now = task.run_at is None and not task.delay_s
            placed_ms = now_ms if is_now else future_ms(task, now, placement)
            pool = WEBHOOK_POOL if task.url is not None else numbers[task.tenant, task.pool]
            # The driver's own: made, hashed and written many times faster than Python's.
            mark = CALLBACK_BIT if told and task.policy.callback is not None else 0
            task_id = pgproto.UUID(make_octets(placed_ms, shard, random, mark))
            lane, run_at, delay_s = timer_queue(pool, task.priority), task.run_at, task.delay_s
            if task.policy.jitter_s:
                run_at, delay_s = jittered_start(task, random)
            entries.append(InsertRow(ordinal, task, task_id, shard, pool, lane, run_at, delay_s))
        # The same order as of the ids, which compare more slowly.
        entries.sort(key=lambda entry: entry.id.bytes)
        return entries

    async def learn_tenants(self) -> None:
        """Before the first task is placed."""
        if not self.tenant_shards.is_known:
            self.tenant_shards.learn((await read_gate_inputs(self.database)).tenants)

    def choose_shard(self, task: Submission) -> int:
        """What shares a key shares a shard, whatever else changes: its limit is counted there."""
        key = task.policy.concurrency_key
        if key is not None:
            return key_shard(task.tenant, key)
        spread = self.tenant_shards.spread_of(task.tenant)
        choice = self.environment.random.getrandbits(10) if spread > 1 else 0
        return tenant_shard(task.tenant, spread, choice)

    async def current_range(self, session: Session) -> PlacementRange:
        now = self.environment.clock.monotonic()
        if self.range is None or now >= self.range_until:
            self.range = await placement_range(session)
            self.range_until = now + RANGE_AGE_MAX_S
        return self.range

    async def store(
        self, session: Session, entries: list[InsertRow], claims: Sequence[Claim] = ()
    ) -> dict[int, SubmitAnswer]:
        """All but those that lost the key they claim, which have no answer here. Published, unless
        it is part of a transaction."""
        # The consumer gets its leases after the commit, so the transaction must be ours; and the
        # reaper must know a placement before it holds a lease.
        is_fit = session is self.database and lanes_of(entries) <= self.placements
        consumer = self.find_consumer(entries) if is_fit else None
        if consumer is not None:
            try:
                return await self.store_in(consumer, entries, claims)
            except StatementRefused as refusal:
                if refusal.facts["code"] != LOCK_NOT_AVAILABLE:
                    raise
        new = lanes_of(entries) - self.placements
        won, now = await insert_tasks(session, entries, new, claims)
        answers: dict[int, SubmitAnswer] = {e.ordinal: stored_at(e, now) for e in won}
        if session is self.database:
            await self.publish_stored(won, answers)
        return answers

    async def store_in(
        self, consumer: IdleConsumer, entries: list[InsertRow], claims: Sequence[Claim]
    ) -> dict[int, SubmitAnswer]:
        """Store, and lease due tasks to the idle consumer, which gets an answer in every case."""
        leases: list[Lease] = []
        try:
            won, now = await insert_tasks(self.database, entries, (), claims, consumer)
            answers = {entry.ordinal: stored_at(entry, now, is_waited_for=True) for entry in won}
            leases = [
                first_lease(entry, consumer, now, answer.run_at)
                for entry in won
                if (answer := answers[entry.ordinal]).is_leased
            ]
            stored: dict[int, SubmitAnswer] = dict(answers)
            await self.publish_stored(won, stored)
            return stored
        except DatabaseUnavailable:
            # Perhaps they were stored before the connection broke. If this fails as well they run
            # out; the caller is told in either case.
            tickets = [Ticket(entry.id, 0) for entry in entries]
            leases = await read_held(self.database, consumer.holder, tickets)
            raise
        finally:
            if leases:
                self.events.publish(TasksLeased((), leases))
            consumer.take(leases)

    async def store_claimed(
        self, session: Session, entries: list[InsertRow]
    ) -> dict[int, SubmitAnswer]:
        """Those with a key claim it; the answer to a loser is what its key stands for."""
        keyed = [entry for entry in entries if entry.task.idempotency_key is not None]
        hashes = {entry.ordinal: request_hash(entry.task) for entry in keyed}
        answers: dict[int, SubmitAnswer] = {}
        for _ in range(CLAIM_TRIES_MAX):
            claims = sorted(claim_of(entry, hashes[entry.ordinal]) for entry in keyed)
            answers |= await self.store(session, entries, claims)
            losers = [entry for entry in keyed if entry.ordinal not in answers]
            if losers:
                answers |= await self.answer_known(session, losers, hashes)
            # Those whose key was freed before it could be read.
            entries = keyed = [entry for entry in losers if entry.ordinal not in answers]
            if not entries:
                return answers
        raise StatementRefused(problem="its key changes its owner", code=SERIALIZATION_FAILURE)

    async def answer_known(
        self, session: Session, entries: list[InsertRow], hashes: dict[int, bytes]
    ) -> dict[int, SubmitAnswer]:
        """Of those whose key stands for something."""
        known = await read_keys(session, entries)
        answers: dict[int, SubmitAnswer] = {}
        for entry in entries:
            assert entry.task.idempotency_key is not None
            held = known.get(entry.task.idempotency_key)
            if held is not None:
                is_same = held.request_hash == hashes[entry.ordinal]
                answers[entry.ordinal] = (Replayed if is_same else Mismatch)(held.task_id)
        return answers


class GroupCommit:
    """Submits of many callers in one statement. Tasks without a key share one stream of batches;
    tasks with a key go through a stream of their own tenant, because a key held by an open
    transaction makes its batch wait."""

    def __init__(self, submitter: Submitter, sizes: Buckets | None = None) -> None:
        self.submitter = submitter
        self.sizes = sizes
        self.plain = self.stream("submit", batches_max=BATCHES_MAX)
        self.keyed: dict[int, Batcher[Submission, SubmitAnswer]] = {}

    async def submit(self, task: Submission) -> SubmitAnswer:
        """Submit one task; answered after the commit, in a batch with concurrent submits."""
        if task.idempotency_key is None:
            return await self.plain.submit(task)
        stream = self.keyed.get(task.tenant)
        if stream is None:
            stream = self.keyed[task.tenant] = self.stream(f"submit of tenant {task.tenant}")
        try:
            return await stream.submit(task)
        finally:
            if stream.is_idle:
                self.keyed.pop(task.tenant, None)

    async def submit_all(
        self, tasks: list[Submission], call: CallKey | None = None
    ) -> list[SubmitAnswer]:
        """A batch of one caller, in a commit of its own: all of it or nothing."""
        return await self.submitter.submit_all(tasks, call)

    def stream(self, name: str, batches_max: int = 1) -> Batcher[Submission, SubmitAnswer]:
        return Batcher(
            name,
            self.submitter.submit,
            batch_size_max=BATCH_SIZE_MAX,
            waiting_max=WAITING_MAX,
            batches_max=batches_max,
            parallel_min=PARALLEL_MIN,
            key=batch_key,
            sizes=self.sizes,
        )

    async def close(self) -> None:
        for stream in (self.plain, *list(self.keyed.values())):
            await stream.close()


def pools_of_callbacks(tasks: Sequence[Submission]) -> set[tuple[int, str]]:
    """Made with the tasks: the transactions that tell of their ends cannot make any."""
    return {
        (task.tenant, callback.pool)
        for task in tasks
        if (callback := task.policy.callback) is not None and callback.url is None
    }


def in_order(answers: dict[int, SubmitAnswer]) -> list[SubmitAnswer]:
    return [answers[ordinal] for ordinal in range(len(answers))]


async def gone_among(session: Session, answers: dict[int, SubmitAnswer]) -> dict[int, SubmitAnswer]:
    """Found before the commit: afterwards it would be too late to refuse the call as a whole."""
    known = {n: answer.id for n, answer in answers.items() if isinstance(answer, Replayed)}
    if not known:
        return {}
    found = await read_stored(session, known.values())
    return {n: Gone(task_id) for n, task_id in known.items() if task_id not in found}


def answers_again(known: Remembered, call: CallKey, count: int) -> dict[int, SubmitAnswer]:
    """What the first call with this key was told, or that it asked for something else."""
    if known.request_hash != call.digest:
        return dict.fromkeys(range(count), Mismatch(UUID(int=0)))
    ids = [UUID(text) for text in known.answer.split()]
    assert len(ids) == count, "the same bytes are the same tasks"
    return {ordinal: Replayed(task_id) for ordinal, task_id in enumerate(ids)}


def stored_at(entry: InsertRow, now: datetime, *, is_waited_for: bool = False) -> Stored:
    """What the statement wrote, reckoned again instead of sent back row by row."""
    delay_s = entry.delay_s
    run_at = entry.run_at or (now + timedelta(seconds=delay_s) if delay_s else now)
    return Stored(entry.id, now, run_at, is_waited_for and run_at <= now)


def near_timers(entries: list[InsertRow], answers: Mapping[int, SubmitAnswer]) -> list[DueTimer]:
    """The timers just made that fire within the doorbell's reach, and wait for a ticket."""
    local_tickets: list[DueTimer] = []
    for entry in entries:
        answer = answers[entry.ordinal]
        assert isinstance(answer, Stored)
        due_at = max(answer.run_at, answer.created_at)
        if answer.is_leased or due_at - answer.created_at > DOORBELL_REACH:
            continue
        task, policy = entry.task, entry.task.policy
        local_tickets.append(
            DueTimer(
                task.tenant,
                entry.shard,
                entry.queue,
                entry.id,
                0,
                due_at,
                task.priority,
                policy.start_by,
                task.type,
                policy.concurrency_key,
                concurrency_limit_of(policy),
                host_of(task.url),
            )
        )
    return local_tickets


def batch_key(task: Submission) -> object:
    """Two requests with one key never share a batch; without a key every request is its own."""
    return task.idempotency_key if task.idempotency_key is not None else id(task)
