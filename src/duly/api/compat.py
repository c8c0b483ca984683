"""Request bodies of common task APIs, under `/compat/v1`: translated into duly's own requests.

Nothing is stored or decided here: the translated request goes through the same handlers. Answers
are duly's own, with `task_id` and `status` beside `id` and `state`.

| theirs | ours |
|---|---|
| `callback_url` | `target.url`; without it the pool `pool`, or "default" |
| `execute_at`, `delay_sec` | `run_at`, `delay_s` |
| `max_attempts` | `retry.max_attempts` |
| `retry_policy.max_retries` | `retry.max_attempts` - 1: the first attempt is no retry |
| `retry_policy.backoff_seconds` | `retry.initial_s`, with a fixed backoff |
| `client_id` | the tag `client_id`; the tenant is the credential's |
| `priority`, from 0 (most urgent) on | 9 down to 0, 25 apart: 100 is 5, from 213 on 0 |
| `payload_template`, `task_defaults` | `task.payload` and the rest of `task` of a schedule |
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.problems import ApiProblem, Code, invalid
from duly.api.request import Answer, Call
from duly.api.schedule_views import ScheduleView
from duly.api.schedule_wire import CronText, ScheduleName, ScheduleRequest, ZoneName
from duly.api.schedules import DEFINING, ScheduleRoutes
from duly.api.tasks import SUBMIT_REFUSALS, TaskRoutes
from duly.api.wire import (
    NULL,
    IdempotencyKey,
    Instant,
    PoolName,
    RetryOptions,
    Seconds,
    Target,
    TaskRequest,
    TaskView,
    TypeName,
)
from duly.domain import limits
from duly.domain.access import OPERATORS, PRODUCERS
from duly.domain.limits import PRIORITY_MAX, Problem
from duly.domain.states import State
from duly.environment import Environment

TAG = "Compatibility"
# Of tasks that do not say what they are.
TYPE_DEFAULT = "task"
THEIR_PRIORITY_MAX = 1_000_000
PRIORITY_STEP = 25
NAME_DIGITS = 12
# Where a problem of the translated request is in the request that was sent.
POINTERS = {
    "/target/url": "/callback_url",
    "/target/pool": "/pool",
    "/task": "/task_defaults",
    "/task/payload": "/payload_template",
    "/tags/client_id": "/client_id",
}
Url = Annotated[str, Meta(min_length=1, max_length=limits.URL_CHARACTERS_MAX)]
ClientId = Annotated[str, Meta(min_length=1, max_length=limits.TAG_VALUE_CHARACTERS_MAX)]
TheirPriority = Annotated[
    int,
    Meta(
        ge=0,
        le=THEIR_PRIORITY_MAX,
        description="0 is the most urgent, 100 the usual. Ours: 9 for 0, 5 for 100, 0 from 213 on.",
    ),
]
Attempts = Annotated[int, Meta(ge=1, le=limits.MAX_ATTEMPTS_MAX)]
Model = TypeVar("Model", bound=msgspec.Struct)


class RetryPolicyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    max_retries: Annotated[int, Meta(ge=0, le=limits.MAX_ATTEMPTS_MAX - 1)] | None = None
    backoff_seconds: Annotated[float, Meta(ge=0, le=limits.BACKOFF_S_MAX)] | None = None


class CompatFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a task and the defaults of a recurring task have in common."""

    type: TypeName | None = None
    callback_url: Url | None = None
    pool: PoolName | None = None
    priority: TheirPriority | None = None
    max_attempts: Attempts | None = None
    retry_policy: RetryPolicyBody | None = None
    timeout_s: Annotated[float, Meta(ge=limits.TIMEOUT_S_MIN, le=limits.TIMEOUT_S_MAX)] | None = (
        None
    )
    client_id: ClientId | None = None


class CompatTask(CompatFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A task as common task APIs ask for it. `execute_at` and `run_at` mean the same."""

    payload: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)
    run_at: Instant | None = None
    execute_at: Instant | None = None
    delay_sec: Seconds | None = None
    idempotency_key: IdempotencyKey | None = None


class CompatRecurring(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A schedule as common task APIs ask for it; without `name` it is given one."""

    cron: CronText
    timezone: ZoneName = "UTC"
    name: ScheduleName | None = None
    payload_template: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)
    task_defaults: CompatFields | None = None


class CompatTaskView(TaskView, frozen=True, kw_only=True, omit_defaults=True):
    task_id: UUID
    status: State


class CompatScheduleView(ScheduleView, frozen=True, kw_only=True):
    task_id: UUID
    status: str


@dataclass(frozen=True)
class CompatRoutes:
    environment: Environment
    tasks: TaskRoutes
    schedules: ScheduleRoutes

    def endpoints(self) -> list[Endpoint]:
        route = partial(Endpoint, tag=TAG, checks_types=True)
        return [
            route(
                method="POST",
                path="/compat/v1/tasks",
                summary="Submit a task with the body of a common task API",
                handler=self.submit,
                kind=Kind.HOT,
                access=PRODUCERS,
                body=CompatTask,
                answers={201: CompatTaskView, 200: CompatTaskView},
                refusals=SUBMIT_REFUSALS,
            ),
            route(
                method="GET",
                path="/compat/v1/tasks/{id}",
                summary="Read a task, with task_id and status",
                handler=self.get,
                kind=Kind.HOT,
                access=PRODUCERS,
                answers={200: CompatTaskView},
                refusals=(Code.NOT_FOUND,),
            ),
            route(
                method="POST",
                path="/compat/v1/tasks/recurring",
                summary="Define a schedule with the body of a common task API",
                handler=self.create_recurring,
                prepare=self.prepare_recurring,
                kind=Kind.CONTROL,
                access=OPERATORS,
                body=CompatRecurring,
                answers={201: CompatScheduleView},
                refusals=DEFINING,
            ),
        ]

    async def submit(self, call: Call, asked: CompatTask) -> Answer:
        request = task_request(asked)
        try:
            answer = await self.tasks.submit(call, request)
        except ApiProblem as problem:
            raise with_their_pointers(problem, asked) from None
        return with_their_names(answer, CompatTaskView)

    async def get(self, call: Call) -> Answer:
        return with_their_names(await self.tasks.get(call), CompatTaskView)

    async def prepare_recurring(self, call: Call, asked: CompatRecurring) -> None:
        await self.schedules.check_payload(call, self.schedule_request(asked))

    async def create_recurring(self, call: Call, asked: CompatRecurring) -> Answer:
        try:
            answer = await self.schedules.create(call, self.schedule_request(asked))
        except ApiProblem as problem:
            raise with_their_pointers(problem, asked) from None
        return with_their_names(answer, CompatScheduleView)

    def schedule_request(self, asked: CompatRecurring) -> ScheduleRequest:
        defaults = asked.task_defaults or CompatFields()
        task = translated(defaults, asked.payload_template, "/task_defaults")
        return ScheduleRequest(
            name=asked.name or self.make_name(),
            cron=asked.cron,
            timezone=asked.timezone,
            task=task,
        )

    def make_name(self) -> str:
        return f"recurring-{self.environment.random.getrandbits(4 * NAME_DIGITS):0{NAME_DIGITS}x}"


def task_request(asked: CompatTask) -> TaskRequest:
    if asked.run_at is not None and asked.execute_at is not None:
        raise invalid([Problem("/execute_at", "give execute_at or run_at, not both")])
    run_at = asked.run_at or asked.execute_at
    if run_at is not None and asked.delay_sec is not None:
        raise invalid([Problem("/delay_sec", "give a time or delay_sec, not both")])
    task = translated(asked, asked.payload)
    return msgspec.structs.replace(
        task, run_at=run_at, delay_s=asked.delay_sec, idempotency_key=asked.idempotency_key
    )


def translated(asked: CompatFields, payload: msgspec.Raw, within: str = "") -> TaskRequest:
    if asked.callback_url is not None and asked.pool is not None:
        raise invalid([Problem(f"{within}/callback_url", "give callback_url or pool, not both")])
    has_target = asked.callback_url is not None or asked.pool is not None
    return TaskRequest(
        type=asked.type or TYPE_DEFAULT,
        payload=payload,
        target=Target(url=asked.callback_url, pool=asked.pool) if has_target else None,
        priority=None if asked.priority is None else our_priority(asked.priority),
        retry=retry_options(asked, within),
        timeout_s=asked.timeout_s,
        tags=None if asked.client_id is None else {"client_id": asked.client_id},
    )


def our_priority(theirs: int) -> int:
    """Halves round down, to the more urgent one of ours."""
    return max(PRIORITY_MAX - (theirs + PRIORITY_STEP // 2) // PRIORITY_STEP, 0)


def retry_options(asked: CompatFields, within: str = "") -> RetryOptions | None:
    policy = asked.retry_policy or RetryPolicyBody()
    fields: dict[str, Any] = {}
    if asked.max_attempts is not None and policy.max_retries is not None:
        reason = "give max_attempts or retry_policy.max_retries, not both"
        raise invalid([Problem(f"{within}/max_attempts", reason)])
    if asked.max_attempts is not None:
        fields["max_attempts"] = asked.max_attempts
    if policy.max_retries is not None:
        fields["max_attempts"] = policy.max_retries + 1
    if policy.backoff_seconds is not None:
        fields |= {"backoff": "fixed", "initial_s": policy.backoff_seconds}
    return RetryOptions(**fields) if fields else None


def with_their_names(answer: Answer, model: type[Model]) -> Answer:
    view: Any = answer.body
    fields = {name: getattr(view, name) for name in view.__struct_fields__}
    named = model(**fields, task_id=view.id, status=view.state)
    return Answer(answer.status, named, answer.headers)


def with_their_pointers(problem: ApiProblem, asked: msgspec.Struct) -> ApiProblem:
    """What is wrong, named as the caller wrote it."""
    if problem.code is not Code.INVALID or not problem.errors:
        return problem
    names = {**POINTERS}
    if isinstance(asked, CompatTask):
        names["/delay_s"] = "/delay_sec"
        if asked.execute_at is not None:
            names["/run_at"] = "/execute_at"
    return invalid(
        [Problem(names.get(each.pointer, each.pointer), each.reason) for each in problem.errors]
    )
