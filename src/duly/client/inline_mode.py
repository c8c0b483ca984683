"""Inline mode: tasks run where they are submitted, in this process, without a server.

| a submit | becomes |
|---|---|
| of a type with a handler | all its attempts, at once, whatever its time; pauses are left out |
| whose handler snoozes | SCHEDULED, until `run_snoozed` |
| to a URL | SCHEDULED: no webhook is sent |
| of another type | NoHandler |

Plain handlers run in the thread that submits, as those of a unit test should; in a thread of their
own where the submit is awaited.
"""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar
from uuid import UUID

import msgspec

from duly.client.clock import chance, utc_now
from duly.client.context import Context
from duly.client.errors import IdempotencyMismatch, Invalid, InvalidPayload, NotFound, WaitTimedOut
from duly.client.handlers import Handler, perform, policy_of
from duly.client.json_values import encode
from duly.client.leased_tasks import LeasedTask
from duly.client.middleware import HandlerCaller, Middleware
from duly.client.outcomes import (
    HandlerOutcome,
    completed,
    failed,
    judged,
    rejected,
    with_policy,
)
from duly.client.request import TaskCall, encode_task, task_fields
from duly.client.resources import Resource, Values, started
from duly.client.server import Current
from duly.client.shared_clients import forget_shared_clients
from duly.client.task import TaskData
from duly.client.tracing import handler_span
from duly.client.wire import new_key
from duly.domain.errors import ConfigurationError, DulyError
from duly.domain.limits import PAYLOAD_BYTES_MAX
from duly.domain.retry import Failure, GiveUp, RetryPolicy, decide
from duly.domain.states import Outcome, State
from duly.domain.task import DEFAULT_POLICY

# Tasks within tasks: beyond it, handlers submit each other for ever.
DEPTH_MAX = 50
T = TypeVar("T")


class NoHandler(DulyError):
    """the worker has no handler for {type!r}, and task {id} in its pools needs one"""


class TooManyRuns(DulyError):
    """{most} attempts, and there is still more to do: does a handler submit or snooze for ever?"""


class NoServer(DulyError):
    """{method} {path} needs a server, and in inline mode there is none"""


@dataclass(frozen=True)
class Ran:
    """One attempt that was run, and how it ended."""

    id: str
    type: str
    attempt: int
    scheduled_for: datetime
    outcome: str
    result: Any = None
    error: str | None = None


def ran(task: LeasedTask, verdict: HandlerOutcome) -> Ran:
    result = None if verdict.result is None else msgspec.json.decode(verdict.result)
    return Ran(
        task.id,
        task.type,
        task.attempt,
        task.scheduled_for,
        verdict.outcome,
        result,
        verdict.error,
    )


@dataclass
class InlineTask:
    """A task as a server would keep it."""

    facts: TaskData
    payload: bytes
    policy: RetryPolicy
    handler: Handler | None
    progress: bytes = b"null"
    fence: int = 0

    def content(self) -> bytes:
        return msgspec.json.encode(self.facts)

    def leased(self) -> LeasedTask:
        now = utc_now()
        timeout_s = self.facts.timeout_s
        return LeasedTask(
            id=self.facts.id,
            fence=self.fence,
            attempt=self.facts.attempt,
            max_attempts=self.policy.max_attempts,
            type=self.facts.type,
            scheduled_for=self.facts.run_at,
            started_at=now,
            lease_until=now + timedelta(seconds=timeout_s),
            timeout_s=timeout_s,
            execution_key=self.facts.execution_key or self.facts.id,
            payload=msgspec.Raw(self.payload),
            progress=msgspec.Raw(self.progress),
        )


class HandlerSource(Protocol):
    """A worker, or a registry without one."""

    handlers: dict[str, Handler]


@dataclass
class InlineMode:
    """`with worker.inline() as inline:`; every client and handle of this process submits to it.
    `inline.ran` lists the attempts, in the order in which they ended."""

    registry: HandlerSource
    resources: Mapping[Resource[Any], Any] = field(default_factory=dict)
    ran: list[Ran] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.known: dict[str, InlineTask] = {}
        self.keys: dict[str, tuple[bytes, InlineTask]] = {}
        self.depth = contextvars.ContextVar("depth", default=0)

    def __enter__(self) -> "InlineMode":
        if Current.inline is not None:
            raise ConfigurationError(problem="this process is in inline mode already")
        forget_shared_clients()
        Current.inline = self
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> Literal[False]:
        Current.inline = None
        # They were made without an address.
        forget_shared_clients()
        return False

    def submit(self, call: TaskCall[Any]) -> bytes:
        """The task as the server would describe it, after it has run."""
        task, is_new = self.stored(call)
        if is_new:
            self.run(task)
        return task.content()

    async def asubmit(self, call: TaskCall[Any]) -> bytes:
        """`submit`, awaited."""
        task, is_new = self.stored(call)
        if is_new and task.handler is not None:
            await self.run_attempts(task, task.handler, is_awaited=True)
        return task.content()

    def run_snoozed(self) -> None:
        """Run once more what has been snoozed, as if its time had come."""
        for task in list(self.known.values()):
            if task.facts.state is State.SCHEDULED:
                self.run(task)

    def run(self, task: InlineTask) -> None:
        handler = task.handler
        if handler is None:
            return
        work = self.run_attempts(task, handler, is_awaited=False)
        needed = [each for each in handler.binder.injected.values() if each not in self.resources]
        if handler.mode != "async" and not any(is_awaited_resource(each) for each in needed):
            without_loop(work)
        else:
            in_own_loop(work)

    async def run_attempts(self, task: InlineTask, handler: Handler, *, is_awaited: bool) -> None:
        """Until it has ended or snoozes."""
        depth = self.depth.get()
        if depth >= DEPTH_MAX:
            raise TooManyRuns(most=DEPTH_MAX)
        token = self.depth.set(depth + 1)
        try:
            is_over = False
            while not is_over:
                is_over = await self.run_attempt(task, handler, is_awaited=is_awaited)
        finally:
            self.depth.reset(token)

    async def run_attempt(self, task: InlineTask, handler: Handler, *, is_awaited: bool) -> bool:
        """Whether that was the last one for now."""
        task.fence += 1
        task.facts.attempt += 1
        leased = task.leased()
        context = Context(leased)
        values: Values = dict(self.resources)
        async with started(handler.binder.injected.values(), values):
            caller = HandlerCaller(getattr(self.registry, "middleware", Middleware()), values)
            if is_awaited and handler.mode != "async":
                verdict = await asyncio.to_thread(plain_verdict, caller, handler, leased, context)
            else:
                verdict = await verdict_of(caller, handler, leased, context)
        if handler.retry is not None:
            verdict = with_policy(verdict, handler.retry, leased.attempt, chance)
        caller.ended(context, verdict)
        if context.reported is not None:
            task.progress = context.reported
            task.facts.progress = msgspec.json.decode(context.reported)
        self.ran.append(ran(leased, verdict))
        return settled(task, verdict)

    def stored(self, call: TaskCall[Any]) -> tuple[InlineTask, bool]:
        """The task, and whether it is new: a known idempotency key means the task that has it."""
        body = encode_task(call.type, call.payload, call.options)
        key = call.options.get("idempotency_key")
        if key in self.keys:
            known_body, known = self.keys[key]
            if known_body != body:
                detail = "the idempotency key was used with another request"
                problem = {"code": "idempotency_mismatch", "detail": detail}
                raise IdempotencyMismatch(409, problem, None)
            return known, False
        made = self.made(call)
        self.known[made.facts.id] = made
        if key is not None:
            self.keys[key] = body, made
        return made, True

    def made(self, call: TaskCall[Any]) -> InlineTask:
        payload = encode(call.payload)
        if len(payload) > PAYLOAD_BYTES_MAX:
            reason = f"is {len(payload)} bytes, and {PAYLOAD_BYTES_MAX} is the most"
            errors = [{"pointer": "/payload", "detail": reason}]
            problem = {"code": "invalid", "detail": f"payload {reason}", "errors": errors}
            raise Invalid(422, problem, None)
        options = task_fields(call.options)
        task_id = str(UUID(hex=new_key()))
        target = dict(options.get("target") or {"pool": "default"})
        handler = self.registry.handlers.get(call.type)
        if handler is None and "url" not in target:
            raise NoHandler(type=call.type, id=task_id)
        policy = policy_of(call.type, options.get("retry")) or RetryPolicy()
        now = utc_now()
        facts = TaskData(
            id=task_id,
            state=State.SCHEDULED,
            type=call.type,
            run_at=options.get("run_at") or now + timedelta(seconds=options.get("delay_s", 0.0)),
            created_at=now,
            max_attempts=policy.max_attempts,
            priority=options.get("priority", 5),
            target=target,
            timeout_s=options.get("timeout_s", DEFAULT_POLICY.timeout_s),
            concurrency_key=options.get("concurrency_key"),
            idempotency_key=options.get("idempotency_key"),
            execution_key=options.get("idempotency_key") or task_id,
            tags=options.get("tags"),
            payload=msgspec.json.decode(payload),
        )
        return InlineTask(facts, payload, policy, None if "url" in target else handler)

    def answer(self, method: str, path: str) -> bytes:
        """What a client asks about a task."""
        _, _, rest = path.partition("/v1/tasks/")
        task_id, _, action = rest.partition("/")
        if (method, action) not in {("GET", ""), ("GET", "wait")} or not task_id:
            raise NoServer(method=method, path=path)
        task = self.known.get(task_id)
        if task is None:
            raise NotFound(
                404, {"code": "not_found", "detail": f"there is no task {task_id}"}, None
            )
        if action == "wait" and not task.facts.is_terminal:
            raise WaitTimedOut(kind="task", id=task_id, timeout_s=0.0, state=task.facts.state)
        return task.content()


def settled(task: InlineTask, verdict: HandlerOutcome) -> bool:
    """What the attempt makes of its task, and whether no other comes at once."""
    facts = task.facts
    facts.error = verdict.error
    if verdict.outcome == Outcome.COMPLETED.value:
        facts.state, facts.finished_at = State.COMPLETED, utc_now()
        facts.output = None if verdict.result is None else msgspec.json.decode(verdict.result)
        return True
    if verdict.outcome == Outcome.SNOOZED.value:
        # Not charged.
        facts.attempt -= 1
        facts.next_at = utc_now() + timedelta(seconds=verdict.retry_in_s or 0.0)
        return True
    failure = Failure(Outcome(verdict.outcome), verdict.kind, verdict.retry_in_s)
    decision = decide(task.policy, facts.attempt, 0, failure, chance)
    if isinstance(decision, GiveUp):
        facts.state, facts.finished_at = State.FAILED, utc_now()
        facts.reason = decision.reason.value
        return True
    return False


async def verdict_of(
    caller: HandlerCaller, handler: Handler, task: LeasedTask, context: Context
) -> HandlerOutcome:
    if handler.mode != "async":
        return plain_verdict(caller, handler, task, context)
    timeout_s = min(handler.timeout_s or task.timeout_s, task.timeout_s)
    try:
        async with asyncio.timeout(timeout_s) as limit:
            with handler_span(task):
                return completed(await caller.acall(handler, context))
    except InvalidPayload as error:
        return rejected(str(error), "InvalidPayload")
    except TimeoutError as error:
        is_late = limit.expired()
        return failed(f"timed out after {timeout_s:g} s", "TimedOut") if is_late else judged(error)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return judged(error)


def plain_verdict(
    caller: HandlerCaller, handler: Handler, task: LeasedTask, context: Context
) -> HandlerOutcome:
    return perform(lambda: caller.call(handler, context), task)


def is_awaited_resource(wanted: Resource[Any]) -> bool:
    function = wanted.function
    is_awaited = inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function)
    return is_awaited or any(is_awaited_resource(each) for each in wanted.needs.values())


def without_loop(work: Coroutine[Any, Any, T]) -> T:
    """What never waits needs no event loop, inside of which libraries that block refuse to run."""
    try:
        work.send(None)
    except StopIteration as ended:
        value: T = ended.value
        return value
    raise AssertionError("a plain handler has waited")


def in_own_loop(work: Coroutine[Any, Any, T]) -> T:
    """In this thread, or in another one where a loop runs in this already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    found: list[T] = []
    faults: list[BaseException] = []

    def run() -> None:
        try:
            found.append(asyncio.run(work))
        except BaseException as error:
            faults.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=[run], name="duly inline")
    thread.start()
    thread.join()
    if faults:
        raise faults[0]
    return found[0]
