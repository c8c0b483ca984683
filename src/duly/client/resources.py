"""Resources of a worker: what its handlers share, started before the first task and stopped after
the last one.

@resource
async def database():
    async with create_pool(URL) as pool: yield pool
"""

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast, overload

from duly.domain.errors import ConfigurationError

T = TypeVar("T")


class Resource(Generic[T]):
    """Made by `@resource`. A handler gets its value by a parameter: `pool=inject(database)`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.needs = injected_in(function)

    def __repr__(self) -> str:
        return f"<Resource {self.function.__qualname__}>"


class Injected:
    """The default of a parameter that a resource is passed to, and that no payload has."""

    def __init__(self, resource: Resource[Any]) -> None:
        self.resource = resource


@overload
def resource(function: Callable[..., AsyncIterator[T]], /) -> Resource[T]: ...


@overload
def resource(function: Callable[..., Iterator[T]], /) -> Resource[T]: ...


@overload
def resource(function: Callable[..., Coroutine[Any, Any, T]], /) -> Resource[T]: ...


@overload
def resource(function: Callable[..., T], /) -> Resource[T]: ...


def resource(function: Callable[..., Any], /) -> Resource[Any]:
    """Make a resource of a function: a generator that yields it once and cleans up after, or a
    function that returns it; asynchronous or not. It can need other resources itself."""
    return Resource(function)


def inject(resource: Resource[T]) -> T:
    """As the default of a handler's parameter: the value of the resource is passed to it."""
    if not isinstance(resource, Resource):
        raise ConfigurationError(problem=f"{resource!r} is not made by @duly.resource")
    return cast(T, Injected(resource))


def injected_in(function: Callable[..., Any]) -> dict[str, Resource[Any]]:
    parameters = inspect.signature(function).parameters.values()
    return {
        each.name: each.default.resource
        for each in parameters
        if isinstance(each.default, Injected)
    }


Values = dict[Resource[Any], Any]


@contextlib.asynccontextmanager
async def started(wanted: Iterable[Resource[Any]], values: Values) -> AsyncIterator[None]:
    """Fill in the values, each after those that it needs; stop them in the opposite order."""
    async with contextlib.AsyncExitStack() as stack:
        for each in wanted:
            await start(each, values, stack)
        yield


async def start(resource: Resource[Any], values: Values, stack: contextlib.AsyncExitStack) -> None:
    if resource in values:
        return
    for each in resource.needs.values():
        await start(each, values, stack)
    function = resource.function
    needed = passed(resource.needs, values)
    if inspect.isasyncgenfunction(function):
        opened = contextlib.asynccontextmanager(function)(**needed)
        values[resource] = await stack.enter_async_context(opened)
    elif inspect.isgeneratorfunction(function):
        values[resource] = stack.enter_context(contextlib.contextmanager(function)(**needed))
    else:
        found = function(**needed)
        values[resource] = await found if inspect.isawaitable(found) else found


def passed(needs: Mapping[str, Resource[Any]], values: Values) -> dict[str, Any]:
    return {name: values[resource] for name, resource in needs.items()}
