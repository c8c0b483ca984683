"""Composition: which parts make a running duly, what each is given, which events it hears of.

Parts meet here, and a scheduler's own in `scheduler/assembly.py`. Nothing runs here: `app.py`
starts and stops what `make_parts` returns.
"""

import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from uuid import UUID

from duly import __version__
from duly.api.admission import Admission, AdmissionLimits
from duly.api.bearer_tokens import JwtSettings
from duly.api.health import HealthRoutes
from duly.api.http_limits import HttpLimits
from duly.api.routes import ApiRoutes
from duly.api.server import HttpServer, make_server
from duly.broker.assembly import carrier_roles, carrier_state, default_carrier, is_carrier_up
from duly.broker.contract import Carrier, LeasingCarrier
from duly.broker.lane_hints import LaneHints, on_lane_hints
from duly.broker.lease_queue import LeaseQueue
from duly.coordinator.ownership import Coordinator
from duly.coordinator.postgres import PostgresOwnership
from duly.domain.addresses import OutboundRules
from duly.domain.fairness import AGING_S
from duly.domain.lanes import LANE_DEPTH_MAX
from duly.environment import Environment
from duly.events import (
    TASK_EVENTS,
    BulkOperationDue,
    TaskEvents,
    TasksFinished,
    TasksRescheduled,
    TasksStored,
)
from duly.execution.assembly import (
    DRAIN_SHARE,
    executor_roles,
    make_webhook_executor,
)
from duly.execution.attempt import Handler
from duly.execution.breakers import Breakers
from duly.execution.command import CommandRunner
from duly.execution.mail import Mailer, read_relay
from duly.execution.targets import Targets
from duly.execution.webhooks.sender import WebhookSender
from duly.execution.worker_leases import WorkerLeases
from duly.maintenance.bulk_operations import BulkOperationsRole
from duly.maintenance.process_roles import EmbeddedServerRole, StatsRole
from duly.maintenance.role import Maintenance, make_services
from duly.role import Role
from duly.scheduler.assembly import Scheduler, make_scheduler
from duly.settings import ROLES, Settings
from duly.store.bootstrap import DatabaseTarget
from duly.store.database import Database
from duly.store.failover import FailoverWatch
from duly.store.hosts import Hosts
from duly.store.notify import (
    BULK,
    CHANGED,
    DOORBELL,
    FREED,
    OWNERSHIP,
    READY,
    SCHEDULES,
    WORKFLOWS,
    Channel,
    Notifier,
)
from duly.store.ownership import MAINTENANCE, SCHEDULER_ROLE, Node, NodeReport
from duly.store.partitions import RETENTION_S
from duly.store.settle import SettleQueue
from duly.store.stats import StatsBook
from duly.store.submit import Submitter
from duly.store.task_logs import RETENTION_S as LOG_RETENTION_S
from duly.store.task_metrics import note_ended
from duly.telemetry import Metrics
from duly.tenant_changes import TenantChanges
from duly.tracing import OFF, Tracing, open_tracing

DAY_S = 86_400.0
MEBIBYTE = 1024**2
# For heartbeats alone, beside the pool that everything else shares.
HEARTBEAT_CONNECTIONS_MAX = 2
# The connection pools: for everything, for heartbeats, for reads and bulk changes.
POOL_NAMES = ("main", "heartbeat", "bulk")
# Of reads and bulk changes: one more than tenants may use, for operators.
OPERATOR_CONNECTIONS = 1
BULK_STATEMENT_S = 10.0
# What one tenant, or one address, may have of the HTTP connections.
CONNECTIONS_SHARE = 0.8


class Tuning(NamedTuple):
    """Of scheduling and housekeeping, what the settings may change."""

    aging_s: float = AGING_S
    lane_depth: int = LANE_DEPTH_MAX
    retention_s: float = RETENTION_S
    log_retention_s: float = LOG_RETENTION_S


def tuning_of(settings: Settings) -> Tuning:
    return Tuning(
        *(settings.aging_s, settings.lane_depth, settings.retention_days * DAY_S),
        settings.log_retention_days * DAY_S,
    )


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
    settle_queue: SettleQueue
    workers: WorkerLeases
    breakers: Breakers
    notifier: Notifier | None


def make_parts(
    database: Database,
    environment: Environment,
    metrics: Metrics,
    *,
    is_alone: bool,
    carrier: Carrier | LeasingCarrier | None = None,
    roles: Collection[str] = ROLES,
    heartbeat_database: Database | None = None,
    tuning: Tuning = Tuning(),  # noqa: B008 (a tuple of numbers)
    problems: Callable[[], Mapping[str, str | None]] = dict,
    tracing: Tracing = OFF,
) -> Parts:
    """What this process does, in the order of a request; `problems` are those of its roles."""
    events = TaskEvents(metrics)
    carrier = carrier or default_carrier(database, environment, is_alone=is_alone)
    report = partial(report_node, problems, carrier)
    coordinator = make_coordinator(database, environment, roles, report, events)
    stats = StatsBook(environment, metrics=metrics)
    # Behind a transaction-mode pooler there is no LISTEN: loads and polls find everything.
    notifier = None if is_alone or database.is_pooled else Notifier(database)
    send = notifier.send if notifier is not None else None
    on_published = LaneHints(send).send if send is not None else None
    lease_queue = LeaseQueue(carrier, database, environment, events, on_published)
    scheduler = make_scheduler(
        *(database, environment, coordinator, lease_queue, metrics, events, send),
        *(tuning.aging_s, tuning.lane_depth, tracing.begin_occurrence),
    )
    tracing.subscribe(events)
    breakers = make_breakers(database, environment, scheduler)
    settle_queue = SettleQueue(database, environment, events, metrics.batch_sizes.of("settle"))
    changes = TenantChanges(send)
    workers = WorkerLeases(
        *(database, environment, lease_queue, settle_queue, metrics, stats),
        *(heartbeat_database, breakers),
    )
    subscribe_process(events, changes, stats, workers, metrics)
    notify_bulk_operations(events, notifier)
    connect_metrics(metrics, scheduler, lease_queue)
    ticking = scheduler.roles if SCHEDULER_ROLE in roles else scheduler.bystander_roles
    ticking += [lease_queue, StatsRole(database, stats, workers.history), breakers]
    ticking += carrier_roles(carrier, lease_queue)
    listeners = make_listeners(scheduler, lease_queue, changes)
    if MAINTENANCE in roles:
        leads = partial(leads_maintenance, coordinator)
        ticking.append(make_maintenance(database, environment, metrics, leads, scheduler, tuning))
        ticking.append(bulk := BulkOperationsRole(database, environment, events, leads))
        events.subscribe(BulkOperationDue, bulk.on_due)
        listeners[BULK] = bulk.on_notify
    if notifier is not None:
        ticking.append(Channel(database, environment, listeners, coordinator.refresh))
    return Parts(
        *(events, changes, ticking, lease_queue, scheduler.submitter, scheduler),
        *(stats, settle_queue, workers, breakers, notifier),
    )


def report_node(
    problems: Callable[[], Mapping[str, str | None]], carrier: Carrier | LeasingCarrier
) -> NodeReport:
    failing = {role: problem for role, problem in problems().items() if problem}
    return NodeReport(failing, carrier_state(carrier))


def make_breakers(database: Database, environment: Environment, scheduler: Scheduler) -> Breakers:
    gatekeeper = scheduler.dispatcher.gatekeeper
    return Breakers(database, environment, lambda: gatekeeper.bounds.watched_workers)


def notify_bulk_operations(events: TaskEvents, notifier: Notifier | None) -> None:
    """Tell the process that drives bulk operations, where it is another one, that one is due."""
    if notifier is not None:
        send = partial(notifier.send, BULK, ["due"])
        events.subscribe(BulkOperationDue, lambda _event: send())


def make_listeners(
    scheduler: Scheduler, lease_queue: LeaseQueue, changes: TenantChanges
) -> dict[str, Callable[[list[str]], None]]:
    """Listeners for notifications of other processes."""
    return {
        OWNERSHIP: scheduler.coordinator.on_notify,
        DOORBELL: scheduler.doorbell.on_notify,
        FREED: scheduler.freed_capacity.on_notify,
        SCHEDULES: scheduler.cron_role.on_notify,
        WORKFLOWS: scheduler.workflows.on_notify,
        CHANGED: changes.on_notify,
        READY: partial(on_lane_hints, lease_queue),
    }


def subscribe_process(
    events: TaskEvents,
    changes: TenantChanges,
    stats: StatsBook,
    workers: WorkerLeases,
    metrics: Metrics,
) -> None:
    """What a process counts and judges, whatever its roles are; see also `Scheduler.subscribe`."""
    for kind in TASK_EVENTS:
        events.subscribe(kind, changes.on_event)
    events.subscribe(TasksStored, stats.on_stored)
    for listen in (
        workers.breakers.on_ended,
        workers.history.on_ended,
        partial(note_ended, metrics),
    ):
        events.subscribe(TasksFinished, listen)
        events.subscribe(TasksRescheduled, listen)


def make_coordinator(
    database: Database,
    environment: Environment,
    roles: Collection[str],
    report: Callable[[], NodeReport],
    events: TaskEvents,
) -> Coordinator:
    store, node = PostgresOwnership(database), make_node(environment, roles)
    return Coordinator(store, environment, node, report=report, events=events)


def make_node(environment: Environment, roles: Collection[str]) -> Node:
    return Node(
        UUID(int=environment.entropy.getrandbits(128)),
        f"{socket.gethostname()}:{os.getpid()}",
        __version__,
        tuple(role for role in ROLES if role in roles),
    )


def make_maintenance(
    database: Database,
    environment: Environment,
    metrics: Metrics,
    leads: Callable[[], bool],
    scheduler: Scheduler,
    tuning: Tuning,
) -> Maintenance:
    return Maintenance(
        environment,
        metrics,
        is_owner=leads,
        make=lambda: make_services(
            database, metrics, scheduler.submitter, tuning.retention_s, tuning.log_retention_s
        ),
    )


def leads_maintenance(coordinator: Coordinator) -> bool:
    return coordinator.leads(MAINTENANCE) is not None


def make_targets(
    database: Database,
    environment: Environment,
    outbound: OutboundRules,
    breakers: Breakers,
    settings: Settings,
    metrics: Metrics,
    tracing: Tracing,
) -> Targets:
    """How this process delivers."""
    webhooks = WebhookSender(
        database,
        environment,
        outbound,
        settings.webhook_host_concurrency,
        on_outcome=breakers.on_outcome,
        stretch=breakers.stretch_s,
        metrics=metrics,
        on_inputs=tracing.on_inputs,
    )
    mail = Mailer(environment, read_relay(settings.smtp_url, settings.mail_from))
    return Targets(webhooks, mail, CommandRunner(settings.notification_command))


def webhook_roles(
    pools: list[Database],
    environment: Environment,
    metrics: Metrics,
    parts: Parts,
    handler: Handler,
    settings: Settings,
) -> list[Role]:
    """Roles that deliver webhooks; running attempts get their share of the time to stop."""
    database, heartbeat_database, _ = pools
    executor = make_webhook_executor(
        database,
        environment,
        parts.lease_queue,
        parts.settle_queue,
        handler,
        metrics,
        parts.stats,
        drain_s=settings.stop_timeout_s * DRAIN_SHARE,
        heartbeat_database=heartbeat_database,
        bands=settings.executor_bands,
        weight_of=parts.scheduler.dispatcher.gatekeeper.weight_of,
    )
    return executor_roles(executor)


def make_api(
    pools: list[Database],
    environment: Environment,
    metrics: Metrics,
    parts: Parts,
    health: HealthRoutes,
    tokens: JwtSettings | None,
    outbound: OutboundRules,
    settings: Settings,
    tracing: Tracing,
    *,
    is_alone: bool,
) -> ApiRoutes:
    """Only a process that owns the whole installation knows the depth of all lanes."""
    database, heartbeat_database, bulk = pools
    api = ApiRoutes(
        database,
        environment,
        metrics,
        parts.submitter,
        parts.events,
        parts.scheduler.cron_role.expect,
        health,
        tokens,
        lane_depth=parts.lease_queue.depth if is_alone else None,
        lane_depth_max=parts.scheduler.dispatcher.lane_depth,
        workers=parts.workers,
        outbound=outbound,
        reserved=heartbeat_database,
        admission=Admission(admission_limits(settings)),
        bulk=bulk,
        is_secure=bool(settings.tls_certificate_file),
        changes=parts.changes,
        tracing=tracing,
        log_quota=settings.log_quota_mb * MEBIBYTE,
        has_relay=bool(settings.smtp_url),
        has_command=bool(settings.notification_command),
    )
    parts.events.subscribe(TasksFinished, api.waiting.on_finished)
    return api


def start_tracing(
    stack: contextlib.AsyncExitStack,
    settings: Settings,
    environment: Environment,
) -> Tracing:
    """For the parts of this process to follow; the stack flushes its spans."""
    tracing = open_tracing(
        *(environment, settings.otlp_endpoint, settings.trace_sample_ratio),
        settings.otlp_protocol,
    )
    stack.push_async_callback(tracing.close)
    return tracing


def make_http(api: ApiRoutes, settings: Settings, tls: ssl.SSLContext | None) -> HttpServer:
    per_address = settings.http_connections_per_address_max or share_of_connections(settings)
    limits = HttpLimits(
        connections_max=settings.http_connections_max, connections_per_address_max=per_address
    )
    application = api.application(only_probes="api" not in settings.roles)
    return make_server(application, settings.stop_timeout_s, limits, tls)


def server_watches(target: DatabaseTarget, pools: list[Database]) -> list[Role]:
    """Watches over the server: ours is started again, one of several hosts is followed."""
    if target.embedded_postgres is not None:
        return [EmbeddedServerRole(target.embedded_postgres)]
    return [FailoverWatch(pools)] if pools[0].hosts.are_many else []


async def open_pools(
    stack: contextlib.AsyncExitStack,
    target: DatabaseTarget,
    settings: Settings,
    kind: type[Database],
    metrics: Metrics,
) -> list[Database]:
    """One for everything; a small one for heartbeats and probes, which callers cannot exhaust; and
    one for what people look through or change in bulk. The stack closes them."""
    pools: list[Database] = []
    hosts = Hosts(target.engine_url)
    bulk_max = admission_limits(settings).reads_max + OPERATOR_CONNECTIONS
    sizes = (settings.pool_connections_max, HEARTBEAT_CONNECTIONS_MAX, bulk_max)
    for name, most in zip(POOL_NAMES, sizes, strict=True):
        pools.append(
            await kind.open(
                target.engine_url,
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


def connect_metrics(metrics: Metrics, scheduler: Scheduler, lease_queue: LeaseQueue) -> None:
    """Figures that are read at a scrape."""
    coordinator = scheduler.coordinator
    metrics.slots_without_owner.set_function(lambda: coordinator.slots_without_owner)
    metrics.slots_owned.set_function(
        lambda: len(coordinator.owned) if coordinator.is_trusted else None
    )
    metrics.singleton_role_leader.set_function(
        lambda: {(MAINTENANCE,): float(coordinator.leads(MAINTENANCE) is not None)}
    )
    metrics.singleton_role_without_leader.set_function(
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
    metrics.carrier_up.set_function(lambda: float(is_carrier_up(lease_queue.carrier)))


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
