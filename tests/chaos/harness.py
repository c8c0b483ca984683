"""The load, the faults and the verdict of one chaos run. Every process it starts, it ends."""

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from uuid import UUID

import asyncpg

from duly.domain.check import Violation, check, find_overdue
from duly.domain.errors import DulyError
from duly.domain.history import (
    AttemptRow,
    DeadLetterRow,
    Effect,
    Entry,
    Fault,
    Logs,
    Operation,
    Phase,
    Tables,
    TaskRow,
    TimerRow,
)
from duly.domain.retry import RetryPolicy
from duly.domain.task import Policy, Submission
from duly.environment import Environment
from duly.store.database import Database
from duly.store.embedded import EmbeddedPostgres
from duly.store.submit import Mismatch, Submitter
from tests.simulation.tables import ATTEMPTS, LETTERS, LIVE, TASKS, TIMERS

TENANT = 1
NODES = 2
URL = "http://receiver.example/"
BATCH = 50
SUBMIT_PAUSE_S = 0.2
FAULT_PAUSE_S = (1.0, 4.0)
# Beyond every lease there is: the executor's 15 s and the slots' 10 s.
FREEZE_S = 18.0
HEAL_S = 180.0
GRACE = timedelta(seconds=30)
POLICY = Policy(retry=RetryPolicy(max_attempts=8, backoff="fixed", initial_s=0.2), timeout_s=10.0)


class Victim:
    """One node process and the log of what its handler did."""

    def __init__(self, url: str, folder: Path, number: int) -> None:
        self.url = url
        self.effects = folder / f"effects-{number}.jsonl"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.chaos.node"),
            *("--url", self.url, "--effects", str(self.effects)),
        )

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    async def end(self, number: signal.Signals) -> None:
        self.send(number)
        if self.process is not None:
            await self.process.wait()


class Chaos:
    def __init__(self, embedded: EmbeddedPostgres, url: str, folder: Path, seed: int) -> None:
        self.embedded = embedded
        self.url = url
        self.random = Random(seed)
        self.victims = [Victim(url, folder, number) for number in range(NODES)]
        self.entries: list[Entry] = []
        self.faults: list[Fault] = []
        self.calls = 0
        self.is_over = False
        self.recovered_s: list[float] = []

    async def run(self, seconds: float) -> list[Violation]:
        for victim in self.victims:
            await victim.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.submit())
                group.create_task(self.break_things(time.monotonic() + seconds))
            return await self.heal_and_judge()
        finally:
            for victim in self.victims:
                victim.send(signal.SIGCONT)
                await victim.end(signal.SIGTERM)

    async def submit(self) -> None:
        """Batches all along; an unknown outcome is written down as unknown, and not repeated."""
        database = await Database.open(self.url, 2)
        submitter = Submitter(database, Environment())
        while not self.is_over:
            tasks = [
                Submission(
                    tenant=TENANT,
                    type=f"chaos.{self.calls + number}",
                    url=URL,
                    delay_s=self.random.choice((0.0, 0.0, 0.5, 3.0)),
                    policy=POLICY,
                )
                for number in range(BATCH)
            ]
            await self.submit_batch(submitter, tasks)
            await asyncio.sleep(SUBMIT_PAUSE_S)
        await database.close()

    async def submit_batch(self, submitter: Submitter, tasks: list[Submission]) -> None:
        asked = [self.log(Phase.INVOKE, task.type) for task in tasks]
        try:
            answers = await submitter.submit(tasks)
        except DulyError:
            for entry in asked:
                self.answer(entry, Phase.UNKNOWN, None)
            return
        for entry, answer in zip(asked, answers, strict=True):
            assert not isinstance(answer, Mismatch)
            self.answer(entry, Phase.OK, answer.id)

    def log(self, phase: Phase, request: str) -> Entry:
        self.calls += 1
        entry = Entry(
            call=self.calls,
            operation=Operation.SUBMIT,
            phase=phase,
            at=datetime.now(UTC),
            tenant=TENANT,
            request=request,
        )
        self.entries.append(entry)
        return entry

    def answer(self, asked: Entry, phase: Phase, task: UUID | None) -> None:
        self.entries.append(
            Entry(
                call=asked.call,
                operation=asked.operation,
                phase=phase,
                at=datetime.now(UTC),
                tenant=TENANT,
                task=task,
                request=asked.request,
                answer="stored" if task is not None else None,
            )
        )

    async def break_things(self, ends: float) -> None:
        """One fault after another, until the time is over; then everything is made whole."""
        faults = (self.kill_node, self.kill_node, self.freeze_node, self.cut_off, self.kill_server)
        while time.monotonic() < ends:
            await asyncio.sleep(self.random.uniform(*FAULT_PAUSE_S))
            fault = self.random.choice(faults)
            self.faults.append(Fault(fault.__name__, datetime.now(UTC)))
            await fault()
        self.is_over = True

    async def kill_node(self) -> None:
        victim = self.random.choice(self.victims)
        await victim.end(signal.SIGKILL)
        await asyncio.sleep(self.random.uniform(0.0, 2.0))
        await victim.start()

    async def freeze_node(self) -> None:
        victim = self.random.choice(self.victims)
        victim.send(signal.SIGSTOP)
        await asyncio.sleep(FREEZE_S)
        victim.send(signal.SIGCONT)

    async def cut_off(self) -> None:
        """Every backend is told to go, in the middle of whatever it does."""
        connection = await asyncpg.connect(self.embedded.attach().url())
        try:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
        finally:
            await connection.close()

    async def kill_server(self) -> None:
        """kill -9 of PostgreSQL, and a start that has to recover."""
        server = await asyncio.to_thread(self.embedded.attach)
        os.kill(server.pid, signal.SIGKILL)
        began = time.monotonic()
        while self.embedded.is_alive():  # noqa: ASYNC110 (a dying process sends no signal)
            await asyncio.sleep(0.01)
        await asyncio.to_thread(self.embedded.attach)
        self.recovered_s.append(time.monotonic() - began)

    async def heal_and_judge(self) -> list[Violation]:
        """No more faults: everything that was acknowledged must come to its end."""
        connection = await asyncpg.connect(self.embedded.attach().url())
        try:
            deadline = time.monotonic() + HEAL_S
            while await connection.fetchval(LIVE, [TENANT]) and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
            tables = await read_tables(connection)
        finally:
            await connection.close()
        logs = Logs(tuple(self.entries), tuple(self.read_effects()), tuple(self.faults))
        return check(logs, tables) + find_overdue(tables, datetime.now(UTC), GRACE)

    def read_effects(self) -> list[Effect]:
        effects = []
        for victim in self.victims:
            if victim.effects.exists():
                for line in victim.effects.read_text().splitlines():
                    task, fence, holder, started_at = json.loads(line)
                    instant = datetime.fromisoformat(started_at)
                    effects.append(Effect(UUID(task), fence, UUID(holder), instant))
        return effects

    def summary(self) -> dict[str, object]:
        answered = Counter(entry.phase for entry in self.entries)
        return {
            "acknowledged": answered[Phase.OK],
            "unknown": answered[Phase.UNKNOWN],
            "effects": len(self.read_effects()),
            "faults": dict(Counter(fault.kind for fault in self.faults)),
            "server_restart_s": [round(seconds, 2) for seconds in self.recovered_s],
        }


async def read_tables(connection: asyncpg.Connection) -> Tables:
    async def rows(statement: str) -> list[asyncpg.Record]:
        found: list[asyncpg.Record] = await connection.fetch(statement, [TENANT])
        return found

    return Tables(
        tasks=tuple(
            TaskRow(
                id=row["id"],
                tenant=row["tenant"],
                run_at=row["run_at"],
                max_attempts=POLICY.retry.max_attempts,
                request=row["type"],
            )
            for row in await rows(TASKS)
        ),
        timers=tuple(TimerRow(*row) for row in await rows(TIMERS)),
        attempts=tuple(AttemptRow(*row) for row in await rows(ATTEMPTS)),
        dead_letters=tuple(DeadLetterRow(*row) for row in await rows(LETTERS)),
    )
