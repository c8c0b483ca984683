"""A carrier beside PostgreSQL's table of tickets: what one cannot carry, the other does."""

from collections.abc import AsyncIterator
from random import Random

import pytest

from duly.broker import fallback
from duly.broker.assembly import find_broker, is_carrier_up
from duly.broker.fallback import LOOK_S, FallbackCarrier
from duly.broker.postgres import PostgresCarrier
from duly.domain.errors import CarrierUnavailable, ConfigurationError
from duly.domain.lanes import WEBHOOK_LANES, Lane
from duly.domain.task import WEBHOOK_POOL
from tests.broker.conformance import Conformance
from tests.broker.faulty import FaultyCarrier
from tests.broker.stage import HIGH_LANE, LANE, Stage, deliveries, ids, staged
from tests.store.world import HOLDER, LEASE_S, TENANT, World


class Broker(FaultyCarrier):
    """A carrier of another program, in the memory of the test."""

    kind = "redis"
    name = "carrier"
    address = "here"
    problem: str | None = None
    has_worker_lanes = True

    async def arrivals(self) -> list[Lane]:
        return []

    async def tick(self) -> float:
        return 1.0

    async def close(self) -> None:
        """Nothing to close."""


def with_fallback(world: World, main: Broker, *, falls_back: bool = True) -> FallbackCarrier:
    beside = PostgresCarrier(world.database, world.environment)
    return FallbackCarrier(main, beside, world.node_clock, falls_back=falls_back)


@pytest.fixture
async def carrier(world: World) -> FallbackCarrier:
    return with_fallback(world, Broker(Random(1), world.now))


@pytest.fixture
async def stage(world: World, carrier: FallbackCarrier) -> AsyncIterator[Stage]:
    async with staged(world, carrier) as stage:
        yield stage


def broker_of(carrier: FallbackCarrier) -> Broker:
    assert isinstance(carrier.main, Broker)
    return carrier.main


class TestUp(Conformance):
    """With a carrier that is up."""


class TestDown(Conformance):
    """With one that is down: everything goes through PostgreSQL."""

    @pytest.fixture
    async def carrier(self, world: World) -> FallbackCarrier:
        carrier = with_fallback(world, Broker(Random(1), world.now))
        broker_of(carrier).is_up = False
        return carrier


async def test_a_carrier_that_goes_down_hands_no_delay_to_consumers(
    stage: Stage, carrier: FallbackCarrier
) -> None:
    """What lies in it is out of reach; what is published from now on must not be."""
    before, after = await stage.submit(1), await stage.submit(2)
    await stage.publish(before)
    broker_of(carrier).is_up = False
    await stage.publish(after)
    assert ids(await stage.lease(5)) == ids(after)
    broker_of(carrier).is_up = True
    assert ids(await stage.lease(5)) == ids(before)


async def test_a_carrier_that_is_down_is_not_hidden_by_its_fallback(
    carrier: FallbackCarrier,
) -> None:
    """An operator would learn of it from the load on PostgreSQL."""
    broker_of(carrier).is_up = False
    assert (carrier.is_up, is_carrier_up(carrier)) == (True, False)


async def test_without_a_fallback_tasks_wait_in_their_rows(world: World) -> None:
    """An operator may rather have tickets late than PostgreSQL loaded with them."""
    carrier = with_fallback(world, Broker(Random(1), world.now), falls_back=False)
    broker_of(carrier).is_up = False
    async with staged(world, carrier) as stage:
        tickets = await stage.submit(1)
        assert not stage.queue.is_up
        with pytest.raises(CarrierUnavailable):
            await stage.publish(tickets)
        assert await stage.lease(1) == []


async def test_a_publish_that_fails_half_way_reaches_consumers(
    stage: Stage, carrier: FallbackCarrier
) -> None:
    """It is unknown what the carrier took: both have it, and one of the tickets becomes a lease."""
    tickets = await stage.submit(3)
    broker = broker_of(carrier)
    publish = broker.publish

    async def lossy(batch: object) -> None:
        await publish(batch)  # type: ignore[arg-type]
        raise CarrierUnavailable(address="here", problem="the answer was lost")

    broker.publish = lossy  # type: ignore[method-assign]
    await stage.publish(tickets)
    found = [*ids(await stage.lease(2)), *ids(await stage.lease(9)), *ids(await stage.lease(9))]
    assert sorted(found) == sorted(ids(tickets))


async def test_what_another_process_put_into_postgresql_is_found(
    stage: Stage, carrier: FallbackCarrier
) -> None:
    """For that process the carrier is down, for this one it is up."""
    other = with_fallback(stage.world, Broker(Random(2), stage.world.now))
    broker_of(other).is_up = False
    assert await stage.lease(1) == []
    tickets = await stage.submit(1)
    await other.publish(deliveries(tickets))
    stage.world.advance(LOOK_S)
    assert ids(await stage.lease(1)) == ids(tickets)


async def test_more_lanes_of_workers_than_a_carrier_takes_go_to_postgresql(
    stage: Stage, carrier: FallbackCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand pools would be ten thousand queues."""
    monkeypatch.setattr(fallback, "WORKER_QUEUES_MAX", 1)
    first, second, hook = await stage.submit(3)
    await stage.publish([first])
    await stage.publish([second], HIGH_LANE)
    await stage.publish([hook], Lane(TENANT, WEBHOOK_POOL, 0))
    assert set(broker_of(carrier).queues) == {LANE, WEBHOOK_LANES[0]}
    leases = await stage.queue.lease([HIGH_LANE, LANE, WEBHOOK_LANES[0]], HOLDER, 9, LEASE_S, 0.0)
    assert {lease.id for lease in leases} == {first.id, second.id, hook.id}


async def test_a_carrier_without_lanes_of_workers_leaves_them_to_postgresql(
    stage: Stage, carrier: FallbackCarrier
) -> None:
    """A partition for each pool cannot be had."""
    broker_of(carrier).has_worker_lanes = False
    tickets = await stage.submit(1)
    await stage.publish(tickets)
    assert broker_of(carrier).queues == {}
    assert ids(await stage.lease(1)) == ids(tickets)


@pytest.mark.parametrize("url", ["", "redis", "http://host", "amqp2://host"])
def test_a_url_of_no_carrier_is_refused_with_those_that_are(url: str) -> None:
    """Started with a typing error, a node would keep its tickets to itself."""
    with pytest.raises(ConfigurationError, match=r"redis://"):
        find_broker(url)
