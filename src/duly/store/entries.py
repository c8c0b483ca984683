"""Submissions on their way into one statement: their addresses, and the arrays they become.

Nothing here talks to the database.
"""

from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import msgspec

from duly.domain.ids import key_shard, milliseconds
from duly.domain.task import Submission, host_of
from duly.store.columns import given, once
from duly.store.partitions import PlacementRange
from duly.store.policies import encode_policy


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One submission on its way: its address and its place in the caller's batch."""

    ordinal: int
    task: Submission
    id: UUID
    shard: int
    pool: int
    lane: int
    # When it fires, with the smear that its submitter allowed: at an instant, or so long after the
    # commit.
    run_at: datetime | None
    delay_s: float


def future_ms(task: Submission, now: datetime, placement: PlacementRange) -> int:
    """Placed where it will first fire, so that its rows lie beside those of its time."""
    fires_at = task.run_at or now + timedelta(seconds=task.delay_s)
    return milliseconds(placement.clamp(max(fires_at, now)))


def smeared(task: Submission, random: Random) -> tuple[datetime | None, float]:
    """When it was to fire, at an instant or after a delay; each is later by as much as chance says,
    within what the submitter allowed."""
    smear_s = round(random.uniform(0.0, task.policy.jitter_s), 6)
    run_at = task.run_at and task.run_at + timedelta(seconds=smear_s)
    return run_at, task.delay_s + smear_s


def lanes_of(entries: list[Entry]) -> set[tuple[int, int, int]]:
    return {(entry.task.tenant, entry.shard, entry.lane) for entry in entries}


def key_of(entry: Entry) -> tuple[int, int, str]:
    key = entry.task.idempotency_key
    assert key is not None
    return key_shard(entry.task.tenant, key), entry.task.tenant, key


def task_columns(entries: list[Entry]) -> list[Any]:
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
        given([task.execution_key or task.idempotency_key for task in tasks]),
        [encode_tags(tags) for tags in given([task.tags for task in tasks])],
        shared,
        host_of(shared),
    ]


def encode_tags(tags: dict[str, str] | None) -> str | None:
    return None if tags is None else msgspec.json.encode(tags).decode()
