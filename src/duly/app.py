"""Composition root: which parts make a running duly process.

`run` reads as what happens: listen, find the database, migrate, open the pool, start the roles and
the API, wait for a signal, undo all of it in reverse. `up` owns a whole installation and keeps the
ready queue in memory; `serve` is one process of several and keeps it in PostgreSQL.
"""

import asyncio
import contextlib
import fcntl
import gc
import os
import signal
import socket
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import msgspec

from duly import __version__
from duly.api.admission import Admission, AdmissionLimits
from duly.api.bearer_tokens import JwtSettings, jwt_settings
from duly.api.health import HealthRoutes
from duly.api.http_limits import HttpLimits
from duly.api.routes import ApiRoutes
from duly.api.server import HttpServer, Listener, make_server, read_tls
from duly.api.sessions import dashboard_url
from duly.broker.assembly import carrier_roles, default_carrier, open_carrier
from duly.broker.bell import LaneHints, hear_lanes
from duly.broker.contract import Carrier, LeasingCarrier
from duly.broker.lease_queue import LeaseQueue
from duly.client.server import LOCAL_FILE, LocalServer, read_local
from duly.coordinator.ownership import Coordinator
from duly.coordinator.postgres import PostgresOwnership
from duly.domain.addresses import OutboundRules
from duly.domain.errors import AlreadyRunning, DataDirectoryUnusable
from duly.domain.fairness import AGING_S
from duly.domain.lanes import LANE_DEPTH_MAX, Lane
from duly.environment import Environment
from duly.events import TASK_EVENTS, TaskEvents, TasksFinished, TasksRescheduled, TasksStored
from duly.execution.assembly import (
    DRAIN_SHARE,
    executor_roles,
    make_webhook_executor,
    outbound_rules,
)
from duly.execution.attempt import Handler
from duly.execution.breakers import Breakers
from duly.execution.foreign_starts import ForeignStarts
from duly.execution.webhooks import WebhookSender
from duly.execution.worker_leases import WorkerLeases
from duly.maintenance.process_roles import EmbeddedServerRole, StatsRole
from duly.maintenance.role import Maintenance, make_services
from duly.role import Role, RoleLoop, problems_of, stop_roles
from duly.scheduler.assembly import Scheduler, make_scheduler
from duly.settings import ROLES, Settings
from duly.store.bootstrap import DatabaseTarget, open_target, prepare_target
from duly.store.database import Database, address_of
from duly.store.embedded import open_lock, prepare_folder
from duly.store.failover import FailoverWatch
from duly.store.hosts import Hosts
from duly.store.keys import is_any_key, make_first_key, make_missing_admin_key
from duly.store.notify import (
    CHANGED,
    DOORBELL,
    FREED,
    OWNERSHIP,
    READY,
    SCHEDULES,
    Channel,
    Notifier,
)
from duly.store.ownership import MAINTENANCE, SCHEDULER_ROLE, Node
from duly.store.partitions import RETENTION_S
from duly.store.settle import SettleQueue
from duly.store.stats import StatsBook
from duly.store.submit import Submitter
from duly.store.task_metrics import note_ended
from duly.telemetry import Metrics, get_logger
from duly.tenant_changes import TenantChanges

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
START_POLL_S = 0.01
DAY_S = 86_400.0
# Held by a `duly up` for as long as it runs.
UP_LOCK = "up.lock"
KEYS_REMEMBERED_MAX = 20
FIRST_KEY_COMMAND = "duly keys create --first"
# One connection, and one that the pool may replace it with.
COMMAND_CONNECTIONS_MAX = 2
# For heartbeats alone, beside the pool that everything else shares.
BEATING_CONNECTIONS_MAX = 2
# The connection pools: for everything, for heartbeats, for reads and bulk changes.
POOL_NAMES = ("main", "heartbeat", "bulk")
# Of reads and bulk changes: one more than tenants may use, for operators.
OPERATOR_CONNECTIONS = 1
BULK_STATEMENT_S = 10.0
# What one tenant, or one address, may have of the HTTP connections.
CONNECTIONS_SHARE = 0.8
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
    place: DatabaseTarget
    key: FirstKey
    # Webhooks may go to this machine and its network.
    allows_private: bool = False
    dashboard: str | None = None
    # What runs, for tests that move its clock.
    loops: Sequence[RoleLoop] = ()


class Tuning(NamedTuple):
    """Of scheduling and housekeeping, what the settings may change."""

    aging_s: float = AGING_S
    lane_depth: int = LANE_DEPTH_MAX
    retention_s: float = RETENTION_S


def tuning_of(settings: Settings) -> Tuning:
    return Tuning(settings.aging_s, settings.lane_depth, settings.retention_days * DAY_S)


@dataclass(frozen=True)
class Parts:
    """Everything of one process that does work, before any of it runs."""

    events: TaskEvents
    changes: TenantChanges
    roles: list[Role]
    lease_queue: LeaseQueue
    submitter: Submitter
    scheduler: Scheduler
    stats: StatsBook
    settling: SettleQueue
    workers: WorkerLeases
    breakers: Breakers
    notifier: Notifier | None


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
    calm_collector()
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
        place = await stack.enter_async_context(open_target(settings, environment))
        migrator = await prepare_target(place, settings, environment)
        pools = await open_pools(stack, place, settings, database_kind, metrics)
        database, beating, _ = pools
        loops: list[RoleLoop] = []
        problems = partial(problems_of, loops)
        carrier = await open_carrier(settings, database, environment, is_alone=is_alone)
        parts = make_parts(
            database,
            environment,
            metrics,
            is_alone=is_alone,
            carrier=carrier,
            roles=settings.roles,
            beating=beating,
            tuning=tuning_of(settings),
            problems=problems,
        )
        sender = make_sender(database, environment, outbound, parts.breakers, settings, metrics)
        stack.push_async_callback(sender.close)
        key = await provide_key(database, environment, is_alone=is_alone)
        health = HealthRoutes(beating, metrics, migrator.latest, problems)
        lane_depth = parts.lease_queue.depth if is_alone else None
        front = make_front(
            pools, environment, metrics, parts, health, tokens, outbound, lane_depth, settings
        )
        roles = [*parts.roles, *keepers(place, pools)]
        if "executor" in settings.roles:
            roles += webhook_roles(database, environment, metrics, parts, sender, settings, beating)
        if "api" in settings.roles:
            roles += [front.waiting, ForeignStarts(database, parts.workers, metrics, parts.stats)]
        loops += [RoleLoop(role, environment, metrics) for role in roles]
        server = make_http(front, settings, tls)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(serve_http(server, listener, stop))
            running = [group.create_task(loop.run()) for loop in loops]
            await started(server, serving)
            known_key = clients.tell(listener.url, key.first, place)
            dashboard = await dashboard_url(front.authenticator, listener.url, known_key)
            announce(Ready(listener.url, place, key, outbound.allow_private, dashboard, loops))
            await stop.wait()
            await stop_all(server, front, parts, loops, running, settings.stop_timeout_s)


async def provide_key(database: Database, environment: Environment, *, is_alone: bool) -> FirstKey:
    """What owns a whole installation makes its first key; a process of several only looks."""
    if is_alone:
        return FirstKey(await make_first_key(database, environment), is_any=True)
    return FirstKey(None, await is_any_key(database))


async def create_first_key(settings: Settings, environment: Environment) -> str | None:
    """The admin's key of an installation without a live one, straight in its database; None: it
    has one."""
    async with open_target(settings, environment) as place:
        await prepare_target(place, settings, environment)
        database = await Database.open(
            place.engine_url, COMMAND_CONNECTIONS_MAX, is_pooled=settings.database_pooler
        )
        try:
            return await make_missing_admin_key(database, environment, FIRST_KEY_COMMAND)
        finally:
            await database.close()


async def open_pools(
    stack: contextlib.AsyncExitStack,
    place: DatabaseTarget,
    settings: Settings,
    kind: type[Database],
    metrics: Metrics,
) -> list[Database]:
    """One for everything; a small one for heartbeats and probes, which callers cannot exhaust; and
    one for what people look through or change in bulk. The stack closes them."""
    pools: list[Database] = []
    hosts = Hosts(place.engine_url)
    bulk_max = admission_limits(settings).reads_max + OPERATOR_CONNECTIONS
    sizes = (settings.pool_connections_max, BEATING_CONNECTIONS_MAX, bulk_max)
    for name, most in zip(POOL_NAMES, sizes, strict=True):
        pools.append(
            await kind.open(
                place.engine_url,
                most,
                is_pooled=settings.database_pooler,
                hosts=hosts,
                statement_times=metrics.statement_time.of(name),
            )
        )
        stack.push_async_callback(pools[-1].close)
    show_pools(metrics, dict(zip(POOL_NAMES, pools, strict=True)))
    pools[-1].tenant_statement_s = BULK_STATEMENT_S
    return pools


def admission_limits(settings: Settings) -> AdmissionLimits:
    """Changes leave most of the shared connections to submits, leases and settlements."""
    changes_max = max(1, settings.pool_connections_max // 2)
    return AdmissionLimits(
        calls_share=share_of_connections(settings),
        changes_max=changes_max,
        changes_share=max(1, changes_max // 2),
    )


def share_of_connections(settings: Settings) -> int:
    return max(1, int(settings.http_connections_max * CONNECTIONS_SHARE))


async def stop_all(
    server: HttpServer,
    front: ApiRoutes,
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
            await front.close()
            await parts.settling.close()
    except TimeoutError:
        log.warning("requests cut off by the shutdown", limit_s=limit_s)
    await stop_roles(loops, running, limit_s, clock.time() - began)
    if parts.notifier is not None:
        await parts.notifier.close()


def make_front(
    pools: list[Database],
    environment: Environment,
    metrics: Metrics,
    parts: Parts,
    health: HealthRoutes,
    tokens: JwtSettings | None,
    outbound: OutboundRules,
    lane_depth: Callable[[Lane], int] | None,
    settings: Settings,
) -> ApiRoutes:
    """`lane_depth` only where this process knows all lanes."""
    database, beating, bulk = pools
    front = ApiRoutes(
        database,
        environment,
        metrics,
        parts.submitter,
        parts.events,
        parts.scheduler.cron_role.expect,
        health,
        tokens,
        lane_depth=lane_depth,
        lane_depth_max=parts.scheduler.dispatcher.lane_depth,
        workers=parts.workers,
        outbound=outbound,
        reserved=beating,
        admission=Admission(admission_limits(settings)),
        bulk=bulk,
        is_secure=bool(settings.tls_certificate_file),
    )
    parts.events.subscribe(TasksFinished, front.waiting.on_finished)
    return front


def make_http(front: ApiRoutes, settings: Settings, tls: ssl.SSLContext | None) -> HttpServer:
    per_address = settings.http_connections_per_address_max or share_of_connections(settings)
    limits = HttpLimits(
        connections_max=settings.http_connections_max, connections_per_address_max=per_address
    )
    application = front.application(only_probes="api" not in settings.roles)
    return make_server(application, settings.stop_timeout_s, limits, tls)


def make_parts(
    database: Database,
    environment: Environment,
    metrics: Metrics,
    *,
    is_alone: bool,
    carrier: Carrier | LeasingCarrier | None = None,
    roles: Collection[str] = ROLES,
    beating: Database | None = None,
    tuning: Tuning = Tuning(),  # noqa: B008 (a tuple of numbers)
    problems: Callable[[], Mapping[str, str | None]] = dict,
) -> Parts:
    """What this process does, in the order of the corridor; `problems` are those of its roles."""
    node = make_node(environment, roles)
    events = TaskEvents(metrics)
    coordinator = Coordinator(
        PostgresOwnership(database), environment, node, problems=problems, events=events
    )
    stats = StatsBook(environment, metrics=metrics)
    # Behind a transaction-mode pooler there is no LISTEN: loads and polls find everything.
    is_heard = not is_alone and not database.is_pooled
    notifier = Notifier(database) if is_heard else None
    carrier = carrier or default_carrier(database, environment, is_alone=is_alone)
    on_published = LaneHints(notifier.ring).tell if notifier is not None else None
    lease_queue = LeaseQueue(carrier, database, environment, events, on_published)
    scheduler = make_scheduler(
        database,
        environment,
        coordinator,
        lease_queue,
        metrics,
        events,
        send=notifier.ring if notifier is not None else None,
        aging_s=tuning.aging_s,
        lane_depth=tuning.lane_depth,
    )
    gatekeeper = scheduler.dispatcher.gatekeeper
    breakers = Breakers(database, environment, lambda: gatekeeper.bounds.watched_workers)
    settling = SettleQueue(database, environment, events, metrics.batch_sizes.of("settle"))
    changes = TenantChanges(notifier.ring if notifier is not None else None)
    subscribe_process(events, changes, stats, breakers, metrics)
    connect_metrics(metrics, scheduler, lease_queue)
    workers = WorkerLeases(
        database, environment, lease_queue, settling, metrics, stats, beating, breakers
    )
    ticking = scheduler.roles if SCHEDULER_ROLE in roles else scheduler.bystander_roles
    ticking += [lease_queue, StatsRole(database, stats), breakers]
    ticking += carrier_roles(carrier, lease_queue)
    if MAINTENANCE in roles:
        ticking.append(make_maintenance(database, environment, metrics, coordinator, tuning))
    if notifier is not None:
        listeners = make_listeners(scheduler, lease_queue, changes)
        ticking.append(Channel(database, environment, listeners, coordinator.look))
    return Parts(
        *(events, changes, ticking, lease_queue, scheduler.submitter, scheduler),
        *(stats, settling, workers, breakers, notifier),
    )


def make_maintenance(
    database: Database,
    environment: Environment,
    metrics: Metrics,
    coordinator: Coordinator,
    tuning: Tuning,
) -> Maintenance:
    return Maintenance(
        environment,
        metrics,
        is_owner=lambda: coordinator.leads(MAINTENANCE) is not None,
        make=lambda: make_services(database, metrics, tuning.retention_s),
    )


def make_listeners(
    scheduler: Scheduler, lease_queue: LeaseQueue, changes: TenantChanges
) -> dict[str, Callable[[list[str]], None]]:
    """Listeners for notifications of other processes."""
    return {
        OWNERSHIP: scheduler.coordinator.on_notify,
        DOORBELL: scheduler.doorbell.on_notify,
        FREED: scheduler.freed.on_notify,
        SCHEDULES: scheduler.cron_role.on_notify,
        CHANGED: changes.on_notify,
        READY: partial(hear_lanes, lease_queue),
    }


def subscribe_process(
    events: TaskEvents,
    changes: TenantChanges,
    stats: StatsBook,
    breakers: Breakers,
    metrics: Metrics,
) -> None:
    """What a process counts and judges, whatever its roles are; see also `Scheduler.subscribe`."""
    for kind in TASK_EVENTS:
        events.subscribe(kind, changes.on_event)
    events.subscribe(TasksStored, stats.on_stored)
    events.subscribe(TasksFinished, breakers.on_ended)
    events.subscribe(TasksRescheduled, breakers.on_ended)
    events.subscribe(TasksFinished, partial(note_ended, metrics))
    events.subscribe(TasksRescheduled, partial(note_ended, metrics))


def connect_metrics(metrics: Metrics, scheduler: Scheduler, lease_queue: LeaseQueue) -> None:
    """Figures that are read at a scrape."""
    coordinator = scheduler.coordinator
    metrics.slots_without_owner.set_function(lambda: coordinator.slots_without_owner)
    metrics.slots_owned.set_function(
        lambda: len(coordinator.owned) if coordinator.is_trusted else None
    )
    metrics.duty_leader.set_function(
        lambda: {(MAINTENANCE,): float(coordinator.leads(MAINTENANCE) is not None)}
    )
    metrics.duty_without_leader.set_function(
        lambda: (
            None if (free := coordinator.is_free(MAINTENANCE)) is None else {(MAINTENANCE,): free}
        )
    )
    metrics.timers_in_memory.set_function(
        lambda: {
            (state,): float(count)
            for state, count in scheduler.dispatcher.ready_state.sizes().items()
        }
    )
    metrics.loader_lag.set_function(scheduler.loader.lag_s)
    metrics.carrier_up.set_function(lambda: float(lease_queue.is_up))


def show_pools(metrics: Metrics, pools: Mapping[str, Database]) -> None:
    """Connections of each pool, as they are at a scrape."""

    def count() -> dict[tuple[str, ...], float]:
        found: dict[tuple[str, ...], float] = {}
        for name, pool in pools.items():
            found[name, "lent"] = len(pool.connections.lent)
            found[name, "idle"] = len(pool.connections.idle)
            found[name, "max"] = pool.connections.most
        return found

    metrics.database_connections.set_function(count)
    metrics.database_waiting.set_function(
        lambda: {(name,): float(pool.connections.waiting) for name, pool in pools.items()}
    )


def make_node(environment: Environment, roles: Collection[str]) -> Node:
    return Node(
        UUID(int=environment.entropy.getrandbits(128)),
        f"{socket.gethostname()}:{os.getpid()}",
        __version__,
        tuple(role for role in ROLES if role in roles),
    )


def make_sender(
    database: Database,
    environment: Environment,
    outbound: OutboundRules,
    breakers: Breakers,
    settings: Settings,
    metrics: Metrics,
) -> WebhookSender:
    return WebhookSender(
        database,
        environment,
        outbound,
        settings.webhook_host_concurrency,
        on_outcome=breakers.on_outcome,
        stretch=breakers.stretch_s,
        metrics=metrics,
    )


def webhook_roles(
    database: Database,
    environment: Environment,
    metrics: Metrics,
    parts: Parts,
    handler: Handler,
    settings: Settings,
    beating: Database,
) -> list[Role]:
    """Those that deliver; what they have under way gets its share of the time to stop."""
    executor = make_webhook_executor(
        database,
        environment,
        parts.lease_queue,
        parts.settling,
        handler,
        metrics,
        parts.stats,
        drain_s=settings.stop_timeout_s * DRAIN_SHARE,
        beating=beating,
        bands=settings.executor_bands,
        weight_of=parts.scheduler.dispatcher.gatekeeper.weight_of,
    )
    return executor_roles(executor)


def read_jwt(settings: Settings) -> JwtSettings | None:
    return jwt_settings(
        settings.jwt_issuer, settings.jwt_audience, settings.jwt_algorithms, settings.jwt_key
    )


class LocalClients:
    """The file by which programs of the same user find this duly, and the key it once made."""

    def __init__(self, path: Path | None, *, is_cluster: bool = False) -> None:
        self.path = path
        self.is_cluster = is_cluster

    def tell(self, url: str, first_key: str | None, place: DatabaseTarget) -> str | None:
        """The key of local clients, if it is known. A process of a cluster leaves no address: its
        clients are mostly elsewhere."""
        if self.is_cluster:
            return None
        if self.path is None:
            log.warning("clients of this user find another duly or none: set DULY_URL", url=url)
            return None
        known = read_local(self.path)
        keys = {} if known is None else dict(known.keys)
        database = "embedded" if place.embedded is not None else address_of(place.engine_url)
        # A file without `keys` is from before they were remembered, and has one key.
        oldest = known.api_key if known is not None and not keys else ""
        api_key = first_key or keys.get(database, oldest)
        if api_key:
            keys.pop(database, None)
            keys[database] = api_key
        newest = dict(list(keys.items())[-KEYS_REMEMBERED_MAX:])
        # Unreadable for others before anything is in it, and replaced whole.
        fresh = self.path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        fresh.touch(mode=0o600)
        fresh.write_bytes(msgspec.json.encode(LocalServer(url, api_key, newest)))
        fresh.rename(self.path)
        return api_key or None


@contextlib.contextmanager
def local_clients(settings: Settings, *, is_alone: bool) -> Iterator[LocalClients]:
    """The lock lasts as long as this process. A second one on the same data is refused: each keeps
    its ready queue in memory, where the workers of the other do not look. One that shares only the
    folder, beside a database of its own, leaves the first its clients."""
    if not is_alone:
        yield LocalClients(None, is_cluster=True)
        return
    data_dir = Path(settings.data_dir).absolute()
    try:
        prepare_folder(data_dir)
    except DataDirectoryUnusable:
        if not settings.database_url:
            raise
        yield LocalClients(None)
        return
    with contextlib.ExitStack() as stack:
        lock = open_lock(data_dir / UP_LOCK)
        stack.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not settings.database_url:
                known = read_local(data_dir / LOCAL_FILE)
                url = "an unknown address" if known is None else known.url
                raise AlreadyRunning(data_dir=data_dir, url=url) from None
            yield LocalClients(None)
        else:
            yield LocalClients(data_dir / LOCAL_FILE)


def keepers(place: DatabaseTarget, pools: list[Database]) -> list[Role]:
    """Watches over the server: ours is started again, one of several hosts is followed."""
    if place.keeper is not None:
        return [EmbeddedServerRole(place.keeper)]
    return [FailoverWatch(pools)] if pools[0].hosts.are_many else []


async def serve_http(server: HttpServer, listener: Listener, stop: asyncio.Event) -> None:
    """A server that ends by itself takes the process down in order, never silently."""
    try:
        await server.serve([listener.socket])
    finally:
        stop.set()


async def started(server: HttpServer, serving: "asyncio.Task[None]") -> None:
    while not server.started and not serving.done():  # noqa: ASYNC110 (uvicorn has no signal)
        await asyncio.sleep(START_POLL_S)


def calm_collector() -> None:
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
