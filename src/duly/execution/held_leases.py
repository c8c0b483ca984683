"""Held leases: those of the attempts that run in this process, kept by heartbeats, and stopped
before they end.

| event | what happens |
|---|---|
| a heartbeat says stale | the handler is cancelled; its settlement would change nothing |
| a heartbeat says cancel | the handler is cancelled and settled as cancelled |
| no heartbeat gets through | the handler is cancelled shortly before its lease ends |
| the handler has ended already | nothing interrupts the recording of its end |
"""

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import Any
from uuid import UUID

from duly.store.database import Database
from duly.store.lease import Beat, HeartbeatStatus, Lease, extend_leases
from duly.telemetry import get_logger

LEASE_S = 15.0
HEARTBEATS_PER_LEASE = 3
# A run without heartbeats is stopped this much before its lease ends: the next holder must find it
# stopped, though two clocks never agree.
SPARE_S, SPARE_SHARE = 1.0, 0.1
HEARTBEATS_MAX = 1000

log = get_logger("duly.execution.held_leases")


class StopReason(Enum):
    """Why a handler is stopped."""

    CANCELLED = auto()
    LOST = auto()
    SHUTDOWN = auto()


class HeldLease:
    """A lease while its attempt runs, as a task of its own."""

    __slots__ = ("deadline", "has_begun", "has_ended", "lease", "stop_reason", "task")

    def __init__(
        self,
        lease: Lease,
        deadline: float,
        run: Callable[["HeldLease"], Coroutine[Any, Any, object]],
    ) -> None:
        self.lease = lease
        # Until when the lease is ours at least, by the loop's clock: counted from before it was
        # asked for or extended.
        self.deadline = deadline
        # Of the handler, not of the attempt.
        self.has_begun = False
        self.has_ended = False
        self.stop_reason: StopReason | None = None
        self.task = asyncio.get_running_loop().create_task(run(self))

    @property
    def key(self) -> tuple[UUID, int]:
        return self.lease.id, self.lease.fence

    def stop(self, reason: StopReason) -> None:
        """Cancel the handler. A lost lease stays lost, whatever reason comes later."""
        if self.has_ended:
            return
        if self.stop_reason is not StopReason.LOST:
            self.stop_reason = reason
        # One that has not begun finds the reason when it begins: a task that is cancelled before
        # its first step runs nothing, and its attempt would never be settled.
        if self.has_begun:
            self.task.cancel()


class HeldLeases:
    """A role: each tick extends every lease that is held. It works beside the executor's ticks,
    which may wait for tasks."""

    name = "heartbeat"

    def __init__(self, database: Database, holder: UUID, lease_s: float = LEASE_S) -> None:
        # Connections that nothing else can use up: a heartbeat that waits is a lease lost.
        self.database = database
        self.holder = holder
        self.lease_s = lease_s
        # By (id, fence): a lost lease may still run beside the next one of its task.
        self.held: dict[tuple[UUID, int], HeldLease] = {}

    @property
    def heartbeat_s(self) -> float:
        return self.lease_s / HEARTBEATS_PER_LEASE

    def stop_at(self, deadline: float) -> float:
        return deadline - min(SPARE_S, self.lease_s * SPARE_SHARE)

    def hold(self, held: HeldLease) -> None:
        self.held[held.key] = held
        self.watch(held)

    def release(self, held: HeldLease) -> None:
        del self.held[held.key]

    def watch(self, held: HeldLease) -> None:
        """Stop the handler before its lease ends, by the loop's own timer: it works also when the
        database does not answer."""
        loop, ends_at = asyncio.get_running_loop(), self.stop_at(held.deadline)
        if held.has_ended:
            return
        if loop.time() < ends_at:
            loop.call_at(ends_at, self.watch, held)
        else:
            log.warning("handler stopped: its lease could not be extended", task=str(held.lease.id))
            held.stop(StopReason.LOST)

    async def tick(self) -> float:
        """Extend the leases of what still runs; stop what was lost or cancelled."""
        every = list(self.held.values())
        for start in range(0, len(every), HEARTBEATS_MAX):
            chunk = every[start : start + HEARTBEATS_MAX]
            beats = [Beat(*held.key) for held in chunk]
            asked_at = asyncio.get_running_loop().time()
            async with asyncio.timeout(self.heartbeat_s):
                answers = await extend_leases(self.database, self.holder, beats, self.lease_s)
            for held, answer in zip(chunk, answers, strict=True):
                if answer.status is HeartbeatStatus.STALE:
                    held.stop(StopReason.LOST)
                    continue
                held.deadline = asked_at + self.lease_s
                if answer.status is HeartbeatStatus.CANCEL:
                    held.stop(StopReason.CANCELLED)
        return self.heartbeat_s

    async def close(self) -> None:
        """The executor stops what runs, and settles what ended."""
