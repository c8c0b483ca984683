"""A workflow with a map for store tests: it is begun, its items are leased and end."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from duly.domain.map_plan import ITEMS_MAX
from duly.domain.node_spec import MapSpec, NodeSpec
from duly.domain.states import Outcome, State
from duly.domain.workflow import WaitRule, WorkflowStop
from duly.store.finish import Released, Settlement
from duly.store.lease import Lease
from duly.store.workflow_control import stop_workflow
from duly.store.workflow_handovers import HandedOver, ItemPage, hand_over_page
from duly.store.workflows import Started, WorkflowStart, WorkflowStarter
from tests.store.test_workflows import ONCE, Edges, Flow, graph_of, run_timers
from tests.store.world import HOLDER, TENANT, World

AROUND: Edges = {"list": (), "charge": ("list",), "report": ("charge",)}
ALONE: Edges = {"charge": (), "report": ("charge",)}


def over_list(path: str = "", **fields: Any) -> MapSpec:
    return MapSpec(parent="list", path=path, **({"max_items": ITEMS_MAX} | fields))


def over_count(count: int, **fields: Any) -> MapSpec:
    return MapSpec(count=count, **({"max_items": ITEMS_MAX} | fields))


def over_pages(**fields: Any) -> MapSpec:
    return MapSpec(parent="list", **({"max_items": ITEMS_MAX} | fields))


class Mapped(Flow):
    """A workflow with a map named charge."""

    async def step(self) -> int:
        """All that it has to do by now."""
        return await run_timers(self.world)

    async def states(self) -> dict[str, State]:
        """Of the graph."""
        return {name: state for name, state in (await super().states()).items() if name in self.ids}

    async def result(self, name: str = "charge") -> Any:
        text = (await self.world.read(self.ids[name])).result
        return None if text is None else json.loads(text)

    async def items(self) -> list[Any]:
        """As stored, in their order."""
        return await self.world.database.fetch(
            "SELECT node.id, node.name, node.map_index, node.map_number, tasks.payload,"
            "       tasks.execution_key, timers.id IS NOT NULL AS is_live"
            "  FROM duly.workflow_nodes AS node"
            "  JOIN duly.tasks ON tasks.shard = node.shard AND tasks.id = node.id"
            "  LEFT JOIN duly.timers ON timers.shard = node.shard AND timers.id = node.id"
            " WHERE duly.workflow_of(node.id) = $1 AND node.map_number IS NOT NULL"
            " ORDER BY node.map_number, node.map_index",
            self.id,
        )

    async def open_items(self) -> int:
        return sum(item["is_live"] for item in await self.items())

    async def settle(
        self, leases: Sequence[Lease], outcome: Outcome = Outcome.COMPLETED
    ) -> list[Any]:
        ends = [Settlement(each.id, each.fence, HOLDER, outcome) for each in leases]
        return await self.world.settler.settle(ends)

    async def run_all(self, outcome: Outcome = Outcome.COMPLETED) -> int:
        """Whatever is due or becomes due; how many batches that were."""
        rounds = 0
        while (leases := await self.world.lease_all()) or await self.step():
            await self.settle(leases, outcome)
            rounds += bool(leases)
        return rounds

    async def cancel(self) -> None:
        released = Released()
        async with self.world.database.tenant(TENANT) as session:
            reason = WorkflowStop.CANCELLED
            await stop_workflow(session, TENANT, self.id, reason, released)

    async def hand(
        self, lease: Lease, first: int, items: Sequence[Any], tenant: int = TENANT
    ) -> HandedOver:
        """A page from the node that runs with this lease."""
        contents = [json.dumps(item) for item in items]
        page = ItemPage(tenant, lease.id, lease.fence, "charge", first, contents)
        return await hand_over_page(self.world.database, page, Released())


async def begin(
    world: World,
    spec: MapSpec,
    after: Edges = ALONE,
    *,
    rules: dict[str, WaitRule] | None = None,
    payload: str = "null",
    predicate: str | None = None,
    **fields: Any,
) -> Mapped:
    nodes = [
        replace(
            node,
            spec=NodeSpec(map=spec, predicate=predicate),
            task=node.task._replace(payload=payload),
        )
        if node.name == "charge"
        else node
        for node in graph_of(after, rules, fields.pop("policy", ONCE))
    ]
    start = WorkflowStart(TENANT, "invoice.month", nodes, **fields)
    (answer,) = await WorkflowStarter(world.database, world.submitter).start([start])
    assert isinstance(answer, Started)
    return Mapped(world, answer.id, list(after))
