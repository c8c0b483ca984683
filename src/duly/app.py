"""The life of one duly process; `composition.py` says which parts it has.

`run` reads as what happens: listen, find the database, migrate, open the pool, start the roles and
the API, wait for a signal, undo all of it in reverse. `up` owns a whole installation and keeps the
ready queue in memory; `serve` is one process of several and keeps it in PostgreSQL.
"""

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from duly.api.bearer_tokens import JwtSettings, jwt_settings
from duly.api.health import HealthRoutes
from duly.api.routes import ApiRoutes
from duly.api.server import HttpServer, Listener, read_tls
from duly.api.sessions import dashboard_url
from duly.broker.assembly import open_carrier
from duly.composition import (
    Parts,
    make_api,
    make_http,
    make_parts,
    make_targets,
    open_pools,
    server_watches,
    start_tracing,
    tuning_of,
    webhook_roles,
)
from duly.environment import Environment
from duly.execution.assembly import (
    outbound_rules,
)
from duly.execution.foreign_starts import ForeignStarts
from duly.local_clients import local_clients
from duly.role import RoleLoop, problems_of, stop_roles
from duly.settings import Settings
from duly.store.bootstrap import DatabaseTarget, open_target, prepare_target
from duly.store.database import Database
from duly.store.keys import is_any_key, make_first_key, make_missing_admin_key
from duly.telemetry import Metrics, get_logger

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
START_POLL_S = 0.01
FIRST_KEY_COMMAND = "duly keys create --first"
# One connection, and one that the pool may replace it with.
COMMAND_CONNECTIONS_MAX = 2
# Objects made before a look at the youngest, and how many looks before one at the older ones.
COLLECTOR_THRESHOLDS = (100_000, 50, 100)

log = get_logger("duly.app")


class FirstKey(NamedTuple):
    """`first` is shown once, and only by the start that made it. Without any key, FIRST_KEY_COMMAND
    makes one."""

    first: str | None
    is_any: bool


@dataclass(frozen=True)
class Ready:
    """What a person or a program needs to know once duly answers."""

    url: str
    target: DatabaseTarget
    key: FirstKey
    # Webhooks may go to this machine and its network.
    allows_private: bool = False
    dashboard: str | None = None
    # Clients of this user have a key, of this start or an earlier one.
    is_key_known: bool = False
    # What runs, for tests that move its clock.
    loops: Sequence[RoleLoop] = ()


async def up(
    settings: Settings, environment: Environment, announce: Callable[[Ready], None]
) -> None:
    """All of duly in one process."""
    await run(settings, environment, announce, is_alone=True)


async def serve(
    settings: Settings, environment: Environment, announce: Callable[[Ready], None]
) -> None:
    """One process of an installation; others share its slots and its ready queue."""
    await run(settings, environment, announce, is_alone=False)


async def run(
    settings: Settings,
    environment: Environment,
    announce: Callable[[Ready], None],
    *,
    is_alone: bool,
) -> None:
    """Run until a signal says stop."""
    tune_garbage_collector()
    await run_until(stop_on_signals(), settings, environment, announce, is_alone=is_alone)


async def run_until(
    stop: asyncio.Event,
    settings: Settings,
    environment: Environment,
    announce: Callable[[Ready], None],
    *,
    is_alone: bool,
    database_kind: type[Database] = Database,
) -> None:
    """Run until `stop` is set; everything started here has ended when this returns."""
    metrics = Metrics(settings.roles)
    async with contextlib.AsyncExitStack() as stack:
        tls = read_tls(settings.tls_certificate_file, settings.tls_key_file)
        tokens = read_jwt(settings)
        outbound = outbound_rules(settings, is_alone=is_alone)
        clients = stack.enter_context(local_clients(settings, is_alone=is_alone))
        listener = Listener(settings.host, settings.port, is_secure=tls is not None)
        stack.enter_context(contextlib.closing(listener))
        target = await stack.enter_async_context(open_target(settings, environment))
        migrator = await prepare_target(target, settings, environment)
        pools = await open_pools(stack, target, settings, database_kind, metrics)
        database, heartbeat_database, _ = pools
        loops: list[RoleLoop] = []
        problems = partial(problems_of, loops)
        tracing = start_tracing(stack, settings, environment)
        parts = make_parts(
            *(database, environment, metrics),
            is_alone=is_alone,
            carrier=await open_carrier(settings, database, environment, is_alone=is_alone),
            roles=settings.roles,
            heartbeat_database=heartbeat_database,
            tuning=tuning_of(settings),
            problems=problems,
            tracing=tracing,
        )
        sender = make_targets(
            *(database, environment, outbound, parts.breakers, settings, metrics), tracing
        )
        stack.push_async_callback(sender.close)
        key = await provide_key(database, environment, is_alone=is_alone)
        health = HealthRoutes(heartbeat_database, metrics, migrator.latest, problems)
        shared = (pools, environment, metrics, parts, health, tokens, outbound, settings, tracing)
        api = make_api(*shared, is_alone=is_alone)
        roles = [*parts.roles, *server_watches(target, pools)]
        if "executor" in settings.roles:
            roles += webhook_roles(pools, environment, metrics, parts, sender, settings)
        if "api" in settings.roles:
            roles += [api.waiting, ForeignStarts(database, parts.workers, metrics, parts.stats)]
        loops += [RoleLoop(role, environment, metrics) for role in roles]
        server = make_http(api, settings, tls)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(serve_http(server, listener, stop))
            running = [group.create_task(loop.run()) for loop in loops]
            await started(server, serving)
            known_key = clients.write(listener.url, key.first, target)
            dashboard = await dashboard_url(api.authenticator, listener.url, known_key)
            private, is_known = outbound.allow_private, known_key is not None
            announce(Ready(listener.url, target, key, private, dashboard, is_known, loops))
            await stop.wait()
            await stop_all(server, api, parts, loops, running, settings.stop_timeout_s)


async def provide_key(database: Database, environment: Environment, *, is_alone: bool) -> FirstKey:
    """What owns a whole installation makes its first key; a process of several only looks."""
    if is_alone:
        return FirstKey(await make_first_key(database, environment), is_any=True)
    return FirstKey(None, await is_any_key(database))


async def create_first_key(settings: Settings, environment: Environment) -> str | None:
    """The admin's key of an installation without a live one, straight in its database; None: it
    has one."""
    async with open_target(settings, environment) as target:
        await prepare_target(target, settings, environment)
        database = await Database.open(
            target.engine_url, COMMAND_CONNECTIONS_MAX, is_pooled=settings.database_pooler
        )
        try:
            return await make_missing_admin_key(database, environment, FIRST_KEY_COMMAND)
        finally:
            await database.close()


async def stop_all(
    server: HttpServer,
    api: ApiRoutes,
    parts: Parts,
    loops: list[RoleLoop],
    running: list["asyncio.Task[None]"],
    limit_s: float,
) -> None:
    """Stop in order: no new requests, answer admitted ones, then the roles release what they
    hold."""
    log.info("stopping", limit_s=limit_s)
    clock = asyncio.get_running_loop()
    began = clock.time()
    server.should_exit = True
    for loop in loops:
        loop.stop()
    await parts.lease_queue.close()
    parts.changes.close()
    try:
        # The limit holds also while the database hangs.
        async with asyncio.timeout(limit_s / 2):
            await api.close()
            await parts.settle_queue.close()
    except TimeoutError:
        log.warning("requests cut off by the shutdown", limit_s=limit_s)
    await stop_roles(loops, running, limit_s, clock.time() - began)
    if parts.notifier is not None:
        await parts.notifier.close()


def read_jwt(settings: Settings) -> JwtSettings | None:
    return jwt_settings(
        settings.jwt_issuer, settings.jwt_audience, settings.jwt_algorithms, settings.jwt_key
    )


async def serve_http(server: HttpServer, listener: Listener, stop: asyncio.Event) -> None:
    """A server that ends by itself takes the process down in order, never silently."""
    try:
        await server.serve([listener.socket])
    finally:
        stop.set()


async def started(server: HttpServer, serving: "asyncio.Task[None]") -> None:
    while not server.started and not serving.done():  # noqa: ASYNC110 (uvicorn has no signal)
        await asyncio.sleep(START_POLL_S)


def tune_garbage_collector() -> None:
    """Let the cycle collector look rarely: nothing on a task's way makes cycles, and with hundreds
    of thousands of timers in memory its default took a third of the process's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


def stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
