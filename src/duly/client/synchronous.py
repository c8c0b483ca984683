"""`duly.Client`: the same client for programs without an event loop.

One background thread runs the loop for all threads that share the client, so that their submits
are batched together too.
"""

import functools
import os
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

import msgspec

from duly.client.request import (
    RESOURCES,
    SubmitOptions,
    TaskCall,
    TaskSpec,
    WorkflowOptions,
    calls_of,
    no_resource,
    task_call,
)
from duly.client.server import Current
from duly.client.task import Attempt, TaskData
from duly.client.wire import TIMEOUT_S, TRIES_MAX

if TYPE_CHECKING:
    import asyncio

    from duly.client.asynchronous import AsyncClient, AsyncTask
    from duly.client.namespaces import (
        Audit,
        Breakers,
        Bulk,
        DeadLetters,
        Erasures,
        Keys,
        Nodes,
        Notifications,
        Pauses,
        Schedules,
        Stats,
        TaskTypes,
        Tenants,
        WebhookSecrets,
        Workers,
        Workflows,
        WorkflowTypes,
    )
    from duly.client.views import Explanation, LogLine
    from duly.client.workflow_builder import WorkflowBuilder

Answer = TypeVar("Answer")
R = TypeVar("R")
THREAD_STOP_S = 5.0
# For what is on its way, with all its tries.
CLOSE_S = 300.0


class Task(TaskData, Generic[R]):
    """A task, and what can be done to it. Each method asks the server and answers anew."""

    client_: Any = msgspec.field(name="_client", default=None)
    decode_result_: Any = msgspec.field(name="_decode_result", default=None)

    def refresh(self) -> "Task[R]":
        """As it stands now."""
        return self.typed(self.client().get(self.id))

    def wait(self, timeout_s: float | None = None) -> "Task[R]":
        """Once it has ended; WaitTimedOut if it has not by then."""
        return self.typed(self.client().wait(self.id, timeout_s))

    def result(self, timeout_s: float | None = None) -> R:
        """What its handler returned, once it has; of the handler's type if a typed handle submitted
        it. TaskFailed if it did not complete, WaitTimedOut if it has not ended by then."""
        # Items of a list come without their results.
        ended = self if self.output is not None else self.wait(timeout_s)
        found: R = ended.typed_output(self.decode_result_)
        return found

    def cancel(self) -> "Task[R]":
        """A running task is asked to stop: `cancel_requested` until it has."""
        return self.typed(self.client().cancel(self.id))

    def typed(self, task: "Task[Any]") -> "Task[R]":
        task.decode_result_ = self.decode_result_
        return task

    def client(self) -> "Client":
        assert isinstance(self.client_, Client)
        return self.client_


class Client:
    """Talks to one duly, from any number of threads. Close it, or use it as a context manager.

    `url` and `api_key`: else DULY_URL and DULY_API_KEY, else the `duly up` of this machine.
    `timeout_s`: of one try. `tries`: how often a call is sent before its fault is raised.
    """

    schedules: "Schedules"
    dead_letters: "DeadLetters"
    tenants: "Tenants"
    keys: "Keys"
    task_types: "TaskTypes"
    pauses: "Pauses"
    breakers: "Breakers"
    webhook_secrets: "WebhookSecrets"
    notifications: "Notifications"
    bulk: "Bulk"
    erasures: "Erasures"
    stats: "Stats"
    audit: "Audit"
    nodes: "Nodes"
    workers: "Workers"
    workflows: "Workflows"
    workflow_types: "WorkflowTypes"

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        tries: int = TRIES_MAX,
    ) -> None:
        # Here and not above: an event loop and an HTTP library are most of what an import took.
        from duly.client.asynchronous import AsyncClient

        self.make_asynchronous = functools.partial(
            AsyncClient, url, api_key, timeout_s=timeout_s, tries=tries
        )
        self.closing: weakref.finalize[..., Client] | None = None
        self.start_anew()
        CLIENTS.add(self)

    def start_anew(self) -> None:
        """Also after a fork: the thread, the loop and the connections are the parent's."""
        if self.closing is not None:
            self.closing.detach()
        self.closing = None
        self.asynchronous = self.make_asynchronous()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.starting = threading.Lock()

    if not TYPE_CHECKING:  # for which they are declared above, and others do not exist

        def __getattr__(self, name: str) -> Any:
            """`schedules`, `dead_letters` and the others, made when they are first used."""
            if name not in RESOURCES:
                raise AttributeError(no_resource(self, name))
            from duly.client import namespaces

            found = getattr(namespaces, RESOURCES[name])(self)
            setattr(self, name, found)
            return found

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """After what is on its way has been answered. A client that is not closed is closed with
        the program."""
        with self.starting:
            self.loop, closing = None, self.closing
        if closing is not None:
            closing()

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        import asyncio

        return asyncio.run_coroutine_threadsafe(work, self.running_loop()).result()

    def running_loop(self) -> "asyncio.AbstractEventLoop":
        import asyncio

        with self.starting:
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=run_loop, args=[self.loop], name="duly client", daemon=True
                )
                thread.start()
                self.closing = weakref.finalize(
                    self, close_loop, self.loop, thread, self.asynchronous
                )
            return self.loop

    @overload
    def submit(self, call: TaskCall[R], /, **options: Unpack[SubmitOptions]) -> Task[R]: ...

    @overload
    def submit(
        self,
        type: str,
        payload: object = None,
        **options: Unpack[SubmitOptions],
    ) -> Task[Any]: ...

    def submit(
        self,
        type: str | TaskCall[Any],  # noqa: A002
        payload: object = None,
        **options: Unpack[SubmitOptions],
    ) -> Task[Any]:
        """Answered once the task is durable. Safe to retry with the same `idempotency_key`; without
        one, duly's own retries still store it once. Instead of type and payload: a handle's call,
        `submit(send.call(to="x"))`."""
        call = task_call(type, payload, options)
        if Current.inline is not None:
            # Here, and not in the thread of the loop: a handler may submit, and block.
            stored = Current.inline.submit(call)
            return self.task_from(self.asynchronous.task_from(stored, call.decode_result))
        return self.task_from(self.run(self.asynchronous.submit(call)))

    @overload
    def submit_many(self, tasks: Sequence[TaskCall[R]]) -> list[Task[R]]: ...

    @overload
    def submit_many(self, tasks: Sequence[TaskSpec | TaskCall[Any]]) -> list[Task[Any]]: ...

    def submit_many(self, tasks: Sequence[TaskSpec | TaskCall[Any]]) -> list[Task[Any]]:
        """Each on its own: one that is refused raises, after the others were stored."""
        if Current.inline is not None:
            return [self.submit(each) for each in calls_of(tasks)]
        return [self.task_from(task) for task in self.run(self.asynchronous.submit_many(tasks))]

    def workflow(self, name: str, **options: Unpack[WorkflowOptions]) -> "WorkflowBuilder":
        """A block that starts a workflow at its end; nothing is stored when it raises:
        `client.workflow("order.fulfil") as flow`."""
        from duly.client.workflow_builder import WorkflowBuilder

        return WorkflowBuilder(self, name, options)

    def get(self, task_id: str) -> Task[Any]:
        """With payload, result and progress; NotFound if this tenant has none of that id."""
        return self.task_from(self.run(self.asynchronous.get(task_id)))

    def tasks(
        self,
        *,
        state: str | None = None,
        type: str | None = None,  # noqa: A002
        tag: str | None = None,
        created_after: datetime | None = None,
        run_before: datetime | None = None,
        order: str | None = None,
    ) -> Iterator[Task[Any]]:
        """Newest created first, page after page, as long as they are asked for. SCHEDULED, READY
        and RUNNING come by their next instant, soonest first; `order` is "created" or "run_at",
        `tag` is "name:value"."""
        found = self.asynchronous.task_pages(
            state=state,
            type=type,
            tag=tag,
            created_after=created_after,
            run_before=run_before,
            order=order,
        )
        for task in self.items_of(found):
            yield self.task_from(task)

    def search(
        self,
        text: str | None = None,
        *,
        type: str | None = None,  # noqa: A002
        tag: str | None = None,
        worker: str | None = None,
        error: str | None = None,
    ) -> Iterator[Task[Any]]:
        """Newest created first. `text` is in the id (its beginning), the type, a tag, the payload
        or an error, without regard to case."""
        found = self.asynchronous.found_pages(text, type=type, tag=tag, worker=worker, error=error)
        for task in self.items_of(found):
            yield self.task_from(task)

    def logs(self, task_id: str, *, follow: bool = False) -> Iterator["LogLine"]:
        """What its handlers logged with `ctx.log`, oldest first; with `follow`, until it ends."""
        yield from self.items_of(self.asynchronous.log_pages(task_id, follow=follow))

    def attempts(self, task_id: str) -> list[Attempt]:
        """What every execution of it came to, oldest first."""
        return self.run(self.asynchronous.attempts(task_id))

    def explain(self, task_id: str) -> "Explanation":
        """Why has it not run yet? The answer's `summary` is a sentence."""
        return self.run(self.asynchronous.explain(task_id))

    def wait(self, task_id: str, timeout_s: float | None = None) -> Task[Any]:
        """The task once it has ended; WaitTimedOut if it has not by then."""
        return self.task_from(self.run(self.asynchronous.wait(task_id, timeout_s)))

    def cancel(self, task_id: str) -> Task[Any]:
        """A running task is asked to stop: `cancel_requested` until it has."""
        return self.task_from(self.run(self.asynchronous.cancel(task_id)))

    def reschedule(
        self,
        task_id: str,
        *,
        run_at: datetime | None = None,
        delay_s: float | None = None,
        priority: int | None = None,
    ) -> Task[Any]:
        """Change when it fires, or its priority; Conflict (`running`) while it is executed."""
        return self.task_from(
            self.run(
                self.asynchronous.reschedule(
                    task_id, run_at=run_at, delay_s=delay_s, priority=priority
                )
            )
        )

    def run_now(self, task_id: str) -> Task[Any]:
        """Fire it at once; Conflict (`running`) while it is executed."""
        return self.task_from(self.run(self.asynchronous.run_now(task_id)))

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        """Any route of the API, JSON in and out: for what has no method of its own here."""
        return self.run(
            self.asynchronous.call(method, path, body, query=query, idempotency_key=idempotency_key)
        )

    def items_of(self, pages: AsyncIterator[list[Answer]]) -> Iterator[Answer]:
        while (page := self.run(next_of(pages))) is not None:
            yield from page

    def task_from(self, task: "AsyncTask[Any]") -> Task[Any]:
        facts = {name: getattr(task, name) for name in FIELDS}
        return Task(**facts, client_=self, decode_result_=task.decode_result_)


CLIENTS: weakref.WeakSet[Client] = weakref.WeakSet()
FIELDS = TaskData.__struct_fields__


def run_loop(loop: "asyncio.AbstractEventLoop") -> None:
    import asyncio

    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def close_loop(
    loop: "asyncio.AbstractEventLoop", thread: threading.Thread, client: "AsyncClient"
) -> None:
    """In any thread: the collector may find a forgotten client in the loop's own."""
    import asyncio

    closing = asyncio.run_coroutine_threadsafe(client.close(), loop)
    closing.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
    if thread is not threading.current_thread():
        closing.result(CLOSE_S)
        thread.join(THREAD_STOP_S)


def start_clients_anew() -> None:
    for client in list(CLIENTS):
        client.start_anew()


os.register_at_fork(after_in_child=start_clients_anew)


async def next_of(pages: AsyncIterator[list[Answer]]) -> list[Answer] | None:
    page: list[Answer] | None = await anext(pages, None)
    return page
