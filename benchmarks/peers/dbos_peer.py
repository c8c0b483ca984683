"""DBOS on PostgreSQL: workflows and their steps run in the process that starts them; each step is
recorded when it has ended. No queue is on the way from step to step."""

import asyncio
from typing import Any

from dbos import DBOS

from benchmarks.peers.contract import read_order, run_flows

ORDER = read_order()
DBOS(
    config={
        "name": "peers",
        "system_database_url": ORDER.url,
        "run_admin_server": False,
        "log_level": "ERROR",
    }
)


async def node() -> None:
    """Nothing: what is left is the way from node to node."""


async def chain(width: int) -> None:
    for _ in range(width):
        await STEP()


async def fan(width: int) -> None:
    await STEP()
    await asyncio.gather(*(STEP() for _ in range(width)))
    await STEP()


STEP: Any = DBOS.step()(node)
FLOWS: dict[str, Any] = {"chain": DBOS.workflow()(chain), "fan": DBOS.workflow()(fan)}


class DbosPeer:
    async def connect(self, _callers: int) -> None:
        """Its tables are made before the clock runs."""
        DBOS.launch()

    async def run_flow(self, shape: str, width: int) -> None:
        handle = await DBOS.start_workflow_async(FLOWS[shape], width)
        await handle.get_result()

    async def close(self) -> None:
        DBOS.destroy()


if __name__ == "__main__":
    run_flows(DbosPeer, ORDER)
