"""Tasks that are stored in somebody's hands: due at once, and a consumer waits for them, so that
task, timer and first lease are one commit. Who that consumer is, and whether nothing else comes
first, is decided by the scheduler.
"""

from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from duly.domain.task import host_of
from duly.store.entries import Entry, encode_tags
from duly.store.lease import Lease
from duly.store.policies import encode_policy


class Hands(Protocol):
    """A consumer that waits, and is kept free until it is told what it got."""

    holder: UUID
    lease_s: float

    def take(self, leases: list[Lease]) -> None:
        """Called once, after the commit; with none of them it goes on waiting."""
        ...


def hand_columns(hands: Hands | None) -> tuple[UUID | None, float]:
    return (None, 0.0) if hands is None else (hands.holder, hands.lease_s)


def is_lone(entries: list[Entry]) -> bool:
    """One task of which `submit_lone` can say everything: due by any clock, and nothing that a
    gate asks about."""
    if len(entries) != 1:
        return False
    (entry,) = entries
    task, policy = entry.task, entry.task.policy
    is_now = task.run_at is None and not entry.delay_s
    return is_now and policy.start_by is None and policy.concurrency_key is None


def lone_row(entry: Entry, hands: Hands) -> tuple[Any, ...]:
    """What `submit_lone` takes: one task, as values instead of arrays."""
    task = entry.task
    return (
        entry.shard,
        entry.id,
        task.tenant,
        entry.pool,
        task.priority,
        round(task.policy.timeout_s * 1000),
        task.type,
        task.payload,
        encode_policy(task.policy),
        task.url,
        task.execution_key,
        encode_tags(task.tags),
        host_of(task.url),
        hands.holder,
        hands.lease_s,
    )


def first_lease(entry: Entry, hands: Hands, now: datetime, run_at: datetime) -> Lease:
    """What the statement wrote, reckoned again instead of sent back."""
    task = entry.task
    lease_until = now + timedelta(seconds=min(hands.lease_s, task.policy.timeout_s))
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
        given_execution_key=task.execution_key or task.idempotency_key,
    )
