"""Two real `duly serve` on one database: how long slots are without an owner when one of them ends.

A round starts what is missing, waits until both have half of the slots, and ends one of them.
"""

import asyncio
import contextlib
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator

import asyncpg

from duly.bench.children import end, start_duly
from duly.bench.figures import Figures, percentiles
from duly.bench.stage import ScenarioContext
from duly.domain.ids import SLOTS
from duly.store.measure import connected, count_owned_slots

POLL_S = 0.005
WAIT_MAX_S = 60.0


class Installation:
    """The processes, and what the database says of their slots."""

    def __init__(self, stage: ScenarioContext, owner: asyncpg.Connection) -> None:
        self.stage = stage
        self.owner = owner
        self.processes: list[Process] = []

    async def share(self) -> None:
        """Two processes, each with half of the slots."""
        environ = {
            "DULY_DATABASE_URL": self.stage.target.engine_url,
            "DULY_MIGRATION_DATABASE_URL": self.stage.target.owner_url,
        }
        while len(self.processes) < 2:
            process, _ = await start_duly(self.stage, "serve", environ=environ)
            self.processes.append(process)
        await self.until({process.pid: SLOTS // 2 for process in self.processes})

    async def end_one(self, number: signal.Signals) -> float:
        """Seconds from the signal until the other has every slot."""
        ending, staying = self.processes
        began = self.stage.now_s
        ending.send_signal(number)
        await self.until({staying.pid: SLOTS})
        passed_s = self.stage.now_s - began
        await ending.wait()
        self.processes.remove(ending)
        return passed_s

    async def until(self, wanted: dict[int, int]) -> None:
        async with asyncio.timeout(WAIT_MAX_S):
            while await self.slots_by_pid() != wanted:
                await asyncio.sleep(POLL_S)

    async def slots_by_pid(self) -> dict[int, int]:
        slots = await count_owned_slots(self.owner)
        return {int(name.rpartition(":")[2]): count for name, count in slots.items()}


@contextlib.asynccontextmanager
async def installed(stage: ScenarioContext) -> AsyncIterator[Installation]:
    async with connected(stage.target.owner_url) as owner:
        installation = Installation(stage, owner)
        try:
            yield installation
        finally:
            for process in installation.processes:
                await end(process)


async def run_hand_over(stage: ScenarioContext) -> Figures:
    """SIGTERM: it says good-bye."""
    return await run_rounds(stage, signal.SIGTERM)


async def run_take_over(stage: ScenarioContext) -> Figures:
    """SIGKILL: only its lease tells."""
    return await run_rounds(stage, signal.SIGKILL)


async def run_rounds(stage: ScenarioContext, number: signal.Signals) -> Figures:
    waits = []
    async with installed(stage) as installation:
        for done in range(stage.tasks):
            await installation.share()
            waits.append(await installation.end_one(number))
            stage.show(done + 1, stage.tasks)
    return {"tasks": 0, "rounds": stage.tasks, **percentiles(waits), "min_ms": min(waits) * 1000}
