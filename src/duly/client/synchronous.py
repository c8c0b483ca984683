"""`duly.Client`: the same client for programs without an event loop.

One background thread runs the loop for all threads that share the client, so that their submits
are batched together too.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar, Unpack

import msgspec

from duly.client.asynchronous import AsyncClient, AsyncTask
from duly.client.request import SubmitOptions, TaskSpec
from duly.client.task import Attempt, TaskData
from duly.client.wire import TIMEOUT_S, TRIES_MAX

Answer = TypeVar("Answer")
THREAD_STOP_S = 5.0


class Task(TaskData):
    """A task, and what can be done to it. Each method asks the server and answers anew."""

    client_: Any = msgspec.field(name="_client", default=None)

    def refresh(self) -> "Task":
        """As it stands now."""
        return self.client().get(self.id)

    def wait(self, timeout_s: float | None = None) -> "Task":
        """Once it has ended; WaitTimedOut if it has not by then."""
        return self.client().wait(self.id, timeout_s)

    def cancel(self) -> "Task":
        """A running task is asked to stop: `cancel_requested` until it has."""
        return self.client().cancel(self.id)

    def client(self) -> "Client":
        assert isinstance(self.client_, Client)
        return self.client_


class Client:
    """Talks to one duly, from any number of threads. Close it, or use it as a context manager.

    `url` and `api_key`: else DULY_URL and DULY_API_KEY, else the `duly up` of this machine.
    `timeout_s`: of one try. `tries`: how often a call is sent before its fault is raised.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        tries: int = TRIES_MAX,
    ) -> None:
        self.asynchronous = AsyncClient(url, api_key, timeout_s=timeout_s, tries=tries)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.starting = threading.Lock()

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
        """After what is on its way has been answered."""
        with self.starting:
            loop, self.loop = self.loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self.asynchronous.close(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            self.thread.join(THREAD_STOP_S)

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self.running_loop()).result()

    def running_loop(self) -> asyncio.AbstractEventLoop:
        with self.starting:
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                self.thread = threading.Thread(
                    target=run_loop, args=[self.loop], name="duly client", daemon=True
                )
                self.thread.start()
            return self.loop

    def submit(
        self,
        type: str,  # noqa: A002 (what the API calls it)
        payload: object = None,
        **options: Unpack[SubmitOptions],
    ) -> Task:
        """Answered once the task is durable. Safe to retry with the same `idempotency_key`; without
        one, duly's own retries still store it once."""
        return self.task_from(self.run(self.asynchronous.submit(type, payload, **options)))

    def submit_many(self, tasks: Sequence[TaskSpec]) -> list[Task]:
        """Each on its own: one that is refused raises, after the others were stored."""
        return [self.task_from(task) for task in self.run(self.asynchronous.submit_many(tasks))]

    def get(self, task_id: str) -> Task:
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
    ) -> Iterator[Task]:
        """Newest created first, page after page, as long as they are asked for. SCHEDULED, READY
        and RUNNING come by their next instant, soonest first; `order` is "created" or "run_at"."""
        found = self.asynchronous.tasks(
            state=state,
            type=type,
            tag=tag,
            created_after=created_after,
            run_before=run_before,
            order=order,
        )
        while (task := self.run(next_of(found))) is not None:
            yield self.task_from(task)

    def attempts(self, task_id: str) -> list[Attempt]:
        """What every execution of it came to, oldest first."""
        return self.run(self.asynchronous.attempts(task_id))

    def explain(self, task_id: str) -> dict[str, Any]:
        """Why has it not run yet?"""
        return self.run(self.asynchronous.explain(task_id))

    def wait(self, task_id: str, timeout_s: float | None = None) -> Task:
        """The task once it has ended; WaitTimedOut if it has not by then."""
        return self.task_from(self.run(self.asynchronous.wait(task_id, timeout_s)))

    def cancel(self, task_id: str) -> Task:
        """A running task is asked to stop: `cancel_requested` until it has."""
        return self.task_from(self.run(self.asynchronous.cancel(task_id)))

    def reschedule(
        self,
        task_id: str,
        *,
        run_at: datetime | None = None,
        delay_s: float | None = None,
        priority: int | None = None,
    ) -> Task:
        """Change when it fires, or its priority; Conflict (`running`) while it is executed."""
        return self.task_from(
            self.run(
                self.asynchronous.reschedule(
                    task_id, run_at=run_at, delay_s=delay_s, priority=priority
                )
            )
        )

    def run_now(self, task_id: str) -> Task:
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

    def task_from(self, task: AsyncTask) -> Task:
        facts = {name: getattr(task, name) for name in FIELDS}
        return Task(**facts, client_=self)


FIELDS = TaskData.__struct_fields__


def run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


async def next_of(found: Any) -> AsyncTask | None:
    task: AsyncTask | None = await anext(found, None)
    return task
