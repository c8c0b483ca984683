"""Taking back what was lost: leases that ran out, and tasks that may no longer start.

| event | what happens |
|---|---|
| a heartbeat lands while we decide | the row's `lease_until` is in the future again: nothing |
| two reapers | the first raises the fence; the second changes nothing |
| the holder settles first | the timer is gone or its fence rose: nothing |
| something else changes a lease in place as we decide | its lookout stays until it finds nothing |
| three losses in a row of a task that was seen running | dead letter `poison` |
| a receiver took the task over and did not settle it in time | a failure of kind `timeout` |
"""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from duly.domain.ids import address_of
from duly.domain.lanes import Ticket
from duly.domain.retry import Failure
from duly.domain.states import Outcome, State
from duly.environment import CrashPoint, Environment
from duly.store.columns import columns
from duly.store.database import Database
from duly.store.lease import HANDED_OVER, ticket_columns
from duly.store.settle import End, SettleAnswer, Settlement, Settler, decided, key_columns
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
# Lookouts of one (tenant, shard) in one pass.
LOOKOUTS_MAX = 100
# Leases ended, or looked at again later, by one statement.
CHANGED_MAX = 1000
# Of a row of `find_expired`: tenant, shard, look_at, number.
LOOKOUT_KEY = slice(11, 15)
LOST_ERROR = "the lease ran out: its holder was not heard of in time"
LATE_ERROR = "timed out: the receiver took the task over and did not settle it in time"


class Reaped(NamedTuple):
    """What one pass did: lost leases ended, leases found alive, and lookouts that are done."""

    lost: list[tuple[UUID, SettleAnswer]]
    rearmed: int
    lookouts: int


async def reap_leases(
    database: Database,
    environment: Environment,
    places: Sequence[tuple[int, int]],
    limit: int,
    lookouts_limit: int = LOOKOUTS_MAX,
) -> Reaped:
    """One bounded pass over the (tenant, shard) pairs in `places`; both limits are per pair."""
    found = await database.fetch(
        SQL.find_expired,
        [tenant for tenant, _ in places],
        [shard for _, shard in places],
        limit,
        lookouts_limit,
    )
    await environment.crash_point(CrashPoint.REAP_BEFORE)
    rows = sorted((row for row in found if row["id"]), key=lambda row: address_of(row["id"]))
    ended: list[tuple[UUID, SettleAnswer]] = []
    rearmed = 0
    for start in range(0, len(rows), CHANGED_MAX):
        some = rows[start : start + CHANGED_MAX]
        lost = {n: loss_end(row, environment) for n, row in enumerate(some) if row["is_lost"]}
        answers = await Settler(database, environment).apply_ends(lost, expired=True)
        ended += [(some[n]["id"], answer) for n, answer in answers.items()]
        alive = [row for row in some if not row["is_lost"]]
        rearmed += await rearm(database, alive) if alive else 0
    # Only what found nothing: whatever became of the others, the next pass sees it.
    done = sorted(row[LOOKOUT_KEY] for row in found if row["id"] is None)
    if done:
        await database.fetch(SQL.forget_lookouts, *columns(done, 4))
    return Reaped(ended, rearmed, len(done))


def loss_end(row: Any, environment: Environment) -> End:
    if row["holder"] == HANDED_OVER:
        return late_end(row, environment)
    loss = Settlement(row["id"], row["fence"], row["holder"], Outcome.LEASE_LOST, error=LOST_ERROR)
    losses = row["losses"] + 1 if row["confirmed"] else row["losses"]
    if row["cancel_requested"]:
        return End(loss, State.CANCELLED, losses=losses)
    return decided(loss, row, losses, Failure(Outcome.LEASE_LOST), environment)


def late_end(row: Any, environment: Environment) -> End:
    """Nobody was lost: what a receiver promised did not come in time."""
    late = Settlement(
        row["id"], row["fence"], row["holder"], Outcome.FAILED, None, LATE_ERROR, "timeout"
    )
    if row["cancel_requested"]:
        return End(late, State.CANCELLED)
    return decided(late, row, 0, Failure(Outcome.FAILED, "timeout"), environment)


async def rearm(database: Database, rows: list[Any]) -> int:
    leases = [Settlement(row["id"], row["fence"], row["holder"], Outcome.RELEASED) for row in rows]
    return len(await database.fetch(SQL.rearm_leases, *key_columns(leases)))


async def expire_unstarted(database: Database, tickets: Sequence[Ticket]) -> list[UUID]:
    """End those whose `start_by` has passed; the row decides, not the caller."""
    ordered = sorted(tickets, key=lambda ticket: address_of(ticket.id))
    rows = await database.fetch(SQL.expire_unstarted, *ticket_columns(ordered))
    return [row["id"] for row in rows]
