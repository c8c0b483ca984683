"""The clients behind typed handles: one for all threads, and one for each event loop, of each duly
that a program submits to. They are closed with their loop, and with the program.
"""

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duly.client.asynchronous import AsyncClient
    from duly.client.synchronous import Client

Target = tuple[str | None, str | None]

LOCK = threading.Lock()
CLIENTS: "dict[Target, Client]" = {}
LOOPS: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Target, AsyncClient]]" = (
    weakref.WeakKeyDictionary()
)


def shared_client(url: str | None, api_key: str | None) -> "Client":
    target = (url, api_key)
    found = CLIENTS.get(target)
    if found is not None:
        return found
    from duly.client.synchronous import Client

    with LOCK:
        if target not in CLIENTS:
            CLIENTS[target] = Client(url, api_key)
        return CLIENTS[target]


def shared_async_client(url: str | None, api_key: str | None) -> "AsyncClient":
    """Of the running event loop."""
    target = (url, api_key)
    found = clients_of_loop()
    if target not in found:
        from duly.client.asynchronous import AsyncClient

        found[target] = AsyncClient(url, api_key)
    return found[target]


def clients_of_loop() -> "dict[Target, AsyncClient]":
    loop = asyncio.get_running_loop()
    found = LOOPS.get(loop)
    if found is None:
        with LOCK:
            found = LOOPS.setdefault(loop, {})
    return found


@contextlib.asynccontextmanager
async def async_client_of_handles(
    url: str | None, api_key: str | None
) -> "AsyncIterator[AsyncClient]":
    """A client for a part of a program's life; meanwhile also behind the handles of this event loop
    that name the same duly, or none."""
    from duly.client.asynchronous import AsyncClient

    clients = clients_of_loop()
    async with AsyncClient(url, api_key) as client:
        clients[(url, api_key)] = clients[(None, None)] = client
        try:
            yield client
        finally:
            for target in [target for target, known in clients.items() if known is client]:
                del clients[target]


def forget_shared_clients() -> None:
    """After the address or the key of duly has changed, as it does between tests."""
    with LOCK:
        clients = list(CLIENTS.values())
        CLIENTS.clear()
        LOOPS.clear()
    for client in clients:
        client.close()


def forget_after_fork() -> None:
    """The loops are the parent's; a `Client` starts anew by itself."""
    global LOCK
    LOCK = threading.Lock()
    LOOPS.clear()


os.register_at_fork(after_in_child=forget_after_fork)
