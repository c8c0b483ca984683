"""Costly payload checks, off the event loop: in a few processes with limits of time and memory.

A tenant has one process at a time and waits in its own queue, so that tenants take turns. A tenant
whose payload exceeded a limit has its costly checks refused for a while; everything else of it, and
all of the others', goes on.
"""

import asyncio
import contextlib
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from duly.api.problems import Code, later
from duly.domain.limits import Problem
from duly.environment import Clock
from duly.validation.process import CheckProcess, CheckResult, ProcessEnd

PROCESSES_MAX = 2
TENANT_WAITING_MAX = 64
PAUSE_S = 10.0
PAUSED_TENANTS_MAX = 10_000


@dataclass
class TenantChecks:
    """The calls of one tenant that need a process."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    calls: int = 0


class SchemaChecks:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.processes = [CheckProcess() for _ in range(PROCESSES_MAX)]
        self.free = list(self.processes)
        self.places = asyncio.Semaphore(PROCESSES_MAX)
        self.threads = ThreadPoolExecutor(PROCESSES_MAX, "schema-check")
        self.lines: dict[int, TenantChecks] = {}
        self.paused: OrderedDict[int, float] = OrderedDict()
        self.is_closed = False

    async def problems(
        self, tenant: int, schema: str, payloads: Sequence[bytes]
    ) -> list[Problem | None]:
        """The problems of each payload; ApiProblem if it cannot be checked now."""
        return (await self.check(tenant, schema, payloads)).problems(len(payloads))

    async def unsound_reason(self, tenant: int, schema: str) -> str | None:
        """Why this is no schema, or none that can be run."""
        checked = await self.check(tenant, schema, [])
        if checked.end is not None:
            return f"{checked.end.value} to compile"
        return f"is no sound JSON Schema: {checked.unsound}" if checked.unsound else None

    async def check(self, tenant: int, schema: str, payloads: Sequence[bytes]) -> CheckResult:
        with self.in_line(tenant) as turn:
            # Tenants take turns: no more than one call of each waits for a process.
            async with turn:
                self.refuse_paused(tenant)
                async with self.places:
                    self.refuse_closed()
                    checked = await self.run(schema, payloads)
                    # A check that the stop ended says nothing about its payload.
                    self.refuse_closed()
        if checked.end is not None:
            self.pause(tenant)
        if checked.end is ProcessEnd.SILENCE:
            raise later(Code.OVERLOADED, "a payload could not be checked in time; try again")
        return checked

    @contextlib.contextmanager
    def in_line(self, tenant: int) -> Iterator[asyncio.Lock]:
        line = self.lines.setdefault(tenant, TenantChecks())
        if line.calls == TENANT_WAITING_MAX:
            raise later(Code.OVERLOADED, "too many payloads of this tenant wait for their check")
        line.calls += 1
        try:
            yield line.turn
        finally:
            line.calls -= 1
            if not line.calls:
                del self.lines[tenant]

    async def run(self, schema: str, payloads: Sequence[bytes]) -> CheckResult:
        process = self.free.pop()
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(self.threads, process.check, schema, payloads)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            # A thread cannot be cancelled; without its process it ends at once.
            process.kill()
            await asyncio.wait([job])
            raise
        finally:
            self.free.append(process)

    def refuse_closed(self) -> None:
        if self.is_closed:
            raise later(Code.UNAVAILABLE, "this server is stopping; try again")

    def refuse_paused(self, tenant: int) -> None:
        remaining_s = self.paused.get(tenant, 0.0) - self.clock.monotonic()
        if remaining_s > 0:
            detail = "a check of this tenant's payloads exceeded its limit; costly ones must wait"
            raise later(Code.RATE_LIMITED, detail, math.ceil(remaining_s))

    def pause(self, tenant: int) -> None:
        self.paused[tenant] = self.clock.monotonic() + PAUSE_S
        self.paused.move_to_end(tenant)
        if len(self.paused) > PAUSED_TENANTS_MAX:
            self.paused.popitem(last=False)

    async def close(self) -> None:
        """Running checks end at once; calls that wait for a process are refused."""
        self.is_closed = True
        for process in self.processes:
            process.kill()
        await asyncio.to_thread(self.threads.shutdown, cancel_futures=True)
        for process in self.processes:
            process.close()
