"""The clients behind typed handles: one for all threads, and one for each event loop, of each duly
that a program submits to. They are closed with their loop, and with the program.
"""

import asyncio
import os
import threading
import weakref
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
    loop = asyncio.get_running_loop()
    target = (url, api_key)
    found = LOOPS.get(loop)
    if found is None:
        with LOCK:
            found = LOOPS.setdefault(loop, {})
    if target not in found:
        from duly.client.asynchronous import AsyncClient

        found[target] = AsyncClient(url, api_key)
    return found[target]


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
