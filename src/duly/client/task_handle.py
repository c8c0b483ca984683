"""Typed task handles: what `@worker.task(...)` makes of a function.

A handle submits its tasks with the function's own parameters, checked by their annotations before
anything is sent, and gives results of the function's own return type. It is still callable as the
function that it was made from.
"""

import functools
import sys
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec

from duly.client.errors import InvalidWorkflow
from duly.client.handlers import Handler
from duly.client.request import NodeOptions, SubmitOptions, TaskCall
from duly.client.shared_clients import shared_async_client, shared_client

if TYPE_CHECKING:
    from duly.client.asynchronous import AsyncTask
    from duly.client.synchronous import Task
    from duly.client.workflow_nodes import NodeCall

P = ParamSpec("P")
R = TypeVar("R")


class ClientSource(Protocol):
    """Which duly the handles of one registry submit to, when no client is named."""

    url: str | None
    api_key: str | None


class TaskHandle(Generic[P, R]):
    """A task type with a function: `send.submit(to="x")`, `await send.asubmit(to="x")`."""

    def __init__(self, handler: Handler, options: SubmitOptions, source: ClientSource) -> None:
        functools.update_wrapper(self, handler.function)
        self.handler = handler
        self.defaults = options
        self.source = source

    @property
    def type(self) -> str:
        """The task type, as the API names it."""
        return self.handler.type

    def __call__(self, ctx: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The function itself, here and now."""
        return self.handler.function(ctx, *args, **kwargs)

    def __reduce__(self) -> str:
        # A process finds the handle as it finds a function: by the name in its module.
        return self.handler.function.__qualname__

    def __repr__(self) -> str:
        return f"<TaskHandle {self.type!r}>"

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> "Task[R]":
        """Store a task with these arguments; answered once it is durable."""
        return shared_client(self.source.url, self.source.api_key).submit(
            self.call(*args, **kwargs)
        )

    async def asubmit(self, *args: P.args, **kwargs: P.kwargs) -> "AsyncTask[R]":
        """`submit`, awaited. The client behind it is closed with the event loop."""
        return await shared_async_client(self.source.url, self.source.api_key).submit(
            self.call(*args, **kwargs)
        )

    def submit_many(self, calls: Iterable[TaskCall[R]]) -> "list[Task[R]]":
        """`send.submit_many(send.call(to=each) for each in people)`. Each on its own: one that is
        refused raises, after the others were stored."""
        return shared_client(self.source.url, self.source.api_key).submit_many(list(calls))

    async def asubmit_many(self, calls: Iterable[TaskCall[R]]) -> "list[AsyncTask[R]]":
        """`submit_many`, awaited."""
        return await shared_async_client(self.source.url, self.source.api_key).submit_many(
            list(calls)
        )

    def call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall[R]:
        """A task to be submitted by a client of your own: `client.submit(send.call(to="x"))`."""
        handler = self.handler
        binder = handler.binder
        payload = msgspec.Raw(binder.payload(args, kwargs))
        return TaskCall(handler.type, payload, self.defaults, binder.decode_result)

    def node(self, *args: P.args, **kwargs: P.kwargs) -> "NodeCall[R]":
        """A node of a workflow with these arguments: `flow.add(send.node(to="x"), after=...)`."""
        from duly.client.workflow_nodes import NodeCall

        if extra := self.defaults.keys() - NodeOptions.__annotations__.keys():
            raise InvalidWorkflow(problem=f"a node has no {', '.join(sorted(extra))}")
        handler = self.handler
        payload = msgspec.Raw(handler.binder.payload(args, kwargs))
        options = cast("NodeOptions", self.defaults)
        return NodeCall(handler.type, payload, options, handler.binder.decode_result)

    def at(self, run_at: datetime) -> "TaskHandle[P, R]":
        """The handle, for tasks that fire then: `send.at(midnight).submit(to="x")`."""
        return self.options(run_at=run_at)

    def after(self, delay: float | timedelta) -> "TaskHandle[P, R]":
        """The handle, for tasks that fire so many seconds after they are stored."""
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        return self.options(delay_s=seconds)

    def options(self, **options: Unpack[SubmitOptions]) -> "TaskHandle[P, R]":
        """The handle with other options of a submit: `send.options(priority=9).submit(to="x")`."""
        merged: SubmitOptions = {**self.defaults, **options}
        if "run_at" in options:
            merged.pop("delay_s", None)
        elif "delay_s" in options:
            merged.pop("run_at", None)
        return TaskHandle(self.handler, merged, self.source)


def function_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, also of a handle that is given to a second registry."""
    return function.handler.function if isinstance(function, TaskHandle) else function


def importable(function: Callable[..., Any]) -> Callable[..., Any]:
    """What another process finds under the function's name: its handle, where it is decorated."""
    found: Any = sys.modules.get(getattr(function, "__module__", ""))
    for name in getattr(function, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, TaskHandle) and function_of(found) is function else function


class TaskDecorator(Protocol):
    """What `task(...)` returns: a function with a context in, a typed handle out."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
    ) -> TaskHandle[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> TaskHandle[P, R]: ...
