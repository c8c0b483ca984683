"""duly in Starlette: one client that lives as long as the application.

app = Starlette(routes=[...], lifespan=duly_lifespan())

client = client_of(request)  # in an endpoint
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

from duly.client.asynchronous import AsyncClient
from duly.client.shared_clients import async_client_of_handles
from duly.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

State: TypeAlias = Mapping[str, Any]
Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[State | None]]
# Its name in the state of the application: `request.state.duly`.
NAME = "duly"


def duly_lifespan(
    inner: Lifespan | None = None, *, url: str | None = None, api_key: str | None = None
) -> Callable[[Any], AbstractAsyncContextManager[State]]:
    """The lifespan of an application: opens an `AsyncClient`, and closes it after what is on its
    way has been answered. Handles submit through it, too, unless they name a duly of their own.

    `inner`: the application's own lifespan, around which this one is. `url`, `api_key`: as of a
    client.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[State]:
        async with async_client_of_handles(url, api_key) as client:
            if inner is None:
                yield {NAME: client}
                return
            async with inner(app) as state:
                yield {**(state or {}), NAME: client}

    return lifespan


def client_of(connection: "HTTPConnection") -> AsyncClient:
    """The client of the application that answers this request or WebSocket."""
    client = getattr(connection.state, NAME, None)
    if client is None:
        problem = "the application has no client of duly: give it lifespan=duly_lifespan()"
        raise ConfigurationError(problem=f"{problem}; in tests, `with TestClient(app)` starts it")
    assert isinstance(client, AsyncClient)
    return client
