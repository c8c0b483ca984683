"""Compensation: of a workflow that failed, what completed is undone, the last that completed first.

With `on_failure: compensate`, a failure or the deadline stops a workflow. When its last node has
ended, `duly.release_children` arms a `compensate` timer instead of ending it, and again whenever no
node is live. Each time, the next of what completed gets nodes that undo it: a chain, in which each
waits for the one before; or at the turn of a map, some of its items at once.

| event | what happens |
|---|---|
| killed between two statements or commits | its timer is there: the next process goes on |
| two processes do one timer | the first deletes it; the second does nothing |
| a compensation fails for good | it is a dead letter; the ones after it are done all the same |
| one that waits is cancelled alone | the one after it no longer waits |
| the workflow is cancelled | what does not run is cancelled, nothing more is made, and it ends |
| it is paused | nothing is made and nothing starts until the pause ends |
| its deadline | is none any more |
| nodes are to be added, or it is to be resumed | refused |
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from duly.domain.ids import NODE_NUMBER_MAX, node_id_of, shard_of
from duly.domain.node_spec import MapSpec
from duly.domain.states import State
from duly.domain.workflow import NODES_MAX, Compensation, WorkflowStop, compensation_state
from duly.store.database import Session
from duly.store.finish import Released
from duly.store.statements import statements_beside
from duly.store.workflow_nodes import decode_spec, number_generated
from duly.store.workflow_timers import WorkflowTimer

SQL = statements_beside(__file__)
# Compensations that one commit makes.
COMPENSATED_AT_ONCE = 1000
# Compensations that a reader looks at, and names of what is not undone that it is told.
LOOKED_AT_MAX = 20_000
NAMED_MAX = 20
# Of the numbers for generated nodes, items of maps leave as many as undo all of them.
ITEM_NUMBERS_MAX = (NODE_NUMBER_MAX - 2 * NODES_MAX) // 2


@dataclass(frozen=True, slots=True)
class CompensableNode:
    """A node with a compensation; or with `map_index` so far that its items are undone to there."""

    number: int
    name: str
    ended_at: datetime
    map: MapSpec | None
    map_index: int | None = None
    undone_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class UndoBatch:
    """What is undone next, by number and in this order; one after the other, if it is a chain."""

    numbers: list[int]
    is_chain: bool


async def run_compensation(
    session: Session, timer: WorkflowTimer, row: Any, released: Released
) -> None:
    """Under the lock of the workflow, whose row this is: no node of it is live."""
    assert row["live"] == 0
    assert row["ended_at"] is None
    batch = await next_batch(
        session, timer.workflow, await read_position(session, timer.workflow, row["generated"])
    )
    if batch is None:
        await end_compensated(session, timer.workflow, released)
        return
    count = len(batch.numbers)
    first = await number_generated(session, timer.tenant, timer.workflow, count)
    assert first is not None, "what is undone has not ended"
    assert first + count - 1 <= NODE_NUMBER_MAX
    asked = timer.workflow, first, batch.numbers, batch.is_chain
    released.note(await session.fetch(SQL.make_compensations, timer.shard, *asked))


async def read_position(
    session: Session, workflow_id: UUID, generated: int
) -> CompensableNode | None:
    """Where the last compensation that was made stands; what is generated last, is one."""
    last = node_id_of(workflow_id, NODES_MAX + generated)
    rows = await session.fetch(SQL.read_position, shard_of(workflow_id), last)
    return ended_from(rows[0]) if rows else None


async def next_batch(
    session: Session, workflow_id: UUID, position: CompensableNode | None
) -> UndoBatch | None:
    """None: all that completed is undone."""
    if position is not None and position.map is not None:
        items = await list_items(session, workflow_id, position)
        if items:
            return UndoBatch(items, is_chain=False)
    while nodes := await list_ended(session, workflow_id, position):
        chain: list[int] = []
        for node in nodes:
            if node.map is None:
                chain.append(node.number)
            elif chain:
                break
            elif items := await list_items(session, workflow_id, node):
                return UndoBatch(items, is_chain=False)
        if chain:
            return UndoBatch(chain, is_chain=True)
        position = nodes[-1]
    return None


async def list_ended(
    session: Session, workflow_id: UUID, after: CompensableNode | None
) -> list[CompensableNode]:
    place = (None, None) if after is None else (after.ended_at, after.number)
    rows = await session.fetch(
        SQL.list_ended, shard_of(workflow_id), workflow_id, *place, COMPENSATED_AT_ONCE
    )
    return [ended_from(row) for row in rows]


async def list_items(session: Session, workflow_id: UUID, node: CompensableNode) -> list[int]:
    assert node.map is not None
    most = min(node.map.max_parallel or COMPENSATED_AT_ONCE, COMPENSATED_AT_ONCE)
    place = workflow_id, node.number, node.map_index
    rows = await session.fetch(SQL.list_items, shard_of(workflow_id), *place, most)
    return [row["number"] for row in rows]


async def read_undone(session: Session, tenant: int, workflow_id: UUID) -> dict[int, State]:
    """How far each node of the graph is undone, by its number."""
    rows = await session.fetch(
        SQL.read_undone, tenant, shard_of(workflow_id), workflow_id, LOOKED_AT_MAX
    )
    return {row["number"]: undone_state(row) for row in rows}


def undone_state(row: Any) -> State:
    if row["live"]:
        due = State.READY if row["is_due"] else State.WAITING
        return State.RUNNING if row["is_running"] else due
    return State.FAILED if row["failed"] else State.COMPLETED


async def read_not_undone(
    session: Session, tenant: int, workflow_id: UUID, generated: int, *, is_cancelled: bool
) -> list[str]:
    """Names of what stays done, of a workflow that has ended and made so many nodes itself: what
    could not be undone, and if it was cancelled, what was never reached."""
    shard = shard_of(workflow_id)
    rows = await session.fetch(
        SQL.read_not_undone, tenant, shard, workflow_id, LOOKED_AT_MAX, NAMED_MAX
    )
    names = [row["name"] for row in rows]
    if is_cancelled and len(names) < NAMED_MAX:
        names += await names_never_reached(session, workflow_id, generated)
    return names[:NAMED_MAX]


async def names_never_reached(session: Session, workflow_id: UUID, generated: int) -> list[str]:
    """Of a map with such items, only its own."""
    position = await read_position(session, workflow_id, generated)
    nodes = await list_ended(session, workflow_id, position)
    if position is not None:
        nodes = [position, *nodes]
    names: list[str] = []
    for node in nodes:
        if node.map is not None:
            before = node.undone_id or node_id_of(workflow_id, NODE_NUMBER_MAX)
            asked = shard_of(workflow_id), workflow_id, node.number, before, LOOKED_AT_MAX
            (found,) = await session.fetch(SQL.has_completed_items, *asked)
            is_left = bool(found["has_any"])
        else:
            is_left = node is not position
        if is_left:
            names.append(node.name)
        if len(names) == NAMED_MAX:
            break
    return names


async def end_compensated(session: Session, workflow_id: UUID, released: Released) -> None:
    """Under the lock of the workflow, of which no node is live."""
    rows = await session.fetch(SQL.end_compensated, shard_of(workflow_id), workflow_id)
    assert rows, "nothing is live of it, and it has not ended: it is being undone"
    released.note(await session.fetch(SQL.tell_end, workflow_id))


def ended_from(row: Any) -> CompensableNode:
    spec = decode_spec(row["spec"])
    return CompensableNode(
        *(row["number"], row["name"], row["ended_at"], spec.map, row["map_index"]),
        row["undone_id"],
    )


def compensation_from(row: Any) -> Compensation | None:
    if row["compensating_at"] is None:
        return None
    stop = None if row["stop_reason"] is None else WorkflowStop(row["stop_reason"])
    failed, is_over = row["compensations_failed"], row["ended_at"] is not None
    state = compensation_state(stop, failed, is_over=is_over)
    return Compensation(row["compensating_at"], row["compensated"], failed, state)
