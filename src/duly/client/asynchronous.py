"""`duly.AsyncClient`: submit tasks and follow them, from a program with an event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

import msgspec

from duly.client.errors import WaitTimedOut
from duly.client.http_async import Connection
from duly.client.json_values import encode
from duly.client.paths import path
from duly.client.request import (
    RESOURCES,
    SubmitOptions,
    TaskCall,
    TaskSpec,
    WorkflowOptions,
    calls_of,
    encode_spec,
    encode_task,
    no_resource,
    task_call,
)
from duly.client.server import Current, find_server
from duly.client.submits import SubmitQueue
from duly.client.task import Attempt, TaskData
from duly.client.wire import TIMEOUT_S, TRIES_MAX, WAIT_S_MAX

if TYPE_CHECKING:
    from duly.client.namespaces import (
        AsyncAudit,
        AsyncBreakers,
        AsyncBulk,
        AsyncDeadLetters,
        AsyncErasures,
        AsyncKeys,
        AsyncNodes,
        AsyncNotifications,
        AsyncPauses,
        AsyncSchedules,
        AsyncStats,
        AsyncTaskTypes,
        AsyncTenants,
        AsyncWebhookSecrets,
        AsyncWorkers,
        AsyncWorkflows,
        AsyncWorkflowTypes,
    )
    from duly.client.views import Explanation, LogLine
    from duly.client.workflow_builder import AsyncWorkflowBuilder

PAGE = 200
# Of one long poll for lines; `logs(follow=True)` makes as many as it needs.
FOLLOW_S = 25.0
R = TypeVar("R")


class Page(msgspec.Struct):
    items: list[msgspec.Raw]
    next_cursor: str | None = None


class AsyncTask(TaskData, Generic[R]):
    """A task, and what can be done to it. Each method asks the server and answers anew."""

    client_: Any = msgspec.field(name="_client", default=None)
    decode_result_: Any = msgspec.field(name="_decode_result", default=None)

    async def refresh(self) -> "AsyncTask[R]":
        """As it stands now."""
        return self.typed(await self.client().get(self.id))

    async def wait(self, timeout_s: float | None = None) -> "AsyncTask[R]":
        """Once it has ended; WaitTimedOut if it has not by then."""
        return self.typed(await self.client().wait(self.id, timeout_s))

    async def result(self, timeout_s: float | None = None) -> R:
        """What its handler returned, once it has; of the handler's type if a typed handle submitted
        it. TaskFailed if it did not complete, WaitTimedOut if it has not ended by then."""
        # Items of a list come without their results.
        ended = self if self.output is not None else await self.wait(timeout_s)
        found: R = ended.typed_output(self.decode_result_)
        return found

    async def cancel(self) -> "AsyncTask[R]":
        """A running task is asked to stop: `cancel_requested` until it has."""
        return self.typed(await self.client().cancel(self.id))

    def typed(self, task: "AsyncTask[Any]") -> "AsyncTask[R]":
        task.decode_result_ = self.decode_result_
        return task

    def client(self) -> "AsyncClient":
        assert isinstance(self.client_, AsyncClient)
        return self.client_


class AsyncClient:
    """Talks to one duly. Use it as a context manager, or `await close()` it.

    `url` and `api_key`: else DULY_URL and DULY_API_KEY, else the `duly up` of this machine.
    `timeout_s`: of one try. `tries`: how often a call is sent before its fault is raised.
    """

    schedules: "AsyncSchedules"
    dead_letters: "AsyncDeadLetters"
    tenants: "AsyncTenants"
    keys: "AsyncKeys"
    task_types: "AsyncTaskTypes"
    pauses: "AsyncPauses"
    breakers: "AsyncBreakers"
    webhook_secrets: "AsyncWebhookSecrets"
    notifications: "AsyncNotifications"
    bulk: "AsyncBulk"
    erasures: "AsyncErasures"
    stats: "AsyncStats"
    audit: "AsyncAudit"
    nodes: "AsyncNodes"
    workers: "AsyncWorkers"
    workflows: "AsyncWorkflows"
    workflow_types: "AsyncWorkflowTypes"

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        tries: int = TRIES_MAX,
    ) -> None:
        self.connection = Connection(find_server(url, api_key), timeout_s, tries)
        self.queue = SubmitQueue(self.connection)

    if not TYPE_CHECKING:  # for which they are declared above, and others do not exist

        def __getattr__(self, name: str) -> Any:
            """`schedules`, `dead_letters` and the others, made when they are first used."""
            if name not in RESOURCES:
                raise AttributeError(no_resource(self, name))
            from duly.client import namespaces

            found = getattr(namespaces, "Async" + RESOURCES[name])(self)
            setattr(self, name, found)
            return found

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """After what is on its way has been answered."""
        await self.queue.close()
        await self.connection.close()

    @overload
    async def submit(
        self, call: TaskCall[R], /, **options: Unpack[SubmitOptions]
    ) -> AsyncTask[R]: ...

    @overload
    async def submit(
        self,
        type: str,
        payload: object = None,
        **options: Unpack[SubmitOptions],
    ) -> AsyncTask[Any]: ...

    async def submit(
        self,
        type: str | TaskCall[Any],  # noqa: A002
        payload: object = None,
        **options: Unpack[SubmitOptions],
    ) -> AsyncTask[Any]:
        """Answered once the task is durable. Safe to retry with the same `idempotency_key`; without
        one, duly's own retries still store it once. Instead of type and payload: a handle's call,
        `submit(send.call(to="x"))`."""
        call = task_call(type, payload, options)
        if Current.inline is not None:
            return self.task_from(await Current.inline.asubmit(call), call.decode_result)
        body = encode_task(call.type, call.payload, call.options)
        if "debounce" in call.options:
            # It may change a task that is there, so it is no part of a batch.
            stored = await self.connection.request("POST", "/v1/tasks", body)
            return self.task_from(stored, call.decode_result)
        answer = await self.queue.put(body, call.options.get("idempotency_key"))
        return self.task_from(await answer, call.decode_result)

    @overload
    async def submit_many(self, tasks: Sequence[TaskCall[R]]) -> list[AsyncTask[R]]: ...

    @overload
    async def submit_many(
        self, tasks: Sequence[TaskSpec | TaskCall[Any]]
    ) -> list[AsyncTask[Any]]: ...

    async def submit_many(self, tasks: Sequence[TaskSpec | TaskCall[Any]]) -> list[AsyncTask[Any]]:
        """Each on its own: one that is refused raises, after the others were stored."""
        if Current.inline is not None:
            return [await self.submit(each) for each in calls_of(tasks)]
        specs = [each.spec() if isinstance(each, TaskCall) else each for each in tasks]
        bodies = [(encode_spec(spec), spec.get("idempotency_key")) for spec in specs]
        answers = [await self.queue.put(*each) for each in bodies]
        decoders = [each.decode_result if isinstance(each, TaskCall) else None for each in tasks]
        stored = await asyncio.gather(*answers)
        return [self.task_from(*each) for each in zip(stored, decoders, strict=True)]

    def workflow(self, name: str, **options: Unpack[WorkflowOptions]) -> "AsyncWorkflowBuilder":
        """A block that starts a workflow at its end; nothing is stored when it raises:
        `client.workflow("order.fulfil") as flow`."""
        from duly.client.workflow_builder import AsyncWorkflowBuilder

        return AsyncWorkflowBuilder(self, name, options)

    async def get(self, task_id: str) -> AsyncTask[Any]:
        """With payload, result and progress; NotFound if this tenant has none of that id."""
        return self.task_from(await self.connection.request("GET", path("tasks", task_id)))

    async def tasks(
        self,
        *,
        state: str | None = None,
        type: str | None = None,  # noqa: A002
        tag: str | None = None,
        created_after: datetime | None = None,
        run_before: datetime | None = None,
        order: str | None = None,
    ) -> AsyncIterator[AsyncTask[Any]]:
        """Newest created first, page after page, as long as they are asked for. SCHEDULED, READY
        and RUNNING come by their next instant, soonest first; `order` is "created" or "run_at",
        `tag` is "name:value"."""
        pages = self.task_pages(
            state=state,
            type=type,
            tag=tag,
            created_after=created_after,
            run_before=run_before,
            order=order,
        )
        async for page in pages:
            for task in page:
                yield task

    async def task_pages(
        self,
        *,
        state: str | None = None,
        type: str | None = None,  # noqa: A002
        tag: str | None = None,
        created_after: datetime | None = None,
        run_before: datetime | None = None,
        order: str | None = None,
    ) -> AsyncIterator[list[AsyncTask[Any]]]:
        """The pages behind `tasks`."""
        query = {
            "state": state,
            "type": type,
            "tag": tag,
            "created_after": instant(created_after),
            "run_before": instant(run_before),
            "order": order,
        }
        async for page in self.pages("/v1/tasks", query):
            yield [self.task_from(item) for item in page]

    async def search(
        self,
        text: str | None = None,
        *,
        type: str | None = None,  # noqa: A002
        tag: str | None = None,
        worker: str | None = None,
        error: str | None = None,
    ) -> AsyncIterator[AsyncTask[Any]]:
        """Newest created first. `text` is in the id (its beginning), the type, a tag, the payload
        or an error, without regard to case."""
        pages = self.found_pages(text, type=type, tag=tag, worker=worker, error=error)
        async for page in pages:
            for task in page:
                yield task

    async def found_pages(
        self, text: str | None, **query: str | None
    ) -> AsyncIterator[list[AsyncTask[Any]]]:
        """The pages behind `search`."""
        async for page in self.pages("/v1/search", {"q": text, **query}):
            yield [self.task_from(item) for item in page]

    async def logs(self, task_id: str, *, follow: bool = False) -> AsyncIterator["LogLine"]:
        """What its handlers logged with `ctx.log`, oldest first; with `follow`, until it ends."""
        async for page in self.log_pages(task_id, follow=follow):
            for line in page:
                yield line

    async def log_pages(self, task_id: str, *, follow: bool) -> AsyncIterator[list["LogLine"]]:
        """The pages behind `logs`."""
        from duly.client.views import LogPage

        at, after = path("tasks", task_id, "logs"), None
        wait_s = FOLLOW_S if follow else 0.0
        while True:
            query = {"after": after, "follow": wait_s}
            answer = await self.connection.request("GET", at, query=query, wait_s=wait_s)
            page = msgspec.json.decode(answer, type=LogPage)
            yield page.items
            if page.is_over or not (page.items or follow):
                return
            after = page.after

    async def attempts(self, task_id: str) -> list[Attempt]:
        """What every execution of it came to, oldest first."""
        at = path("tasks", task_id, "attempts")
        pages = self.pages(at, {})
        return [msgspec.json.decode(item, type=Attempt) async for page in pages for item in page]

    async def explain(self, task_id: str) -> "Explanation":
        """Why has it not run yet? The answer's `summary` is a sentence."""
        from duly.client.views import Explanation

        answer = await self.connection.request("GET", path("tasks", task_id, "explain"))
        return msgspec.json.decode(answer, type=Explanation)

    async def wait(self, task_id: str, timeout_s: float | None = None) -> AsyncTask[Any]:
        """The task once it has ended; WaitTimedOut if it has not by then."""
        loop = asyncio.get_running_loop()
        ends_at = None if timeout_s is None else loop.time() + timeout_s
        while True:
            left = WAIT_S_MAX if ends_at is None else max(0.0, ends_at - loop.time())
            wait_s = min(left, WAIT_S_MAX)
            answer = await self.connection.request(
                "GET", path("tasks", task_id, "wait"), query={"timeout_s": wait_s}, wait_s=wait_s
            )
            task = self.task_from(answer)
            if task.is_terminal:
                return task
            if ends_at is not None and loop.time() >= ends_at:
                raise WaitTimedOut(kind="task", id=task_id, timeout_s=timeout_s, state=task.state)

    async def cancel(self, task_id: str) -> AsyncTask[Any]:
        """A running task is asked to stop: `cancel_requested` until it has."""
        answer = await self.connection.request("POST", path("tasks", task_id, "cancel"))
        return self.task_from(answer)

    async def reschedule(
        self,
        task_id: str,
        *,
        run_at: datetime | None = None,
        delay_s: float | None = None,
        priority: int | None = None,
    ) -> AsyncTask[Any]:
        """Change when it fires, or its priority; Conflict (`running`) while it is executed."""
        asked = {"run_at": run_at, "delay_s": delay_s, "priority": priority}
        body = {name: value for name, value in asked.items() if value is not None}
        at = path("tasks", task_id)
        return self.task_from(await self.connection.request("PATCH", at, msgspec.json.encode(body)))

    async def run_now(self, task_id: str) -> AsyncTask[Any]:
        """Fire it at once; Conflict (`running`) while it is executed."""
        return self.task_from(
            await self.connection.request("POST", path("tasks", task_id, "run-now"))
        )

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        """Any route of the API, JSON in and out: for what has no method of its own here."""
        content = None if body is None else encode(body)
        answer = await self.send(method, path, content, query, idempotency_key)
        return msgspec.json.decode(answer) if answer else None

    async def send(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        query: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
        wait_s: float = 0.0,
    ) -> bytes:
        return await self.connection.request(
            method, path, content, query=query, idempotency_key=idempotency_key, wait_s=wait_s
        )

    async def pages(self, path: str, query: Mapping[str, object]) -> AsyncIterator[list[bytes]]:
        """A list, page after page."""
        cursor: str | None = None
        while True:
            answer = await self.connection.request(
                "GET", path, query={"limit": PAGE, **query, "cursor": cursor}
            )
            page = msgspec.json.decode(answer, type=Page)
            yield [bytes(item) for item in page.items]
            cursor = page.next_cursor
            if cursor is None:
                return

    def task_from(
        self, answer: bytes, decode_result: Callable[[bytes], Any] | None = None
    ) -> AsyncTask[Any]:
        task = TASK.decode(answer)
        task.client_ = self
        task.decode_result_ = decode_result
        return task


TASK = msgspec.json.Decoder(AsyncTask[Any])


def instant(given: datetime | None) -> str | None:
    return None if given is None else given.isoformat()
