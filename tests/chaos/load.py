"""The clients of the cluster: what they ask all along, and the client log of every call.

A call is logged when it is sent and when it is answered. No answer, or a 5xx, is UNKNOWN; only a
4xx says for sure that nothing was stored.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import IO, Any
from uuid import UUID

import aiohttp
import msgspec

from duly.verify.history import CallPhase, LogEntry, Operation
from tests.chaos.cluster import POOL, Cluster, Tenant
from tests.chaos.worker import POISON_POOL

CALL_S = 5.0
TICK_S = 0.25
BACK_OFF_S = 1.0
CALLS_MAX = 64
TRIES_MAX = 8
REMEMBERED = 500
POISON_EVERY_S = 40.0
# Losses are many here; no task may be given up for those alone.
RETRY = {"max_attempts": 30, "backoff": "fixed", "initial_s": 0.2, "jitter": False}
FAULTS = (aiohttp.ClientError, TimeoutError, OSError)


@dataclass(frozen=True)
class Wish:
    """One task as somebody wants it; `request` is how it is known again."""

    tenant: Tenant
    request: str
    body: dict[str, Any]
    key: str | None = None


class Load:
    def __init__(self, cluster: Cluster, rate: float, seed: int, log: Path) -> None:
        self.cluster = cluster
        self.rate = rate
        self.random = Random(seed)
        self.file: IO[str] = log.open("a", buffering=1)
        self.entries: list[LogEntry] = []
        # The requests of each batch, which are stored all or none.
        self.batches: list[list[str]] = []
        self.calls = 0
        self.wishes = 0
        self.known: deque[tuple[Tenant, UUID]] = deque(maxlen=REMEMBERED)
        self.keyed: deque[tuple[Wish, UUID]] = deque(maxlen=REMEMBERED)
        self.is_over = asyncio.Event()
        self.back_off_until = 0.0
        self.under_way = 0

    async def run(self) -> None:
        """Until it is over; what is under way then is still answered, or times out."""
        timeout = aiohttp.ClientTimeout(total=CALL_S)
        connector = aiohttp.TCPConnector(limit=CALLS_MAX)
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=connector) as self.session,
            asyncio.TaskGroup() as group,
        ):
            poison_at = time.monotonic() + 2.0
            while not self.is_over.is_set():
                if time.monotonic() >= self.back_off_until and self.under_way < CALLS_MAX:
                    for work in self.tick():
                        group.create_task(self.counted(work))
                if time.monotonic() >= poison_at:
                    poison_at += POISON_EVERY_S
                    group.create_task(self.counted(self.submit(self.make_poison())))
                await self.pause()
        self.file.close()

    async def counted(self, work: Coroutine[Any, Any, None]) -> None:
        self.under_way += 1
        try:
            await work
        finally:
            self.under_way -= 1

    async def pause(self) -> None:
        try:
            async with asyncio.timeout(TICK_S):
                await self.is_over.wait()
        except TimeoutError:
            return

    def tick(self) -> list[Coroutine[Any, Any, None]]:
        """Most as one batch, the rest one by one; and something done to earlier ones."""
        count = max(4, round(self.rate * TICK_S))
        tenant = self.random.choices(self.cluster.tenants, (9, 1))[0]
        singles = [self.make_wish(has_key=self.random.random() < 0.5) for _ in range(count // 4)]
        batch = [self.make_wish(tenant) for _ in range(count - len(singles))]
        work = [self.submit_batch(batch), *(self.submit(wish) for wish in singles)]
        if self.known and self.random.random() < 0.5:
            work.append(self.cancel(*self.random.choice(self.known)))
            work.append(self.read(*self.random.choice(self.known)))
        if self.keyed and self.random.random() < 0.5:
            work.append(self.submit(*self.random.choice(self.keyed)))
        return work

    # What is asked ------------------------------------------------------------------------------

    def make_wish(self, tenant: Tenant | None = None, *, has_key: bool = False) -> Wish:
        self.wishes += 1
        request = f"r{self.wishes}"
        chosen = tenant or self.random.choices(self.cluster.tenants, (9, 1))[0]
        payload: dict[str, Any] = {"request": request}
        body: dict[str, Any] = {"type": "chaos.work", "payload": payload, "retry": RETRY}
        chance = self.random.random()
        if chance < 0.3:
            body["target"] = {"url": self.cluster.hook_url}
        else:
            body["target"] = {"pool": POOL}
        payload["seconds"] = round(self.random.uniform(0.0, 0.03), 3)
        if 0.9 < chance < 0.93:
            payload["seconds"] = round(self.random.uniform(1.0, 6.0), 3)
        if self.random.random() < 0.1:
            payload["failures"] = self.random.randint(1, 3)
        if self.random.random() < 0.25:
            body["delay_s"] = round(self.random.uniform(0.2, 5.0), 2)
        if 0.93 < chance < 0.95:
            body |= {"concurrency_key": self.random.choice("abc"), "concurrency_limit": 2}
        body["priority"] = self.random.choice((1, 5, 5, 5, 9))
        return Wish(chosen, request, body, f"key-{request}" if has_key else None)

    def make_poison(self) -> Wish:
        wish = self.make_wish(self.cluster.tenants[0], has_key=True)
        body = {"type": "chaos.poison", "payload": {"request": wish.request}, "retry": RETRY}
        return replace(wish, body=body | {"target": {"pool": POISON_POOL}})

    # How it is asked ----------------------------------------------------------------------------

    async def submit(self, wish: Wish, known: UUID | None = None) -> None:
        """With a key it is asked again until it is known, as a careful client would."""
        for _ in range(TRIES_MAX if wish.key else 1):
            entry = self.asked(Operation.SUBMIT, wish.tenant, request=wish.request, key=wish.key)
            status, answer, _ = await self.call(wish.tenant, "/v1/tasks", wish.body, wish.key)
            if status in (200, 201):
                task = UUID(answer["id"])
                self.answered(entry, CallPhase.OK, task, "stored" if status == 201 else "replayed")
                self.remember(wish, task)
                return
            if status == 409 and known is not None:
                self.answered(entry, CallPhase.OK, known, "mismatch")
                return
            self.not_answered(entry, status)
            await asyncio.sleep(BACK_OFF_S)

    async def submit_batch(self, wishes: list[Wish]) -> None:
        """All or nothing; with a key of the call it is asked again, like a single one."""
        tenant = wishes[0].tenant
        self.batches.append([wish.request for wish in wishes])
        body = {"tasks": [wish.body for wish in wishes]}
        key = f"batch-{wishes[0].request}" if self.random.random() < 0.5 else None
        for _ in range(TRIES_MAX if key else 1):
            asked = [self.asked(Operation.SUBMIT, tenant, request=wish.request) for wish in wishes]
            status, answer, headers = await self.call(tenant, "/v1/tasks/batch", body, key)
            if status == 201:
                word = "replayed" if "idempotent-replay" in headers else "stored"
                for wish, entry, item in zip(wishes, asked, answer["items"], strict=True):
                    self.answered(entry, CallPhase.OK, UUID(item["id"]), word)
                    self.remember(wish, UUID(item["id"]))
                return
            for entry in asked:
                self.not_answered(entry, status)
            await asyncio.sleep(BACK_OFF_S)

    async def cancel(self, tenant: Tenant, task: UUID) -> None:
        entry = self.asked(Operation.CANCEL, tenant, task=task)
        status, _, _ = await self.call(tenant, f"/v1/tasks/{task}/cancel", {}, None)
        if status in (200, 202):
            word = "cancelled" if status == 200 else "cancel_requested"
            self.answered(entry, CallPhase.OK, task, word)
        else:
            self.not_answered(entry, status)

    async def read(self, tenant: Tenant, task: UUID) -> None:
        entry = self.asked(Operation.READ, tenant, task=task)
        status, answer, _ = await self.call(tenant, f"/v1/tasks/{task}", None, None)
        if status == 200:
            self.answered(entry, CallPhase.OK, task, state=answer["state"])
        else:
            self.not_answered(entry, status)

    async def call(
        self, tenant: Tenant, path: str, body: Any, key: str | None
    ) -> tuple[int, Any, set[str]]:
        """Status 0: nobody knows."""
        headers = {"Authorization": f"Bearer {tenant.key}"}
        if key is not None:
            headers["Idempotency-Key"] = key
        if body is not None:
            headers["Content-Type"] = "application/json"
        method = "GET" if body is None else "POST"
        content = msgspec.json.encode(body) if body else None
        try:
            async with self.session.request(
                method, self.cluster.client_url + path, data=content, headers=headers
            ) as response:
                answer = msgspec.json.decode(await response.read() or b"null")
                if response.status in (429, 503):
                    self.back_off_until = time.monotonic() + BACK_OFF_S
                return response.status, answer, {name.lower() for name in response.headers}
        except FAULTS:
            return 0, None, set()

    # The client log -----------------------------------------------------------------------------

    def asked(self, operation: Operation, tenant: Tenant, **facts: Any) -> LogEntry:
        self.calls += 1
        now = datetime.now(UTC)
        return self.write(
            LogEntry(
                call=self.calls,
                operation=operation,
                phase=CallPhase.INVOKE,
                at=now,
                tenant=tenant.id,
                **facts,
            )
        )

    def answered(
        self,
        asked: LogEntry,
        phase: CallPhase,
        task: UUID | None = None,
        answer: str | None = None,
        state: str | None = None,
    ) -> None:
        now = datetime.now(UTC)
        known = task or asked.task
        self.write(replace(asked, phase=phase, at=now, task=known, answer=answer, state=state))

    def not_answered(self, asked: LogEntry, status: int) -> None:
        self.answered(asked, CallPhase.FAIL if 400 <= status < 500 else CallPhase.UNKNOWN)

    def write(self, entry: LogEntry) -> LogEntry:
        self.entries.append(entry)
        line = {
            "call": entry.call,
            "operation": entry.operation,
            "phase": entry.phase,
            "at": entry.at.isoformat(),
            "tenant": entry.tenant,
            "task": str(entry.task) if entry.task else None,
            "request": entry.request,
            "key": entry.key,
            "answer": entry.answer or entry.state,
        }
        self.file.write(json.dumps(line) + "\n")
        return entry

    def remember(self, wish: Wish, task: UUID) -> None:
        self.known.append((wish.tenant, task))
        if wish.key is not None:
            self.keyed.append((wish, task))
