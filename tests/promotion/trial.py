"""One fail-over under load: what was acknowledged, what was run, and what readiness said meanwhile.

Two `duly serve` on a primary and its synchronous standby, two SDK workers and a receiver of
webhooks. The primary is taken away, the standby promoted, and everything acknowledged must run.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from duly import Context, Worker
from duly.environment import Environment
from duly.store.database import Database, connect
from duly.store.keys import make_first_key
from tests.processes import Child, child
from tests.promotion.replicas import ENGINE, SUPERUSER, Replicas, replicas
from tests.story.hooks import Hooks, hooks

MEMBERS = 2
# Tasks of one call, and the pause after it: somewhat more than a hundred tasks a second.
BATCH = 16
PAUSE_S = 0.1
CALL_S = 10.0
PROBE_EVERY_S = 0.1
LOAD_BEFORE_S = 1.0
LOAD_AFTER_S = 2.0
# How long a manager of the pair takes to believe that the primary is gone.
NOTICED_AFTER_S = 1.0
RUN_MAX_S = 60.0
POLL_S = 0.05
TYPE = "promotion.work"
RETRY = {"max_attempts": 20, "backoff": "fixed", "initial_s": 0.2, "jitter": False}
NOT_SETTLED = """
SELECT count(*) FROM unnest($1::uuid[]) AS acknowledged(id)
 WHERE NOT EXISTS (SELECT FROM duly.attempts
                    WHERE attempts.id = acknowledged.id AND attempts.outcome = 'completed')
"""
FAULTS = (aiohttp.ClientError, TimeoutError, OSError)


class Fault(StrEnum):
    """How the primary goes away."""

    KILLED = "killed"
    # Its processes are stopped: connections to it stay open, and nothing answers.
    FROZEN = "frozen"
    # No promotion: the primary itself comes back, with its unlogged tables emptied.
    RESTARTED = "restarted"


@dataclass
class Report:
    """Seconds count from the moment at which the new primary takes writes."""

    acknowledged: int
    not_run: int
    first_submit_s: float
    first_run_s: float
    # Of everything acknowledged, the last: seen by its receiver, and settled. A settlement whose
    # answer was lost is made again when the lease has run out.
    last_run_s: float
    last_settled_s: float
    ready_again_s: float
    # Answers of /readyz as they changed: seconds, member, status, what is not ok.
    readiness: list[tuple[float, int, int, str]]
    log_lines: int
    # The commonest lines of the members' logs, without their figures.
    complaints: list[tuple[str, int]]

    def told_the_truth(self) -> bool:
        """Every member said that it was not ready before the new primary took writes."""
        told = {member for at, member, status, _ in self.readiness if at < 0 and status != 200}
        return len(told) == MEMBERS


@dataclass
class Cluster:
    """The processes under test, and what clients and receivers saw of them."""

    pair: Replicas
    receiver: Hooks
    processes: list[Child]
    urls: list[str]
    key: str
    lease_s: float
    acknowledged: dict[str, float] = field(default_factory=dict)
    ran: dict[str, float] = field(default_factory=dict)
    probes: list[tuple[float, int, int, str]] = field(default_factory=list)
    not_settled: int = -1
    settled_at: float = 0.0
    is_loading: bool = True
    is_over: bool = False

    async def load(self, session: aiohttp.ClientSession, number: int) -> None:
        """Half for workers, half webhooks. A key for each, so that they are spread over the slots
        of both members. Only what is acknowledged is promised."""
        targets: list[dict[str, str]] = [{"pool": "default"}, {"url": self.receiver.url}]
        common = {"type": TYPE, "payload": {}, "retry": RETRY, "concurrency_limit": BATCH}
        tasks = [
            {**common, "target": targets[n % 2], "concurrency_key": f"key-{n}"}
            for n in range(BATCH)
        ]
        while self.is_loading:
            answer = await self.call(session, number, "/v1/tasks/batch", {"tasks": tasks})
            if answer is not None:
                now = time.monotonic()
                self.acknowledged.update((item["id"], now) for item in answer["items"])
            await asyncio.sleep(PAUSE_S)

    async def call(
        self, session: aiohttp.ClientSession, number: int, path: str, body: Any
    ) -> dict[str, Any] | None:
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        content = msgspec.json.encode(body)
        try:
            async with session.post(
                self.urls[number] + path, data=content, headers=headers
            ) as response:
                said: dict[str, Any] = msgspec.json.decode(await response.read())
                return said if response.status == 201 else None
        except FAULTS:
            return None

    async def probe(self, session: aiohttp.ClientSession, number: int) -> None:
        while not self.is_over:
            fact = await self.readiness(session, number)
            last = next((each[2:] for each in reversed(self.probes) if each[1] == number), None)
            if last != fact:
                self.probes.append((time.monotonic(), number, *fact))
            await asyncio.sleep(PROBE_EVERY_S)

    async def readiness(self, session: aiohttp.ClientSession, number: int) -> tuple[int, str]:
        """No answer is one too."""
        try:
            async with session.get(self.urls[number] + "/readyz") as response:
                checks = msgspec.json.decode(await response.read())["checks"]
        except FAULTS:
            return 0, "no answer"
        wrong = "; ".join(f"{name}: {said}" for name, said in checks.items() if said != "ok")
        return response.status, wrong

    @contextlib.asynccontextmanager
    async def workers(self) -> AsyncIterator[None]:
        """At one member: what the other owns reaches them through the table that both share."""
        workers = [self.make_worker(self.urls[0]) for _ in range(2)]
        serving = [asyncio.create_task(worker.serve()) for worker in workers]
        try:
            yield
        finally:
            for worker in workers:
                worker.stop()
            await asyncio.gather(*serving)

    def make_worker(self, url: str) -> Worker:
        worker = Worker(url, self.key, concurrency=20, lease_s=self.lease_s)

        @worker.task(TYPE)
        async def work(ctx: Context) -> None:
            self.ran[ctx.id] = time.monotonic()

        return worker

    def all_ran(self) -> bool:
        """As the receivers saw it. A webhook's receiver knows no clock of ours: it is read here."""
        now = time.monotonic()
        for headers in self.receiver.requests[:]:
            self.ran.setdefault(headers["duly-task-id"], now)
        return self.acknowledged.keys() <= self.ran.keys()

    async def wait_until_settled(self, give_up_at: float) -> None:
        connection = await connect(self.pair.url(SUPERUSER))
        try:
            while time.monotonic() < give_up_at and self.not_settled:
                self.not_settled = await connection.fetchval(NOT_SETTLED, list(self.acknowledged))
                await asyncio.sleep(POLL_S)
        finally:
            await connection.close()
        self.settled_at = time.monotonic()

    async def watch(self) -> None:
        while not self.is_over:
            self.all_ran()
            await asyncio.sleep(POLL_S)


async def run_trial(folder: Path, fault: Fault = Fault.KILLED, lease_s: float = 15.0) -> Report:
    with replicas(folder) as pair, hooks() as receiver:
        await pair.prepare()
        key = await make_key(pair.url(ENGINE))
        with members(pair) as processes:
            said = [await asyncio.to_thread(process.answer) for process in processes]
            urls = [each["url"] for each in said]
            cluster = Cluster(pair, receiver, processes, urls, key, lease_s)
            back_at = await break_under_load(cluster, fault)
            return report(cluster, back_at)


async def make_key(url: str) -> str:
    database = await Database.open(url, 1)
    try:
        key = await make_first_key(database, Environment())
    finally:
        await database.close()
    assert key is not None
    return key


@contextlib.contextmanager
def members(pair: Replicas) -> Iterator[list[Child]]:
    environ = {
        "DULY_DATABASE_URL": pair.url(ENGINE),
        "DULY_MIGRATION_DATABASE_URL": pair.url(SUPERUSER),
        "DULY_ALLOW_UNSAFE_DURABILITY": "true",
        "DULY_WEBHOOK_ALLOW_PRIVATE": "true",
    }
    arguments = ("-m", "duly", "serve", "--json", "--port", "0")
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(child(*arguments, environ=environ)) for _ in range(MEMBERS)]


async def break_under_load(cluster: Cluster, fault: Fault) -> float:
    """Answers when the database took writes again; everything has ended by then, or is given up."""
    timeout = aiohttp.ClientTimeout(total=CALL_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        cluster.workers(),
        asyncio.TaskGroup() as group,
    ):
        group.create_task(cluster.watch())
        for number in range(MEMBERS):
            group.create_task(cluster.probe(session, number))
            group.create_task(cluster.load(session, number))
        await until(lambda: len(cluster.ran) > BATCH, RUN_MAX_S)
        await asyncio.sleep(LOAD_BEFORE_S)
        back_at = await asyncio.to_thread(change_primary, cluster.pair, fault)
        await until(lambda: max(cluster.acknowledged.values()) > back_at, RUN_MAX_S)
        await asyncio.sleep(LOAD_AFTER_S)
        cluster.is_loading = False
        await until(cluster.all_ran, RUN_MAX_S)
        await cluster.wait_until_settled(back_at + RUN_MAX_S)
        await until(lambda: all(status == 200 for status in last_answers(cluster)), RUN_MAX_S)
        cluster.is_over = True
    return back_at


def change_primary(pair: Replicas, fault: Fault) -> float:
    if fault is Fault.RESTARTED:
        pair.primary.restart_at_once()
        return time.monotonic()
    if fault is Fault.KILLED:
        pair.primary.kill()
    else:
        pair.primary.freeze()
    time.sleep(NOTICED_AFTER_S)
    pair.standby.promote()
    return time.monotonic()


async def until(is_true: Any, limit_s: float) -> None:
    """A claim that does not come true in time is for the report."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while not is_true():  # noqa: ASYNC110 (it is looked at from outside, on purpose)
                await asyncio.sleep(POLL_S)


def last_answers(cluster: Cluster) -> Iterable[int]:
    return {number: status for _, number, status, _ in cluster.probes}.values()


def report(cluster: Cluster, back_at: float) -> Report:
    def after(instants: Iterable[float]) -> list[float]:
        return sorted(at - back_at for at in instants if at > back_at)

    def first(instants: list[float]) -> float:
        return round(instants[0], 2) if instants else -1.0

    ran = after(at for task, at in cluster.ran.items() if task in cluster.acknowledged)
    ready = {number: at for at, number, status, _ in cluster.probes if status == 200}
    return Report(
        acknowledged=len(cluster.acknowledged),
        not_run=cluster.not_settled,
        first_submit_s=first(after(cluster.acknowledged.values())),
        first_run_s=first(ran),
        last_run_s=round(ran[-1], 2) if ran else -1.0,
        last_settled_s=round(cluster.settled_at - back_at, 2),
        ready_again_s=round(max(ready.values()) - back_at, 2),
        readiness=[
            (round(at - back_at, 2), number, status, wrong)
            for at, number, status, wrong in cluster.probes
        ],
        log_lines=sum(len(process.errors) for process in cluster.processes),
        complaints=complaints(cluster.processes),
    )


def complaints(processes: list[Child]) -> list[tuple[str, int]]:
    said: Counter[str] = Counter()
    for line in (line for process in processes for line in process.errors):
        with contextlib.suppress(msgspec.DecodeError):
            facts = msgspec.json.decode(line)
            parts = [str(facts.get(name, "")) for name in ("event", "role", "error", "problem")]
            said[" ".join(part for part in parts if part)[:200]] += 1
    return said.most_common(8)
