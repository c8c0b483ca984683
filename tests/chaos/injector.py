"""Breaks what the plan says, when it says, and writes down what it really did: the fault log."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import asyncpg

from duly.store.bootstrap import EMBEDDED_LOGIN
from duly.verify.history import Fault
from tests.chaos.cluster import Cluster
from tests.chaos.link import LinkFault
from tests.chaos.plan import Kind, Planned

POLL_S = 0.05
TAKEN_OVER_MAX_S = 60.0
SLOTS_OF_OTHERS = """
SELECT count(*) FILTER (WHERE holder IS NOT NULL AND expires_at > now()
                          AND holder NOT IN (SELECT id FROM duly.nodes WHERE name LIKE $1))
       = count(*) FROM duly.ownership WHERE kind = 'slot'
"""
END_BACKENDS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE usename = $1 AND pid <> ALL($2::integer[]) AND backend_type = 'client backend'
"""
# What another fault takes away from one of ours meanwhile is not ours to complain about.
WORLD_FAULTS = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)


@dataclass(frozen=True, slots=True)
class Measured:
    """A fault that was alone: when it happened or was over, and what it hit."""

    kind: Kind
    at: datetime
    target: str
    pid: int | None = None


class Injector:
    def __init__(self, cluster: Cluster, log: Path) -> None:
        self.cluster = cluster
        self.log: IO[str] = log.open("a", buffering=1)
        self.faults: list[Fault] = []
        self.measured: list[Measured] = []
        self.taken_over_s: list[float] = []
        # PostgreSQL is restarted by one at a time.
        self.restarting = asyncio.Lock()

    async def follow(self, plan: Sequence[Planned]) -> None:
        """All of it; what began earlier may still last when the next one begins."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for planned in plan:
                await asyncio.sleep(max(0.0, began + planned.at_s - time.monotonic()))
                group.create_task(self.inject(planned))
        self.log.close()

    async def inject(self, planned: Planned) -> None:
        match planned.kind:
            case LinkFault():
                self.note(planned)
                await self.cluster.links[planned.target].suffer(planned.kind, planned.for_s)
            case Kind.KILL:
                await self.kill(planned)
            case Kind.PAUSE:
                await self.pause(planned)
            case Kind.CRASH_SERVER | Kind.RESTART_SERVER:
                self.note(planned)
                await self.restart(planned)
            case Kind.END_BACKENDS:
                self.note(planned)
                await self.end_backends([])
            case Kind.EXHAUST:
                self.note(planned)
                await self.exhaust(planned.for_s)
            case Kind.PIN_XMIN:
                self.note(planned)
                await self.pin(planned.for_s)

    def note(self, planned: Planned, pid: int | None = None) -> datetime:
        now = datetime.now(UTC)
        self.faults.append(Fault(str(planned.kind), now, planned.target))
        line = {
            "at": now.isoformat(),
            "kind": planned.kind,
            "target": planned.target,
            "for_s": round(planned.for_s, 2),
            "pid": pid,
        }
        self.log.write(json.dumps(line) + "\n")
        return now

    async def kill(self, planned: Planned) -> None:
        pid = self.cluster.members[planned.target].kill()
        if pid is None:
            # It is being started again just now: nothing was broken.
            return
        at = self.note(planned, pid)
        if planned.is_alone:
            self.measured.append(Measured(Kind.KILL, at, planned.target, pid))
            if planned.target.startswith("scheduler"):
                await self.measure_take_over(pid)

    async def measure_take_over(self, pid: int) -> None:
        """Until every slot is owned by somebody who lives."""
        began = time.monotonic()
        with contextlib.suppress(*WORLD_FAULTS):
            async with self.connection() as connection:
                while time.monotonic() < began + TAKEN_OVER_MAX_S:
                    if await connection.fetchval(SLOTS_OF_OTHERS, f"%:{pid}"):
                        self.taken_over_s.append(time.monotonic() - began)
                        return
                    await asyncio.sleep(POLL_S)
                self.taken_over_s.append(TAKEN_OVER_MAX_S)

    async def pause(self, planned: Planned) -> None:
        """The same process goes on, if nothing else ended it."""
        member = self.cluster.members[planned.target]
        pid = member.send(signal.SIGSTOP)
        if pid is None:
            return
        self.note(planned, pid)
        await asyncio.sleep(planned.for_s)
        if member.pid == pid:
            member.send(signal.SIGCONT)

    async def restart(self, planned: Planned) -> None:
        postgres = self.cluster.postgres
        async with self.restarting:
            if planned.kind is Kind.CRASH_SERVER:
                server = await asyncio.to_thread(postgres.attach)
                os.kill(server.pid, signal.SIGKILL)
                while postgres.is_alive():  # noqa: ASYNC110 (a dying process sends no signal)
                    await asyncio.sleep(POLL_S)
            else:
                await asyncio.to_thread(postgres.stop)
            await asyncio.sleep(planned.for_s)
            self.cluster.server = await asyncio.to_thread(postgres.attach)
        self.measured.append(Measured(Kind.RESTART_SERVER, datetime.now(UTC), "postgres"))

    async def end_backends(self, but: Sequence[int]) -> None:
        with contextlib.suppress(*WORLD_FAULTS):
            async with self.connection() as connection:
                await connection.fetchval(END_BACKENDS, EMBEDDED_LOGIN, list(but))

    async def exhaust(self, for_s: float) -> None:
        """Every connection that the engine's login can have, taken from it and kept."""
        assert self.cluster.server is not None
        url = self.cluster.server.url(login=EMBEDDED_LOGIN)
        ends, held = time.monotonic() + for_s, list[asyncpg.Connection]()
        try:
            await self.end_backends([])
            while time.monotonic() < ends:
                try:
                    held.append(await asyncpg.connect(url, timeout=2.0))
                except WORLD_FAULTS:
                    await asyncio.sleep(POLL_S)
        finally:
            for connection in held:
                connection.terminate()

    async def pin(self, for_s: float) -> None:
        """A transaction that sees everything as it was, so that nothing can be cleaned up."""
        with contextlib.suppress(*WORLD_FAULTS):
            async with (
                self.connection() as connection,
                connection.transaction(isolation="repeatable_read"),
            ):
                await connection.fetchval("SELECT pg_current_xact_id()::text")
                await asyncio.sleep(for_s)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection]:
        connection = await self.cluster.connect()
        try:
            yield connection
        finally:
            connection.terminate()
