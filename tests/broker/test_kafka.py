"""The carrier in Kafka, on librdkafka's own cluster in memory: today's protocol, no real broker."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from confluent_kafka import Producer

from duly.broker.carrier_queues import bucket_of
from duly.broker.contract import Delivery
from duly.broker.fallback import FallbackCarrier
from duly.broker.kafka import KEPT_S, KafkaCarrier, parse_url
from duly.broker.postgres import PostgresCarrier
from duly.domain.errors import CarrierUnavailable, ConfigurationError
from duly.domain.lanes import WEBHOOK_LANES, Lane
from duly.domain.task import WEBHOOK_POOL
from duly.store.lease import Lease
from tests.broker.broker_programs import free_port
from tests.broker.stage import LANE, Stage, deliveries, ids, staged, until
from tests.store.world import HOLDER, LEASE_S, TENANT, World

KEY = b"the secret of one installation, 32 bytes"
QUEUE = WEBHOOK_LANES[0]
HOOK = Lane(TENANT, WEBHOOK_POOL, 0)
DELIVERY_MAX_S = 30.0


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    # The cluster lives as long as the producer that made it.
    cluster = Producer({"test.mock.num.brokers": 3, "log_level": 0})
    found = cluster.list_topics(timeout=10).brokers.values()
    yield "kafka://" + ",".join(f"{broker.host}:{broker.port}" for broker in found)
    cluster.flush(1)


@pytest.fixture
async def carrier(brokers: str, world: World) -> AsyncIterator[KafkaCarrier]:
    # Of each test another one, so that topics and group are new.
    carrier = KafkaCarrier(brokers, KEY + str(free_port()).encode(), world.environment)
    yield carrier
    await carrier.close()


@pytest.fixture
async def stage(world: World, carrier: KafkaCarrier) -> AsyncIterator[Stage]:
    beside = PostgresCarrier(world.database, world.environment)
    fallback = FallbackCarrier(carrier, beside, world.node_clock, falls_back=False)
    async with staged(world, fallback) as stage:
        yield stage


async def receive(carrier: KafkaCarrier, count: int, *left_out: int) -> list[Delivery]:
    """What arrives until there are so many."""
    found: list[Delivery] = []
    async with asyncio.timeout(DELIVERY_MAX_S):
        while len(found) < count:
            found += await carrier.receive([QUEUE], count - len(found), 0.0, left_out)
            await asyncio.sleep(0.01)
    return found


async def lag(carrier: KafkaCarrier, lane: Lane = HOOK) -> int:
    return (await carrier.depths([QUEUE])).get(lane, 0)


async def test_webhooks_are_leased_and_their_offsets_committed(
    stage: Stage, carrier: KafkaCarrier
) -> None:
    """Committed before the lease, a ticket would be lost with the process that took it."""
    tickets = await stage.submit(40)
    await stage.publish(tickets, HOOK)
    assert stage.queue.depth(HOOK) == 40
    leases: list[Lease] = []
    async with asyncio.timeout(DELIVERY_MAX_S):
        while len(leases) < 40:
            leases += await stage.queue.lease([QUEUE], HOLDER, 40, LEASE_S, 0.5)
        assert ids(leases) == ids(tickets)
        while await lag(carrier):  # noqa: ASYNC110 (it is the broker that is asked)
            await asyncio.sleep(0.05)


async def test_lanes_of_workers_stay_in_postgresql(stage: Stage, carrier: KafkaCarrier) -> None:
    """A partition for each pool cannot be had."""
    tickets = await stage.submit(2)
    await stage.publish(tickets)
    assert carrier.producer is None
    assert ids(await stage.lease(2, LANE)) == ids(tickets)


async def test_what_a_dead_consumer_had_is_delivered_to_another(
    stage: Stage, carrier: KafkaCarrier, brokers: str
) -> None:
    """It was delivered and not acknowledged: the next owner of the partition gets it again."""
    dead = KafkaCarrier(brokers, carrier.key, stage.world.node(7).environment)
    tickets = await stage.submit(3)
    await dead.publish(deliveries(tickets, HOOK))
    assert len(await receive(dead, 3)) == 3
    await dead.close()
    assert [each.ticket for each in await receive(carrier, 3)] == tickets


async def test_tenants_that_are_left_out_keep_their_tickets(
    stage: Stage, carrier: KafkaCarrier
) -> None:
    """Others' tickets behind theirs would wait for slots that they may not use."""
    greedy, other = 1, 2
    assert bucket_of(greedy) != bucket_of(other)
    first, second = await stage.submit(2)
    await carrier.publish(deliveries([first], Lane(greedy, WEBHOOK_POOL, 0)))
    await carrier.publish(deliveries([second], Lane(other, WEBHOOK_POOL, 0)))
    assert [each.ticket for each in await receive(carrier, 1, greedy)] == [second]
    assert [each.ticket for each in await receive(carrier, 1)] == [first]


async def test_a_ticket_that_is_given_back_comes_again(stage: Stage, carrier: KafkaCarrier) -> None:
    """A log takes nothing back; without another publish it would be lost until it is void."""
    tickets = await stage.submit(2)
    await carrier.publish(deliveries(tickets, HOOK))
    first, second = await receive(carrier, 2)
    await carrier.release([first.token])
    await carrier.ack([second.token])
    assert [each.ticket for each in await receive(carrier, 1)] == [first.ticket]


async def test_a_process_whose_consumers_are_busy_leaves_the_group(
    stage: Stage, carrier: KafkaCarrier
) -> None:
    """Its partitions would stand still, though others have slots."""
    tickets = await stage.submit(1)
    await carrier.publish(deliveries(tickets, HOOK))
    await until(lambda: carrier.producer is not None)
    await receive(carrier, 1)
    stage.world.node_clock.advance(KEPT_S)
    await carrier.tick()
    assert carrier.consuming is None
    # It was not acknowledged, and comes again once there are slots.
    assert [each.ticket for each in await receive(carrier, 1)] == tickets


async def test_brokers_that_are_away_are_backpressure(world: World) -> None:
    """No error for each ticket, and no thread that waits for ever."""
    carrier = KafkaCarrier(f"kafka://127.0.0.1:{free_port()}", KEY, world.environment)
    tickets = await Stage(world, None).submit(1)  # type: ignore[arg-type]
    with pytest.raises(CarrierUnavailable):
        await carrier.publish(deliveries(tickets, HOOK))
    assert not carrier.is_up
    await carrier.tick()
    with pytest.raises(CarrierUnavailable):
        await carrier.publish(deliveries(tickets, HOOK))
    await carrier.close()


def test_a_url_says_how_to_sign_in() -> None:
    """An account without protection would send its password in the clear."""
    assert parse_url("kafka://user:pass%21@one:9092,two:9092?sasl_mechanism=SCRAM-SHA-256") == {
        "bootstrap.servers": "one:9092,two:9092",
        "sasl.username": "user",
        "sasl.password": "pass!",
        "sasl.mechanism": "SCRAM-SHA-256",
        "security.protocol": "SASL_SSL",
    }


@pytest.mark.parametrize("url", ["kafka://", "kafka://host:9092?acks=0"])
def test_a_url_that_cannot_be_right_is_refused_at_the_start(url: str) -> None:
    """A process that starts with it would be down for ever, and say that Kafka is."""
    with pytest.raises(ConfigurationError):
        parse_url(url)
