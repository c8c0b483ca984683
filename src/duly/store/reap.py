"""Reaping: leases that expired, and tasks that may no longer start.

| event | what happens |
|---|---|
| a heartbeat lands while we decide | the row's `lease_until` is in the future again: nothing |
| two reapers | the first raises the fence; the second changes nothing |
| the holder settles first | the timer is gone or its fence rose: nothing |
| something else changes a lease in place as we decide | its expiry batch stays till it finds none |
| three losses in a row of a task that was seen running | dead letter `poison` |
| a receiver took the task over and did not settle it in time | a failure of kind `timeout` |
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from duly.domain.ids import address_of
from duly.domain.retry import Failure
from duly.domain.states import Outcome, State
from duly.environment import CrashPoint, Environment
from duly.events import TaskEvents
from duly.store.database import Database
from duly.store.finish import AttemptEnd, SettleAnswer, Settlement, key_columns
from duly.store.lease import ACCEPTED_ASYNC
from duly.store.settle import Settler, decided, task_policy
from duly.store.statements import statements_beside
from duly.store.unnest import columns

SQL = statements_beside(__file__)
# Expiry batches of one (tenant, shard) in one pass.
EXPIRY_BATCHES_MAX = 100
# Leases ended, or looked at again later, by one statement.
CHANGED_MAX = 1000
LOST_ERROR = "the lease ran out: its holder sent no heartbeat in time"
LATE_ERROR = "timed out: the receiver took the task over and did not settle it in time"


class Reaped(NamedTuple):
    """What one pass did: leases lost, leases found alive, expiry batches that are done."""

    lost: list[tuple[UUID, SettleAnswer]]
    rearmed: int
    expiry_batches: int


async def reap_leases(
    database: Database,
    environment: Environment,
    places: Sequence[tuple[int, int]],
    limit: int,
    batches_limit: int = EXPIRY_BATCHES_MAX,
    events: TaskEvents | None = None,
) -> Reaped:
    """One bounded pass over the (tenant, shard) pairs in `places`; both limits are per pair."""
    found = await database.fetch(
        SQL.find_expired,
        [tenant for tenant, _ in places],
        [shard for _, shard in places],
        limit,
        batches_limit,
    )
    await environment.crash_point(CrashPoint.REAP_BEFORE)
    rows = sorted((row for row in found if row["id"]), key=lambda row: address_of(row["id"]))
    settler = Settler(database, environment, events)
    ended: list[tuple[UUID, SettleAnswer]] = []
    rearmed = 0
    for start in range(0, len(rows), CHANGED_MAX):
        some = rows[start : start + CHANGED_MAX]
        lost = {n: loss_end(row, environment) for n, row in enumerate(some) if row["is_lost"]}
        answers = await settler.apply_ends(lost, expired=True)
        ended += [(some[n]["id"], answer) for n, answer in answers.items()]
        alive = [row for row in some if not row["is_lost"]]
        rearmed += await rearm(database, alive) if alive else 0
    # Only what found nothing: whatever became of the others, the next pass sees it.
    done = sorted(expiry_batch_key(row) for row in found if row["id"] is None)
    if done:
        await database.fetch(SQL.forget_expiry_batches, *columns(done, 4))
    return Reaped(ended, rearmed, len(done))


def expiry_batch_key(row: Any) -> tuple[int, int, datetime, int]:
    return row["tenant"], row["shard"], row["expires_at"], row["number"]


def loss_end(row: Any, environment: Environment) -> AttemptEnd:
    if row["holder"] == ACCEPTED_ASYNC:
        return late_end(row, environment)
    loss = Settlement(row["id"], row["fence"], row["holder"], Outcome.LEASE_LOST, error=LOST_ERROR)
    losses = row["losses"] + 1 if row["confirmed"] else row["losses"]
    if row["cancel_requested"]:
        return AttemptEnd(loss, State.CANCELLED, losses=losses)
    return decided(loss, task_policy(row), losses, Failure(Outcome.LEASE_LOST), environment)


def late_end(row: Any, environment: Environment) -> AttemptEnd:
    """A timeout instead of a lost lease: the receiver that accepted the task did not settle it in
    time."""
    late = Settlement(
        row["id"], row["fence"], row["holder"], Outcome.FAILED, None, LATE_ERROR, "timeout"
    )
    if row["cancel_requested"]:
        return AttemptEnd(late, State.CANCELLED)
    return decided(late, task_policy(row), 0, Failure(Outcome.FAILED, "timeout"), environment)


async def rearm(database: Database, rows: list[Any]) -> int:
    leases = [Settlement(row["id"], row["fence"], row["holder"], Outcome.RELEASED) for row in rows]
    return len(await database.fetch(SQL.rearm_leases, *key_columns(leases)))
