"""Maps: a task for each item, made a thousand in a commit while few enough are open.

An item is an ordinary node whose only child is its map. While that is open, its timer counts items
as that of a waiting node counts parents (`duly.release_children`), and one more until no item is to
come. `workflow_maps` says how far it is, and `map` timers drive it.

| event | what happens |
|---|---|
| killed between two statements or commits | its timer is there: the next process goes on |
| two processes do one timer | the first deletes it; the second does nothing |
| items end while more are made | one waits for the other's lock of the workflow |
| more items fail than are tolerated | no more are made; what does not run is cancelled, what runs |
| | is asked to end, and it fails when the last of them has |
| its source has no items, or too many | it fails, and says why |
| its source is erased before all are made | the same |
| the parent that hands over items loses its lease | its next attempt goes on where they end |
| that parent fails | as if too many items had failed |
| the workflow is paused | nothing is made until the pause ends |
| the workflow is stopped | its cancel ends the map and its items |
| the map alone is cancelled | its items are cancelled after it |
| its workflow is a resume | items that completed in the earlier map stand for its own; if what it |
| | runs over or is given may be another, all run again |
"""

from dataclasses import dataclass, replace
from datetime import datetime
from itertools import zip_longest
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from asyncpg.pgproto import pgproto

from duly.domain.ids import (
    NODE_NUMBER_MAX,
    node_id_of,
    node_number,
    node_octets,
    shard_of,
    workflow_of,
)
from duly.domain.map_plan import (
    Progress,
    failed_max,
    failure_detail,
    has_room,
    items_mark,
    next_items,
)
from duly.domain.node_spec import MapSpec
from duly.domain.states import FailureReason, Outcome, State
from duly.domain.workflow import NODES_MAX, OnFailure
from duly.store.control import cancel_tasks, ended_by_cancel
from duly.store.database import Session
from duly.store.finish import NodeEnd, Released, end_node
from duly.store.load import DueTimer
from duly.store.map_items import NoItems, items_at
from duly.store.statements import statements_beside
from duly.store.workflow_compensations import ITEM_NUMBERS_MAX
from duly.store.workflow_nodes import LiveNode, decode_spec, number_generated, read_named_parents
from duly.store.workflow_timers import TimerKind, WorkflowTimer, arm

SQL = statements_beside(__file__)
# Items of a failed or cancelled map that one commit cancels.
CANCELLED_AT_ONCE = 1000
ITEMS = msgspec.json.Decoder(list[msgspec.Raw])


class NextItems(NamedTuple):
    """Their contents as JSON, none where the place of an item is all that it is; and whose run
    stands for each, none where all of them run."""

    contents: list[str]
    sources: list[UUID | None]

    @property
    def reused(self) -> int:
        return len(self.sources) - self.sources.count(None)


@dataclass(frozen=True, slots=True)
class OpenMap:
    """A map that has begun, as it stands under the lock of its workflow."""

    id: UUID
    tenant: int
    spec: MapSpec
    made: int
    handed: int
    total: int | None
    # Why it will fail.
    reason: FailureReason | None
    detail: str | None
    is_live: bool
    # More items may come.
    is_open: bool
    # Open items, and itself as long as more may come; None once the last has ended.
    pending: int | None
    completed: int
    failed: int
    # Of an earlier workflow, whose completed items it reuses.
    earlier: UUID | None = None

    @property
    def progress(self) -> Progress:
        known = self.handed if self.total is None else self.total
        open_now = (self.pending or 0) - self.is_open
        return Progress(self.made, known, self.total is not None, open_now, self.failed)


async def begin_map(session: Session, node: LiveNode, row: Any, released: Released) -> None:
    """From its step: under the lock of the workflow, whose row this is."""
    spec = node.spec.map
    assert spec is not None
    earlier = await find_earlier(session, node.id)
    try:
        total = await count_items(session, node.id, spec)
    except NoItems as refused:
        await end_node(session, node.id, invalid(refused.detail, 0), released)
        return
    if total > spec.max_items:
        detail = f"there are {total} items, and {spec.max_items} are the most"
        await end_node(session, node.id, invalid(detail, total), released)
    elif await open_map(session, node.id, spec, total, node.run_at, earlier):
        await advance(session, await read_map(session, node.id), row, released)


def invalid(detail: str, total: int) -> NodeEnd:
    counts = counts_text(total, 0, 0)
    return NodeEnd(Outcome.FAILED, State.FAILED, FailureReason.INVALID_ITEMS, detail, counts)


async def find_earlier(session: Session, map_id: UUID) -> UUID | None:
    rows = await session.fetch(SQL.find_earlier, shard_of(map_id), map_id)
    return rows[0]["id"] if rows else None


async def count_items(session: Session, map_id: UUID, spec: MapSpec) -> int:
    if spec.count is not None:
        return spec.count
    # A parent that was to hand over items, and handed over none.
    return 0 if spec.is_paged else len(await read_list(session, map_id, spec))


async def read_list(session: Session, map_id: UUID, spec: MapSpec) -> list[str]:
    assert spec.parent is not None
    assert spec.path is not None
    ends = await read_named_parents(session, map_id, [spec.parent])
    source = f"the result of {spec.parent!r}"
    if spec.path:
        source += f" at {spec.path}"
    end = ends.get(spec.parent)
    if end is None or end.state is not State.COMPLETED:
        state = "has not ended" if end is None else f"is {end.state.value}"
        raise NoItems(f"{spec.parent!r} {state}: it has no list")
    try:
        return items_at(end.result, spec.path)
    except NoItems as refused:
        raise NoItems(f"{source} {refused.detail}") from None


async def open_map(
    session: Session,
    map_id: UUID,
    spec: MapSpec,
    total: int | None,
    run_at: datetime | None,
    earlier: UUID | None = None,
) -> bool:
    """False: it has begun, or ended. Without a total its parent still runs, and hands over items;
    without an instant it was to begin now."""
    bounds = items_mark(spec), failed_max(spec, total), total, total is None
    asked = shard_of(map_id), map_id, run_at, *bounds, earlier
    return bool(await session.fetch(SQL.open_map, *asked))


async def read_map(session: Session, map_id: UUID) -> OpenMap:
    found = await find_map(session, map_id)
    assert found is not None
    return found


async def find_map(session: Session, map_id: UUID) -> OpenMap | None:
    rows = await session.fetch(SQL.read_map, shard_of(map_id), map_id)
    return map_from(rows[0]) if rows else None


def map_from(row: Any) -> OpenMap:
    spec = decode_spec(row["spec"]).map
    assert spec is not None
    return OpenMap(
        id=row["id"],
        tenant=row["tenant"],
        spec=spec,
        made=row["made"],
        handed=row["handed"],
        total=row["total"],
        reason=None if row["reason"] is None else FailureReason(row["reason"]),
        detail=row["detail"],
        is_live=row["is_live"],
        is_open=row["is_open"],
        pending=row["parents_pending"],
        completed=row["parents_completed"] or 0,
        failed=row["parents_failed"] or 0,
        earlier=row["earlier"],
    )


async def run_map(session: Session, timer: WorkflowTimer, row: Any, released: Released) -> None:
    """What a map has to do by now: under the lock of the workflow, whose row this is."""
    found = await find_map(session, node_id_of(timer.workflow, timer.node))
    if found is None or row["stop_reason"] is not None:
        return
    if not found.is_live or (found.reason is not None and found.pending is not None):
        await cancel_items(session, found, released)
    elif found.pending is None:
        await finish(session, found, released)
    else:
        await advance(session, found, row, released)


async def advance(session: Session, found: OpenMap, row: Any, released: Released) -> None:
    """The next step of an open map: it fails, makes items, or has made all of them."""
    if found.total is None:
        found = await hear_source(session, found)
    if reason := failure_of(found):
        await give_up(session, found, *reason, released)
        return
    count = next_items(found.spec, found.progress)
    if count:
        if row["generated"] + count > numbers_max(row):
            detail = "the workflow has as many items as there are numbers"
            await give_up(session, found, FailureReason.INVALID_ITEMS, detail, released)
            return
        try:
            items = await next_of(session, found, count)
        except NoItems as erased:
            await give_up(session, found, FailureReason.INVALID_ITEMS, erased.detail, released)
            return
        await make_items(session, found, count, items, released)
        found = replace(
            found,
            made=found.made + count,
            pending=(found.pending or 0) + count - items.reused,
            completed=found.completed + items.reused,
        )
    if found.is_open and found.made == found.total:
        rows = await session.fetch(SQL.close_map, shard_of(found.id), found.id)
        if rows and rows[0]["parents_pending"] is None:
            await finish(session, found, released)
    elif has_room(found.spec, found.progress):
        await arm_map(session, found, released)


def numbers_max(row: Any) -> int:
    """Where what completed is undone, each item needs a number for that as well."""
    if row["on_failure"] == OnFailure.COMPENSATE:
        return ITEM_NUMBERS_MAX
    return NODE_NUMBER_MAX - NODES_MAX


async def hear_source(session: Session, found: OpenMap) -> OpenMap:
    """Whether the parent that hands over items has ended, and how."""
    spec = found.spec
    assert spec.parent is not None
    end = (await read_named_parents(session, found.id, [spec.parent])).get(spec.parent)
    if end is None:
        return found
    if end.state is not State.COMPLETED:
        detail = f"{spec.parent!r}, which handed over its items, is {end.state.value}"
        return replace(found, reason=FailureReason.INVALID_ITEMS, detail=detail)
    most = failed_max(spec, found.handed)
    await session.fetch(SQL.know_total, shard_of(found.id), found.id, most)
    return replace(found, total=found.handed)


def failure_of(found: OpenMap) -> tuple[FailureReason, str] | None:
    if found.reason is not None:
        return found.reason, found.detail or ""
    total = found.progress.known
    most = failed_max(found.spec, found.total)
    if most is not None and found.failed > most:
        return FailureReason.ITEMS_FAILED, failure_detail(found.spec, total, found.failed)
    return None


async def give_up(
    session: Session, found: OpenMap, reason: FailureReason, detail: str, released: Released
) -> None:
    """It makes no more items, and fails once the last of them has ended."""
    shard = shard_of(found.id)
    await session.fetch(SQL.note_failure, shard, found.id, reason.value, detail)
    found = replace(found, reason=reason, detail=detail)
    rows = await session.fetch(SQL.close_map, shard, found.id) if found.is_open else []
    if rows and rows[0]["parents_pending"] is None:
        await finish(session, found, released)
    else:
        await cancel_items(session, found, released)


async def cancel_items(session: Session, found: OpenMap, released: Released) -> None:
    """The next batch of live items: what runs is asked to end, all else is cancelled."""
    rows = await session.fetch(SQL.list_open_items, shard_of(found.id), found.id, CANCELLED_AT_ONCE)
    ids = [row["id"] for row in rows]
    if not ids:
        return
    answers = await cancel_tasks(session, found.tenant, ids, released)
    released.cancelled += ended_by_cancel(answers)
    if len(ids) == CANCELLED_AT_ONCE:
        await arm_map(session, found, released)


async def finish(session: Session, found: OpenMap, released: Released) -> None:
    """Its last item has ended."""
    total = found.progress.known
    counts = counts_text(total, found.completed, found.failed)
    end = NodeEnd(Outcome.COMPLETED, State.COMPLETED, result=counts)
    if failure := failure_of(found):
        end = NodeEnd(Outcome.FAILED, State.FAILED, *failure, counts)
    await end_node(session, found.id, end, released)


def counts_text(total: int, completed: int, failed: int) -> str:
    """Its result. Items that were not made when it failed count as cancelled."""
    cancelled = total - completed - failed
    counts = {"items": total, "completed": completed, "failed": failed, "cancelled": cancelled}
    return msgspec.json.encode(counts).decode()


async def arm_map(session: Session, found: OpenMap, released: Released) -> None:
    workflow = workflow_of(found.id)
    await arm(session, found.tenant, workflow, TimerKind.MAP, node=node_number(found.id))
    released.workflows.append(workflow)


async def make_items(
    session: Session, found: OpenMap, count: int, items: NextItems, released: Released
) -> None:
    workflow, shard = workflow_of(found.id), shard_of(found.id)
    reused = items.reused
    first = await number_generated(session, found.tenant, workflow, count, reused=reused)
    assert first is not None, "a map is live in a workflow that has ended"
    asked = shard, found.id, found.made, first, count, *items, reused
    rows = await session.fetch(SQL.make_items, *asked)
    assert rows, "a map went on while its workflow was locked"
    (row,) = rows
    released.timers += [
        DueTimer(
            row["tenant"],
            shard,
            row["queue"],
            pgproto.UUID(node_octets(workflow, number)),
            0,
            row["now"],
            row["priority"],
            None,
            row["type"],
            row["concurrency_key"],
            row["concurrency_limit"],
            row["host"],
        )
        for number, source in zip_longest(range(first, first + count), items.sources)
        if source is None
    ]


async def next_of(session: Session, found: OpenMap, count: int) -> NextItems:
    contents = await read_contents(session, found, count)
    if found.earlier is None:
        return NextItems(contents, [])
    last = found.made + count
    asked = shard_of(found.id), found.earlier, found.made, last
    rows = await session.fetch(SQL.read_earlier_items, *asked)
    done = {row["map_index"]: row["source"] for row in rows}
    return NextItems(contents, [done.get(place) for place in range(found.made, last)])


async def read_contents(session: Session, found: OpenMap, count: int) -> list[str]:
    if found.spec.count is not None:
        return []
    if not found.spec.is_paged:
        items = await read_list(session, found.id, found.spec)
        return items[found.made : found.made + count]
    shard, last = shard_of(found.id), found.made + count
    rows = await session.fetch(SQL.read_pages, shard, found.id, last)
    contents: list[str] = []
    for page in rows:
        items = [bytes(each).decode() for each in ITEMS.decode(page["content"])]
        assert len(items) == page["items"]
        contents += items[max(0, found.made - page["first_index"]) :]
    await session.fetch(SQL.drop_pages, shard, found.id, last)
    assert len(contents) >= count
    return contents[:count]
