"""Nodes that no handler runs, and tasks with an `if`: how they are released and how they begin.

All of it under the lock of the workflow, which the caller's transaction holds. How they end:
`finish.end_node`.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from duly.domain.ids import shard_of
from duly.domain.node_spec import PLAIN, NodeSpec
from duly.domain.predicate import ParentEnd
from duly.domain.states import State
from duly.domain.workflow import NODES_MAX
from duly.store.database import Session
from duly.store.finish import Released
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
DECODER = msgspec.json.Decoder(NodeSpec)


class LiveNode(NamedTuple):
    """A node that has not ended, and that no holder runs."""

    id: UUID
    tenant: int
    name: str
    spec: NodeSpec
    # When it was to begin: what its step waited for is over.
    run_at: datetime
    started_at: datetime | None


def encode_spec(spec: NodeSpec) -> str | None:
    return None if spec == PLAIN else msgspec.json.encode(spec).decode()


def decode_spec(text: str | None) -> NodeSpec:
    return PLAIN if text is None else DECODER.decode(text)


async def read_live_node(session: Session, node_id: UUID, run_at: datetime) -> LiveNode | None:
    rows = await session.fetch(SQL.read_live_node, shard_of(node_id), node_id)
    return live_node_from(rows[0], run_at) if rows else None


def live_node_from(row: Any, run_at: datetime) -> LiveNode:
    spec = decode_spec(row["spec"])
    return LiveNode(row["id"], row["tenant"], row["name"], spec, run_at, row["started_at"])


async def read_named_parents(
    session: Session, node_id: UUID, names: Collection[str]
) -> dict[str, ParentEnd]:
    """Of those that have ended; an `any` rule releases before the others have."""
    shard = shard_of(node_id)
    rows = await session.fetch(SQL.read_named_parents, shard, node_id, sorted(names))
    return {row["name"]: ParentEnd(State(row["state"]), row["result"]) for row in rows}


async def release_node(session: Session, node: LiveNode, _row: Any, released: Released) -> None:
    """Its task is due. The one way to run a node after a step; `released` is told after the
    commit."""
    released.note(await session.fetch(SQL.release_node, shard_of(node.id), node.id, node.run_at))


async def begin_node(session: Session, node: LiveNode) -> bool:
    """From now on it is what its kind does; its record will say since when. False: it has begun, or
    ended."""
    return bool(await session.fetch(SQL.begin_node, shard_of(node.id), node.id, node.run_at))


async def lock_workflow(session: Session, workflow_id: UUID) -> Any | None:
    """Before anything else of a change: the row of the workflow. None: there is none."""
    rows = await session.fetch(SQL.lock, shard_of(workflow_id), workflow_id)
    return rows[0] if rows else None


async def number_nodes(
    session: Session, tenant: int, workflow_id: UUID, count: int, edges: int
) -> int | None:
    """The first of so many numbers for new nodes of the graph, whose rows follow in this
    transaction. None: the workflow has ended."""
    rows = await session.fetch(
        SQL.number_nodes, shard_of(workflow_id), workflow_id, tenant, count, 0, edges, 0
    )
    return rows[0]["first_node"] if rows else None


async def number_generated(
    session: Session, tenant: int, workflow_id: UUID, count: int, edges: int = 0, reused: int = 0
) -> int | None:
    """The same for nodes that duly makes itself: items of maps, of which so many are reused, and
    what undoes."""
    rows = await session.fetch(
        SQL.number_nodes, shard_of(workflow_id), workflow_id, tenant, 0, count, edges, reused
    )
    return NODES_MAX + rows[0]["first_generated"] if rows else None
