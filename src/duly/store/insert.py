"""The insert move: tasks and their timers in one statement, and their first leases where a
consumer is idle.

A direct lease is one that is stored with its task: due at once, and an idle consumer takes it. The
scheduler decides which consumer that is, and whether nothing else comes first.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import msgspec

from duly.domain.ids import includes_marked, key_shard, milliseconds, shard_of
from duly.domain.task import Submission, host_of, submitted_key
from duly.store.database import Session
from duly.store.lease import Lease
from duly.store.partitions import PlacementRange
from duly.store.policies import encode_policy
from duly.store.statements import statements_beside
from duly.store.unnest import columns, given, once

SQL = statements_beside(__file__)
KEY_TTL_S = 7 * 86400.0
# Of an idempotency key: shard, tenant, key, digest of the request, the task to stand for, and for
# how many seconds.
Claim = tuple[int, int, str, bytes, UUID, float]


class InsertRow(msgspec.Struct, frozen=True, gc=False):
    """One submission on its way: its address and its place in the caller's batch."""

    ordinal: int
    task: Submission
    id: UUID
    shard: int
    pool: int
    queue: int
    # When it fires, with the jitter that its submitter allowed: at an instant, or so long after the
    # commit.
    run_at: datetime | None
    delay_s: float


def future_ms(task: Submission, now: datetime, placement: PlacementRange) -> int:
    """Placed where it will first fire, so that its rows lie beside those of its time."""
    fires_at = task.run_at or now + timedelta(seconds=task.delay_s)
    return milliseconds(placement.clamp(max(fires_at, now)))


def jittered_start(task: Submission, random: Random) -> tuple[datetime | None, float]:
    """The instant or delay with random jitter added, within what the submitter allowed."""
    jitter_s = round(random.uniform(0.0, task.policy.jitter_s), 6)
    run_at = task.run_at and task.run_at + timedelta(seconds=jitter_s)
    return run_at, task.delay_s + jitter_s


def lanes_of(entries: list[InsertRow]) -> set[tuple[int, int, int]]:
    return {(entry.task.tenant, entry.shard, entry.queue) for entry in entries}


def key_of(entry: InsertRow) -> tuple[int, int, str]:
    key = entry.task.idempotency_key
    assert key is not None
    return key_shard(entry.task.tenant, key), entry.task.tenant, key


def claim_of(entry: InsertRow, request_hash: bytes) -> Claim:
    ttl_s = entry.task.key_ttl_s
    return (*key_of(entry), request_hash, entry.id, KEY_TTL_S if ttl_s is None else ttl_s)


def task_columns(entries: list[InsertRow]) -> list[Any]:
    """The arrays, and the target that all of them share, with its host."""
    tasks = [entry.task for entry in entries]
    urls = given([task.url for task in tasks])
    shared = urls[0] if urls and urls.count(urls[0]) == len(urls) else None
    return [
        once([entry.shard for entry in entries]),
        [entry.id for entry in entries],
        once([task.tenant for task in tasks]),
        once([entry.pool for entry in entries]),
        once([task.priority for task in tasks]),
        [round(timeout_s * 1000) for timeout_s in once([task.policy.timeout_s for task in tasks])],
        given([entry.run_at for entry in entries]),
        once([entry.delay_s for entry in entries]),
        given([task.policy.start_by for task in tasks]),
        once([task.type for task in tasks]),
        [task.payload for task in tasks],
        given([encode_policy(task.policy) for task in tasks]),
        urls if shared is None else [],
        given([task.execution_key or submitted_key(task) for task in tasks]),
        [encode_tags(tags) for tags in given([task.tags for task in tasks])],
        shared,
        host_of(shared),
    ]


def encode_tags(tags: dict[str, str] | None) -> str | None:
    return None if tags is None else msgspec.json.encode(tags).decode()


class IdleConsumer(Protocol):
    """An idle consumer, reserved until `take` gives it its leases."""

    holder: UUID
    lease_s: float

    def take(self, leases: list[Lease]) -> None:
        """Called once, after the commit; with none of them it goes on waiting."""
        ...


def consumer_columns(consumer: IdleConsumer | None) -> tuple[UUID | None, float]:
    return (None, 0.0) if consumer is None else (consumer.holder, consumer.lease_s)


def first_lease(entry: InsertRow, consumer: IdleConsumer, now: datetime, run_at: datetime) -> Lease:
    """What the statement wrote, reckoned again instead of sent back."""
    task = entry.task
    lease_until = now + timedelta(seconds=min(consumer.lease_s, task.policy.timeout_s))
    return Lease(
        id=entry.id,
        tenant=task.tenant,
        fence=1,
        attempt=1,
        started_at=now,
        lease_until=lease_until,
        progress=None,
        run_at=run_at,
        type=task.type,
        payload=task.payload,
        policy_text=encode_policy(task.policy),
        url=task.url,
        given_execution_key=task.execution_key or submitted_key(task),
        priority=task.priority,
        traceparent=task.traceparent,
    )


class Inserted(NamedTuple):
    """The rows that are stored, and when by the database's clock."""

    rows: list[InsertRow]
    now: datetime


class KnownKey(NamedTuple):
    """What a taken idempotency key stands for."""

    request_hash: bytes
    task_id: UUID


async def insert_tasks(
    session: Session,
    rows: list[InsertRow],
    new_queues: Collection[tuple[int, int, int]],
    claims: Sequence[Claim] = (),
    consumer: IdleConsumer | None = None,
) -> Inserted:
    """All rows but those that lost the key they claim. What is due is leased to the consumer."""
    asked = sent_columns(rows, new_queues, consumer)
    calls_back = includes_marked([row.id for row in rows])
    if not claims:
        statement = SQL.insert_tasks_with_callbacks if calls_back else SQL.insert_tasks
        (row,) = await session.fetch(statement, *asked)
        return Inserted(rows, row["now"])
    statement = SQL.insert_keyed_with_callbacks if calls_back else SQL.insert_keyed
    (row,) = await session.fetch(statement, *asked, *columns(claims, 6))
    lost = frozenset(row["lost"])
    return Inserted([entry for entry in rows if entry.id not in lost], row["now"])


def sent_columns(
    rows: list[InsertRow],
    new_queues: Collection[tuple[int, int, int]],
    consumer: IdleConsumer | None,
) -> list[Any]:
    """The arguments of every statement that includes `sent_tasks`."""
    traceparents = given([row.task.traceparent for row in rows])
    queues = columns(sorted(new_queues), 3)
    return [*task_columns(rows), *queues, *consumer_columns(consumer), traceparents]


async def insert_nodes(
    session: Session, rows: list[InsertRow], new_queues: Collection[tuple[int, int, int]]
) -> datetime:
    """Nodes whose graphs were stored in this transaction; when, by the database's clock."""
    asked = sent_columns(rows, new_queues, None)
    (row,) = await session.fetch(SQL.insert_nodes, *asked)
    now: datetime = row["now"]
    return now


async def read_keys(session: Session, rows: Sequence[InsertRow]) -> dict[str, KnownKey]:
    """The keys of these rows that stand for a task."""
    found = await session.fetch(SQL.read_keys, *columns([key_of(row) for row in rows], 3))
    return {row["key"]: KnownKey(row["request_hash"], row["task_id"]) for row in found}


async def read_stored(session: Session, ids: Iterable[UUID]) -> set[UUID]:
    """Those of the tasks that exist."""
    asked = list(ids)
    rows = await session.fetch(SQL.read_stored, [shard_of(task_id) for task_id in asked], asked)
    return {row["id"] for row in rows}
