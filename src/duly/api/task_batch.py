"""Batch submit endpoint: all or nothing, one commit, one optional idempotency key."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from duly.api.admission import Admission, WorkSlicer
from duly.api.asgi import Endpoint, Kind
from duly.api.json_body import ERRORS_MAX
from duly.api.list_body import decode_lines, decode_list
from duly.api.problems import ApiProblem, invalid
from duly.api.request import Answer, Call
from duly.api.submit_options import option_problems
from duly.api.tasks import (
    REPLAY,
    SUBMIT_REFUSALS,
    TAG,
    TaskRoutes,
    gone,
    header_key,
    mismatch,
    target_problems,
    time_problems,
    with_trace,
)
from duly.api.wire import TaskDefaults, TaskRequest, TaskView, fresh_view, task_view
from duly.domain.access import PRODUCERS
from duly.domain.limits import Problem, submission_problems
from duly.domain.task import Submission
from duly.store.call_idempotency import CallKey, find_call
from duly.store.submit import Gone, Mismatch, Stored, SubmitAnswer

BATCH_TASKS_MAX = 1000
BATCH_BYTES_MAX = 16 * 1024 * 1024
NDJSON = "application/x-ndjson"


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tasks: Annotated[list[TaskRequest], Meta(min_length=1, max_length=BATCH_TASKS_MAX)]


class BatchAnswer(msgspec.Struct, frozen=True):
    items: list[TaskView]


@dataclass(frozen=True)
class TaskBatchRoutes:
    tasks: TaskRoutes
    admission: Admission

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "POST",
                "/v1/tasks/batch",
                "Submit up to 1,000 tasks, all or nothing",
                self.submit_batch,
                Kind.HOT,
                access=PRODUCERS,
                tag=TAG,
                body=Batch,
                checks_types=True,
                answers={201: BatchAnswer},
                refusals=SUBMIT_REFUSALS,
                body_bytes_max=BATCH_BYTES_MAX,
                media_types=("application/json", NDJSON),
                decode=decode_batch,
                is_batch=True,
            ),
        ]

    async def replayed_batch(self, call: Call) -> Answer | None:
        key = call_key(call)
        known = None if key is None else await find_call(self.tasks.database, call.tenant, key.key)
        if key is None or known is None or known.request_hash != key.digest:
            return None
        ids = [UUID(text) for text in known.answer.split()]
        found = await asyncio.gather(
            *(self.tasks.reading.read(call.tenant, task_id) for task_id in ids)
        )
        views = [task_view(task) for task in found if task is not None]
        return Answer(201, BatchAnswer(views), REPLAY) if len(views) == len(ids) else None

    async def submit_batch(self, call: Call, batch: Batch) -> Answer:
        try:
            tasks = await self.checked_batch(call, batch)
            headers = await self.tasks.throttle.admit(call.tenant, len(tasks))
        except ApiProblem:
            replayed = await self.replayed_batch(call)
            if replayed is None:
                raise
            return replayed
        tasks = await self.tasks.options.throttled(batch.tasks, tasks)
        chosen, ordinals = unique_keys(
            [with_trace(task, call, self.tasks.tracing) for task in tasks]
        )
        answers = await self.tasks.group_commit.submit_all(chosen, call_key(call))
        given = [answers[at] for at in ordinals]
        if clashes := keys_of(given, Mismatch, "is known with another request"):
            raise mismatch(clashes)
        if spent := keys_of(given, Gone, "is known, and its task is gone already"):
            raise gone(spent)
        views = await self.views_of(call.tenant, chosen, answers)
        return Answer(201, BatchAnswer([views[at] for at in ordinals]), headers)

    async def checked_batch(self, call: Call, batch: Batch) -> list[Submission]:
        answers = await self.tasks.rules.check_all(call.credential, call.tenant, batch.tasks)
        async with self.admission.pace() as pace:
            return await self.check_items(call, batch, answers, pace)

    async def check_items(
        self, call: Call, batch: Batch, answers: list[TaskDefaults | Problem], pace: WorkSlicer
    ) -> list[Submission]:
        now, problems, tasks = self.tasks.environment.clock.now(), [], []
        for ordinal, (request, defaults) in enumerate(zip(batch.tasks, answers, strict=True)):
            await pace.step(len(request.payload))
            if isinstance(defaults, Problem):
                problems += moved([defaults], ordinal)
                continue
            task = request.submission(call.tenant, defaults=defaults)
            found = submission_problems(task, now, self.tasks.rules.outbound)
            found += time_problems(request) + target_problems(request)
            found += option_problems(request, is_batch=True)
            found += await self.tasks.rules.callback_problems(
                call.credential, call.tenant, request.callback
            )
            if found:
                problems += moved(found, ordinal)
            if len(problems) >= ERRORS_MAX:
                break
            tasks.append(task)
        if problems:
            raise invalid(problems[:ERRORS_MAX])
        return tasks

    async def views_of(
        self, tenant: int, tasks: list[Submission], answers: list[SubmitAnswer]
    ) -> list[TaskView]:
        stored = [answer for answer in answers if isinstance(answer, Stored)]
        if len(stored) == len(answers):
            async with self.admission.pace() as pace:
                views = []
                for task, answer in zip(tasks, stored, strict=True):
                    await pace.step()
                    views.append(fresh_view(task, answer))
                return views
        pairs = zip(tasks, answers, strict=True)
        return await asyncio.gather(*(self.tasks.view_of(tenant, *pair) for pair in pairs))


async def decode_batch(call: Call, raw: bytes, pace: WorkSlicer) -> Batch:
    """One document, or one task on each line."""
    if not (call.header(b"content-type") or "").lower().startswith(NDJSON):
        return await decode_list(raw, Batch, pace)
    return Batch(await decode_lines(raw, TaskRequest, BATCH_TASKS_MAX, "/tasks", pace))


def moved(problems: Sequence[Problem], ordinal: int) -> list[Problem]:
    """The same problems, pointing into one item of a batch."""
    return [Problem(f"/tasks/{ordinal}{p.pointer}", p.reason) for p in problems]


def unique_keys(tasks: list[Submission]) -> tuple[list[Submission], list[int]]:
    """The same key twice in one batch is one task; for each task, which of the chosen it is."""
    chosen: list[Submission] = []
    ordinals: list[int] = []
    places: dict[str, int] = {}
    for ordinal, task in enumerate(tasks):
        key = task.idempotency_key
        at = places.get(key) if key is not None else None
        if at is not None and chosen[at].asked != task.asked:
            pointer = f"/tasks/{ordinal}/idempotency_key"
            raise mismatch([Problem(pointer, "is used in this batch for another request")])
        if at is None:
            at = len(chosen)
            chosen.append(task)
            if key is not None:
                places[key] = at
        ordinals.append(at)
    return chosen, ordinals


def keys_of(answers: list[SubmitAnswer], kind: type[SubmitAnswer], reason: str) -> list[Problem]:
    """The keys for which nothing was stored because of this."""
    return [
        Problem(f"/tasks/{ordinal}/idempotency_key", reason)
        for ordinal, answer in enumerate(answers)
        if isinstance(answer, kind)
    ]


def call_key(call: Call) -> CallKey | None:
    """A batch under one key: the very same body again finds the same tasks."""
    key = header_key(call, None)
    if key is None:
        return None
    # With its path: the keys of all calls are kept in one table.
    return CallKey(key, hashlib.sha256(call.path.encode() + b"\n" + call.raw_body).digest())
