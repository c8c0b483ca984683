"""Node inputs: what a node is given when it runs: how its parents ended, with their results, up to
a bound."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias
from uuid import UUID

from duly.domain.ids import is_node, node_number, workflow_of
from duly.store.database import Database
from duly.store.workflows import PARENTS_GIVEN_MAX, Parent, count_parents, read_parents

INPUT_BYTES_MAX = 256 * 1024
# Told which parents the nodes had that are about to run.
OnRead: TypeAlias = Callable[[Mapping[UUID, Sequence[Parent]]], None]


class NodeInput(NamedTuple):
    """`parents`, or where they are read in pages because they are too many or too long."""

    parents: list[Parent] | None
    parents_url: str | None = None


def not_followed(_found: Mapping[UUID, Sequence[Parent]]) -> None:
    """No trace is kept."""


class NodeInputs:
    def __init__(self, database: Database, on_read: OnRead = not_followed) -> None:
        self.database = database
        self.on_read = on_read

    async def of(self, ids: Sequence[UUID]) -> dict[UUID, NodeInput]:
        """Of those of the tasks that are nodes with parents."""
        nodes = [task_id for task_id in ids if is_node(task_id)]
        if not nodes:
            return {}
        found = await read_parents(self.database, nodes, limit=PARENTS_GIVEN_MAX, is_paged=False)
        self.on_read(found)
        inputs = {node: bounded(node, parents) for node, parents in found.items()}
        silent = [node for node in nodes if node not in inputs]
        if silent:
            # Roots, and nodes with more parents than are handed over.
            counts = await count_parents(self.database, silent)
            inputs |= {
                node: NodeInput(None, parents_url(node)) for node in silent if counts.get(node)
            }
        return inputs


def bounded(node: UUID, parents: list[Parent]) -> NodeInput:
    size = sum(len(each.name) + len((each.result or "").encode()) + 64 for each in parents)
    return NodeInput(parents) if size <= INPUT_BYTES_MAX else NodeInput(None, parents_url(node))


def parents_url(node: UUID) -> str:
    return f"/v1/workflows/{workflow_of(node)}/nodes/{node_number(node)}/parents"
