"""One definition of a call for both clients: written once with `await`, called with it through an
`AsyncClient` and without it through a `Client`.
"""

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from datetime import datetime
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from duly.client.json_values import encode

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Answer = TypeVar("Answer")


class AwaitedApi(Protocol):
    """What operations need of an `AsyncClient`."""

    async def send(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        query: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
        wait_s: float = 0.0,
    ) -> bytes: ...

    def pages(self, path: str, query: Mapping[str, object]) -> AsyncIterator[list[bytes]]: ...


class BlockingApi(Protocol):
    """What they need of a `Client`."""

    @property
    def asynchronous(self) -> AwaitedApi: ...

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer: ...

    def items_of(self, pages: AsyncIterator[list[Answer]]) -> Iterator[Answer]: ...


class Operations:
    """A resource of the API, awaited."""

    def __init__(self, client: AwaitedApi) -> None:
        self.api = client

    async def ask(
        self,
        answer: type[Answer],
        method: str,
        path: str,
        body: object = None,
        query: Mapping[str, object] | None = None,
        wait_s: float = 0.0,
    ) -> Answer:
        content = None if body is None else encode(body)
        found = await self.api.send(method, path, content, query, wait_s=wait_s)
        return msgspec.json.decode(found or b"null", type=answer)

    async def pages(
        self, item: type[Answer], path: str, query: Mapping[str, object]
    ) -> AsyncIterator[list[Answer]]:
        async for page in self.api.pages(path, query):
            yield [msgspec.json.decode(each, type=item) for each in page]


class Blocking:
    """The same for programs without an event loop; the first base of such a class, so that its
    calls are found to be blocking."""

    awaited: type[Operations]

    def __init__(self, client: BlockingApi) -> None:
        self.client = client


class operation(Generic[P, R]):  # noqa: N801 (a decorator)
    def __init__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> None:
        self.__doc__ = function.__doc__
        self.function = function

    @overload
    def __get__(self, instance: Blocking, owner: type) -> Callable[P, R]: ...

    @overload
    def __get__(self, instance: Operations, owner: type) -> Callable[P, Coroutine[Any, Any, R]]: ...

    @overload
    def __get__(self, instance: None, owner: type) -> "operation[P, R]": ...

    def __get__(self, instance: Blocking | Operations | None, owner: type) -> Any:
        if instance is None:
            return self
        if not isinstance(instance, Blocking):
            return functools.partial(self.function, instance)

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            client = instance.client
            awaited = instance.awaited(client.asynchronous)
            return client.run(self.function(awaited, *args, **kwargs))

        return call


class listing(Generic[P, T]):  # noqa: N801
    """An operation that gives items, a page at a time, as long as they are asked for."""

    def __init__(self, function: Callable[Concatenate[Any, P], AsyncIterator[list[T]]]) -> None:
        self.__doc__ = function.__doc__
        self.function = function

    @overload
    def __get__(self, instance: Blocking, owner: type) -> Callable[P, Iterator[T]]: ...

    @overload
    def __get__(self, instance: Operations, owner: type) -> Callable[P, AsyncIterator[T]]: ...

    @overload
    def __get__(self, instance: None, owner: type) -> "listing[P, T]": ...

    def __get__(self, instance: Blocking | Operations | None, owner: type) -> Any:
        if instance is None:
            return self
        if not isinstance(instance, Blocking):
            return lambda *args, **kwargs: flattened(self.function(instance, *args, **kwargs))

        def call(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            client = instance.client
            awaited = instance.awaited(client.asynchronous)
            return client.items_of(self.function(awaited, *args, **kwargs))

        return call


async def flattened(pages: AsyncIterator[list[T]]) -> AsyncIterator[T]:
    async for page in pages:
        for item in page:
            yield item


def text(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()


def given(**fields: object) -> dict[str, object]:
    """What a caller has said; what is None is left to the server."""
    return {name: value for name, value in fields.items() if value is not None}
