"""Items of a map that a running parent hands over, page by page: they start while it still runs.

| event | what happens |
|---|---|
| the first page comes | the map begins, though its parent has not ended |
| the lease of the parent is lost | a page with its fence is refused as stale |
| its next attempt hands over the same | what is there stays: places are compared, not contents |
| the parent ends | the map has all of its items, or fails with it (`workflow_maps.hear_source`) |
"""

from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from duly.domain.ids import shard_of, workflow_of
from duly.domain.node_spec import MapSpec
from duly.domain.states import FailureReason
from duly.store.database import Database, Session
from duly.store.finish import Released
from duly.store.statements import statements_beside
from duly.store.workflow_maps import arm_map, give_up, open_map, read_map
from duly.store.workflow_nodes import decode_spec

SQL = statements_beside(__file__)


class HandOver(StrEnum):
    """What became of a page of items."""

    TAKEN = "taken"
    # The lease with this fence has ended.
    STALE = "stale"
    # The parent has no such child, or that one is no map over pages.
    UNKNOWN = "unknown"
    # Items before these were not handed over.
    GAP = "gap"
    # The map has ended, or will fail.
    OVER = "over"


class HandedOver(NamedTuple):
    """`handed`: the items of the map that are there."""

    answer: HandOver
    handed: int = 0
    detail: str | None = None


class ItemPage(NamedTuple):
    """Items from the node that runs with this fence, for its child of that name. `first`: the place
    of the first in the map."""

    tenant: int
    source: UUID
    fence: int
    name: str
    first: int
    items: list[str]


async def hand_over_page(database: Database, page: ItemPage, released: Released) -> HandedOver:
    """In a transaction of its own."""
    async with database.transaction() as session:
        workflow = workflow_of(page.source)
        rows = await session.fetch(SQL.lock_own, shard_of(workflow), workflow, page.tenant)
        if not rows:
            return HandedOver(HandOver.UNKNOWN)
        if rows[0]["stop_reason"] is not None or rows[0]["ended_at"] is not None:
            return HandedOver(HandOver.OVER, detail="its workflow is being stopped")
        return await hand_over(session, page, released)


async def hand_over(session: Session, page: ItemPage, released: Released) -> HandedOver:
    """Under the lock of the workflow. What is there already stays, so that an attempt can say again
    what an earlier one said."""
    asked = page.tenant, shard_of(page.source), page.source, page.fence, page.name
    rows = await session.fetch(SQL.find_paged_map, *asked)
    spec = decode_spec(rows[0]["spec"]).map if rows else None
    if spec is None or not spec.is_paged:
        return HandedOver(HandOver.UNKNOWN)
    row = rows[0]
    if not row["is_held"]:
        return HandedOver(HandOver.STALE)
    handed = row["handed"] or 0
    if not row["is_live"] or row["reason"] is not None:
        return HandedOver(HandOver.OVER, handed, row["detail"] or "the map has ended")
    if page.first > handed:
        return HandedOver(HandOver.GAP, handed)
    if not row["is_opened"] and not await open_map(session, row["id"], spec, None, None):
        return HandedOver(HandOver.OVER, handed, "the map has ended")
    items = page.items[handed - page.first :]
    return await take_page(session, row["id"], spec, handed, items, released)


async def take_page(
    session: Session,
    map_id: UUID,
    spec: MapSpec,
    handed: int,
    items: list[str],
    released: Released,
) -> HandedOver:
    if not items:
        return HandedOver(HandOver.TAKEN, handed)
    found = await read_map(session, map_id)
    if handed + len(items) > spec.max_items:
        detail = f"there are more items than {spec.max_items}, which are the most"
        await give_up(session, found, FailureReason.INVALID_ITEMS, detail, released)
        return HandedOver(HandOver.OVER, handed, detail)
    content = f"[{','.join(items)}]"
    shard = shard_of(map_id)
    rows = await session.fetch(SQL.hand_over, shard, map_id, handed, len(items), content)
    if not rows:
        return HandedOver(HandOver.OVER, handed, "the map has ended")
    await arm_map(session, found, released)
    return HandedOver(HandOver.TAKEN, rows[0]["handed"])
