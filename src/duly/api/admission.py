"""Admission control of one process: how much each tenant may use at once, every bound named.

Two mechanisms. `FairLimiter` bounds units in use (calls, bytes), for all and for one tenant, and
admits waiting tenants in turn. `ConnectionTable` bounds open connections, and closes the one that
has been silent for longest before it refuses a new one.

| bound | what is past it |
|---|---|
| calls of a tenant in work | 429 `concurrency_limited` |
| large bodies, batches, reads, changes: the tenant's share is in use | waits a while, then 429 |
| the same, and the process has no room | waits a while, then 503 `overloaded` |
| connections, and one is silent | that one is closed, unauthenticated ones first |
| connections, and all are in use | 503, except for probes and operators |
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from duly.api.problems import ApiProblem, Code, later

MIB = 2**20


@dataclass(frozen=True)
class AdmissionLimits:
    """Limits of one process. A share is what one tenant may use of a limit."""

    calls_share: int = 800
    # Of bodies longer than `body_bytes_free`, from their first byte to the end of the call.
    body_bytes_max: int = 48 * MIB
    body_bytes_share: int = 32 * MIB
    body_bytes_free: int = 64 * 1024
    # Submitted batches that are decoded, checked and stored.
    batches_max: int = 4
    batches_share: int = 2
    # Lists, statistics and bulk changes; each has a connection of its own for them.
    reads_max: int = 4
    reads_share: int = 2
    # Other changes, out of the connections that submits use too.
    changes_max: int = 6
    changes_share: int = 3
    # Calls of one tenant that wait for one of these, and for how long.
    waiting_share: int = 32
    wait_s: float = 10.0


class FairLimiter:
    """Units in use, with a tenant-fair queue: as units come back, waiting tenants are admitted in
    turn."""

    def __init__(self, what: str, most: int, share: int, limits: AdmissionLimits) -> None:
        self.what = what
        self.most = most
        self.share = share
        self.waiting_share = limits.waiting_share
        self.wait_s = limits.wait_s
        self.used = 0
        self.used_by: Counter[Hashable] = Counter()
        # By tenant, in the order of their turns.
        self.waiting: OrderedDict[Hashable, deque[tuple[int, asyncio.Future[None]]]] = OrderedDict()
        # A tenant waits for the process limit, not for its own share: no later call may overtake
        # it.
        self.is_short = False

    async def acquire(self, tenant: Hashable, units: int = 1) -> None:
        """ApiProblem if the units are not free within `wait_s`. A call never asks for more than a
        share."""
        queue = self.waiting.get(tenant)
        if queue is None and not self.is_short and self.has_room(tenant, units):
            self.take(tenant, units)
            return
        if queue is None:
            queue = self.waiting[tenant] = deque()
        elif len(queue) >= self.waiting_share:
            raise self.refusal(tenant, units)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append((units, turn))
        self.is_short = self.is_short or self.has_share(tenant, units)
        try:
            async with asyncio.timeout(self.wait_s):
                await turn
        except TimeoutError:
            self.leave(tenant, units, turn)
            raise self.refusal(tenant, units) from None
        except asyncio.CancelledError:
            self.leave(tenant, units, turn)
            raise

    def has_share(self, tenant: Hashable, units: int) -> bool:
        return self.used_by[tenant] + units <= self.share

    def has_room(self, tenant: Hashable, units: int) -> bool:
        return self.used + units <= self.most and self.has_share(tenant, units)

    def take(self, tenant: Hashable, units: int) -> None:
        self.used += units
        self.used_by[tenant] += units

    def release(self, tenant: Hashable, units: int = 1) -> None:
        self.used -= units
        self.used_by[tenant] -= units
        if not self.used_by[tenant]:
            del self.used_by[tenant]
        self.let_in()

    def leave(self, tenant: Hashable, units: int, turn: "asyncio.Future[None]") -> None:
        """Stop waiting; units that were granted meanwhile are released."""
        if turn.done() and not turn.cancelled():
            self.release(tenant, units)
            return
        queue = self.waiting.get(tenant)
        if queue is not None and (units, turn) in queue:
            queue.remove((units, turn))
            if not queue:
                del self.waiting[tenant]
        self.let_in()

    def let_in(self) -> None:
        self.is_short = False
        for tenant in list(self.waiting):
            queue = self.waiting[tenant]
            while queue and queue[0][1].done():
                # The waiting caller has gone away.
                queue.popleft()
            if not queue:
                del self.waiting[tenant]
                continue
            units, turn = queue[0]
            if not self.has_share(tenant, units):
                continue
            if self.used + units > self.most:
                self.is_short = True
                return
            queue.popleft()
            self.take(tenant, units)
            turn.set_result(None)
            if queue:
                # Its next turn is after those of all other tenants.
                self.waiting.move_to_end(tenant)
            else:
                del self.waiting[tenant]

    def refusal(self, tenant: Hashable, units: int) -> ApiProblem:
        if self.has_share(tenant, units):
            return later(Code.OVERLOADED, f"too many {self.what} are in work; try again")
        detail = f"too many {self.what} of this tenant are in work; wait for their answers"
        return later(Code.CONCURRENCY_LIMITED, detail)


class Admission:
    """The limiters of one process."""

    def __init__(self, limits: AdmissionLimits | None = None) -> None:
        limits = limits or AdmissionLimits()
        self.limits = limits
        self.bodies = FairLimiter(
            "large bodies", limits.body_bytes_max, limits.body_bytes_share, limits
        )
        self.batches = FairLimiter("batches", limits.batches_max, limits.batches_share, limits)
        self.reads = FairLimiter("reads", limits.reads_max, limits.reads_share, limits)
        self.changes = FairLimiter("changes", limits.changes_max, limits.changes_share, limits)
        self.calls: Counter[int] = Counter()
        # Long computations run one at a time, in slices.
        self.turn = asyncio.Lock()

    def pace(self) -> "WorkSlicer":
        return WorkSlicer(self.turn)

    def begin_call(self, tenant: int) -> None:
        """Each is followed by an `end_call`."""
        if self.calls[tenant] >= self.limits.calls_share:
            detail = f"a tenant may have {self.limits.calls_share} calls in work; try again"
            raise later(Code.CONCURRENCY_LIMITED, detail)
        self.calls[tenant] += 1

    def end_call(self, tenant: int) -> None:
        self.calls[tenant] -= 1
        if not self.calls[tenant]:
            del self.calls[tenant]


class WorkSlicer:
    """Slices of long work on the event loop. Other callers run between two slices, and only one
    long computation runs a slice in each turn of the loop."""

    # About a millisecond or two: a small item costs as much as so many bytes.
    SLICE = 64 * 1024
    ITEM = 1024

    __slots__ = ("done", "is_held", "turn")

    def __init__(self, turn: asyncio.Lock) -> None:
        self.turn = turn
        self.is_held = False
        self.done = 0

    async def __aenter__(self) -> "WorkSlicer":
        await self.turn.acquire()
        self.is_held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.is_held:
            self.is_held = False
            self.turn.release()

    async def step(self, size: int = 0) -> None:
        """Before so many bytes, or one small item."""
        self.done += size + self.ITEM
        if self.done >= self.SLICE:
            self.done = 0
            self.turn.release()
            self.is_held = False
            await asyncio.sleep(0)
            await self.turn.acquire()
            self.is_held = True


class ConnectionSlot(Enum):
    """The kind of slot that a new connection gets: regular, reserved for probes and operators, or
    none."""

    USUAL = auto()
    RESERVED = auto()
    NONE = auto()


class OpenConnection(Protocol):
    """What the table needs of a connection."""

    @property
    def address(self) -> str: ...

    def close_silent(self) -> None:
        """Close a connection without a request in work."""


class ConnectionTable:
    """The open connections of one process, and which of them are silent, since when."""

    def __init__(self, most: int, per_address: int, reserve: int) -> None:
        self.most = most
        self.per_address = per_address
        self.reserve = reserve
        self.count = 0
        self.by_address: Counter[str] = Counter()
        # Idle connections, longest idle first: unauthenticated ones, and authenticated ones.
        self.unauthenticated: dict[OpenConnection, None] = {}
        self.known: dict[OpenConnection, None] = {}

    def enter(self, connection: OpenConnection) -> ConnectionSlot:
        address = connection.address
        self.count += 1
        self.by_address[address] += 1
        place = ConnectionSlot.USUAL
        if self.by_address[address] > self.per_address:
            place = self.make_room(address)
        elif self.count > self.most:
            place = self.make_room(None)
        self.unauthenticated[connection] = None
        return place

    def make_room(self, address: str | None) -> ConnectionSlot:
        for silent in (self.unauthenticated, self.known):
            for connection in silent:
                if address is None or connection.address == address:
                    del silent[connection]
                    connection.close_silent()
                    return ConnectionSlot.USUAL
        return (
            ConnectionSlot.RESERVED
            if self.count <= self.most + self.reserve
            else ConnectionSlot.NONE
        )

    def leave(self, connection: OpenConnection) -> None:
        self.count -= 1
        self.by_address[connection.address] -= 1
        if not self.by_address[connection.address]:
            del self.by_address[connection.address]
        self.busy(connection)

    def busy(self, connection: OpenConnection) -> None:
        self.unauthenticated.pop(connection, None)
        self.known.pop(connection, None)

    def silent(self, connection: OpenConnection, *, is_known: bool) -> None:
        (self.known if is_known else self.unauthenticated)[connection] = None
