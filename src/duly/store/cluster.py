"""Cluster state for operators: nodes, slots, workers, and how much waits now.

Every query is bounded, however much is stored. Nothing here decides anything.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from duly.domain.breaker import BreakerKind
from duly.store.breakers import named
from duly.store.database import Database, Session
from duly.store.statements import statements_beside
from duly.store.tenants import count_in_flight

SQL = statements_beside(__file__)
# A count that reaches this stops; it is then a lower bound.
COUNT_MAX = 10_000
# Timer queues of one tenant that a depth query reads.
PLACES_MAX = 5_000
BREAKERS_MAX = 200
POOLS_SHOWN_MAX = 200
WORKER_SILENCE_S = 3600.0
FIRST_NODE = UUID(int=0)
BEFORE_SLOTS = -1


class NodeRow(NamedTuple):
    id: UUID
    name: str
    version: str
    roles: list[str]
    started_at: datetime
    seen_at: datetime
    expires_at: datetime
    is_live: bool
    slots: int
    # JSON: roles and their problems; and its carrier, unless it runs older code.
    failing: str
    carrier: str | None


class SlotRow(NamedTuple):
    number: int
    holder: UUID | None
    node: str | None
    epoch: int
    expires_at: datetime
    is_owned: bool


class WorkerRow(NamedTuple):
    id: str
    holder: UUID
    pools: list[str]
    started_at: datetime
    seen_at: datetime
    expires_at: datetime


class Depth(NamedTuple):
    """Of one band; counts end at COUNT_MAX."""

    band: int
    ready: int
    scheduled: int
    oldest_ready_s: float | None


class OpenBreaker(NamedTuple):
    kind: BreakerKind
    name: str
    reason: str
    open_until: datetime


class PoolStatus(NamedTuple):
    """A pool with due tasks."""

    name: str
    oldest_ready_s: float
    workers: int


class TenantStatus(NamedTuple):
    """The current state of a tenant; counts stop at COUNT_MAX, except that of leases."""

    depths: Sequence[Depth]
    in_flight: int
    dead_letters: int
    breakers: Sequence[OpenBreaker]
    pools: Sequence[PoolStatus]
    # Of what workflows have to do; 0 if nothing is due.
    workflow_overdue_s: float = 0.0


async def list_nodes(session: Session, after: UUID = FIRST_NODE, limit: int = 50) -> list[NodeRow]:
    return [NodeRow(*row) for row in await session.fetch(SQL.list_nodes, after, limit)]


async def list_slots(session: Session, after: int = BEFORE_SLOTS, limit: int = 50) -> list[SlotRow]:
    return [SlotRow(*row) for row in await session.fetch(SQL.list_slots, after, limit)]


async def list_workers(
    session: Session, tenant: int, after: str = "", limit: int = 50
) -> list[WorkerRow]:
    rows = await session.fetch(SQL.list_workers, tenant, after, limit)
    return [WorkerRow(*row) for row in rows]


async def delete_silent_workers(
    database: Database, limit: int, silence_s: float = WORKER_SILENCE_S
) -> int:
    return len(await database.fetch(SQL.delete_silent_workers, silence_s, limit))


async def read_tenant_status(
    session: Session, tenant: int, count_max: int = COUNT_MAX
) -> TenantStatus:
    depths = await session.fetch(SQL.read_depths, tenant, PLACES_MAX, count_max)
    in_flight = await count_in_flight(session, [tenant])
    (letters,) = await session.fetch(SQL.count_letters, tenant, count_max)
    breakers = await session.fetch(SQL.list_open_breakers, tenant, BREAKERS_MAX)
    pools = await session.fetch(SQL.read_pools, tenant, PLACES_MAX, POOLS_SHOWN_MAX)
    (late,) = await session.fetch(SQL.read_workflow_overdue, tenant, COUNT_MAX)
    return TenantStatus(
        [Depth(*row) for row in depths],
        in_flight[tenant],
        letters["letters"],
        [
            OpenBreaker(*named(row["host"], row["pool_name"]), row["reason"], row["open_until"])
            for row in breakers
        ],
        [PoolStatus(*row) for row in pools],
        late["overdue_s"] or 0.0,
    )
