"""Composition of an executor from settings: its roles. Nothing runs here."""

from collections.abc import Callable, Sequence
from ipaddress import ip_address, ip_network
from uuid import UUID

from duly.broker.lease_queue import LeaseQueue
from duly.domain.addresses import PORT_MAX, OutboundRules
from duly.domain.errors import ConfigurationError
from duly.domain.lanes import WEBHOOK_LANES
from duly.domain.task import BAND_NAMES
from duly.environment import Environment
from duly.execution.attempt import Handler
from duly.execution.executor import Executor
from duly.role import Role
from duly.settings import Settings
from duly.store.database import Database
from duly.store.settle import SettleQueue
from duly.store.stats import StatsBook
from duly.telemetry import Metrics

# Ticks of the executor at once: one leases while another starts what it leased.
EXECUTOR_LOOPS = 3
# Of the longest stop, how much is left to deliveries before they are released; roles share half.
DRAIN_SHARE = 0.4


def make_webhook_executor(
    database: Database,
    environment: Environment,
    lease_queue: LeaseQueue,
    settle_queue: SettleQueue,
    handler: Handler,
    metrics: Metrics,
    stats: StatsBook,
    drain_s: float,
    heartbeat_database: Database,
    weight_of: Callable[[int], float],
    bands: Sequence[str] = tuple(BAND_NAMES),
) -> Executor:
    numbers = {BAND_NAMES[band] for band in bands}
    return Executor(
        database,
        environment,
        lease_queue,
        [lane for lane in WEBHOOK_LANES if lane.band in numbers],
        settle_queue,
        handler,
        metrics,
        stats,
        UUID(int=environment.entropy.getrandbits(128)),
        drain_s=drain_s,
        heartbeat_database=heartbeat_database,
        weight_of=weight_of,
    )


def executor_roles(executor: Executor) -> list[Role]:
    """Each is closed once, though the executor has several loops."""
    loops: list[Role] = [executor] * EXECUTOR_LOOPS
    return [*loops, executor.leases]


def outbound_rules(settings: Settings, *, is_alone: bool) -> OutboundRules:
    """Outbound rules. Private targets are allowed by default only where no other machine can
    submit: a whole duly on one machine, listening to that machine alone."""
    allow_private = settings.webhook_allow_private
    if allow_private is None:
        allow_private = is_alone and is_loopback(settings.host)
    networks = []
    for text in settings.webhook_allow_networks:
        try:
            networks.append(ip_network(text))
        except ValueError as error:
            problem = f"webhook_allow_networks has {text!r}: {error}"
            raise ConfigurationError(problem=problem) from None
    for port in settings.webhook_ports:
        if not 1 <= port <= PORT_MAX:
            problem = f"webhook_ports has {port}, which is not from 1 to {PORT_MAX}"
            raise ConfigurationError(problem=problem)
    return OutboundRules(allow_private, tuple(networks), frozenset(settings.webhook_ports))


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
