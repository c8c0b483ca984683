"""Tasks over HTTP: submit, batch, read, list, wait, cancel, reschedule, run now."""

import asyncio
import contextlib
import hashlib
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from duly.api.body import decode
from duly.api.call import Answer, Call
from duly.api.door import Endpoint, Kind
from duly.api.problems import Code, Refused, invalid, later, not_found
from duly.api.task_rules import TaskRules
from duly.api.throttle import Throttle
from duly.api.waiting import Waiting
from duly.api.wire import (
    AttemptView,
    Instant,
    Limit,
    Page,
    TaskRequest,
    TaskView,
    TypeName,
    attempt_view,
    fresh_view,
    page,
    task_view,
)
from duly.domain.access import PRODUCERS
from duly.domain.limits import Problem, key_reason, submission_problems
from duly.domain.states import TERMINAL, State
from duly.domain.task import Submission
from duly.environment import Environment
from duly.store.database import Database
from duly.store.desk import ReadDesk, SubmitDesk
from duly.store.read import Filter, list_tasks, read_attempts
from duly.store.read import Task as StoredTask
from duly.store.submit import CallKey, Mismatch, Stored, SubmitAnswer

BATCH_TASKS_MAX = 1000
BATCH_BYTES_MAX = 16 * 1024 * 1024
WAIT_S_MAX = 60.0
NDJSON = "application/x-ndjson"
REPLAY = {"idempotent-replay": "true"}
TAG = "Tasks"
SUBMIT_REFUSALS = (
    Code.MALFORMED_BODY,
    Code.INVALID,
    Code.BODY_TOO_LARGE,
    Code.UNSUPPORTED_MEDIA_TYPE,
    Code.IDEMPOTENCY_MISMATCH,
    Code.TOO_MANY,
    Code.RATE_LIMITED,
    Code.QUOTA_EXCEEDED,
)


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tasks: Annotated[list[TaskRequest], Meta(min_length=1, max_length=BATCH_TASKS_MAX)]


class BatchAnswer(msgspec.Struct, frozen=True):
    items: list[TaskView]


class ListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    state: State | None = None
    type: TypeName | None = None
    tag: (
        Annotated[str, Meta(pattern="^[^:]+:", max_length=400, description="name:value")] | None
    ) = None
    created_after: Instant | None = None
    run_before: Instant | None = None
    limit: Limit = 50
    cursor: Annotated[str, Meta(max_length=200)] | None = None


class WaitQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    timeout_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX)] = 20.0


class AttemptsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


@dataclass(frozen=True)
class TaskDoor:
    database: Database
    environment: Environment
    desk: SubmitDesk
    reading: ReadDesk
    rules: TaskRules
    throttle: Throttle
    waiting: Waiting

    def endpoints(self) -> list[Endpoint]:
        return [*self.submitting(), *self.looking()]

    def submitting(self) -> list[Endpoint]:
        route = partial(Endpoint, access=PRODUCERS, tag=TAG)
        return [
            route(
                "POST",
                "/v1/tasks",
                "Submit a task",
                self.submit,
                Kind.HOT,
                body=TaskRequest,
                answers={201: TaskView, 200: TaskView},
                refusals=SUBMIT_REFUSALS,
            ),
            route(
                "POST",
                "/v1/tasks/batch",
                "Submit up to 1,000 tasks, all or nothing",
                self.submit_batch,
                Kind.HOT,
                body=Batch,
                answers={201: BatchAnswer},
                refusals=SUBMIT_REFUSALS,
                body_bytes_max=BATCH_BYTES_MAX,
                media_types=("application/json", NDJSON),
                decode=decode_batch,
            ),
        ]

    def looking(self) -> list[Endpoint]:
        route = partial(Endpoint, access=PRODUCERS, tag=TAG)
        return [
            route(
                "GET",
                "/v1/tasks/{id}",
                "Read a task",
                self.get,
                Kind.HOT,
                answers={200: TaskView},
                refusals=(Code.NOT_FOUND,),
            ),
            route(
                "GET",
                "/v1/tasks",
                "List tasks, newest first",
                self.list_page,
                Kind.READ,
                query=ListQuery,
                answers={200: Page[TaskView]},
            ),
            route(
                "GET",
                "/v1/tasks/{id}/attempts",
                "List the attempts of a task, oldest first",
                self.attempts,
                Kind.READ,
                query=AttemptsQuery,
                answers={200: Page[AttemptView]},
                refusals=(Code.NOT_FOUND,),
            ),
            route(
                "GET",
                "/v1/tasks/{id}/wait",
                "Wait for a task to end, for a while",
                self.wait,
                Kind.HOT,
                query=WaitQuery,
                answers={200: TaskView},
                refusals=(Code.NOT_FOUND,),
                timeout_s=WAIT_S_MAX + 30.0,
            ),
        ]

    async def submit(self, call: Call, request: TaskRequest) -> Answer:
        key = header_key(call, request.idempotency_key)
        defaults = await self.rules.check(call.credential, call.tenant, request)
        task = request.submission(call.tenant, key, defaults)
        problems = submission_problems(task, self.environment.clock.now(), self.rules.outbound)
        problems += target_problems(request)
        if problems:
            raise invalid(problems)
        headers = await self.throttle.admit(call.tenant, 1)
        answer = await self.desk.submit(task)
        if isinstance(answer, Mismatch):
            raise mismatch([])
        view = await self.view_of(call.tenant, task, answer)
        if isinstance(answer, Stored):
            return Answer(201, view, headers)
        return Answer(200, view, headers | REPLAY)

    async def submit_batch(self, call: Call, batch: Batch) -> Answer:
        tasks = await self.checked_batch(call, batch)
        headers = await self.throttle.admit(call.tenant, len(tasks))
        chosen, ordinals = unique_keys(tasks)
        answers = await self.desk.submit_all(chosen, call_key(call))
        clashes = [
            Problem(f"/tasks/{ordinal}/idempotency_key", "is known with another request")
            for ordinal, at in enumerate(ordinals)
            if isinstance(answers[at], Mismatch)
        ]
        if clashes:
            raise mismatch(clashes)
        views = await self.views_of(call.tenant, chosen, answers)
        return Answer(201, BatchAnswer([views[at] for at in ordinals]), headers)

    async def checked_batch(self, call: Call, batch: Batch) -> list[Submission]:
        now, problems, tasks = self.environment.clock.now(), [], []
        for ordinal, request in enumerate(batch.tasks):
            try:
                defaults = await self.rules.check(call.credential, call.tenant, request)
            except Refused as refused:
                if not refused.errors:
                    raise
                problems += moved(refused.errors, ordinal)
                continue
            task = request.submission(call.tenant, defaults=defaults)
            found = submission_problems(task, now, self.rules.outbound) + target_problems(request)
            problems += moved(found, ordinal)
            tasks.append(task)
        if problems:
            raise invalid(problems)
        return tasks

    async def views_of(
        self, tenant: int, tasks: list[Submission], answers: list[SubmitAnswer]
    ) -> list[TaskView]:
        pairs = zip(tasks, answers, strict=True)
        if all(isinstance(answer, Stored) for answer in answers):
            return [await self.view_of(tenant, *pair) for pair in pairs]
        return await asyncio.gather(*(self.view_of(tenant, *pair) for pair in pairs))

    async def view_of(self, tenant: int, task: Submission, answer: SubmitAnswer) -> TaskView:
        if isinstance(answer, Stored):
            return fresh_view(task, *answer)
        known = await self.reading.read(tenant, answer.id)
        if known is None:
            raise Refused(Code.CONFLICT, "the key is known, and its task is gone already")
        return replace_key(task_view(known), task.idempotency_key)

    async def get(self, call: Call) -> Answer:
        return Answer(200, task_view(await self.found(call)))

    async def found(self, call: Call) -> StoredTask:
        task = await self.reading.read(call.tenant, task_id_of(call))
        if task is None:
            raise not_found()
        return task

    async def list_page(self, call: Call, query: ListQuery) -> Answer:
        wanted = Filter(
            query.state, query.type, tag_of(query.tag), query.created_after, query.run_before
        )
        with refused_cursor():
            found = await list_tasks(call.session, call.tenant, wanted, query.cursor, query.limit)
        views = [task_view(task, is_whole=False) for task in found.items]
        return Answer(200, page(views, found.next_cursor))

    async def attempts(self, call: Call, query: AttemptsQuery) -> Answer:
        await self.found(call)
        after = -1 if query.cursor is None else query.cursor
        found = await read_attempts(call.session, call.tenant, task_id_of(call), after, query.limit)
        following = str(found[-1].fence) if len(found) == query.limit else None
        return Answer(200, page([attempt_view(attempt) for attempt in found], following))

    async def wait(self, call: Call, query: WaitQuery) -> Answer:
        """The task as it stands when it has ended, the time is up, or the caller hangs up."""
        task = await self.found(call)
        if self.waiting.is_full:
            raise later(Code.OVERLOADED, "too many callers wait; ask again")
        if task.state not in TERMINAL:
            with self.waiting.waiter(task.id) as ended:
                await first_of(ended.wait(), call.gone(), query.timeout_s)
            task = await self.found(call)
        return Answer(200, task_view(task))


def decode_batch(call: Call, raw: bytes) -> Batch:
    """One document, or one task on each line."""
    if not (call.header(b"content-type") or "").lower().startswith(NDJSON):
        return decode(raw, Batch)
    lines = [line for line in raw.split(b"\n") if line.strip()]
    if not 1 <= len(lines) <= BATCH_TASKS_MAX:
        raise invalid([Problem("/tasks", f"has not from 1 to {BATCH_TASKS_MAX} lines")])
    tasks = []
    for ordinal, line in enumerate(lines):
        try:
            tasks.append(decode(line, TaskRequest))
        except Refused as refused:
            errors = refused.errors or [Problem("", refused.detail)]
            raise Refused(refused.code, refused.detail, moved(errors, ordinal)) from None
    return Batch(tasks)


def moved(problems: Sequence[Problem], ordinal: int) -> list[Problem]:
    """The same problems, pointing into one item of a batch."""
    return [Problem(f"/tasks/{ordinal}{p.pointer}", p.reason) for p in problems]


def header_key(call: Call, in_body: str | None) -> str | None:
    """The header's key; given twice it must be the same."""
    key = call.header(b"idempotency-key")
    if key is None:
        return None
    if reason := key_reason(key):
        raise Refused(Code.INVALID, f"the Idempotency-Key {reason}")
    if in_body is not None and in_body != key:
        raise invalid([Problem("/idempotency_key", "differs from the Idempotency-Key header")])
    return key


def call_key(call: Call) -> CallKey | None:
    """A batch under one key: the very same body again finds the same tasks."""
    key = header_key(call, None)
    return None if key is None else CallKey(key, hashlib.sha256(call.raw_body).digest())


def target_problems(request: TaskRequest) -> list[Problem]:
    target = request.target
    if target is None:
        return []
    if target.url is not None and target.pool is not None:
        return [Problem("/target", "is a url or a pool, not both")]
    if target.url is None and target.headers:
        return [Problem("/target/headers", "belong to a url")]
    return []


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


def mismatch(errors: list[Problem]) -> Refused:
    detail = "the idempotency key is known with another request"
    return Refused(Code.IDEMPOTENCY_MISMATCH, detail, errors)


def replace_key(view: TaskView, key: str | None) -> TaskView:
    return msgspec.structs.replace(view, idempotency_key=key)


def task_id_of(call: Call) -> UUID:
    """A text that is no id names nothing, exactly as an id that never was."""
    try:
        return UUID(call.params["id"])
    except ValueError:
        raise not_found() from None


def tag_of(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    name, _, value = text.partition(":")
    return name, value


@contextlib.contextmanager
def refused_cursor() -> Iterator[None]:
    """A cursor is opaque; one that was not ours cannot be read."""
    try:
        yield
    except ValueError:
        raise Refused(
            Code.INVALID_QUERY,
            "the cursor is not one of this list",
            [Problem("/cursor", "is wrong")],
        ) from None


async def first_of(
    ended: Coroutine[Any, Any, object], gone: Coroutine[Any, Any, object], timeout_s: float
) -> None:
    """Returns when one of the two has happened or the time is up; leaves nothing running."""
    tasks = [asyncio.ensure_future(ended), asyncio.ensure_future(gone)]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
