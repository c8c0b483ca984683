"""The carrier in Kafka, for webhooks alone: a topic for each band, a partition for each bucket of
tenants. Worker pools stay in PostgreSQL: a partition for each of them cannot be had. Extra `kafka`.

Nothing of librdkafka runs on the event loop: one thread publishes and asks, another one consumes.

| event | what happens |
|---|---|
| consumer dies | its partitions go to others after `SESSION_TIMEOUT_S`, from the last commit |
| partitions change hands | tickets under way are delivered once more; their fences decide |
| consumers here are busy | after `KEPT_S` the process leaves the group: others take over |
| ticket given back | published again, behind the others: a log takes nothing back |
| brokers away | `is_up` is False until a publish is acknowledged |
| offsets or log lost | tickets are published again once they would be void |
| bytes that are no ticket | logged, and passed over: they stay in the log until it forgets them |
"""

import asyncio
import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from duly.broker.carrier_queues import (
    BUCKETS,
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
from duly.domain.lanes import WEBHOOK_LANES, Lane, Ticket, queue_of
from duly.environment import Environment
from duly.telemetry import get_logger

Answer = TypeVar("Answer")

TIMEOUT_S = 2.0
# The first one also finds the brokers and the leaders of partitions.
PUBLISH_TIMEOUT_S = 5.0
PROBE_S = 0.2
CARE_S = 0.5
KEPT_S = 2.0
# As short as brokers allow by default; a ticket is good for longer.
SESSION_TIMEOUT_S = 6.0
CONSUME_MAX = 100
CONSUME_WAIT_S = 0.1
# Packs of a partition that lie here; more stay with the broker.
AHEAD_MAX = 16
RETENTION_MS = 60_000
ARRIVALS_WAIT_S = 1.0
PROBE = "probe"
TIMED_OUT = KafkaError(KafkaError._TIMED_OUT)  # noqa: SLF001 (its public spelling)
OPTIONS = {"security.protocol": "security_protocol", "sasl.mechanism": "sasl_mechanism"}

log = get_logger("duly.broker.kafka")
library_log = logging.getLogger("duly.broker.kafka.librdkafka")
library_log.setLevel("CRITICAL")


class RecordPack:
    """One message, until all of its tickets are done."""

    __slots__ = ("left", "offset", "partition")

    def __init__(self, partition: "AssignedPartition", offset: int, left: int) -> None:
        self.partition = partition
        self.offset = offset
        self.left = left


class RecordTicket(NamedTuple):
    pack: RecordPack
    lane: Lane
    ticket: Ticket


class AssignedPartition:
    """One that is assigned to this process: what was delivered, and up to where all is done."""

    __slots__ = ("buffer", "is_paused", "place", "under_way")

    def __init__(self, place: tuple[str, int]) -> None:
        self.place = place
        # By when they were published.
        self.buffer: deque[tuple[int, Delivery]] = deque()
        # In the order of offsets.
        self.under_way: deque[RecordPack] = deque()
        self.is_paused = False


class KafkaCarrier:
    """A role as well: its tick probes, and leaves the group while nothing is asked for."""

    name = "carrier"
    kind = "kafka"
    has_worker_lanes = False

    def __init__(self, url: str, key: bytes, environment: Environment) -> None:
        self.settings = parse_url(url)
        self.address = f"kafka://{self.settings['bootstrap.servers']}"
        self.key = key
        self.environment = environment
        self.prefix = f"duly.{namespace_of(key)}."
        self.is_up = True
        self.problem: str | None = None
        self.published = PublishedTickets(in_packs=True)
        self.partitions: dict[tuple[str, int], AssignedPartition] = {}
        self.asked_at = 0.0
        self.arrived: dict[Lane, None] = {}
        self.has_arrived = asyncio.Event()
        self.commands = ThreadPoolExecutor(1, "kafka-publish")
        # Buckets share partitions where there are fewer of these.
        self.partition_count = BUCKETS
        self.producer: Producer | None = None
        self.watcher: Consumer | None = None
        self.consuming: threading.Thread | None = None
        self.stop_consuming = threading.Event()
        # For the thread that consumes: offsets to commit, partitions to go on with.
        self.offsets: dict[tuple[str, int], int] = {}
        self.resumed: set[tuple[str, int]] = set()
        self.handover = threading.Lock()

    # The contract --------------------------------------------------------------------------------

    async def publish(self, batch: Sequence[Delivery]) -> None:
        packs = packs_of(batch)
        messages = [
            (name, encode_tickets(self.key, [(each.lane, each.ticket) for each in pack]))
            for name, pack in packs
        ]
        await self.run(lambda: self.send(messages))
        moment = self.environment.clock.monotonic()
        for _, pack in packs:
            self.published.add(pack, moment)

    async def receive(
        self,
        queues: Sequence[Lane],
        credit: int,
        wait_s: float,  # noqa: ARG002 (of the contract)
        left_out: Collection[int] = NO_TENANTS,
    ) -> list[Delivery]:
        """What was delivered: queue by queue, of each by when it was published."""
        self.asked_at = self.environment.clock.monotonic()
        self.start_consuming()
        found: list[Delivery] = []
        for queue in queues:
            open_names = names_of(queue, left_out)
            closed = {self.place_of(name) for name in names_of(queue) if name not in open_names}
            places = dict.fromkeys(map(self.place_of, open_names))
            known = [
                self.partitions[place]
                for place in places
                if place in self.partitions and place not in closed
            ]
            heads = [(each.buffer[0][0], at) for at, each in enumerate(known) if each.buffer]
            heapq.heapify(heads)
            while heads and len(found) < credit:
                _, at = heads[0]
                buffer = known[at].buffer
                found.append(buffer.popleft()[1])
                if buffer:
                    heapq.heapreplace(heads, (buffer[0][0], at))
                else:
                    heapq.heappop(heads)
        return found

    async def ack(self, tokens: Sequence[object]) -> None:
        """Offsets are committed by the thread that consumes, up to the first that is under way."""
        self.finish(tokens)

    def finish(self, tokens: Iterable[object]) -> None:
        for token in tokens:
            assert isinstance(token, RecordTicket)
            token.pack.left -= 1
            partition = token.pack.partition
            if self.partitions.get(partition.place) is not partition:
                # Of another process by now.
                continue
            done: RecordPack | None = None
            while partition.under_way and partition.under_way[0].left == 0:
                done = partition.under_way.popleft()
            with self.handover:
                if done is not None:
                    self.offsets[partition.place] = done.offset + 1
                if partition.is_paused and len(partition.under_way) < AHEAD_MAX // 2:
                    partition.is_paused = False
                    self.resumed.add(partition.place)

    async def release(self, tokens: Sequence[object]) -> None:
        again = [Delivery(token.lane, token.ticket) for token in map(checked, tokens)]
        await self.publish(again)
        self.finish(tokens)

    async def depths(self, queues: Sequence[Lane]) -> dict[Lane, int]:
        names = self.published.names(queues, self.environment.clock.monotonic())
        if not names:
            return {}
        totals = await self.run(lambda: self.lags(names))
        return self.published.depths(totals)

    async def purge(self) -> None:
        """Of a log nothing can be taken: what this process knows of is forgotten."""
        self.published.clear()
        for partition in self.partitions.values():
            tokens = [each.token for _, each in partition.buffer]
            partition.buffer.clear()
            self.finish(tokens)

    async def arrivals(self) -> list[Lane]:
        """Queues of which something was delivered; waits for it a while."""
        try:
            async with asyncio.timeout(ARRIVALS_WAIT_S):
                await self.has_arrived.wait()
        except TimeoutError:
            return []
        self.has_arrived.clear()
        arrived, self.arrived = self.arrived, {}
        return list(arrived)

    # Its role ------------------------------------------------------------------------------------

    async def tick(self) -> float:
        now = self.environment.clock.monotonic()
        if self.consuming is not None and self.asked_at <= now - KEPT_S:
            await self.end_consuming()
        if not self.is_up:
            try:
                await self.run(lambda: self.send([(PROBE, b"")]), is_probe=True)
            except CarrierUnavailable:
                return PROBE_S
            self.is_up, self.problem = True, None
        return CARE_S

    async def close(self) -> None:
        await self.end_consuming()
        self.commands.submit(self.close_clients)
        self.commands.shutdown(wait=False)

    def close_clients(self) -> None:
        if self.watcher is not None:
            self.watcher.close()

    # On the thread that publishes ----------------------------------------------------------------

    async def run(self, work: Callable[[], Answer], *, is_probe: bool = False) -> Answer:
        if not self.is_up and not is_probe:
            raise CarrierUnavailable(address=self.address, problem=self.problem)
        try:
            return await asyncio.get_running_loop().run_in_executor(self.commands, work)
        except (KafkaException, BufferError) as error:
            self.is_up = False
            self.problem = str(error)
            raise CarrierUnavailable(address=self.address, problem=self.problem) from error

    def send(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Acknowledged by the brokers."""
        producer = self.open_producer()
        failures: list[KafkaError] = []

        def note(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failures.append(error)

        for name, wire in messages:
            topic, partition = self.place_of(name)
            producer.produce(topic, wire, partition=partition, on_delivery=note)
        left = producer.flush(PUBLISH_TIMEOUT_S + TIMEOUT_S)
        if failures or left:
            raise KafkaException(failures[0] if failures else TIMED_OUT)

    def open_producer(self) -> Producer:
        if self.producer is None:
            self.make_topics()
            producer = Producer(
                {
                    **self.settings,
                    "message.timeout.ms": round(PUBLISH_TIMEOUT_S * 1000),
                    "linger.ms": 1,
                },
                logger=library_log,
            )
            self.count_partitions(producer)
            self.producer = producer
        return self.producer

    def count_partitions(self, client: Producer | Consumer) -> None:
        topic = self.prefix + f"webhooks.{WEBHOOK_LANES[0].band}"
        known = client.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        self.partition_count = len(known.partitions) or BUCKETS

    def make_topics(self) -> None:
        """Bounded in time: tickets are void in seconds. Brokers that let no client make topics, or
        make them by themselves, decide the number of partitions."""
        admin = AdminClient(self.settings, logger=library_log)
        known = admin.list_topics(timeout=TIMEOUT_S).topics
        topics = [self.prefix + f"webhooks.{queue.band}" for queue in WEBHOOK_LANES]
        missing = [topic for topic in [*topics, self.prefix + PROBE] if topic not in known]
        if not missing:
            return
        config = {"retention.ms": str(RETENTION_MS)}
        made = admin.create_topics(
            [NewTopic(topic, BUCKETS, config=config) for topic in missing],
            request_timeout=TIMEOUT_S,
        )
        for topic, answer in made.items():
            try:
                answer.result(TIMEOUT_S * 2)
            except (KafkaException, TimeoutError) as error:
                log.info("topic not made", topic=topic, error=str(error))

    def place_of(self, name: str) -> tuple[str, int]:
        topic, _, bucket = name.rpartition(".")
        if not topic:
            return self.prefix + name, 0
        return self.prefix + topic, int(bucket) % self.partition_count

    def lags(self, names: Sequence[str]) -> dict[str, int]:
        """Messages of each partition that no consumer has committed."""
        if self.watcher is None:
            self.watcher = Consumer(self.consumer_settings(), logger=library_log)
        places = dict.fromkeys(map(self.place_of, names))
        committed = self.watcher.committed(
            [TopicPartition(*place) for place in places], timeout=TIMEOUT_S
        )
        lags: dict[tuple[str, int], int] = {}
        for each in committed:
            low, high = self.watcher.get_watermark_offsets(each, timeout=TIMEOUT_S)
            lags[each.topic, each.partition] = high - max(each.offset, low)
        return {name: lags[self.place_of(name)] for name in names}

    def consumer_settings(self) -> dict[str, Any]:
        return {
            **self.settings,
            "group.id": self.prefix + "tickets",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": round(SESSION_TIMEOUT_S * 1000),
            "fetch.wait.max.ms": 50,
        }

    # The thread that consumes --------------------------------------------------------------------

    def start_consuming(self) -> None:
        if self.consuming is None or not self.consuming.is_alive():
            loop = asyncio.get_running_loop()
            self.stop_consuming = threading.Event()
            self.consuming = threading.Thread(
                target=self.consume,
                args=(loop, self.stop_consuming),
                name="kafka-consume",
                daemon=True,
            )
            self.consuming.start()

    async def end_consuming(self) -> None:
        """Leaves the group; what was delivered is delivered to others."""
        thread, self.consuming = self.consuming, None
        if thread is None:
            return
        self.stop_consuming.set()
        await asyncio.get_running_loop().run_in_executor(None, thread.join, TIMEOUT_S * 2)
        self.partitions.clear()

    def consume(self, loop: asyncio.AbstractEventLoop, stop: threading.Event) -> None:
        consumer = Consumer(self.consumer_settings(), logger=library_log)

        def revoke(_consumer: Consumer, places: list[TopicPartition]) -> None:
            self.commit(consumer)
            loop.call_soon_threadsafe(
                self.forget, [(each.topic, each.partition) for each in places]
            )

        try:
            topics = [self.prefix + f"webhooks.{queue.band}" for queue in WEBHOOK_LANES]
            consumer.subscribe(topics, on_revoke=revoke, on_lost=revoke)
            self.count_partitions(consumer)
            while not stop.is_set():
                found = consumer.consume(CONSUME_MAX, CONSUME_WAIT_S)
                good = [each for each in found if each.error() is None]
                if good:
                    loop.call_soon_threadsafe(self.accept, good)
                self.commit(consumer)
                self.hold_back(consumer)
        except (KafkaException, RuntimeError) as error:
            # The event loop has ended, or the library gave up: the next look starts another one.
            log.warning("consuming ended", error=str(error))
        finally:
            consumer.close()

    def commit(self, consumer: Consumer) -> None:
        with self.handover:
            offsets, self.offsets = self.offsets, {}
            resumed, self.resumed = self.resumed, set()
        if offsets:
            places = [TopicPartition(*place, offset) for place, offset in offsets.items()]
            consumer.commit(offsets=places, asynchronous=True)
        if resumed:
            mine = {(each.topic, each.partition) for each in consumer.assignment()}
            consumer.resume([TopicPartition(*place) for place in resumed & mine])

    def hold_back(self, consumer: Consumer) -> None:
        full = [
            each.place
            for each in list(self.partitions.values())
            if not each.is_paused and len(each.under_way) >= AHEAD_MAX
        ]
        if full:
            mine = {(each.topic, each.partition) for each in consumer.assignment()}
            places = [place for place in full if place in mine]
            consumer.pause([TopicPartition(*place) for place in places])
            for place in places:
                self.partitions[place].is_paused = True

    # On the event loop, from that thread ---------------------------------------------------------

    def accept(self, messages: Sequence[Message]) -> None:
        for message in messages:
            topic, number, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert number is not None
            assert offset is not None
            place = topic, number
            partition = self.partitions.setdefault(place, AssignedPartition(place))
            wire = message.value() or b""
            tickets = decode_tickets(self.key, wire)
            if not tickets or any(self.place_of(name_of(lane)) != place for lane, _ in tickets):
                log.warning("not a ticket of this installation", topic=topic)
                tickets = []
            pack = RecordPack(partition, offset, len(tickets))
            partition.under_way.append(pack)
            _, published_ms = message.timestamp()
            for lane, ticket in tickets:
                token = RecordTicket(pack, lane, ticket)
                partition.buffer.append((published_ms, Delivery(lane, ticket, token)))
                self.arrived[queue_of(lane)] = None
        self.has_arrived.set()

    def forget(self, places: Sequence[tuple[str, int]]) -> None:
        for place in places:
            self.partitions.pop(place, None)


def checked(token: object) -> RecordTicket:
    assert isinstance(token, RecordTicket)
    return token


def parse_url(url: str) -> dict[str, Any]:
    """kafka://user:password@host1:9092,host2:9092?security_protocol=SASL_SSL"""
    place, _, query = url.partition("://")[2].partition("?")
    account, _, hosts = place.rpartition("@")
    hosts = hosts.rstrip("/")
    asked = dict(parse_qsl(query))
    unknown = set(asked) - set(OPTIONS.values())
    if not hosts or unknown:
        problem = "the carrier's URL is not valid: kafka://host1:9092,host2:9092"
        if unknown:
            problem = f"the carrier's URL has unknown options: {', '.join(sorted(unknown))}"
        raise ConfigurationError(problem=problem)
    settings = {"bootstrap.servers": hosts}
    settings |= {name: asked[key] for name, key in OPTIONS.items() if key in asked}
    if account:
        user, _, password = account.partition(":")
        settings |= {
            "sasl.username": unquote(user),
            "sasl.password": unquote(password),
            "sasl.mechanism": settings.get("sasl.mechanism", "PLAIN"),
            "security.protocol": settings.get("security.protocol", "SASL_SSL"),
        }
    return settings
