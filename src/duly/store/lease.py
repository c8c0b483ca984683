"""The lease move: tickets become leases, and heartbeats extend them.

| event | what happens |
|---|---|
| two holders, one ticket | the row's fence admits one; the other gets fewer leases than tickets |
| ticket repeated or stale | its fence is behind: nothing |
| ticket early, node's clock wrong | `due_at` is compared with the database's clock: nothing |
| ticket of an owner that was replaced | void past its deadline: nothing |
| answer lost | `held` says which tickets became leases of this holder |
| heartbeat of a lost lease | STALE, and nothing is extended |
| heartbeat past the attempt's time limit | STALE: the lease runs out and is reaped |

Most leases sit in lane 0, where they are counted and looked at. Those of tickets that allow it stay
in their places, which touches no index, until they end or their first heartbeat moves them; a lease
expiry batch, written with them, has them checked if neither happens.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from duly.domain.ids import address_of, in_address_order, shard_of
from duly.domain.lanes import Ticket
from duly.domain.task import PRIORITY_DEFAULT, Policy
from duly.environment import CrashPoint, Environment
from duly.store.database import Database
from duly.store.policies import decode_policy
from duly.store.statements import statements_beside
from duly.store.unnest import runs

SQL = statements_beside(__file__)
# The deadline of a ticket that has none.
NEVER = datetime.max.replace(tzinfo=UTC)
# Lists and counts of leases read the newest batches of leases in place of a shard: what was leased
# before them has ended, or has moved to lane 0.
IN_PLACE_LISTED_MAX = 100
# Holder of a task that a webhook receiver accepted asynchronously: only its fence can settle it.
ACCEPTED_ASYNC = UUID("d0177e57-0000-7000-8000-000000000001")


class Lease(msgspec.Struct, frozen=True, gc=False):
    """One attempt, held by us until `lease_until` by the database's clock.

    `run_at` is the instant that was asked for at first, `moved_to` the one of a reschedule.
    """

    id: UUID
    tenant: int
    fence: int
    attempt: int
    started_at: datetime
    lease_until: datetime
    progress: str | None
    run_at: datetime
    type: str
    payload: str | None
    policy_text: str | None
    url: str | None
    given_execution_key: str | None
    moved_to: datetime | None = None
    priority: int = PRIORITY_DEFAULT
    # W3C trace context of the call that submitted the task.
    traceparent: str | None = None

    @property
    def scheduled_for(self) -> datetime:
        """The fire time as it stands; the same for every attempt, however late a retry comes."""
        return self.moved_to or self.run_at

    @property
    def lag_s(self) -> float | None:
        """From the fire time to the start; None of a later attempt, which waited for its retry,
        release or snooze as well."""
        if self.attempt > 1 or (self.fence > 1 and self.moved_to is None):
            return None
        return (self.started_at - self.scheduled_for).total_seconds()

    @property
    def policy(self) -> Policy:
        return decode_policy(self.policy_text)

    @property
    def execution_key(self) -> str:
        """The same for every attempt and replay, so that a receiver can act once."""
        return self.given_execution_key or str(self.id)


class Beat(NamedTuple):
    id: UUID
    fence: int
    progress: str | None = None


class HeartbeatStatus(StrEnum):
    HELD = "held"
    CANCEL = "cancel"
    STALE = "stale"


class HeartbeatResult(NamedTuple):
    status: HeartbeatStatus
    lease_until: datetime | None = None


def leases_from(rows: Sequence[Any], before: int = 0) -> list[Lease]:
    """Rows whose columns, but for some before them, are those of a Lease. The driver gives them by
    position, which is three times as fast as by name; that they agree is looked at once a batch."""
    if rows:
        assert tuple(rows[0].keys())[before:] == Lease.__struct_fields__
    return [Lease(*row[before:]) for row in rows] if before else [Lease(*row) for row in rows]


async def lease_tasks(
    database: Database,
    environment: Environment,
    holder: UUID,
    tickets: Sequence[Ticket],
    lease_s: float,
) -> list[Lease]:
    """Those of the tickets that became leases. Tickets are unique by id within one call."""
    ordered = [tickets[at] for at in in_address_order([ticket.id for ticket in tickets])]
    shards, ids, fences = ticket_columns(ordered)
    deadlines = [ticket.deadline or NEVER for ticket in ordered]
    in_place = [ticket.in_place for ticket in ordered]
    rows = await database.fetch(
        SQL.lease_tasks, ids, *runs(shards, fences, deadlines, in_place), holder, lease_s
    )
    await environment.crash_point(CrashPoint.LEASE_AFTER_COMMIT)
    return leases_from(rows)


async def read_held(database: Database, holder: UUID, tickets: Sequence[Ticket]) -> list[Lease]:
    """Leases that a lease call of unknown outcome gave this holder."""
    rows = await database.fetch(SQL.read_held, *ticket_columns(tickets), holder)
    return leases_from(rows)


async def read_held_by(database: Database, tenant: int, holder: UUID, limit: int) -> list[Lease]:
    """Leases that a worker holds and may not know of: none of them was confirmed yet."""
    rows = await database.fetch(SQL.read_held_by, tenant, holder, limit)
    return leases_from(rows)


async def extend_leases(
    database: Database, holder: UUID, beats: Sequence[Beat], lease_s: float
) -> list[HeartbeatResult]:
    """One answer for each heartbeat, in order."""
    unique = {(beat.id, beat.fence): beat for beat in beats}
    ordered = sorted(unique.values(), key=lambda beat: address_of(beat.id))
    rows = await database.fetch(
        SQL.extend_leases,
        *ticket_columns(ordered),
        holder,
        lease_s,
        [beat.progress for beat in ordered],
    )
    extended = {(row["id"], row["fence"]): row for row in rows}
    return [heartbeat_result(extended.get((beat.id, beat.fence))) for beat in beats]


def heartbeat_result(row: Mapping[str, object] | None) -> HeartbeatResult:
    if row is None:
        return HeartbeatResult(HeartbeatStatus.STALE)
    status = HeartbeatStatus.CANCEL if row["cancel_requested"] else HeartbeatStatus.HELD
    lease_until = row["lease_until"]
    assert isinstance(lease_until, datetime)
    return HeartbeatResult(status, lease_until)


def ticket_columns(items: Sequence[Ticket | Beat]) -> tuple[list[int], list[UUID], list[int]]:
    ids = [item.id for item in items]
    return [shard_of(task_id) for task_id in ids], ids, [item.fence for item in items]
