"""The carrier in Redis or Valkey: streams with one consumer group. Extra `redis`.

| event | what happens |
|---|---|
| Redis wiped, or restarted without its data | tickets are published again once they would be void |
| failover loses the last writes | the same; acknowledgements that were lost are delivered again |
| consumer dies with tickets | claimed by another after `CLAIM_AFTER_S`; its fence decides |
| Redis away, full or read-only | `is_up` is False until a probe can write |
| an answer is lost | what was read stays pending, and is claimed |
| bytes that are no ticket | moved to the stream `undecodable`, of bounded length |
| lane without consumers | entries older than tickets live are trimmed; its stream expires |
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from duly.broker.carrier_queues import PublishedTickets, name_of, names_of, namespace_of
from duly.broker.codec import decode_ticket, encode_ticket
from duly.broker.contract import Delivery
from duly.broker.lane_queue import LaneQueues
from duly.domain.errors import CarrierUnavailable, ConfigurationError
from duly.domain.execution_shares import NO_TENANTS
from duly.domain.lanes import TICKET_S, Lane, queue_of
from duly.environment import Environment
from duly.telemetry import get_logger

Answer = TypeVar("Answer")

GROUP = "duly"
TIMEOUT_S = 2.0
# A failed carrier is tried again this often; a good one is looked after.
PROBE_S = 0.2
CARE_S = 1.0
# Longer than a lease takes and than tickets lie in a process, shorter than they are good for.
CLAIM_AFTER_S = 3.0
CLAIMED_MAX = 200
FORGET_CONSUMER_AFTER_S = 600.0
STREAM_EXPIRES_S = 60.0
UNDECODABLE_MAX = 1_000
ARRIVALS_WAIT_S = 1.0
PUBLISH_MAX = 500
SCAN_COUNT = 500
SENTINEL_PORT = 26379

# One trip for a batch, all or nothing; then a hint to the processes whose consumers wait.
PUBLISH = """
local oldest = ARGV[1]
for index, stream in ipairs(KEYS) do
  if redis.call('EXISTS', stream) == 0 then
    redis.call('XGROUP', 'CREATE', stream, ARGV[3], '0', 'MKSTREAM')
  end
  redis.call('PEXPIRE', stream, ARGV[2])
end
for at = 6, #ARGV, 2 do
  redis.call('XADD', KEYS[tonumber(ARGV[at])], '*', 't', ARGV[at + 1])
end
local now = redis.call('TIME')
local oldest_ms = tonumber(now[1]) * 1000 - tonumber(ARGV[1])
for _, stream in ipairs(KEYS) do
  redis.call('XTRIM', stream, 'MINID', '~', string.format('%.0f', oldest_ms))
end
redis.call('PUBLISH', ARGV[4], ARGV[5])
return 0
"""

# Queue by queue in the order given. Of a queue of several streams the oldest entries of all: how
# many of each are next is looked up before they are read.
RECEIVE = """
local left = tonumber(ARGV[3])
local found = {}
local first = 1
local function read(stream, count)
  local ok, answer = pcall(redis.call, 'XREADGROUP', 'GROUP', ARGV[1], ARGV[2],
                           'COUNT', count, 'STREAMS', stream, '>')
  if not ok or not answer then return end
  for _, entry in ipairs(answer[1][2]) do
    found[#found + 1] = {stream, entry[1], entry[2][2]}
    left = left - 1
  end
end
local function heads(stream)
  local ok, groups = pcall(redis.call, 'XINFO', 'GROUPS', stream)
  if not ok then return {} end
  local after = '0-0'
  for _, group in ipairs(groups) do
    for at = 1, #group, 2 do
      if group[at] == 'last-delivered-id' then after = group[at + 1] end
    end
  end
  return redis.call('XRANGE', stream, '(' .. after, '+', 'COUNT', left)
end
for queue = 4, #ARGV do
  local last = first + tonumber(ARGV[queue]) - 1
  if left > 0 and last == first then
    read(KEYS[first], left)
  elseif left > 0 then
    local all = {}
    for at = first, last do
      for _, entry in ipairs(heads(KEYS[at])) do
        local ms, number = string.match(entry[1], '(%d+)-(%d+)')
        all[#all + 1] = {tonumber(ms), tonumber(number), at}
      end
    end
    table.sort(all, function(one, other)
      if one[1] ~= other[1] then return one[1] < other[1] end
      if one[2] ~= other[2] then return one[2] < other[2] end
      return one[3] < other[3]
    end)
    local counts = {}
    for at = 1, math.min(left, #all) do
      counts[all[at][3]] = (counts[all[at][3]] or 0) + 1
    end
    for at = first, last do
      if counts[at] then read(KEYS[at], counts[at]) end
    end
  end
  first = last + 1
end
return found
"""


class StreamEntry(NamedTuple):
    """An entry that this process has read."""

    stream: str
    entry: str
    wire: bytes


class RedisCarrier:
    """A role as well: its tick probes what is down and claims from consumers that died."""

    name = "carrier"
    kind = "redis"
    has_worker_lanes = True

    def __init__(
        self,
        url: str,
        key: bytes,
        environment: Environment,
        claim_after_s: float = CLAIM_AFTER_S,
    ) -> None:
        self.claim_after_s = claim_after_s
        self.client = connect(url)
        self.address = address_of(url)
        self.key = key
        self.environment = environment
        # In braces: one hash slot, so that a script may touch all streams.
        self.prefix = f"duly:{{{namespace_of(key)}}}:"
        self.arrivals_channel = self.prefix + "arrivals"
        self.consumer = f"{environment.entropy.getrandbits(64):016x}"
        self.publish_script = self.client.register_script(PUBLISH)
        self.receive_script = self.client.register_script(RECEIVE)
        self.is_up = True
        self.problem: str | None = None
        self.published = PublishedTickets()
        # Claimed from consumers that died; received before anything else.
        self.claimed = LaneQueues()
        # Queues that were asked for since the last look for dead consumers.
        self.asked: dict[Lane, None] = {}
        self.subscription: PubSub | None = None

    # The contract --------------------------------------------------------------------------------

    async def publish(self, batch: Sequence[Delivery]) -> None:
        for first in range(0, len(batch), PUBLISH_MAX):
            await self.publish_part(batch[first : first + PUBLISH_MAX])

    async def publish_part(self, batch: Sequence[Delivery]) -> None:
        streams: dict[str, int] = {}
        entries: list[Any] = []
        for lane, ticket, _ in batch:
            stream = self.prefix + name_of(lane)
            entries.append(streams.setdefault(stream, len(streams) + 1))
            entries.append(encode_ticket(self.key, lane, ticket))
        queues = dict.fromkeys(queue_of(each.lane) for each in batch)
        settings: list[Any] = [
            round(TICKET_S * 1000),
            round(STREAM_EXPIRES_S * 1000),
            GROUP,
            self.arrivals_channel,
            " ".join(f"{queue.tenant}.{queue.pool}.{queue.band}" for queue in queues),
        ]
        await self.ask(self.publish_script(keys=list(streams), args=[*settings, *entries]))
        self.published.add(batch, self.environment.clock.monotonic())

    async def receive(
        self,
        queues: Sequence[Lane],
        credit: int,
        wait_s: float,  # noqa: ARG002 (of the contract)
        left_out: Collection[int] = NO_TENANTS,
    ) -> list[Delivery]:
        """Never waits: `arrivals` tells when to look."""
        self.asked.update(dict.fromkeys(queues))
        found = self.claimed.take(queues, credit, left_out)
        if len(found) >= credit:
            return found
        names = [names_of(queue, left_out) for queue in queues]
        keys = [self.prefix + name for part in names for name in part]
        if not keys:
            return found
        rows = await self.ask(
            self.receive_script(
                keys=keys,
                args=[
                    GROUP,
                    self.consumer,
                    credit - len(found),
                    *(len(part) for part in names if part),
                ],
            )
        )
        rank = {self.prefix + name: at for at, part in enumerate(names) for name in part}
        tokens = [
            StreamEntry(stream.decode(), entry.decode(), wire) for stream, entry, wire in rows
        ]
        tokens.sort(key=lambda token: (rank[token.stream], *map(int, token.entry.split("-"))))
        return found + await self.decode(tokens)

    async def ack(self, tokens: Sequence[object]) -> None:
        entries: dict[str, list[str]] = {}
        for token in tokens:
            assert isinstance(token, StreamEntry)
            entries.setdefault(token.stream, []).append(token.entry)
        pipe = self.client.pipeline(transaction=False)
        for stream, ids in entries.items():
            pipe.xack(stream, GROUP, *ids)
            pipe.xdel(stream, *ids)
        await self.ask(pipe.execute())

    async def release(self, tokens: Sequence[object]) -> None:
        """A stream cannot take an entry back: it is added again, behind the others."""
        pipe = self.client.pipeline(transaction=False)
        for token in tokens:
            assert isinstance(token, StreamEntry)
            pipe.xadd(token.stream, {"t": token.wire})
            pipe.xack(token.stream, GROUP, token.entry)
            pipe.xdel(token.stream, token.entry)
        pipe.publish(self.arrivals_channel, "")
        await self.ask(pipe.execute())

    async def depths(self, queues: Sequence[Lane]) -> dict[Lane, int]:
        names = self.published.names(queues, self.environment.clock.monotonic())
        if not names:
            return {}
        pipe = self.client.pipeline(transaction=False)
        for name in names:
            pipe.xlen(self.prefix + name)
        totals = await self.ask(pipe.execute())
        return self.published.depths(dict(zip(names, totals, strict=True)))

    async def purge(self) -> None:
        self.published.clear()
        self.claimed.clear()
        found = await self.ask(self.scan())
        for first in range(0, len(found), SCAN_COUNT):
            await self.ask(self.client.unlink(*found[first : first + SCAN_COUNT]))

    async def scan(self) -> list[bytes]:
        """Streams of tickets."""
        patterns = ("pool.*", "webhooks.*")
        return [
            key
            for pattern in patterns
            async for key in self.client.scan_iter(self.prefix + pattern, count=SCAN_COUNT)
        ]

    async def arrivals(self) -> list[Lane]:
        """Queues in which something was published just now; waits for it a while."""
        try:
            if self.subscription is None:
                self.subscription = self.client.pubsub(ignore_subscribe_messages=True)
                await self.subscription.subscribe(self.arrivals_channel)
            async with asyncio.timeout(ARRIVALS_WAIT_S + TIMEOUT_S):
                told = await self.subscription.get_message(timeout=ARRIVALS_WAIT_S)
        except (RedisError, OSError, TimeoutError) as error:
            await self.unsubscribe()
            raise self.unavailable(error) from error
        if told is None:
            return []
        return [Lane(*map(int, queue.split("."))) for queue in told["data"].decode().split()]

    # Its role ------------------------------------------------------------------------------------

    async def tick(self) -> float:
        """Whether it is up is known by writing: a full or read-only server answers pings."""
        with contextlib.suppress(CarrierUnavailable):
            await self.ask(self.client.set(self.prefix + "probe", self.consumer, ex=60))
            self.note_up()
            await self.claim()
        return CARE_S if self.is_up else PROBE_S

    async def claim(self) -> None:
        """Take over what consumers read and did not acknowledge in time."""
        asked, self.asked = self.asked, {}
        for queue in asked:
            for name in names_of(queue):
                stream = self.prefix + name
                try:
                    _, entries, *_ = await self.ask(
                        self.client.xautoclaim(
                            stream,
                            GROUP,
                            self.consumer,
                            min_idle_time=round(self.claim_after_s * 1000),
                            count=CLAIMED_MAX,
                        ),
                        is_about_state=False,
                    )
                except ResponseError:
                    # No such stream, or no group: nothing was published there lately.
                    continue
                tokens = [
                    StreamEntry(stream, entry.decode(), fields[b"t"])
                    for entry, fields in entries
                    if fields is not None
                ]
                if tokens:
                    claimed = await self.decode(tokens)
                    self.claimed.put(claimed, self.environment.clock.monotonic())
                await self.forget_consumers(stream)

    async def forget_consumers(self, stream: str) -> None:
        """Processes that ended, and left nothing."""
        for each in await self.ask(self.client.xinfo_consumers(stream, GROUP)):
            is_old = each["idle"] > FORGET_CONSUMER_AFTER_S * 1000
            if is_old and not each["pending"]:
                await self.ask(self.client.xgroup_delconsumer(stream, GROUP, each["name"]))

    async def close(self) -> None:
        await self.unsubscribe()
        for client in (self.client, *sentinels_of(self.client)):
            with contextlib.suppress(RedisError, OSError):
                await client.aclose()

    async def unsubscribe(self) -> None:
        if self.subscription is not None:
            subscription, self.subscription = self.subscription, None
            with contextlib.suppress(RedisError, OSError):
                await subscription.aclose()  # type: ignore[no-untyped-call]

    # Inside --------------------------------------------------------------------------------------

    async def decode(self, tokens: Sequence[StreamEntry]) -> list[Delivery]:
        found: list[Delivery] = []
        bad: list[StreamEntry] = []
        for token in tokens:
            delivery = decode_ticket(self.key, token.wire, token)
            # A ticket copied into another lane's stream is no ticket of that lane.
            if delivery is None or self.prefix + name_of(delivery.lane) != token.stream:
                bad.append(token)
            else:
                found.append(delivery)
        if bad:
            await self.discard(bad)
        return found

    async def discard(self, tokens: Sequence[StreamEntry]) -> None:
        log.warning("not a ticket of this installation", count=len(tokens))
        pipe = self.client.pipeline(transaction=False)
        for token in tokens:
            kept: dict[Any, Any] = {"t": token.wire, "stream": token.stream}
            pipe.xadd(self.prefix + "undecodable", kept, maxlen=UNDECODABLE_MAX, approximate=True)
            pipe.xack(token.stream, GROUP, token.entry)
            pipe.xdel(token.stream, token.entry)
        await self.ask(pipe.execute())

    async def ask(self, answer: Awaitable[Answer], *, is_about_state: bool = True) -> Answer:
        """Whatever Redis cannot do makes it down until a probe has written."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await answer
        except (RedisError, OSError, TimeoutError) as error:
            if isinstance(error, ResponseError) and not is_about_state:
                raise
            raise self.unavailable(error) from error

    def unavailable(self, error: Exception) -> CarrierUnavailable:
        self.is_up = False
        self.problem = str(error) or type(error).__name__
        return CarrierUnavailable(address=self.address, problem=self.problem)

    def note_up(self) -> None:
        self.is_up = True
        self.problem = None


def connect(url: str) -> "Redis":
    """Of one server, of the primary that sentinels name, or of a cluster."""
    options: dict[str, Any] = {
        "socket_timeout": TIMEOUT_S,
        "socket_connect_timeout": TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
    }
    try:
        parts = urlsplit(url)
        if parts.scheme in ("redis+sentinel", "valkey+sentinel"):
            return connect_by_sentinel(url, options)
        if parts.scheme in ("redis+cluster", "valkey+cluster"):
            plain = "redis://" + url.partition("://")[2]
            del options["retry"]
            return cast("Redis", RedisCluster.from_url(plain, **options))
        return Redis.from_url(url.replace("valkey", "redis", 1), **options)
    except (ValueError, RedisError) as error:
        raise ConfigurationError(problem=f"the carrier's URL is not valid: {error}") from None


def connect_by_sentinel(url: str, options: dict[str, Any]) -> "Redis":
    """redis+sentinel://user:password@host1:26379,host2:26379/name/db"""
    place = url.partition("://")[2]
    account, _, rest = place.rpartition("@")
    hosts, _, path = rest.partition("/")
    name, _, database = path.partition("/")
    if not name:
        raise ValueError("name the primary after the sentinels: redis+sentinel://host/name")
    sentinels = []
    for host in hosts.split(","):
        address, _, port = host.partition(":")
        sentinels.append((address, int(port or SENTINEL_PORT)))
    if account:
        user, _, password = account.partition(":")
        options |= {"username": unquote(user) or None, "password": unquote(password) or None}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        sentinels, sentinel_kwargs={"socket_timeout": TIMEOUT_S}, db=int(database or 0), **options
    )
    return cast("Redis", sentinel.master_for(name))


def sentinels_of(client: "Redis | RedisCluster") -> "list[Redis]":
    """Clients of the sentinels that it asks, which it does not close itself."""
    pool = getattr(client, "connection_pool", None)
    return pool.sentinel_manager.sentinels if isinstance(pool, SentinelConnectionPool) else []


def address_of(url: str) -> str:
    """Without account and password."""
    scheme, _, place = url.partition("://")
    return f"{scheme}://{place.rpartition('@')[2]}"


log = get_logger("duly.broker.redis")
