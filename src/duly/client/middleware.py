"""Middleware of a worker: what happens before, around and after each attempt, whatever its handler.

For error trackers, tracing and timing. A generator around a handler sees its exception at `yield`.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from duly.client.context import Context
from duly.client.logs import get_logger
from duly.client.outcomes import HandlerOutcome
from duly.client.resources import Values, passed
from duly.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from duly.client.handlers import Handler

Before = Callable[[Context], Any]
Around = Callable[[Context], Any]
After = Callable[[Context, HandlerOutcome], Any]


@dataclass
class Middleware:
    """In the order in which they were registered; the first is the outermost."""

    before: list[Before] = field(default_factory=list)
    around: list[Around] = field(default_factory=list)
    after: list[After] = field(default_factory=list)

    def check(self, handler: "Handler") -> None:
        """What has to be awaited goes with handlers that are awaited."""
        if handler.mode == "async":
            return
        for function in (*self.before, *self.around):
            if is_awaited(function):
                problem = f"the middleware {function.__qualname__} is async, and the handler of"
                raise ConfigurationError(problem=f"{problem} {handler.type!r} is not")


@dataclass(frozen=True)
class HandlerCaller:
    """Calls handlers with the worker's resources, inside of its middleware."""

    middleware: Middleware
    values: Values

    def arguments(self, handler: "Handler", context: Context) -> dict[str, Any]:
        binder = handler.binder
        arguments = binder.arguments(context.task.payload)
        return (
            {**arguments, **passed(binder.injected, self.values)} if binder.injected else arguments
        )

    async def acall(self, handler: "Handler", context: Context) -> Any:
        """An async handler."""
        arguments = self.arguments(handler, context)
        before, around = self.middleware.before, self.middleware.around
        if not before and not around:
            return await handler.function(context, **arguments)
        for function in before:
            found = function(context)
            if inspect.isawaitable(found):
                await found
        async with contextlib.AsyncExitStack() as stack:
            for function in around:
                if is_awaited(function):
                    opened = contextlib.asynccontextmanager(function)(context)
                    await stack.enter_async_context(opened)
                else:
                    stack.enter_context(contextlib.contextmanager(function)(context))
            return await handler.function(context, **arguments)

    def call(self, handler: "Handler", context: Context) -> Any:
        """A plain handler, in its thread."""
        arguments = self.arguments(handler, context)
        if not self.middleware.before and not self.middleware.around:
            return handler.function(context, **arguments)
        with self.surrounded(context):
            return handler.function(context, **arguments)

    @contextlib.contextmanager
    def surrounded(self, context: Context) -> Iterator[None]:
        for function in self.middleware.before:
            function(context)
        with contextlib.ExitStack() as stack:
            for function in self.middleware.around:
                stack.enter_context(contextlib.contextmanager(function)(context))
            yield

    def ended(self, context: Context, outcome: HandlerOutcome) -> None:
        """However the attempt ended, its time limit and its cancellation included."""
        for function in self.middleware.after:
            try:
                function(context, outcome)
            except Exception:
                get_logger().exception("middleware failed", function=function.__qualname__)


def is_awaited(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
