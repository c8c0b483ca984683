"""The composition root: the only place that knows which parts make a running duly.

`up` is one process that owns the whole installation. It reads as what happens: listen, find the
database, migrate, open the pool, start the roles and the API, wait for a signal, undo all of it in
reverse. Rooms never import each other for this; they are handed what they need here.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass

from duly.api.health import HealthDoor
from duly.api.server import HttpServer, Listener, make_server
from duly.environment import Environment
from duly.role import Role, RoleLoop, stop_roles
from duly.settings import Settings
from duly.store.database import Database
from duly.store.place import Place, open_place, prepare_place
from duly.telemetry import Metrics, get_logger

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
START_POLL_S = 0.01

log = get_logger("duly.app")


@dataclass(frozen=True)
class Ready:
    """What a person or a program needs to know once duly answers."""

    url: str
    place: Place


async def up(
    settings: Settings, environment: Environment, announce: Callable[[Ready], None]
) -> None:
    """Run until a signal says stop; everything started here has ended when this returns."""
    stop = stop_on_signals()
    metrics = Metrics()
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(Listener(settings.host, settings.port)))
        place = await stack.enter_async_context(open_place(settings, environment))
        migrator = await prepare_place(place, settings, environment)
        database = await Database.open(place.engine_url, settings.pool_connections_max)
        stack.push_async_callback(database.close)
        loops = [RoleLoop(role, environment, metrics) for role in make_roles()]
        health = HealthDoor(database, metrics, migrator.latest, lambda: ticking(loops))
        server = make_server([*health.routes()], settings.stop_timeout_s)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(serve(server, listener, stop))
            running = [group.create_task(loop.run()) for loop in loops]
            await started(server, serving)
            announce(Ready(listener.url, place))
            await stop.wait()
            log.info("stopping", limit_s=settings.stop_timeout_s)
            server.should_exit = True
            await stop_roles(loops, running, settings.stop_timeout_s)


def make_roles() -> list[Role]:
    """Every role of this process, in the order of the corridor."""
    return []


def ticking(loops: list[RoleLoop]) -> dict[str, bool]:
    return {loop.role.name: loop.is_ticking for loop in loops}


async def serve(server: HttpServer, listener: Listener, stop: asyncio.Event) -> None:
    """A server that ends by itself takes the process down in order, never silently."""
    try:
        await server.serve([listener.socket])
    finally:
        stop.set()


async def started(server: HttpServer, serving: "asyncio.Task[None]") -> None:
    while not server.started and not serving.done():  # noqa: ASYNC110 (uvicorn has no signal)
        await asyncio.sleep(START_POLL_S)


def stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
