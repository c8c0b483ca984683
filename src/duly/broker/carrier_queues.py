"""Names of a carrier's queues, and how deep they are. For carriers outside of this process, which
know bytes and no tenants.

A lane of workers has a queue of its own. Webhooks of a band lie in `BUCKETS` queues, chosen by a
hash of their tenant: a consumer leaves out the buckets of tenants that use too many of its slots,
and takes from the others in the order of publishing.
"""

import hashlib
import hmac
import zlib
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from duly.broker.contract import Delivery
from duly.domain.lanes import ALL_TENANTS, TICKET_S, Lane, queue_of

BUCKETS = 8
# Lanes of workers with queues of their own; the tickets of others stay in PostgreSQL.
WORKER_QUEUES_MAX = 2_000
NAMESPACE_BYTES = 4
# Webhooks go in packs, because executors take many: a message costs as much as twenty tickets. A
# consumer of a pool takes few, and the other processes want the rest.
PACK_MAX = 25


def namespace_of(key: bytes) -> str:
    """Of one installation: two of them on one carrier never meet."""
    return hmac.digest(key, b"namespace", hashlib.sha256)[:NAMESPACE_BYTES].hex()


def bucket_of(tenant: int) -> int:
    return zlib.crc32(tenant.to_bytes(8, "big")) % BUCKETS


def is_shared(queue: Lane) -> bool:
    return queue.tenant == ALL_TENANTS


def name_of(lane: Lane) -> str:
    """Of the queue that carries the tickets of a lane."""
    queue = queue_of(lane)
    if is_shared(queue):
        return bucket_name(queue, bucket_of(lane.tenant))
    return f"pool.{queue.tenant}.{queue.pool}.{queue.band}"


def names_of(queue: Lane, left_out: Collection[int] = ()) -> list[str]:
    """Where the tickets of a queue lie; without those buckets in which tenants are left out."""
    if not is_shared(queue):
        return [name_of(queue)] if queue.tenant not in left_out else []
    closed = {bucket_of(tenant) for tenant in left_out}
    return [bucket_name(queue, number) for number in range(BUCKETS) if number not in closed]


def bucket_name(queue: Lane, bucket: int) -> str:
    return f"webhooks.{queue.band}.{bucket}"


def packs_of(batch: Sequence[Delivery]) -> list[tuple[str, list[Delivery]]]:
    """One message each, by name of its queue, in the order of their first tickets."""
    packs: list[tuple[str, list[Delivery]]] = []
    open_packs: dict[str, list[Delivery]] = {}
    for each in batch:
        name = name_of(each.lane)
        pack = open_packs.get(name)
        most = PACK_MAX if is_shared(queue_of(each.lane)) else 1
        if pack is None or len(pack) >= most:
            pack = open_packs[name] = []
            packs.append((name, pack))
        pack.append(each)
    return packs


class PublishedTickets:
    """What this process published, by name of the queue: how many tickets of each lane may still
    lie there. A queue is first in, first out, so those that are left are the newest."""

    def __init__(self, *, in_packs: bool = False) -> None:
        # Whether the carrier counts messages, each of which is one `add`.
        self.in_packs = in_packs
        self.queues: dict[str, deque[tuple[float, dict[Lane, int]]]] = {}

    def add(self, batch: Sequence[Delivery], moment: float) -> None:
        by_name: dict[str, dict[Lane, int]] = {}
        for lane, _, _ in batch:
            counts = by_name.setdefault(name_of(lane), {})
            counts[lane] = counts.get(lane, 0) + 1
        for name, counts in by_name.items():
            self.queues.setdefault(name, deque()).append((moment, counts))

    def names(self, queues: Iterable[Lane], now: float) -> list[str]:
        """Those of these queues in which tickets of ours may lie; void ones are forgotten."""
        found = [name for queue in queues for name in names_of(queue) if name in self.queues]
        for name in found:
            published = self.queues[name]
            while published and published[0][0] <= now - TICKET_S:
                published.popleft()
            if not published:
                del self.queues[name]
        return [name for name in found if name in self.queues]

    def depths(self, totals: Mapping[str, int]) -> dict[Lane, int]:
        """Of each lane, by how many tickets lie in each queue; what is known to be taken is
        forgotten."""
        counted: dict[Lane, int] = {}
        for name, total in totals.items():
            published = self.queues.pop(name, deque())
            kept: deque[tuple[float, dict[Lane, int]]] = deque()
            left = total
            while published and left > 0:
                moment, counts = published.pop()
                kept.appendleft((moment, counts))
                for lane, number in counts.items():
                    known = number if self.in_packs else min(number, left)
                    counted[lane] = counted.get(lane, 0) + known
                left -= 1 if self.in_packs else sum(counts.values())
            if kept:
                self.queues[name] = kept
        return counted

    def clear(self) -> None:
        self.queues.clear()
