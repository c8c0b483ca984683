"""A task id is an address: a UUID version 7 that says when (placement time) and where (shard).

The time decides the partition, so it is clamped to the partitions that exist; it says nothing about
when the task is due. There are 1,024 shards for ever; owners hold slots, which are ranges of them.

| 48 bits | 4 | 10 | 1 | 1 | 2 | 38 | 24 |
|---|---|---|---|---|---|---|---|
| milliseconds | version 7 | shard | is a node | callback | variant | random | random, or number |

The ids of a workflow and its nodes have the node bit, and agree in all but the number: 0 is the
workflow. So an id says whose node a task is, and all nodes of one are a range of any primary key.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from random import Random
from uuid import UUID

SHARDS = 1024
SHARD_BITS = 10
SLOTS = 64
SHARDS_PER_SLOT = SHARDS // SLOTS
MILLISECONDS_MAX = 2**48 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
VERSION = 7 << 12
VARIANT = 2 << 62
RANDOM_BITS = 62
NODE_BIT = 2 << 64
# The end of a plain task may have to be told; in ids of workflows and nodes it means nothing.
CALLBACK_BIT = 1 << 64
# Of a whole batch at a time: which bits of byte 7 say that its ends have consequences.
MARKS = 3
NODE_NUMBER_BITS = 24
NODE_NUMBER_MAX = (1 << NODE_NUMBER_BITS) - 1
NO_NUMBER = bytes(NODE_NUMBER_BITS // 8)
# Knuth's multiplicative hash: neighbouring tenant numbers land far apart. SQL can do the same sum.
GOLDEN = 2654435761


def make_task_id(placed_ms: int, shard: int, random: Random, mark: int = 0) -> UUID:
    """`placed_ms` is the placement time in milliseconds, reckoned once for a whole batch."""
    return UUID(bytes=make_octets(placed_ms, shard, random, mark))


def make_octets(placed_ms: int, shard: int, random: Random, mark: int = 0) -> bytes:
    """The same as it is written: Python's own UUID takes longer to make than all of this. `mark`:
    `CALLBACK_BIT` of a task whose end is told."""
    return (fixed_bits(placed_ms, shard) | mark | random.getrandbits(RANDOM_BITS)).to_bytes(16)


def make_workflow_id(placed_ms: int, shard: int, random: Random) -> UUID:
    bits = random.getrandbits(RANDOM_BITS) & ~NODE_NUMBER_MAX
    return UUID(bytes=(fixed_bits(placed_ms, shard) | NODE_BIT | bits).to_bytes(16))


def is_node(task_id: UUID) -> bool:
    return task_id.bytes[7] & 2 != 0


def has_callback(task_id: UUID) -> bool:
    """Of a plain task. Ids that were made before there were callbacks say it by chance."""
    return task_id.bytes[7] & MARKS == 1


def includes_marked(ids: Sequence[UUID]) -> bool:
    """Whether any is a node or has a callback. Without a call for each: asked of every batch of
    settlements, where these are few."""
    bits = [task_id.bytes[7] & MARKS for task_id in ids]
    return any(bits)


def workflow_of(node_id: UUID) -> UUID:
    return UUID(bytes=node_id.bytes[:13] + NO_NUMBER)


def node_number(node_id: UUID) -> int:
    """0 of the workflow itself."""
    return int.from_bytes(node_id.bytes[13:])


def node_octets(workflow_id: UUID, number: int) -> bytes:
    assert 0 < number <= NODE_NUMBER_MAX
    return workflow_id.bytes[:13] + number.to_bytes(3)


def node_id_of(workflow_id: UUID, number: int) -> UUID:
    return UUID(bytes=node_octets(workflow_id, number))


@lru_cache(64)
def fixed_bits(placed_ms: int, shard: int) -> int:
    """All that is not random: the same for most of a batch."""
    assert 0 <= shard < SHARDS
    return (placed_ms << 16 | VERSION | shard << 2) << 64 | VARIANT


def shard_of(task_id: UUID) -> int:
    # From the bytes: the driver's own UUIDs make them quickly, and an integer slowly.
    octets = task_id.bytes
    return (octets[6] & 0x0F) << 6 | octets[7] >> 2


def address_of(task_id: UUID) -> tuple[int, bytes]:
    """The one order in which rows are locked, everywhere: that of the key, (shard, id)."""
    return shard_of(task_id), task_id.bytes


def in_address_order(ids: Sequence[UUID]) -> list[int]:
    """Where to find each of them, in that order; quickly, as most batches are of one shard."""
    octets = [task_id.bytes for task_id in ids]
    shards = [(each[6] & 0x0F) << 6 | each[7] >> 2 for each in octets]
    if shards[:1] * len(shards) == shards:
        return sorted(range(len(ids)), key=octets.__getitem__)
    return sorted(range(len(ids)), key=list(zip(shards, octets, strict=True)).__getitem__)


def slot_of(shard: int) -> int:
    """What is owned as a whole: neighbours, so that the shards of one tenant stay together."""
    assert 0 <= shard < SHARDS
    return shard // SHARDS_PER_SLOT


def shards_of(slot: int) -> range:
    assert 0 <= slot < SLOTS
    return range(slot * SHARDS_PER_SLOT, (slot + 1) * SHARDS_PER_SLOT)


def placement_time_of(task_id: UUID) -> datetime:
    return EPOCH + timedelta(milliseconds=task_id.int >> 80)


def partition_bound(start: datetime) -> UUID:
    """The smallest value that an id placed at `start` or later can have."""
    return UUID(int=milliseconds(start) << 80)


def milliseconds(instant: datetime) -> int:
    since = instant - EPOCH
    result = (since.days * 86400 + since.seconds) * 1000 + since.microseconds // 1000
    assert 0 <= result <= MILLISECONDS_MAX
    return result


@lru_cache(4096)
def tenant_shard(tenant: int, spread: int, choice: int) -> int:
    """One of the `spread` (a power of two) neighbouring shards of a tenant.

    A wider spread keeps the narrower one's shards, so raising it moves nothing.
    """
    assert spread & (spread - 1) == 0
    assert 1 <= spread <= SHARDS
    home = ((tenant * GOLDEN) & 0xFFFFFFFF) >> (32 - SHARD_BITS)
    return home ^ (choice % spread)


def key_shard(tenant: int, key: str) -> int:
    """Where everything with one key lives, whatever the tenant's spread, so its cap is local."""
    digest = sha256(f"{tenant}:{key}".encode()).digest()
    return int.from_bytes(digest[:2], "big") >> (16 - SHARD_BITS)
