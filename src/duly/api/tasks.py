"""Task endpoints: submit, read, list, wait, attempts. Control is in task_control.py."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.cursors import Cursor
from duly.api.problems import ApiProblem, Code, invalid, later, not_found
from duly.api.rate_limit import Throttle
from duly.api.request import Answer, Call
from duly.api.submit_options import TRIES_MAX, SubmitOptions, option_problems
from duly.api.task_rules import TaskRules
from duly.api.task_wait import TaskWaits
from duly.api.wire import (
    AttemptView,
    Debounce,
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
from duly.domain.ids import is_node
from duly.domain.limits import Problem, key_reason, submission_problems
from duly.domain.states import TERMINAL, State
from duly.domain.task import Submission, submitted_key
from duly.environment import Environment
from duly.store.database import Database
from duly.store.idempotency import find_replay
from duly.store.read import SEARCHED_MAX, Filter, ListOrder, ReadBatcher, list_tasks, read_attempts
from duly.store.read import Task as StoredTask
from duly.store.submit import GroupCommit, Mismatch, Replayed, Stored, SubmitAnswer
from duly.store.workflows import find_source
from duly.tracing import OFF, Tracing

WAIT_S_MAX = 60.0
REPLAY = {"idempotent-replay": "true"}
TAG = "Tasks"
# States in which a task has a next instant; none: those that wait for it.
WITH_INSTANT = (None, State.SCHEDULED, State.READY, State.RUNNING)
SUBMIT_REFUSALS = (
    Code.MALFORMED_BODY,
    Code.INVALID,
    Code.BODY_TOO_LARGE,
    Code.UNSUPPORTED_MEDIA_TYPE,
    Code.IDEMPOTENCY_MISMATCH,
    Code.CONFLICT,
    Code.TOO_MANY,
    Code.RATE_LIMITED,
    Code.QUOTA_EXCEEDED,
)


class ListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    state: State | None = None
    type: TypeName | None = None
    tag: (
        Annotated[str, Meta(pattern="^[^:]+:", max_length=400, description="name:value")] | None
    ) = None
    created_after: Instant | None = None
    run_before: Instant | None = None
    order: (
        Annotated[
            ListOrder,
            Meta(
                description="`created`: newest created first. `run_at`: tasks that wait or run, by "
                "their next instant, soonest first. Without it: by creation, but SCHEDULED, READY "
                "and RUNNING by their next instant, and FAILED by their failure, newest first."
            ),
        ]
        | None
    ) = None
    limit: Limit = 50
    cursor: Cursor | None = None


class TaskPage(Page[TaskView], frozen=True):
    """`searched`: the filter looked at so many tasks and stopped before the page was full; it goes
    on at `next_cursor`."""

    searched: int | msgspec.UnsetType = msgspec.UNSET


class WaitQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    timeout_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX)] = 20.0


class AttemptsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Cursor | None = None


@dataclass(frozen=True)
class TaskRoutes:
    database: Database
    environment: Environment
    group_commit: GroupCommit
    reading: ReadBatcher
    rules: TaskRules
    throttle: Throttle
    waiting: TaskWaits
    options: SubmitOptions
    tracing: Tracing = OFF

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
                checks_types=True,
                answers={201: TaskView, 200: TaskView},
                refusals=SUBMIT_REFUSALS,
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
                "List tasks, newest created first",
                self.list_page,
                Kind.READ,
                query=ListQuery,
                answers={200: TaskPage},
                refusals=(Code.INVALID_QUERY,),
            ),
            route(
                "GET",
                "/v1/tasks/{id}/attempts",
                "List the attempts of a task, oldest first, with the one that runs",
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
        key = header_key(call, request.idempotency_key) or request.idempotency_key
        try:
            task = await self.checked(call, request, key)
            headers = await self.throttle.admit(call.tenant, 1)
        except ApiProblem:
            # What was taken once is never refused: its time may have passed, its rules changed.
            replayed = await self.replayed(call.tenant, request, key)
            if replayed is None:
                raise
            return replayed
        (task,) = await self.options.throttled([request], [task])
        answer = await self.submit_once(with_trace(task, call, self.tracing), request.debounce)
        if isinstance(answer, Mismatch):
            raise mismatch([])
        view = await self.view_of(call.tenant, task, answer)
        if isinstance(answer, Stored):
            return Answer(201, view, headers)
        return Answer(200, view, headers | REPLAY)

    async def submit_once(self, task: Submission, debounce: Debounce | None) -> SubmitAnswer:
        """A debounced task that waits already is put off; of one that has started, no other is."""
        for _ in range(TRIES_MAX):
            answer = await self.group_commit.submit(task)
            if debounce is None or not isinstance(answer, Replayed):
                return answer
            known = await self.reading.read(task.tenant, answer.id)
            if known is None:
                await self.options.free(task, answer.id)
            elif await self.options.put_off(known, task, debounce):
                return answer
        raise later(Code.OVERLOADED, "other calls are submitting the same task; try again")

    async def checked(self, call: Call, request: TaskRequest, key: str | None) -> Submission:
        defaults = await self.rules.check(call.credential, call.tenant, request)
        task = request.submission(call.tenant, key, defaults)
        problems = submission_problems(task, self.environment.clock.now(), self.rules.outbound)
        problems += time_problems(request) + target_problems(request) + option_problems(request)
        problems += await self.rules.callback_problems(
            call.credential, call.tenant, request.callback
        )
        if problems:
            raise invalid(problems)
        return task

    async def replayed(self, tenant: int, request: TaskRequest, key: str | None) -> Answer | None:
        if key is None or request.made_key() is not None:
            return None
        task_id = await find_replay(self.database, tenant, key, request.digest())
        known = None if task_id is None else await self.reading.read(tenant, task_id)
        return None if known is None else Answer(200, replace_key(task_view(known), key), REPLAY)

    async def view_of(self, tenant: int, task: Submission, answer: SubmitAnswer) -> TaskView:
        if isinstance(answer, Stored):
            return fresh_view(task, answer)
        known = await self.reading.read(tenant, answer.id)
        if known is None:
            raise gone([])
        return replace_key(task_view(known), submitted_key(task))

    async def get(self, call: Call) -> Answer:
        return Answer(200, task_view(await self.found(call)))

    async def found(self, call: Call) -> StoredTask:
        """Of a node that is reused, the task that ran for it."""
        task_id = task_id_of(call)
        task = await self.reading.read(call.tenant, task_id)
        if task is None and is_node(task_id):
            source = await find_source(self.database, call.tenant, task_id)
            task = None if source is None else await self.reading.read(call.tenant, source)
        if task is None:
            raise not_found("task", task_id)
        return task

    async def list_page(self, call: Call, query: ListQuery) -> Answer:
        wanted = Filter(
            query.state, query.type, tag_of(query.tag), query.created_after, query.run_before
        )
        if query.order is ListOrder.RUN_AT and query.state not in WITH_INSTANT:
            reason = "goes with the state SCHEDULED, READY or RUNNING, or with none"
            raise ApiProblem(
                Code.INVALID_QUERY,
                "only unfinished tasks have an order by run_at",
                [Problem("/order", reason)],
            )
        found = await list_tasks(
            call.session,
            call.tenant,
            wanted,
            query.cursor,
            query.limit,
            query.order,
            searched_max=SEARCHED_MAX,
        )
        views = [task_view(task, is_whole=False) for task in found.items]
        is_cut = found.next_cursor is not None and len(views) < query.limit
        searched = found.searched if is_cut else msgspec.UNSET
        return Answer(200, TaskPage(views, found.next_cursor, searched))

    async def attempts(self, call: Call, query: AttemptsQuery) -> Answer:
        task = await self.found(call)
        after = -1 if query.cursor is None else int(query.cursor)
        found = await read_attempts(call.session, call.tenant, task.id, after, query.limit)
        following = str(found[-1].fence) if len(found) == query.limit else None
        return Answer(200, page([attempt_view(attempt) for attempt in found], following))

    async def wait(self, call: Call, query: WaitQuery) -> Answer:
        """The task as it stands when it has ended, the time is up, or the caller hangs up."""
        task = await self.found(call)
        if self.waiting.is_full:
            raise later(Code.OVERLOADED, "too many calls are waiting for tasks; try again")
        if task.state not in TERMINAL:
            with self.waiting.registered(task.id) as ended:
                await first_of(ended.wait(), call.gone(), query.timeout_s)
            task = await self.found(call)
        return Answer(200, task_view(task))


def with_trace(task: Submission, call: Call, tracing: Tracing) -> Submission:
    """The caller's trace goes on in every attempt; what is no trace context is ignored."""
    stored = tracing.begin_submit(call.header(b"traceparent"))
    return task if stored is None else task._replace(traceparent=stored)


def header_key(call: Call, in_body: str | None) -> str | None:
    """The header's key; given twice it must be the same."""
    key = call.header(b"idempotency-key")
    if key is None:
        return None
    if reason := key_reason(key):
        raise ApiProblem(Code.INVALID, f"the Idempotency-Key {reason}")
    if in_body is not None and in_body != key:
        raise invalid([Problem("/idempotency_key", "differs from the Idempotency-Key header")])
    return key


def time_problems(request: TaskRequest) -> list[Problem]:
    """A delay of nothing is a time, too."""
    if request.run_at is None or request.delay_s is None:
        return []
    return [Problem("/delay_s", "give run_at or delay_s, not both")]


def target_problems(request: TaskRequest) -> list[Problem]:
    target = request.target
    if target is None:
        return []
    if target.url is not None and target.pool is not None:
        return [Problem("/target", "is a url or a pool, not both")]
    if target.url is None and target.headers:
        return [Problem("/target/headers", "belong to a url")]
    return []


def mismatch(errors: list[Problem]) -> ApiProblem:
    detail = "the idempotency key was used with another request"
    return ApiProblem(Code.IDEMPOTENCY_MISMATCH, detail, errors)


def gone(errors: list[Problem]) -> ApiProblem:
    """A key lives for its own time, even when its task was dropped before."""
    return ApiProblem(
        Code.CONFLICT, "the idempotency key was used, and its task has been deleted since", errors
    )


def replace_key(view: TaskView, key: str | None) -> TaskView:
    return msgspec.structs.replace(view, idempotency_key=key)


def task_id_of(call: Call, kind: str = "task") -> UUID:
    """The id in the path, of a task or another `kind`. What is no id was not found either."""
    try:
        return UUID(call.params["id"])
    except ValueError:
        raise not_found(kind, call.params["id"]) from None


def tag_of(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    name, _, value = text.partition(":")
    return name, value


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
