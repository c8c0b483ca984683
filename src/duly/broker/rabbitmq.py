"""The carrier in RabbitMQ: publisher confirms, acknowledgement after the lease. Extra `rabbitmq`.

Queues are transient: those of a node that dies are gone, and declared anew on another one. Quorum
queues (`?queue_type=quorum`) are written to disk on every node, for tickets that live ten seconds.

Two connections, because an alarm of the broker stops what comes from those that publish: one
publishes, the other consumes and acknowledges.

| event | what happens |
|---|---|
| broker killed, or one node of it | the next host is tried; queues are declared when used |
| broker wiped | messages come back unroutable: their queue is declared, they are sent again |
| memory or disk alarm | `is_up` is False until the broker lets its publishers go on |
| consumer dies | the broker delivers its tickets again |
| consumers here are busy | what was delivered and not asked for is given back after `KEPT_S` |
| a ticket is not taken | it expires with its deadline; it is not dead-lettered |
| bytes that are no ticket | to the exchange and queue `undecodable`, of bounded length |
"""

import asyncio
import contextlib
import heapq
import logging
import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiormq
from aiormq import Channel
from aiormq.abc import AbstractConnection, DeliveredMessage
from aiormq.exceptions import AMQPError, ChannelInvalidStateError, PublishError
from pamqp.commands import Basic

from duly.broker.carrier_queues import (
    PublishedTickets,
    name_of,
    names_of,
    namespace_of,
    packs_of,
)
from duly.broker.codec import decode_tickets, encode_tickets
from duly.broker.contract import Delivery
from duly.domain.errors import CarrierUnavailable, ConfigurationError
from duly.domain.execution_shares import NO_TENANTS
from duly.domain.lanes import TICKET_S, Lane, Ticket, queue_of
from duly.environment import Environment
from duly.telemetry import get_logger

FAULTS = (AMQPError, ChannelInvalidStateError, OSError, TimeoutError)
TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 3.0
PROBE_S = 0.2
CARE_S = 0.2
# Delivered and not asked for; longer than consumers that wait take to ask again.
KEPT_S = 1.0
# A queue of a pool without declares and consumers is deleted by the broker after the first,
# and declared again by its publisher after the second.
QUEUE_EXPIRES_S = 60.0
DECLARED_FOR_S = 20.0
DECLARED_MAX = 10_000
PACKS_AHEAD = 8
PREFETCH_MIN = 4
PREFETCH_MAX = 10_000
MESSAGES_MAX = 200
# Turns of the loop in which what the broker has sent is delivered.
DELIVERY_TURNS = 5
FIRST_DELIVERY_S = 0.25
CLOSE_TIMEOUT_S = 0.5
CLASSIC = "classic"
QUORUM = "quorum"
PROBE = "probe"
UNDECODABLE = "undecodable"
UNDECODABLE_MAX = 1_000
ARRIVALS_WAIT_S = 1.0
KEEP_MS = 3_600_000

log = get_logger("duly.broker.rabbitmq")
# It tells each lost connection with a traceback; the lease queue says that the carrier is down.
logging.getLogger("aiormq").setLevel("CRITICAL")


class DeliveredPack:
    """One message, until all of its tickets are acknowledged or released."""

    __slots__ = ("channel", "left", "name", "size", "tag")

    def __init__(self, channel: Channel, tag: int, name: str, size: int) -> None:
        self.channel = channel
        self.tag = tag
        self.name = name
        self.size = self.left = size


class PackedTicket(NamedTuple):
    """One ticket of a message."""

    pack: DeliveredPack
    lane: Lane
    ticket: Ticket


class QueueSubscription:
    """What the broker delivered to this process from one queue and no consumer asked for yet."""

    __slots__ = ("asked_at", "buffer", "channel", "is_ended", "prefetch", "tag")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.prefetch = 0
        self.is_ended = False
        self.asked_at = 0.0
        self.tag = ""
        # By when they were published.
        self.buffer: deque[tuple[str, Delivery]] = deque()

    @property
    def is_alive(self) -> bool:
        """The broker ends one whose queue is deleted."""
        is_known = not self.tag or self.tag in self.channel.consumers
        return is_known and not self.channel.is_closed


class RabbitCarrier:
    """A role as well: its tick connects, and gives back what was delivered and is not wanted."""

    name = "carrier"
    kind = "rabbitmq"
    has_worker_lanes = True

    def __init__(self, url: str, key: bytes, environment: Environment) -> None:
        self.hosts, self.queue_type = parse_url(url)
        self.address = address_of(url)
        self.key = key
        self.environment = environment
        self.prefix = f"duly.{namespace_of(key)}."
        self.process = f"{environment.entropy.getrandbits(48):012x}"
        self.number = 0
        self.is_up = True
        self.problem: str | None = None
        self.connections: list[AbstractConnection] = []
        # The one that publishes, and the one that consumes.
        self.channels: list[Channel] = []
        # By name, when each was declared last.
        self.declared: OrderedDict[str, float] = OrderedDict()
        self.subscriptions: dict[str, QueueSubscription] = {}
        self.published = PublishedTickets(in_packs=True)
        self.arrived: dict[Lane, None] = {}
        self.has_arrived = asyncio.Event()
        self.connecting = asyncio.Lock()
        self.subscribing = asyncio.Lock()
        # Rises with each connection: a fault of an old one says nothing of the new.
        self.generation = 0
        self.host_turn = 0

    # The contract --------------------------------------------------------------------------------

    async def publish(self, batch: Sequence[Delivery]) -> None:
        packs = packs_of(batch)
        for first in range(0, len(packs), MESSAGES_MAX):
            await self.publish_packs(packs[first : first + MESSAGES_MAX])

    async def publish_packs(self, packs: Sequence[tuple[str, list[Delivery]]]) -> None:
        async with self.translated_faults():
            for name in dict.fromkeys(name for name, _ in packs):
                await self.keep_declared(name)
            sent = [self.send(name, self.encode(pack)) for name, pack in packs]
            for answer in await asyncio.gather(*sent, return_exceptions=True):
                if isinstance(answer, BaseException):
                    raise answer
        moment = self.environment.clock.monotonic()
        for _, pack in packs:
            self.published.add(pack, moment)

    def encode(self, pack: Sequence[Delivery]) -> bytes:
        return encode_tickets(self.key, [(each.lane, each.ticket) for each in pack])

    async def send(self, name: str, wire: bytes) -> None:
        """Confirmed by the broker. A queue that is gone is declared, and the message sent again."""
        await self.keep_declared(name)
        for is_last in (False, True):
            try:
                await self.publishing.basic_publish(
                    wire,
                    routing_key=self.prefix + name,
                    properties=Basic.Properties(delivery_mode=1, message_id=self.next_place()),
                    mandatory=True,
                    wait=False,
                )
            except PublishError:
                if is_last:
                    raise
                await self.declare(name)
            else:
                return

    def next_place(self) -> str:
        """Sorts by when it was published, as far as the clocks of nodes agree."""
        self.number += 1
        ms = int(self.environment.clock.now().timestamp() * 1000)
        return f"{ms:013x}{self.number:010x}{self.process}"

    async def receive(
        self,
        queues: Sequence[Lane],
        credit: int,
        wait_s: float,  # noqa: ARG002 (of the contract)
        left_out: Collection[int] = NO_TENANTS,
    ) -> list[Delivery]:
        """What was delivered. Consumers that may not wait miss nothing of what this process
        published, or of what lay in a queue before they asked for it first."""
        names = [names_of(queue, left_out) for queue in queues]
        async with self.translated_faults():
            new = await self.subscribe([name for part in names for name in part], credit)
            found = self.take(names, credit)
            asked = [name for part in names for name in part]
            if len(found) < credit and any(name in self.published.queues for name in asked):
                # Confirmed to us, it was sent to us, too: before this is answered.
                await self.consuming.basic_qos(prefetch_count=PREFETCH_MIN)
                await self.await_delivery(asked, credit - len(found), new)
                found += self.take(names, credit - len(found))
            elif new:
                await self.await_delivery(asked, credit - len(found), new)
                found += self.take(names, credit - len(found))
        return found

    def take(self, names: Sequence[Sequence[str]], credit: int) -> list[Delivery]:
        """Queue by queue; of one that lies in several, by when each ticket was published."""
        found: list[Delivery] = []
        for part in names:
            known = [self.subscriptions[name] for name in part if name in self.subscriptions]
            buffers = [each.buffer for each in known]
            heads = [(buffer[0][0], at) for at, buffer in enumerate(buffers) if buffer]
            heapq.heapify(heads)
            while heads and len(found) < credit:
                _, at = heads[0]
                found.append(buffers[at].popleft()[1])
                if buffers[at]:
                    heapq.heapreplace(heads, (buffers[at][0][0], at))
                else:
                    heapq.heappop(heads)
        return found

    async def ack(self, tokens: Sequence[object]) -> None:
        async with self.translated_faults():
            await self.finish(tokens)

    async def release(self, tokens: Sequence[object]) -> None:
        """A message whose tickets are all released goes back to where it was; of another one these
        are published again."""
        async with self.translated_faults():
            for pack, released in tokens_by_pack(tokens).items():
                if pack.channel.is_closed:
                    continue
                if len(released) == pack.left == pack.size:
                    pack.left = 0
                    await pack.channel.basic_nack(pack.tag, requeue=True, wait=False)
                else:
                    again = [(token.lane, token.ticket) for token in released]
                    await self.send(pack.name, encode_tickets(self.key, again))
                    await self.finish(released)

    async def finish(self, tokens: Iterable[object]) -> None:
        for pack, ended in tokens_by_pack(tokens).items():
            pack.left -= len(ended)
            # Of a channel that is closed everything is delivered again.
            if pack.left == 0 and not pack.channel.is_closed:
                await pack.channel.basic_ack(pack.tag, wait=False)

    async def depths(self, queues: Sequence[Lane]) -> dict[Lane, int]:
        names = self.published.names(queues, self.environment.clock.monotonic())
        async with self.translated_faults():
            totals = {name: await self.declare(name) for name in names}
        for name in names:
            if name in self.subscriptions:
                # Delivered to this process, and not received yet.
                packs = {id(token_of(each).pack) for _, each in self.subscriptions[name].buffer}
                totals[name] += len(packs)
        return self.published.depths(totals)

    async def purge(self) -> None:
        """Of queues that this process knows."""
        self.published.clear()
        async with self.translated_faults():
            await self.unsubscribe(list(self.subscriptions), gives_back=False)
            for name in list(self.declared):
                await self.consuming.queue_purge(self.prefix + name)

    async def arrivals(self) -> list[Lane]:
        """Queues of which something was delivered; waits for it a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ARRIVALS_WAIT_S):
                await self.has_arrived.wait()
        self.has_arrived.clear()
        arrived, self.arrived = self.arrived, {}
        return list(arrived)

    # Queues --------------------------------------------------------------------------------------

    async def keep_declared(self, name: str) -> None:
        now = self.environment.clock.monotonic()
        if self.declared.get(name, -math.inf) <= now - DECLARED_FOR_S:
            await self.declare(name)

    async def declare(self, name: str) -> int:
        """Answers how many messages lie there, ready to be delivered."""
        arguments: dict[str, Any] = {
            "x-queue-type": self.queue_type,
            "x-message-ttl": round(TICKET_S * 1000),
        }
        if name.startswith("pool."):
            arguments["x-expires"] = round(QUEUE_EXPIRES_S * 1000)
        if name in (PROBE, UNDECODABLE):
            arguments |= {"x-message-ttl": KEEP_MS, "x-max-length": UNDECODABLE_MAX}
        answer = await self.consuming.queue_declare(
            self.prefix + name, durable=self.queue_type == QUORUM, arguments=arguments
        )
        self.declared[name] = self.environment.clock.monotonic()
        self.declared.move_to_end(name)
        if len(self.declared) > DECLARED_MAX:
            self.declared.popitem(last=False)
        return (answer.message_count or 0) if answer is not None else 0

    async def subscribe(self, names: Sequence[str], credit: int) -> int:
        """Answers how many messages lie in queues that were not subscribed before."""
        now = self.environment.clock.monotonic()
        left = 0
        for name in names:
            wanted = PACKS_AHEAD if name.startswith("webhooks.") else credit
            wanted = min(max(wanted, PREFETCH_MIN), PREFETCH_MAX)
            async with self.subscribing:
                known = self.subscriptions.get(name)
                if known is not None and known.prefetch * 2 >= wanted and known.is_alive:
                    known.asked_at = now
                    continue
                left += await self.consume(name, wanted, now)
        return left

    async def consume(self, name: str, prefetch: int, now: float) -> int:
        """Instead of a consumer with less room, if there is one; what was delivered stays. Answers
        how many messages lie there."""
        known = self.subscriptions.get(name)
        if known is not None and not known.is_alive:
            known = None
        subscription = known or QueueSubscription(self.consuming)

        async def deliver(message: DeliveredMessage) -> None:
            await self.accept(name, subscription, message)

        left = await self.declare(name)
        await self.consuming.basic_qos(prefetch_count=prefetch)
        answer = await self.consuming.basic_consume(self.prefix + name, deliver)
        if known is not None:
            await known.channel.basic_cancel(known.tag)
        subscription.tag = answer.consumer_tag or ""
        subscription.prefetch = prefetch
        subscription.asked_at = now
        self.subscriptions[name] = subscription
        return left

    async def unsubscribe(self, names: Sequence[str], *, gives_back: bool = True) -> None:
        for name in names:
            subscription = self.subscriptions.pop(name)
            if not subscription.channel.is_closed:
                await subscription.channel.basic_cancel(subscription.tag)
            tokens = [token_of(each) for _, each in subscription.buffer]
            subscription.buffer.clear()
            subscription.is_ended = True
            await (self.release(tokens) if gives_back else self.finish(tokens))

    async def accept(
        self, name: str, subscription: "QueueSubscription", message: DeliveredMessage
    ) -> None:
        assert isinstance(message.delivery, Basic.Deliver)
        tag = message.delivery.delivery_tag
        assert tag is not None
        channel = subscription.channel
        if subscription.is_ended:
            if not channel.is_closed:
                await channel.basic_nack(tag, requeue=True, wait=False)
            return
        tickets = decode_tickets(self.key, message.body)
        # Copied into another lane's queue, it is no ticket of that lane.
        if not tickets or any(name_of(lane) != name for lane, _ in tickets):
            await self.discard(channel, tag, name, message.body)
            return
        pack = DeliveredPack(channel, tag, name, len(tickets))
        place = message.header.properties.message_id or ""
        for lane, ticket in tickets:
            token = PackedTicket(pack, lane, ticket)
            subscription.buffer.append((place, Delivery(lane, ticket, token)))
        self.arrived.update(dict.fromkeys(queue_of(lane) for lane, _ in tickets))
        self.has_arrived.set()

    async def await_delivery(self, names: Sequence[str], credit: int, left: int) -> None:
        """What the broker has sent is delivered in a few turns of the loop; what lay there when a
        consumer came first, `left`, as fast as it comes."""
        clock = asyncio.get_running_loop()
        delivered, turns, ends_at = -1, 0, 0.0
        while turns < DELIVERY_TURNS or clock.time() < ends_at:
            known = [self.subscriptions[name] for name in names if name in self.subscriptions]
            before, delivered = delivered, sum(len(each.buffer) for each in known)
            if delivered >= credit:
                return
            if delivered > before:
                turns = 0
                ends_at = clock.time() + FIRST_DELIVERY_S if delivered < left else 0.0
            turns += 1
            await asyncio.sleep(0.001 if turns >= DELIVERY_TURNS else 0.0)

    async def discard(self, channel: Channel, tag: int, name: str, body: bytes) -> None:
        log.warning("not a ticket of this installation", queue=name)
        with contextlib.suppress(CarrierUnavailable):
            async with self.translated_faults():
                await self.send(UNDECODABLE, body)
                await channel.basic_ack(tag, wait=False)

    # Connections ---------------------------------------------------------------------------------

    @property
    def publishing(self) -> Channel:
        return self.channel(0)

    @property
    def consuming(self) -> Channel:
        return self.channel(1)

    def channel(self, number: int) -> Channel:
        if not self.channels:
            raise ChannelInvalidStateError("not connected")
        return self.channels[number]

    @property
    def is_connected(self) -> bool:
        return bool(self.channels) and not any(channel.is_closed for channel in self.channels)

    @contextlib.asynccontextmanager
    async def translated_faults(self) -> AsyncIterator[None]:
        """Connected, and within a bounded time; what fails makes it down until a probe was
        confirmed."""
        if not self.is_connected:
            if not self.is_up:
                raise CarrierUnavailable(address=self.address, problem=self.problem)
            await self.connect()
        generation = self.generation
        try:
            async with asyncio.timeout(TIMEOUT_S):
                try:
                    yield
                except asyncio.CancelledError as error:
                    # The library cancels what waits on a connection that is lost.
                    if is_cancelled():
                        raise
                    raise ChannelInvalidStateError("connection lost") from error
        except FAULTS as error:
            if generation == self.generation:
                self.note_down(error)
                await self.disconnect()
            raise CarrierUnavailable(address=self.address, problem=self.problem) from error

    async def connect(self) -> None:
        """To the next host that answers."""
        async with self.connecting:
            if self.is_connected:
                return
            await self.disconnect()
            for _ in self.hosts:
                url = self.hosts[self.host_turn % len(self.hosts)]
                try:
                    async with asyncio.timeout(CONNECT_TIMEOUT_S):
                        await self.open(url)
                except FAULTS as error:
                    self.host_turn += 1
                    self.note_down(error)
                    await self.disconnect()
                else:
                    return
        raise CarrierUnavailable(address=self.address, problem=self.problem)

    async def open(self, url: str) -> None:
        channels: list[Channel] = []
        for publishes in (True, False):
            connection = await aiormq.connect(url)
            self.connections.append(connection)
            channel = await connection.channel(
                publisher_confirms=publishes, on_return_raises=publishes
            )
            assert isinstance(channel, Channel)
            channels.append(channel)
        self.channels = channels
        self.generation += 1

    async def disconnect(self) -> None:
        connections, self.connections = self.connections, []
        self.channels = []
        self.declared.clear()
        for subscription in self.subscriptions.values():
            subscription.is_ended = True
        self.subscriptions.clear()
        for connection in connections:
            with contextlib.suppress(*FAULTS, asyncio.CancelledError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await connection.close()

    def note_down(self, error: Exception) -> None:
        self.is_up = False
        is_blocked = isinstance(error, TimeoutError) and bool(self.channels)
        self.problem = "does not confirm" if is_blocked else str(error) or type(error).__name__

    # Its role ------------------------------------------------------------------------------------

    async def tick(self) -> float:
        with contextlib.suppress(CarrierUnavailable):
            if not self.is_up or not self.is_connected:
                await self.connect()
                async with self.translated_faults():
                    # Connected is not enough: an alarm or a lost majority confirms nothing.
                    # The first is taken in spite of an alarm.
                    for _ in range(2):
                        await self.send(PROBE, b"")
                self.is_up, self.problem = True, None
            now = self.environment.clock.monotonic()
            late = [
                name
                for name, subscription in self.subscriptions.items()
                if subscription.asked_at <= now - KEPT_S
            ]
            if late:
                async with self.translated_faults(), self.subscribing:
                    await self.unsubscribe([name for name in late if name in self.subscriptions])
        return CARE_S if self.is_up else PROBE_S

    async def close(self) -> None:
        with contextlib.suppress(CarrierUnavailable):
            if self.is_connected:
                async with self.translated_faults():
                    await self.unsubscribe(list(self.subscriptions))
        await self.disconnect()


def is_cancelled() -> bool:
    """Whether this task itself was asked to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def token_of(delivery: Delivery) -> PackedTicket:
    assert isinstance(delivery.token, PackedTicket)
    return delivery.token


def tokens_by_pack(tokens: Iterable[object]) -> dict[DeliveredPack, list[PackedTicket]]:
    by_pack: dict[DeliveredPack, list[PackedTicket]] = {}
    for token in tokens:
        assert isinstance(token, PackedTicket)
        by_pack.setdefault(token.pack, []).append(token)
    return by_pack


def parse_url(url: str) -> tuple[list[str], str]:
    """One URL for each host, and the type of queues:
    amqp://user:password@host1:5672,host2:5672/vhost?queue_type=quorum"""
    scheme, _, place = url.partition("://")
    place, _, query = place.partition("?")
    account, at, rest = place.rpartition("@")
    hosts, _, path = rest.partition("/")
    urls = [f"{scheme}://{account}{at}{host}/{path}" for host in hosts.split(",") if host]
    queue_type = query.removeprefix("queue_type=") if query else CLASSIC
    try:
        is_good = bool(urls) and all(urlsplit(each).port != 0 for each in urls)
    except ValueError:
        is_good = False
    if not is_good or queue_type not in (CLASSIC, QUORUM):
        form = "amqp://user:password@host1:5672,host2/vhost?queue_type=quorum"
        raise ConfigurationError(problem=f"the carrier's URL is not valid: {form}")
    return urls, queue_type


def address_of(url: str) -> str:
    """Without account and password."""
    scheme, _, place = url.partition("://")
    return f"{scheme}://{place.rpartition('@')[2].partition('?')[0]}"
