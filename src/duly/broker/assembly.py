"""Carrier assembly: the carrier that a setting names, with its fallback. The only place that knows
all of them; their libraries are extras and are loaded when they are asked for."""

from collections.abc import Callable
from importlib import import_module
from typing import cast

from duly.broker.arrivals import CarrierArrivals
from duly.broker.contract import Carrier, LeasingCarrier
from duly.broker.fallback import BrokerCarrier, FallbackCarrier
from duly.broker.lease_queue import LeaseQueue
from duly.broker.memory import MemoryCarrier
from duly.broker.postgres import PostgresCarrier
from duly.domain.errors import ConfigurationError
from duly.environment import Environment
from duly.role import Role
from duly.settings import POSTGRES_CARRIER, Settings
from duly.store.database import Database
from duly.store.installation_secrets import TICKETS, read_installation_secret
from duly.store.ownership import CarrierState

MakeBroker = Callable[[str, bytes, Environment], BrokerCarrier]
# By scheme of the URL: module, class, and the extra that brings its library.
REDIS = ("duly.broker.redis", "RedisCarrier", "redis")
RABBITMQ = ("duly.broker.rabbitmq", "RabbitCarrier", "rabbitmq")
KAFKA = ("duly.broker.kafka", "KafkaCarrier", "kafka")
BROKERS = {
    "kafka": KAFKA,
    "amqp": RABBITMQ,
    "amqps": RABBITMQ,
    "redis": REDIS,
    "rediss": REDIS,
    "redis+sentinel": REDIS,
    "redis+cluster": REDIS,
    "valkey": REDIS,
    "valkeys": REDIS,
    "valkey+sentinel": REDIS,
    "valkey+cluster": REDIS,
}


async def open_carrier(
    settings: Settings, database: Database, environment: Environment, *, is_alone: bool
) -> Carrier | LeasingCarrier:
    """Nothing is connected yet."""
    url = settings.carrier
    if url == POSTGRES_CARRIER:
        return default_carrier(database, environment, is_alone=is_alone)
    make = find_broker(url)
    main = make(url, await read_installation_secret(database, TICKETS), environment)
    beside = PostgresCarrier(database, environment)
    falls_back = settings.carrier_fallback == POSTGRES_CARRIER
    return FallbackCarrier(main, beside, environment.clock, falls_back=falls_back)


def default_carrier(
    database: Database, environment: Environment, *, is_alone: bool
) -> Carrier | LeasingCarrier:
    """Memory is for one process that owns the whole installation."""
    if is_alone:
        return MemoryCarrier(environment.clock)
    return PostgresCarrier(database, environment)


def find_broker(url: str) -> MakeBroker:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in BROKERS:
        known = ", ".join(f"{name}://" for name in BROKERS)
        problem = f"carrier: no carrier has such a URL; use {POSTGRES_CARRIER}, or one of {known}"
        raise ConfigurationError(problem=problem)
    module, name, extra = BROKERS[scheme]
    try:
        return cast("MakeBroker", getattr(import_module(module), name))
    except ModuleNotFoundError as error:
        problem = f"carrier: {error.name} is not installed; pip install 'duly[{extra}]'"
        raise ConfigurationError(problem=problem) from None


def is_carrier_up(carrier: Carrier | LeasingCarrier) -> bool:
    """Of one with a fallback, whether tickets need not take it."""
    return carrier.main.is_up if isinstance(carrier, FallbackCarrier) else carrier.is_up


def carrier_state(carrier: Carrier | LeasingCarrier) -> CarrierState:
    """What this process tells others of its carrier."""
    if not isinstance(carrier, FallbackCarrier):
        return CarrierState(
            kind="memory" if isinstance(carrier, MemoryCarrier) else POSTGRES_CARRIER
        )
    main = carrier.main
    return CarrierState(
        kind=main.kind,
        address=main.address,
        problem=None if main.is_up else main.problem or "not connected yet",
        falls_back=carrier.falls_back,
    )


def carrier_roles(carrier: Carrier | LeasingCarrier, lease_queue: LeaseQueue) -> list[Role]:
    """What a carrier of another program does beside carrying."""
    if not isinstance(carrier, FallbackCarrier):
        return []
    return [carrier.main, CarrierArrivals(carrier.main, lease_queue)]
