"""The leases that a worker holds, and until when it may act on them by its own clock.

All instants here are this process's monotonic seconds, and each is the earliest that it can have
been: the lease can only last longer than we believe, never shorter. The dictionary is changed by
the event loop's thread alone; the heartbeat thread works on copies.
"""

from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from duly.client.context import Context
from duly.client.leased_tasks import LeasedTask
from duly.client.outcomes import CANCELLED, RELEASED, HandlerOutcome, failed

if TYPE_CHECKING:
    from duly.client.handlers import Handler

# How long before the end of a lease its handler is stopped: it needs time to stop.
MARGIN_SHARE = 0.1
MARGIN_S_MAX = 1.0


class Stop(Enum):
    """Why a handler has to stop before its end."""

    CANCEL = auto()  # the task was cancelled
    TIMEOUT = auto()  # the attempt's time is up
    EXPIRING = auto()  # no heartbeat is answered, and the lease is about to run out
    STALE = auto()  # the server said that the lease is not ours any more
    RELEASE = auto()  # the worker is going down, or cannot get to it soon


class Run:
    """One attempt in this process: its lease, its handler's work, its end."""

    __slots__ = (
        "context",
        "deadline",
        "granted_at",
        "handler",
        "has_begun",
        "has_ended",
        "has_left_queue",
        "is_abandoned",
        "job",
        "key",
        "lease_margin_s",
        "progress_sent",
        "started_at",
        "stop",
        "task",
        "time_is_up_at",
        "timeout_at",
        "verdict",
    )

    def __init__(self, task: LeasedTask, handler: "Handler", granted_at: float) -> None:
        self.task = task
        self.key = task.key
        self.handler = handler
        self.granted_at = granted_at
        granted_s = task.granted_s
        self.deadline = granted_at + granted_s
        self.lease_margin_s = margin_of(granted_s)
        # The server ends the attempt then, whatever we say.
        self.timeout_at = granted_at + task.timeout_s
        self.time_is_up_at = self.timeout_at - margin_of(task.timeout_s)
        self.context = Context(task)
        self.started_at = 0.0
        # For good, unlike `job`, which is gone again at the end.
        self.has_left_queue = False
        self.has_begun = False
        self.has_ended = False
        self.is_abandoned = False
        self.stop: Stop | None = None
        self.verdict: HandlerOutcome | None = None
        self.progress_sent: bytes | None = None
        self.job: Any = None

    @property
    def progress(self) -> bytes | None:
        return self.context.reported

    def start_clock(self, now: float) -> None:
        self.started_at = now
        self.has_left_queue = True
        timeout_s = self.handler.timeout_s
        if timeout_s is not None:
            self.time_is_up_at = min(self.time_is_up_at, now + timeout_s)

    def extend(self, sent_at: float, lease_s: float) -> None:
        """A heartbeat that was sent then is answered: the lease lasts at least so long."""
        self.deadline = min(sent_at + lease_s, self.timeout_at)

    @property
    def stop_at(self) -> float:
        return min(self.time_is_up_at, self.deadline - self.lease_margin_s)

    def reason_to_stop(self, now: float) -> Stop | None:
        if now >= self.time_is_up_at:
            return Stop.TIMEOUT
        if now >= self.deadline - self.lease_margin_s:
            return Stop.EXPIRING
        return None

    def forced_verdict(self) -> HandlerOutcome | None:
        """The outcome of an attempt that was stopped; None when there is nothing to settle."""
        if self.stop is Stop.CANCEL:
            return CANCELLED
        if self.stop is Stop.TIMEOUT:
            timeout_s = min(self.handler.timeout_s or self.task.timeout_s, self.task.timeout_s)
            return failed(f"timed out after {timeout_s:g} s", "TimedOut")
        if self.stop is Stop.STALE:
            return None
        return RELEASED


class LeaseBook:
    def __init__(self) -> None:
        self.held: dict[tuple[str, int], Run] = {}
        # Ended since the present request for leases was first sent: its answer may still name them.
        self.gone: set[tuple[str, int]] = set()

    def add(self, run: Run) -> None:
        self.held[run.key] = run

    def remove(self, run: Run) -> None:
        self.held.pop(run.key, None)
        self.gone.add(run.key)

    def is_known(self, key: tuple[str, int]) -> bool:
        return key in self.held or key in self.gone

    def runs(self) -> list[Run]:
        return list(self.held.copy().values())


def margin_of(duration_s: float) -> float:
    return min(duration_s * MARGIN_SHARE, MARGIN_S_MAX)
