"""Operator endpoints: nodes, slots with their owners, and a tenant's live workers. Read only."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from duly.api.asgi import Endpoint, Kind
from duly.api.cursors import Cursor
from duly.api.request import Answer, Call
from duly.api.wire import Limit, Page, page
from duly.domain.access import OPERATORS, WORKERS
from duly.domain.ids import shards_of
from duly.store.cluster import (
    BEFORE_SLOTS,
    FIRST_NODE,
    NodeRow,
    SlotRow,
    WorkerRow,
    list_nodes,
    list_slots,
    list_workers,
)
from duly.store.ownership import CarrierState
from duly.store.worker_history import WorkerHistoryRow, list_worker_history

TAG = "Operations"


class NodesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Cursor | None = None


class SlotsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Cursor | None = None


class WorkersQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Cursor | None = None


class WorkerHistoryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Cursor | None = None


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One start of one process. Silent past `expires_at`, it counts as dead (`is_live`). `failing`
    are its roles that do not do their work, each with the reason; `carrier` the carrier of the
    ready queue as it sees it: null if it runs an older version."""

    id: UUID
    name: str
    version: str
    roles: list[str]
    started_at: datetime
    seen_at: datetime
    expires_at: datetime
    is_live: bool
    slots: int
    failing: dict[str, str]
    carrier: CarrierState | None


class SlotView(msgspec.Struct, frozen=True, kw_only=True):
    """A range of shards and the scheduler that owns it. `epoch` rises with every change of
    owner."""

    slot: int
    first_shard: int
    last_shard: int
    node: str | None
    node_id: UUID | None
    epoch: int
    expires_at: datetime
    is_owned: bool


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """One of the tenant's own processes; `holder` is how tasks that it runs name it."""

    id: str
    holder: UUID
    pools: list[str]
    started_at: datetime
    seen_at: datetime
    expires_at: datetime


class WorkerHistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """One start of one worker, from its first contact to its last. `failed` are attempts that
    failed, tried again or not; `lost` leases that ran out; `other` attempts that were released,
    snoozed or cancelled. `busy_s` adds up how long its attempts ran, and `busy_share` is what that
    is of its slots and its time: null if it did not say how many slots it has."""

    id: str
    holder: UUID
    sdk: str
    version: str
    pools: list[str]
    slots: int | None
    first_seen_at: datetime
    last_seen_at: datetime
    is_live: bool
    completed: int
    failed: int
    lost: int
    other: int
    busy_s: float
    busy_share: float | None


@dataclass(frozen=True)
class OperatorRoutes:
    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/nodes",
                summary="List the processes of the installation",
                handler=self.nodes,
                kind=Kind.INSTALLATION,
                access=OPERATORS,
                query=NodesQuery,
                answers={200: Page[NodeView]},
                tag=TAG,
            ),
            Endpoint(
                method="GET",
                path="/v1/shards",
                summary="List the slots of shards and their owners",
                handler=self.slots,
                kind=Kind.INSTALLATION,
                access=OPERATORS,
                query=SlotsQuery,
                answers={200: Page[SlotView]},
                tag=TAG,
            ),
            Endpoint(
                method="GET",
                path="/v1/workers",
                summary="List the live workers of the tenant",
                handler=self.workers,
                kind=Kind.READ,
                access=OPERATORS | WORKERS,
                query=WorkersQuery,
                answers={200: Page[WorkerView]},
                tag=TAG,
            ),
            Endpoint(
                method="GET",
                path="/v1/workers/history",
                summary="List what workers did, also those that are gone, last seen first",
                handler=self.worker_history,
                kind=Kind.READ,
                access=OPERATORS | WORKERS,
                query=WorkerHistoryQuery,
                answers={200: Page[WorkerHistoryView]},
                tag=TAG,
            ),
        ]

    async def nodes(self, call: Call, query: NodesQuery) -> Answer:
        after = FIRST_NODE if query.cursor is None else UUID(query.cursor)
        rows = await list_nodes(call.session, after, query.limit)
        following = str(rows[-1].id) if len(rows) == query.limit else None
        return Answer(200, page([node_view(row) for row in rows], following))

    async def slots(self, call: Call, query: SlotsQuery) -> Answer:
        after = BEFORE_SLOTS if query.cursor is None else int(query.cursor)
        rows = await list_slots(call.session, after, query.limit)
        following = str(rows[-1].number) if len(rows) == query.limit else None
        return Answer(200, page([slot_view(row) for row in rows], following))

    async def workers(self, call: Call, query: WorkersQuery) -> Answer:
        rows = await list_workers(call.session, call.tenant, query.cursor or "", query.limit)
        following = rows[-1].id if len(rows) == query.limit else None
        return Answer(200, page([worker_view(row) for row in rows], following))

    async def worker_history(self, call: Call, query: WorkerHistoryQuery) -> Answer:
        after = None if query.cursor is None else worker_position(query.cursor)
        rows = await list_worker_history(call.session, call.tenant, after, query.limit)
        following = None
        if len(rows) == query.limit:
            following = f"{rows[-1].last_seen_at.isoformat()} {rows[-1].holder}"
        return Answer(200, page([worker_history_view(row) for row in rows], following))


def node_view(row: NodeRow) -> NodeView:
    failing = msgspec.json.decode(row.failing, type=dict[str, str])
    carrier = msgspec.json.decode(row.carrier or "null", type=CarrierState | None)
    return NodeView(**{**row._asdict(), "failing": failing, "carrier": carrier})


def slot_view(row: SlotRow) -> SlotView:
    shards = shards_of(row.number)
    return SlotView(
        slot=row.number,
        first_shard=shards[0],
        last_shard=shards[-1],
        node=row.node,
        node_id=row.holder,
        epoch=row.epoch,
        expires_at=row.expires_at,
        is_owned=row.is_owned,
    )


def worker_view(row: WorkerRow) -> WorkerView:
    return WorkerView(**row._asdict())


def worker_position(cursor: str) -> tuple[datetime, UUID]:
    """Signed by us: it is what `worker_history` wrote."""
    seen_at, _, holder = cursor.partition(" ")
    return datetime.fromisoformat(seen_at), UUID(holder)


def worker_history_view(row: WorkerHistoryRow) -> WorkerHistoryView:
    known = row._asdict() | {"slots": row.slots or None}
    return WorkerHistoryView(**known, busy_share=busy_share(row))


def busy_share(row: WorkerHistoryRow) -> float | None:
    """An attempt counts when it ends, and a worker's time up to its last contact: at most 1."""
    room_s = row.slots * (row.last_seen_at - row.first_seen_at).total_seconds()
    return min(row.busy_s / room_s, 1.0) if room_s > 0 else None
