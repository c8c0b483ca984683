"""The ready queue as an unlogged table: one statement for each operation. No waiting here.

Every statement is bounded, and none minds that a restart of the server empties the table. A table
that cannot be read or written (after a promotion, on a bad disk) is emptied by a function of the
owner, and the statement is tried once more.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from duly.domain.ids import shard_of
from duly.domain.lanes import TICKET_S, Lane, Ticket, queue_of
from duly.environment import CrashPoint, Environment
from duly.store.database import Database
from duly.store.lease import Lease, leases_from
from duly.store.statements import statements_beside
from duly.telemetry import get_logger

SQL = statements_beside(__file__)
# Counts stop here: such a lane is full by any setting.
DEPTH_COUNTED_MAX = 10_000
BATCH_SIZE = 5_000
# Where a lane begins: sequences are microseconds since 1970.
BEGINNING = 0
TICKET_COLUMNS = 8
# What PostgreSQL says when a file is missing, torn or of another kind (classes XX and 58).
UNREADABLE = (asyncpg.InternalServerError, asyncpg.PostgresSystemError)

log = get_logger("duly.ready_queue")


class SweepCursor(NamedTuple):
    """How far a sweep over all lanes has come."""

    tenant: int
    pool: int
    band: int
    sequence: int


SWEEP_START = SweepCursor(-1, -1, -1, -1)


class TakenTickets(NamedTuple):
    """Tickets that left the table, oldest first in each lane, and what became of them."""

    tickets: list[tuple[Lane, int, Ticket]]
    leases: list[Lease]


async def publish_tickets(
    database: Database, tickets: Sequence[tuple[Lane, Ticket]], after: int = BEGINNING
) -> int:
    """Behind the sequence `after`, the publisher's last; answers the new last."""
    ids = [ticket.id for _, ticket in tickets]
    (row,) = await run(
        database,
        SQL.publish_tickets,
        *lane_columns([queue_of(lane) for lane, _ in tickets]),
        [shard_of(task_id) for task_id in ids],
        [ticket.fence for _, ticket in tickets],
        ids,
        [ticket.deadline for _, ticket in tickets],
        TICKET_S,
        after,
        [ticket.fires_at for _, ticket in tickets],
        [lane.tenant for lane, _ in tickets],
    )
    before: int = row["before"]
    return before + len(tickets)


async def lease_tickets(
    database: Database,
    environment: Environment,
    holder: UUID,
    lanes: dict[Lane, int],
    count: int,
    lease_s: float,
    left_out: Collection[int] = (),
) -> TakenTickets:
    """Up to `count` tickets of the queues, in their order, each after the sequence given for it;
    none of the tenants left out."""
    rows = await run(
        database,
        SQL.lease_tickets,
        *lane_columns(list(lanes)),
        list(lanes.values()),
        count,
        holder,
        lease_s,
        list(left_out),
    )
    await environment.crash_point(CrashPoint.LEASE_AFTER_COMMIT)
    # A union promises no order of its parts; only the row about tickets has no task.
    (told,) = (row for row in rows if row["id"] is None)
    leases = leases_from([row for row in rows if row["id"] is not None], TICKET_COLUMNS)
    return TakenTickets(tickets_told(told, list(lanes)), leases)


async def take_tickets(
    database: Database, lanes: dict[Lane, int], count: int, left_out: Collection[int] = ()
) -> list[tuple[Lane, int, Ticket]]:
    """As `lease_tickets`, without the leases."""
    (told,) = await run(
        database,
        SQL.take_tickets,
        *lane_columns(list(lanes)),
        list(lanes.values()),
        count,
        list(left_out),
    )
    return tickets_told(told, list(lanes))


def tickets_told(row: Any, lanes: list[Lane]) -> list[tuple[Lane, int, Ticket]]:
    if row["ids"] is None:
        return []
    rank = {lane: number for number, lane in enumerate(lanes)}
    taken = [
        (
            Lane(tenant, pool, band),
            sequence,
            Ticket(task_id, fence, deadline, fires_at=fires_at),
        )
        for tenant, pool, band, sequence, task_id, fence, deadline, fires_at in zip(
            *row[:TICKET_COLUMNS], strict=True
        )
    ]
    taken.sort(key=lambda entry: (rank[queue_of(entry[0])], entry[1]))
    return taken


async def count_tickets(database: Database, lanes: dict[Lane, int]) -> dict[Lane, int]:
    """The depth of each lane in these queues, of the first `DEPTH_COUNTED_MAX` tickets after the
    sequence given for each queue."""
    rows = await run(
        database,
        SQL.count_tickets,
        *lane_columns(list(lanes)),
        list(lanes.values()),
        DEPTH_COUNTED_MAX,
    )
    return {Lane(*row[:3]): row["tickets"] for row in rows}


async def sweep_tickets(
    database: Database, after: SweepCursor = SWEEP_START, batch_size: int = BATCH_SIZE
) -> tuple[SweepCursor, int]:
    """Delete void tickets of the next batch; answers the cursor, and how many were deleted."""
    rows = await run(database, SQL.sweep_tickets, *after, batch_size)
    if not rows:
        return SWEEP_START, 0
    (row,) = rows
    at_end = row["seen"] < batch_size
    return SWEEP_START if at_end else SweepCursor(*row[:4]), row["gone"]


async def wipe_tickets(database: Database, batch_size: int = BATCH_SIZE) -> int:
    """Delete up to `batch_size` tickets; fewer than that means that none are left."""
    (row,) = await run(database, SQL.wipe_tickets, batch_size)
    gone: int = row["gone"]
    return gone


async def run(database: Database, statement: str, *arguments: Any) -> list[asyncpg.Record]:
    """One statement on the table; if the table is what failed, it is rebuilt first."""
    try:
        return await database.fetch(statement, *arguments)
    except UNREADABLE as error:
        if not await rebuild_tickets(database, str(error)):
            raise
    return await database.fetch(statement, *arguments)


async def rebuild_tickets(database: Database, problem: str) -> bool:
    """Whether the problem is one of the table's own, which is then empty and usable again."""
    rows = await database.fetch(SQL.rebuild_tickets, problem)
    if rows and rows[0]["is_rebuilt"]:
        log.warning("ready_tickets rebuilt: the table was unusable", problem=problem)
    return bool(rows)


def lane_columns(lanes: Sequence[Lane]) -> tuple[list[int], list[int], list[int]]:
    return (
        [lane.tenant for lane in lanes],
        [lane.pool for lane in lanes],
        [lane.band for lane in lanes],
    )
