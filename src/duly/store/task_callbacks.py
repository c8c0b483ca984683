"""The tasks that tell of the ends of single tasks.

A task with a callback has a row in `workflow_timers` from its insert on. The statement that ends
the task makes that row due; here it is exchanged for the task that tells, in one commit.

| event | what happens |
|---|---|
| killed after the end, before it is told | the row is due: the next look of any process finds it |
| two processes tell of one end | the first deletes the row; the second stores nothing |
| killed after the telling task is stored | it is a task like any other |
| the task was erased, or its month dropped | the row goes, and nothing is told |
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from duly.domain.task import Policy, Submission
from duly.environment import CrashPoint
from duly.store.database import Database
from duly.store.policies import decode_policy
from duly.store.statements import statements_beside
from duly.store.submit import Submitter

SQL = statements_beside(__file__)


class DueCallback(NamedTuple):
    """A task whose end is to be told; the fence tells a repeated look from a new one."""

    shard: int
    task: UUID
    fence: int


class TaskEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of the webhook, or the payload of the task."""

    task: str
    type: str
    state: str
    reason: str | None = None
    result: msgspec.Raw | None = None
    error: str | None = None


async def store_callbacks(
    database: Database, submitter: Submitter, due: Sequence[DueCallback]
) -> Callable[[], Awaitable[None]]:
    """One commit for all of them; answers what follows it."""
    async with database.transaction() as session:
        shards, tasks, fences = (list(column) for column in zip(*due, strict=True))
        rows = await session.fetch(SQL.take_ends, shards, tasks, fences)
        told = [task for row in rows if (task := submission_of(row)) is not None]
        entries = await submitter.assign_ids(told, session)
        answers = await submitter.store(session, entries) if entries else {}
        await submitter.environment.crash_point(CrashPoint.CALLBACK_BEFORE_COMMIT)
    await submitter.environment.crash_point(CrashPoint.CALLBACK_AFTER_COMMIT)

    async def after() -> None:
        await submitter.publish_stored(entries, dict(answers))

    return after


def submission_of(row: Any) -> Submission | None:
    """What tells of this end; nothing if its callback was erased."""
    callback = decode_policy(row["policy"]).callback
    if callback is None:
        return None
    result = None if row["result"] is None else msgspec.Raw(row["result"].encode())
    end = TaskEnd(str(row["id"]), row["type"], row["state"], row["reason"], result, row["error"])
    return Submission(
        tenant=row["tenant"],
        type=callback.type,
        payload=msgspec.json.encode(end).decode(),
        url=callback.url,
        pool=callback.pool,
        policy=Policy(headers=callback.headers),
        execution_key=f"{row['id']}:end",
        traceparent=row["traceparent"],
    )
