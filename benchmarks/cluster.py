"""Two real `duly serve` on one database: how long slots are nobody's when one of them ends.

A round starts what is missing, waits until both have half of the slots, and ends one of them.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg

from benchmarks.heart import Progress
from duly.domain.ids import SLOTS

POLL_S = 0.005
WAIT_MAX_S = 60.0
# Seats whose lease has run out are nobody's, whatever the row says.
HOLDERS = """
SELECT nodes.name, count(*) AS slots
  FROM duly.ownership
  JOIN duly.nodes ON nodes.id = ownership.holder
 WHERE ownership.kind = 'slot' AND ownership.expires_at > duly.now()
 GROUP BY nodes.name
"""


class Installation:
    """The processes, and what the database says of their slots."""

    def __init__(self, owner_url: str, engine_url: str, owner: asyncpg.Connection) -> None:
        self.environ = {
            **os.environ,
            "DULY_DATABASE_URL": engine_url,
            "DULY_MIGRATION_DATABASE_URL": owner_url,
        }
        self.owner = owner
        self.processes: list[Process] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, owner_url: str, engine_url: str) -> AsyncIterator["Installation"]:
        owner = await asyncpg.connect(owner_url)
        opened = cls(owner_url, engine_url, owner)
        try:
            yield opened
        finally:
            for process in opened.processes:
                process.terminate()
            for process in opened.processes:
                await process.wait()
            await owner.close()

    async def start(self) -> None:
        """Until it says that it is ready."""
        command = (sys.executable, "-m", "duly", "serve", "--json", "--port", "0")
        process = await asyncio.create_subprocess_exec(
            *command, env=self.environ, stdout=PIPE, stderr=DEVNULL
        )
        self.processes.append(process)
        assert process.stdout is not None
        async with asyncio.timeout(WAIT_MAX_S):
            assert await process.stdout.readline(), "duly serve did not start"

    async def share(self) -> None:
        """Two processes, each with half of the slots."""
        while len(self.processes) < 2:
            await self.start()
        await self.until({process.pid: SLOTS // 2 for process in self.processes})

    async def end_one(self, number: signal.Signals) -> float:
        """Seconds from the signal until the other has every slot."""
        ending, staying = self.processes
        began = time.perf_counter()
        ending.send_signal(number)
        await self.until({staying.pid: SLOTS})
        passed_s = time.perf_counter() - began
        await ending.wait()
        self.processes.remove(ending)
        return passed_s

    async def until(self, wanted: dict[int, int]) -> None:
        async with asyncio.timeout(WAIT_MAX_S):
            while await self.slots_by_pid() != wanted:
                await asyncio.sleep(POLL_S)

    async def slots_by_pid(self) -> dict[int, int]:
        rows = await self.owner.fetch(HOLDERS)
        return {int(row["name"].rpartition(":")[2]): row["slots"] for row in rows}


async def run_rounds(
    owner_url: str, engine_url: str, progress: Progress, rounds: int, number: signal.Signals
) -> dict[str, Any]:
    waits = []
    async with Installation.open(owner_url, engine_url) as installation:
        for done in range(rounds):
            await installation.share()
            waits.append(await installation.end_one(number))
            progress(done + 1, rounds)
    waits.sort()
    return {
        "rounds": rounds,
        "p50_ms": waits[len(waits) // 2] * 1000,
        "fastest_ms": waits[0] * 1000,
        "slowest_ms": waits[-1] * 1000,
    }


async def run_hand_over(
    owner_url: str, engine_url: str, progress: Progress, rounds: int
) -> dict[str, Any]:
    """SIGTERM: it says good-bye."""
    return await run_rounds(owner_url, engine_url, progress, rounds, signal.SIGTERM)


async def run_take_over(
    owner_url: str, engine_url: str, progress: Progress, rounds: int
) -> dict[str, Any]:
    """SIGKILL: only its lease tells."""
    return await run_rounds(owner_url, engine_url, progress, rounds, signal.SIGKILL)


Scenario = Callable[[str, str, Progress, int], Awaitable[dict[str, Any]]]

# name -> (scenario, rounds, rounds with --quick)
SCENARIOS: dict[str, tuple[Scenario, int, int]] = {
    "hand-over": (run_hand_over, 10, 3),
    "take-over": (run_take_over, 5, 1),
}
