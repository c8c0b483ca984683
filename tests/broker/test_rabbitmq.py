"""The carrier in RabbitMQ: the conformance suite, and what only it can get wrong."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from duly.broker.arrivals import CarrierArrivals
from duly.broker.carrier_queues import PACK_MAX, bucket_of, name_of
from duly.broker.codec import encode_ticket
from duly.broker.contract import Delivery
from duly.broker.rabbitmq import KEPT_S, RabbitCarrier, address_of, parse_url
from duly.domain.errors import CarrierUnavailable, ConfigurationError
from duly.domain.lanes import WEBHOOK_LANES, Lane
from duly.domain.task import WEBHOOK_POOL
from tests.broker.broker_programs import RabbitServer, free_port, rabbit_server
from tests.broker.conformance import Conformance
from tests.broker.outage import lease_through_outage
from tests.broker.stage import HIGH_LANE, LANE, Stage, deliveries, ids, staged, until
from tests.store.world import World

KEY = b"the secret of one installation, 32 bytes"
QUEUE = WEBHOOK_LANES[0]
# One that no fixture subscribes to.
OTHER_LANE = LANE._replace(pool=2)


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    with rabbit_server(tmp_path_factory.mktemp("rabbit")) as server:
        yield server


@pytest.fixture
async def carrier(rabbit: RabbitServer, world: World) -> AsyncIterator[RabbitCarrier]:
    # Of each test another one, so that queues are new.
    key = KEY + world.database.url.encode() + str(free_port()).encode()
    carrier = RabbitCarrier(rabbit.url, key, world.environment)
    yield carrier
    await carrier.close()


@pytest.fixture
async def stage(world: World, carrier: RabbitCarrier) -> AsyncIterator[Stage]:
    async with staged(world, carrier) as stage:
        # To declare queues takes longer than some consumers wait.
        assert await stage.lease(1, LANE, HIGH_LANE) == []
        yield stage


class TestRabbit(Conformance):
    """On a real broker."""


class TestQuorumQueues(Conformance):
    """On replicated queues, for those who want them."""

    @pytest.fixture
    async def carrier(self, rabbit: RabbitServer, world: World) -> AsyncIterator[RabbitCarrier]:
        key = KEY + world.database.url.encode() + str(free_port()).encode()
        carrier = RabbitCarrier(rabbit.url + "?queue_type=quorum", key, world.environment)
        yield carrier
        await carrier.close()


def other_process(carrier: RabbitCarrier, world: World, seed: int = 7) -> RabbitCarrier:
    return RabbitCarrier(carrier.hosts[0], carrier.key, world.node(seed).environment)


def rabbit_of(stage: Stage) -> RabbitCarrier:
    carrier = stage.queue.carrier
    assert isinstance(carrier, RabbitCarrier)
    return carrier


async def test_tickets_of_a_dead_consumer_are_delivered_to_another(stage: Stage) -> None:
    """They were delivered to it and never acknowledged."""
    carrier = rabbit_of(stage)
    dead = other_process(carrier, stage.world)
    tickets = await stage.submit(3)
    await dead.publish(deliveries(tickets, OTHER_LANE))
    assert len(await dead.receive([OTHER_LANE], 3, 0.0)) == 3
    # Without a goodbye: the broker sees that the connection is gone.
    await dead.disconnect()
    async with asyncio.timeout(10.0):
        leases = ids(await stage.lease(3, OTHER_LANE))
        while len(leases) < 3:
            leases += ids(await stage.lease(3, OTHER_LANE))
    assert sorted(leases) == sorted(ids(tickets))


async def test_what_is_not_asked_for_is_given_back(stage: Stage) -> None:
    """A process whose consumers are busy must not sit on tickets that another could start."""
    carrier = rabbit_of(stage)
    greedy = other_process(carrier, stage.world)
    tickets = await stage.submit(4)
    await greedy.publish(deliveries(tickets, OTHER_LANE))
    (first,) = await greedy.receive([OTHER_LANE], 1, 0.0)
    await greedy.ack([first.token])
    greedy.environment.clock.advance(KEPT_S)  # type: ignore[attr-defined]
    await greedy.tick()
    try:
        leases: list[object] = []
        async with asyncio.timeout(10.0):
            while len(leases) < 3:
                leases += ids(await stage.lease(3, OTHER_LANE))
        assert leases == ids(tickets[1:])
    finally:
        await greedy.close()


@pytest.mark.parametrize("is_copied", [False, True])
async def test_bytes_that_are_no_ticket_of_this_lane_lease_nothing(
    stage: Stage, is_copied: bool
) -> None:
    """Others may publish to a broker: a forged ticket, or one copied from another lane (I9)."""
    carrier = rabbit_of(stage)
    forged, real = await stage.submit(2)
    await stage.publish([real])
    wire = encode_ticket(carrier.key if is_copied else b"another key", HIGH_LANE, forged)
    await carrier.send(name_of(LANE), wire)
    assert ids(await stage.lease(5)) == [real.id]
    async with asyncio.timeout(10.0):
        while await carrier.declare("undecodable") < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await stage.world.read(forged.id)).holder is None


async def test_webhooks_of_all_tenants_come_in_the_order_of_publishing(
    carrier: RabbitCarrier, stage: Stage
) -> None:
    """They lie in several queues; a tenant with more weight was published more often."""
    tickets = await stage.submit(18)
    published = [
        Delivery(Lane(1 + number % 5, WEBHOOK_POOL, 0), ticket)
        for number, ticket in enumerate(tickets)
    ]
    for first in range(0, 18, 3):
        await carrier.publish(published[first : first + 3])
    found = await carrier.receive([QUEUE], 18, 0.0)
    places = [ids(tickets).index(each.ticket.id) // 3 for each in found]
    assert places == sorted(places)
    assert len(found) == 18


async def test_a_pack_of_webhooks_is_acknowledged_once_all_are_done(
    carrier: RabbitCarrier, stage: Stage
) -> None:
    """Acknowledged with the first, the others would be lost with the process."""
    lane = Lane(1, WEBHOOK_POOL, 0)
    tickets = await stage.submit(PACK_MAX + 1)
    await carrier.publish(deliveries(tickets, lane))
    found = await carrier.receive([QUEUE], PACK_MAX + 1, 0.0)
    assert [each.ticket for each in found] == tickets
    await carrier.ack([each.token for each in found[:-2]])
    await carrier.disconnect()
    await carrier.connect()
    again = await carrier.receive([QUEUE], PACK_MAX + 1, 0.0)
    assert [each.ticket for each in again] == tickets
    # Of a pack, one is given back: only that one comes again.
    await carrier.release([again[3].token])
    await carrier.ack([each.token for each in [*again[:3], *again[4:]]])
    (last,) = await carrier.receive([QUEUE], PACK_MAX, 0.0)
    assert last.ticket == tickets[3]
    await carrier.ack([last.token])
    assert await carrier.depths([QUEUE]) == {}


async def test_tenants_that_are_left_out_keep_their_tickets(
    carrier: RabbitCarrier, stage: Stage
) -> None:
    """Theirs would be received and given back over and over, and others' behind them wait."""
    greedy, other = 1, 2
    assert bucket_of(greedy) != bucket_of(other)
    first, second = await stage.submit(2)
    await carrier.publish(deliveries([first], Lane(greedy, WEBHOOK_POOL, 0)))
    await carrier.publish(deliveries([second], Lane(other, WEBHOOK_POOL, 0)))
    found = await carrier.receive([QUEUE], 9, 0.0, {greedy})
    assert [each.ticket.id for each in found] == [second.id]


async def test_a_deleted_queue_takes_tickets_at_once(stage: Stage) -> None:
    """It expired, or an operator deleted it; this process believes that it is there."""
    carrier = rabbit_of(stage)
    tickets = await stage.submit(2)
    await stage.publish(tickets[:1])
    await carrier.consuming.queue_delete(carrier.prefix + name_of(LANE))
    await stage.publish(tickets[1:])
    assert ids(await stage.lease(2)) == ids(tickets[1:])
    assert carrier.is_up


async def test_a_consumer_that_waits_hears_of_another_processs_ticket(stage: Stage) -> None:
    """Its next poll may be half a second away."""
    carrier = rabbit_of(stage)
    arrivals = CarrierArrivals(carrier, stage.queue)

    async def listen() -> None:
        while True:
            await arrivals.tick()

    listening = asyncio.create_task(listen())
    other = other_process(carrier, stage.world)
    try:
        tickets = await stage.submit(1)
        consumer = await stage.wait_in_turn(1)
        await until(lambda: bool(carrier.subscriptions))
        stage.queue.tick_at = asyncio.get_running_loop().time() + 60.0
        await other.publish(deliveries(tickets))
        async with asyncio.timeout(5.0):
            assert ids(await consumer) == ids(tickets)
    finally:
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening
        await other.close()


async def test_an_alarm_is_backpressure_until_it_is_over(
    carrier: RabbitCarrier, rabbit: RabbitServer, stage: Stage
) -> None:
    """A broker short of memory reads nothing from its publishers, and refuses nothing."""
    tickets = await stage.submit(1)
    await carrier.publish(deliveries(tickets))
    rabbit.control("set_vm_memory_high_watermark", "0.0000001")
    try:
        with pytest.raises(CarrierUnavailable):
            await carrier.publish(deliveries(tickets))
        await carrier.tick()
        is_up_while_blocked: bool = carrier.is_up
    finally:
        rabbit.control("set_vm_memory_high_watermark", "0.6")
    async with asyncio.timeout(20.0):
        while not carrier.is_up:
            await carrier.tick()
    assert not is_up_while_blocked
    await carrier.publish(deliveries(tickets))


@pytest.mark.parametrize("is_wiped", [False, True])
async def test_a_killed_broker_costs_time_and_no_task(
    world: World, tmp_path: Path, is_wiped: bool
) -> None:
    """Connections, channels and consumers are gone; wiped, queues and tickets are, too (I11)."""
    with rabbit_server(tmp_path) as server:
        carrier = RabbitCarrier(server.url, KEY, world.environment)

        def begin() -> None:
            server.kill()
            if is_wiped:
                server.wipe()

        back_s = await lease_through_outage(world, carrier, begin, server.start)
        assert back_s < 3.0
        await carrier.close()


async def test_the_next_host_is_tried(rabbit: RabbitServer, world: World) -> None:
    """One node of several is down: the URL names the others."""
    url = f"amqp://guest:guest@127.0.0.1:{free_port()},127.0.0.1:{rabbit.port}/"
    carrier = RabbitCarrier(url, KEY, world.environment)
    await carrier.connect()
    assert carrier.is_connected
    await carrier.close()


@pytest.mark.parametrize(
    "url", ["amqp://", "amqp://host:port/", "amqp:///vhost", "amqp://host/?queue_type=stream"]
)
def test_a_url_that_cannot_be_right_is_refused_at_the_start(url: str) -> None:
    """A process that starts with it would be down for ever, and say that RabbitMQ is."""
    with pytest.raises(ConfigurationError):
        parse_url(url)


def test_an_address_has_no_password() -> None:
    """It is logged, and shown by status."""
    assert address_of("amqp://user:secret@one:1,two:2/host") == "amqp://one:1,two:2/host"
