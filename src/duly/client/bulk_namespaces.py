"""What a client can do to many tasks at once, and the statistics of all: `client.bulk`,
`client.erasures`, `client.stats`. Each call is defined once, for both clients.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Generic, Literal, TypedDict, TypeVar, Unpack

import msgspec

from duly.client.errors import WaitTimedOut
from duly.client.operations import Blocking, Operations, given, listing, operation, text
from duly.client.paths import path
from duly.client.views import (
    BulkOperation,
    BulkPreview,
    Erasure,
    ErasureBatch,
    StatsNow,
    StatsOverTime,
    TenantStats,
)

Action = Literal[
    "cancel",
    "reschedule",
    "run_now",
    "replay",
    "purge",
    "cancel_workflows",
    "pause_workflows",
    "unpause_workflows",
    "resume_workflows",
]
# `list` is a method's name below.
Page = list
LOOK_S = 0.5
RUNNING = "RUNNING"


class TaskMatch(TypedDict, total=False):
    """Which tasks: all that is given must be so. `tag` is `name:value`."""

    state: str
    type: str
    tag: str
    created_after: datetime
    run_before: datetime


class BulkMatch(TaskMatch, total=False):
    """Of dead letters: `type`, `tag`, and these. `replayed`: of a purge only. Of workflows:
    `state`, `name`, `tag`, `created_after`."""

    reason: str
    fingerprint: str
    replayed: bool
    name: str


class AsyncBulk(Operations):
    """Cancel, reschedule or run all unfinished tasks that match, replay or purge all dead letters
    that do, cancel, pause, unpause or resume workflows: carried out by the server, at a rate."""

    @operation
    async def preview(
        self, action: Action, *, delay_s: float | None = None, **match: Unpack[BulkMatch]
    ) -> BulkPreview:
        """How many match, and the first of them. Changes nothing."""
        body = {"action": action, "filter": match, "dry_run": True, **given(delay_s=delay_s)}
        return await self.ask(BulkPreview, "POST", "/v1/bulk", body)

    @operation
    async def start(
        self,
        action: Action,
        *,
        rate_per_s: float | None = None,
        canary: int | None = None,
        delay_s: float | None = None,
        everything: bool = False,
        **match: Unpack[BulkMatch],
    ) -> BulkOperation:
        """`delay_s`: of a reschedule, from then on. `canary`: pause after so many. Without a filter
        it takes `everything=True`."""
        if everything == bool(match):
            raise TypeError("give a filter, or everything=True")
        pace = given(rate_per_s=rate_per_s, canary=canary, delay_s=delay_s)
        body = {"action": action, "filter": match, **pace}
        return await self.ask(BulkOperation, "POST", "/v1/bulk", body)

    @listing
    async def list(self) -> AsyncIterator[Page[BulkOperation]]:
        """Newest first; ended ones are kept for 30 days."""
        async for page in self.pages(BulkOperation, "/v1/bulk", {}):
            yield page

    @operation
    async def get(self, operation_id: str) -> BulkOperation:
        """With its progress."""
        return await self.ask(BulkOperation, "GET", path("bulk", operation_id))

    @operation
    async def wait(self, operation_id: str, timeout_s: float | None = None) -> BulkOperation:
        """The operation once it does not go on by itself; WaitTimedOut if it does by then."""
        loop = asyncio.get_running_loop()
        ends_at = None if timeout_s is None else loop.time() + timeout_s
        at = path("bulk", operation_id)
        while True:
            found = await self.ask(BulkOperation, "GET", at)
            if found.state != RUNNING:
                return found
            if ends_at is not None and loop.time() >= ends_at:
                facts = {"id": operation_id, "timeout_s": timeout_s, "state": found.state}
                raise WaitTimedOut(kind="bulk operation", **facts)
            await asyncio.sleep(LOOK_S)

    @operation
    async def stop(self, operation_id: str) -> BulkOperation:
        """What it changed stays changed."""
        return await self.ask(BulkOperation, "POST", path("bulk", operation_id, "stop"))

    @operation
    async def resume(self, operation_id: str) -> BulkOperation:
        """Go on with one that paused after its canary."""
        return await self.ask(BulkOperation, "POST", path("bulk", operation_id, "continue"))


class AsyncErasures(Operations):
    """Personal data of ended tasks, erased for good; for admins."""

    @operation
    async def erase(
        self,
        *,
        task: str | None = None,
        tenant: str | None = None,
        dry_run: bool = False,
        **match: Unpack[TaskMatch],
    ) -> Erasure:
        """One `task`, the tasks that match, or the whole `tenant`, which is the key's own: payload,
        result, error, tags and keys. Batch after batch, until all that match are erased."""
        subject = {**given(task=task, tenant=tenant), **({"filter": match} if match else {})}
        matched = erased = unfinished = 0
        cursor: str | None = None
        while True:
            body = {**subject, "dry_run": dry_run, **given(cursor=cursor)}
            batch = await self.ask(ErasureBatch, "POST", "/v1/erasures", body)
            matched += batch.matched
            erased += batch.erased
            unfinished += batch.unfinished
            cursor = batch.next_cursor
            if cursor is None:
                return Erasure(dry_run, matched, erased, unfinished)


class AsyncStats(Operations):
    """Counts, lag and run times."""

    @operation
    async def now(self) -> StatsNow:
        """Backlog by band, what runs, and pools with due tasks."""
        return await self.ask(StatsNow, "GET", "/v1/stats/now")

    @operation
    async def over_time(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        step_s: int | None = None,
        type: str | None = None,  # noqa: A002 (what the API calls it)
    ) -> StatsOverTime:
        """The last hour in minutes, unless it says otherwise."""
        query = {"from": text(since), "to": text(until), "step_s": step_s, "type": type}
        return await self.ask(StatsOverTime, "GET", "/v1/stats", query=query)

    @operation
    async def tenants(self) -> Page[TenantStats]:
        """Those that waited longest in the last five minutes first; for operators of the
        installation."""
        answer = await self.ask(Rows[TenantStats], "GET", "/v1/stats/tenants")
        return answer.items


class Bulk(Blocking, AsyncBulk):
    awaited = AsyncBulk


class Erasures(Blocking, AsyncErasures):
    awaited = AsyncErasures


class Stats(Blocking, AsyncStats):
    awaited = AsyncStats


T = TypeVar("T")


class Rows(msgspec.Struct, Generic[T]):
    items: list[T]
