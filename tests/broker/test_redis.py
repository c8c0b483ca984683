"""The carrier in Redis: the conformance suite, and what only it can get wrong."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from duly.broker.arrivals import CarrierArrivals
from duly.broker.carrier_queues import bucket_of, name_of
from duly.broker.codec import encode_ticket
from duly.broker.contract import Delivery
from duly.broker.redis import RedisCarrier, address_of, connect
from duly.domain.errors import CarrierUnavailable, ConfigurationError
from duly.domain.lanes import WEBHOOK_LANES, Lane
from duly.domain.task import WEBHOOK_POOL
from tests.broker.broker_programs import RedisServer, RedisSet, redis_server
from tests.broker.conformance import Conformance
from tests.broker.outage import lease_through_outage
from tests.broker.stage import HIGH_LANE, LANE, Stage, deliveries, ids, staged, until
from tests.store.world import World

KEY = b"the secret of one installation, 32 bytes"
QUEUE = WEBHOOK_LANES[0]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
async def carrier(redis: RedisServer, world: World) -> AsyncIterator[RedisCarrier]:
    carrier = RedisCarrier(redis.url, KEY, world.environment, claim_after_s=0.05)
    await carrier.client.flushall()
    yield carrier
    await carrier.close()


@pytest.fixture
async def stage(world: World, carrier: RedisCarrier) -> AsyncIterator[Stage]:
    async with staged(world, carrier) as stage:
        yield stage


class TestRedis(Conformance):
    """On a real server."""


def other_process(world: World, url: str, seed: int = 7) -> RedisCarrier:
    return RedisCarrier(url, KEY, world.node(seed).environment, claim_after_s=0.05)


async def test_tickets_of_a_dead_consumer_are_taken_by_another(
    stage: Stage, redis: RedisServer
) -> None:
    """They were read and never acknowledged: nobody else would see them before they are void."""
    dead = other_process(stage.world, redis.url)
    tickets = await stage.submit(3)
    await dead.publish(deliveries(tickets))
    assert len(await dead.receive([LANE], 3, 0.0)) == 3
    await dead.close()
    carrier = stage.queue.carrier
    assert isinstance(carrier, RedisCarrier)
    await asyncio.sleep(0.06)
    await carrier.receive([LANE], 1, 0.0)
    await carrier.tick()
    assert ids(await stage.lease(3)) == ids(tickets)
    await stage.queue.tick()
    assert await carrier.client.xlen(carrier.prefix + name_of(LANE)) == 0


@pytest.mark.parametrize("is_copied", [False, True])
async def test_bytes_that_are_no_ticket_of_this_lane_lease_nothing(
    stage: Stage, is_copied: bool
) -> None:
    """Others may write to a carrier: a forged ticket, or one copied from another lane (I9)."""
    carrier = stage.queue.carrier
    assert isinstance(carrier, RedisCarrier)
    forged, real = await stage.submit(2)
    await stage.publish([real])
    wire = encode_ticket(KEY if is_copied else b"another key", HIGH_LANE, forged)
    await carrier.client.xadd(carrier.prefix + name_of(LANE), {"t": wire})
    assert ids(await stage.lease(5)) == [real.id]
    assert await carrier.client.xlen(carrier.prefix + "undecodable") == 1
    assert (await stage.world.read(forged.id)).holder is None


async def test_webhooks_of_all_tenants_come_in_the_order_of_publishing(
    carrier: RedisCarrier, stage: Stage
) -> None:
    """They lie in several streams; a tenant with more weight was published more often."""
    tickets = await stage.submit(30)
    published = [
        Delivery(Lane(1 + number % 5, WEBHOOK_POOL, 0), ticket)
        for number, ticket in enumerate(tickets)
    ]
    assert len({bucket_of(each.lane.tenant) for each in published}) > 2
    for first in range(0, 30, 3):
        await carrier.publish(published[first : first + 3])
        await asyncio.sleep(0.002)
    found = [each for _ in range(6) for each in await carrier.receive([QUEUE], 5, 0.0)]
    places = [ids(tickets).index(each.ticket.id) // 3 for each in found]
    assert places == sorted(places)
    assert len(found) == 30


async def test_tenants_that_are_left_out_keep_their_tickets(
    carrier: RedisCarrier, stage: Stage
) -> None:
    """Theirs would be received and given back over and over, and others' behind them wait."""
    greedy, other = 1, 2
    assert bucket_of(greedy) != bucket_of(other)
    first, second = await stage.submit(2)
    await carrier.publish(deliveries([first], Lane(greedy, WEBHOOK_POOL, 0)))
    await carrier.publish(deliveries([second], Lane(other, WEBHOOK_POOL, 0)))
    found = await carrier.receive([QUEUE], 9, 0.0, {greedy})
    assert [each.ticket.id for each in found] == [second.id]
    found = await carrier.receive([QUEUE], 9, 0.0)
    assert [each.ticket.id for each in found] == [first.id]


async def test_a_wiped_server_takes_tickets_at_once(stage: Stage) -> None:
    """Streams and groups are gone, and nobody made them again."""
    carrier = stage.queue.carrier
    assert isinstance(carrier, RedisCarrier)
    tickets = await stage.submit(4)
    await stage.publish(tickets[:2])
    await carrier.client.flushall()
    assert await stage.lease(2) == []
    await stage.publish(tickets[2:])
    assert ids(await stage.lease(4)) == ids(tickets[2:])
    assert carrier.is_up


async def test_a_full_server_is_backpressure_until_it_has_room(
    carrier: RedisCarrier, stage: Stage
) -> None:
    """It answers pings and takes nothing: publishers must not be told that it is up."""
    tickets = await stage.submit(1)
    await carrier.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(CarrierUnavailable):
            await carrier.publish(deliveries(tickets))
        await carrier.tick()
        is_up_while_full: bool = carrier.is_up
    finally:
        await carrier.client.config_set("maxmemory", "0")
    await carrier.tick()
    assert (is_up_while_full, carrier.is_up) == (False, True)
    await carrier.publish(deliveries(tickets))
    assert len(await carrier.receive([LANE], 1, 0.0)) == 1


async def test_a_consumer_that_waits_hears_of_another_processs_ticket(
    stage: Stage, carrier: RedisCarrier, redis: RedisServer
) -> None:
    """Its next poll may be half a second away."""
    arrivals = CarrierArrivals(carrier, stage.queue)

    async def listen() -> None:
        while True:
            await arrivals.tick()

    listening = asyncio.create_task(listen())
    other = other_process(stage.world, redis.url)
    try:
        tickets = await stage.submit(1)
        consumer = await stage.wait_in_turn(1)
        await until(lambda: carrier.subscription is not None)
        # So long that only the hint explains an answer in time.
        stage.queue.tick_at = asyncio.get_running_loop().time() + 60.0
        await other.publish(deliveries(tickets))
        async with asyncio.timeout(5.0):
            assert ids(await consumer) == ids(tickets)
    finally:
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening
        await other.close()


async def test_streams_of_lanes_that_are_not_used_expire(
    stage: Stage, carrier: RedisCarrier
) -> None:
    """Tenants come and go for months on one server."""
    await stage.publish(await stage.submit(1))
    expires_ms = await carrier.client.pttl(carrier.prefix + name_of(LANE))
    assert 0 < expires_ms <= 60_000


async def test_a_killed_server_costs_time_and_no_task(world: World, tmp_path: Path) -> None:
    """Every ticket that lay in it is gone, as are connections, groups and subscriptions (I11)."""
    with redis_server(tmp_path) as server:
        carrier = RedisCarrier(server.url, KEY, world.environment)
        back_s = await lease_through_outage(world, carrier, server.kill, server.start)
        assert back_s < 3.0
        await carrier.close()


async def test_a_promoted_replica_is_followed(world: World, tmp_path: Path) -> None:
    """Sentinel names another primary; connections lead to the old one, which is dead."""
    with RedisSet(tmp_path) as redis_set:
        carrier = RedisCarrier(redis_set.url, KEY, world.environment)
        await lease_through_outage(
            world, carrier, redis_set.primary.kill, redis_set.await_promotion
        )
        await carrier.close()


@pytest.mark.parametrize(
    "url", ["redis+sentinel://host:26379", "redis://host:port", "redis+sentinel://host:x/name"]
)
def test_a_url_that_cannot_be_right_is_refused_at_the_start(url: str) -> None:
    """A process that starts with it would be down for ever, and say that Redis is."""
    with pytest.raises(ConfigurationError):
        connect(url)


def test_an_address_has_no_password() -> None:
    """It is logged, and shown by status."""
    assert address_of("redis://user:secret@host:1/0") == "redis://host:1/0"
