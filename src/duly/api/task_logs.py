"""Logs of attempts over HTTP: workers send chunks, people read and follow them."""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.problems import invalid, invalid_query, not_found
from duly.api.request import Answer, Call
from duly.api.tasks import TAG, task_id_of
from duly.api.wire import Instant
from duly.api.worker_protocol import WORKER_TAG, Fence, WorkerId
from duly.domain.access import PRODUCERS, WORKERS
from duly.domain.limits import Problem
from duly.domain.states import TERMINAL
from duly.environment import Environment
from duly.execution.worker_leases import holder_of
from duly.store.database import Database
from duly.store.read import ReadBatcher, Task
from duly.store.task_logs import (
    CHUNK_BYTES_MAX,
    CHUNKS_MAX,
    LogChunk,
    LogQuota,
    StoredChunk,
    append_logs,
    read_logs,
)

CHUNKS_PER_CALL = 50
LINES_PER_CHUNK = 500
LINE_CHARACTERS_MAX = 8192
CALL_BYTES_MAX = 2 * 1024 * 1024
PAGE_MAX = 64
FOLLOW_S_MAX = 30.0
# Lines of a task come from any process; a follower asks for them again this often.
FOLLOW_EVERY_S = 0.5
# A worker sends the last lines of an attempt up to a second after it has settled it.
LAST_WORDS = timedelta(seconds=2)
Level = Literal["debug", "info", "warning", "error", "stdout", "stderr"]


class LogLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    at: Instant
    level: Level = "info"
    text: Annotated[str, Meta(max_length=LINE_CHARACTERS_MAX)]


class ChunkItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`seq` counts the chunks of an attempt from 0: the same number again is the same chunk."""

    id: UUID
    fence: Fence
    seq: Annotated[int, Meta(ge=0, lt=CHUNKS_MAX)]
    lines: Annotated[list[LogLine], Meta(min_length=1, max_length=LINES_PER_CHUNK)]


class LogsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    worker_id: WorkerId
    chunks: Annotated[list[ChunkItem], Meta(min_length=1, max_length=CHUNKS_PER_CALL)]


class LogsStored(msgspec.Struct, frozen=True, omit_defaults=True):
    """`is_over_quota`: the tenant has logged as much today as it may; nothing was stored."""

    stored: int
    is_over_quota: bool = False


class LogsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`follow`: wait so many seconds for the first line, if the task has not ended or has only just
    ended: its last lines may be on their way."""

    after: Annotated[str, Meta(pattern=r"^[0-9]{1,10}\.[0-9]{1,4}$")] | None = None
    follow: Annotated[float, Meta(ge=0, le=FOLLOW_S_MAX)] = 0.0


class LogLineView(msgspec.Struct, frozen=True):
    fence: int
    at: datetime
    level: str
    text: str


class LogPage(msgspec.Struct, frozen=True):
    """`after` is where the next page begins. `is_over`: the task has ended, and this is all of it
    but what a worker may still send."""

    items: list[LogLineView]
    after: str | None
    is_over: bool


@dataclass(frozen=True)
class TaskLogRoutes:
    database: Database
    reading: ReadBatcher
    environment: Environment
    quota: LogQuota

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "POST",
                "/v1/worker/logs",
                "Store lines that handlers logged",
                self.append,
                Kind.HOT,
                access=WORKERS,
                tag=WORKER_TAG,
                body=LogsRequest,
                answers={200: LogsStored},
                body_bytes_max=CALL_BYTES_MAX,
                is_for_suspended=True,
            ),
            Endpoint(
                "GET",
                "/v1/tasks/{id}/logs",
                "Read what the handlers of a task logged, also while it runs",
                self.read,
                Kind.HOT,
                access=PRODUCERS,
                tag=TAG,
                query=LogsQuery,
                answers={200: LogPage},
                timeout_s=FOLLOW_S_MAX + 30.0,
            ),
        ]

    async def append(self, call: Call, asked: LogsRequest) -> Answer:
        unique = {(item.id, item.fence, item.seq): item for item in asked.chunks}
        chunks = [
            LogChunk(item.id, item.fence, item.seq, msgspec.json.encode(item.lines).decode())
            for item in unique.values()
        ]
        problems = [
            Problem(f"/chunks/{ordinal}/lines", f"are longer than {CHUNK_BYTES_MAX} bytes")
            for ordinal, chunk in enumerate(chunks)
            if len(chunk.lines.encode()) > CHUNK_BYTES_MAX
        ]
        if problems:
            raise invalid(problems)
        size = sum(len(chunk.lines) for chunk in chunks)
        if not await self.quota.has_room(call.tenant, size):
            return Answer(200, LogsStored(0, is_over_quota=True))
        holder = holder_of(call.tenant, asked.worker_id)
        stored = await append_logs(self.database, call.tenant, holder, chunks)
        return Answer(200, LogsStored(stored))

    async def read(self, call: Call, query: LogsQuery) -> Answer:
        task_id = task_id_of(call)
        after = position(query.after)
        clock = asyncio.get_running_loop()
        ends_at = clock.time() + query.follow
        while True:
            task = await self.reading.read(call.tenant, task_id)
            if task is None:
                raise not_found("task", task_id)
            chunks = await read_logs(self.database, call.tenant, task_id, after, PAGE_MAX)
            is_over = len(chunks) < PAGE_MAX and self.has_ended(task, query)
            if chunks or is_over or clock.time() >= ends_at:
                return Answer(200, page_of(chunks, query.after, is_over=is_over))
            await asyncio.sleep(FOLLOW_EVERY_S)

    def has_ended(self, task: Task, query: LogsQuery) -> bool:
        if task.state not in TERMINAL:
            return False
        if not query.follow or task.finished_at is None:
            return True
        return self.environment.clock.now() - task.finished_at >= LAST_WORDS


def position(after: str | None) -> tuple[int, int]:
    fence, _, seq = (after or "0.0").partition(".")
    numbers = int(fence), int(seq)
    if numbers[0] > 2**31 - 1:
        raise invalid_query(Problem("/after", "is not an `after` of an answer"))
    return numbers if after is not None else (-1, -1)


def page_of(chunks: list[StoredChunk], after: str | None, *, is_over: bool) -> LogPage:
    items = [
        LogLineView(chunk.fence, line.at, line.level, line.text)
        for chunk in chunks
        for line in msgspec.json.decode(chunk.lines, type=list[LogLine])
    ]
    last = f"{chunks[-1].fence}.{chunks[-1].seq}" if chunks else after
    return LogPage(items, last, is_over)
