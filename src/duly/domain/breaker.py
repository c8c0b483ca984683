"""Circuit breaker rules: when one opens, when it sends a probe, and how fast work comes back. Pure.

A breaker belongs to a tenant and one of: a host that it calls, a type of its workers' tasks, a pool
of its workers. It opens when nearly everything fails, sends one probe each minute, and after a
success lets work through at a growing rate.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

WINDOW_S = 300.0
BUCKET_S = 15.0
ATTEMPTS_MIN = 20
FAILED_SHARE_MAX = 0.9
# Failures of workers: of so many tasks at least (a part of the attempts that are needed), so that
# one task that is tried again and again opens nothing; in a pool, of so many types, and so many of
# each.
FAILED_TASKS_PART = 2
FAILED_TYPES_MIN = 2
FAILED_OF_TYPE_PART = 4
OPEN_S = 60.0
PROBE_EVERY_S = 60.0
RAMP_S = 60.0
# One a second at the first success, doubled every six seconds: a thousand after a minute.
RAMP_FIRST_RATE = 1.0
RAMP_DOUBLING_S = 6.0
# Of a host's attempts, how many may be retries before further ones are put off.
RETRY_SHARE_MAX = 0.5
RETRY_ATTEMPTS_MIN = 50
RETRY_STRETCH_S = 60.0


class BreakerKind(StrEnum):
    HOST = "host"
    TYPE = "type"
    POOL = "pool"


def type_subject(name: str) -> str:
    """What a breaker of a type is stored under; a host has no slash."""
    return f"{BreakerKind.TYPE}/{name}"


def pool_subject(number: int) -> str:
    return f"{BreakerKind.POOL}/{number}"


def kind_of(subject: str) -> tuple[BreakerKind, str]:
    """Its kind, and the rest: a host, the name of a type, the number of a pool."""
    kind, slash, name = subject.partition("/")
    return (BreakerKind(kind), name) if slash else (BreakerKind.HOST, subject)


class BreakerPhase(StrEnum):
    OPEN = "open"
    PROBING = "probing"
    RAMP = "ramp"
    CLOSED = "closed"


def phase_of(now: datetime, open_until: datetime, ramp_at: datetime | None) -> BreakerPhase:
    if ramp_at is not None:
        return (
            BreakerPhase.RAMP if (now - ramp_at).total_seconds() < RAMP_S else BreakerPhase.CLOSED
        )
    return BreakerPhase.OPEN if now < open_until else BreakerPhase.PROBING


def ramp_rate(elapsed_s: float) -> float:
    """Tasks a second that a host gets so long after its first success."""
    return float(RAMP_FIRST_RATE * 2 ** (max(elapsed_s, 0.0) / RAMP_DOUBLING_S))


@dataclass(slots=True)
class AttemptCounts:
    attempts: int = 0
    failures: int = 0
    retries: int = 0


@dataclass(slots=True)
class FailureWindow:
    """Attempts and failures of one subject over the last minutes; time is passed in, in seconds."""

    buckets: deque[tuple[float, AttemptCounts]] = field(default_factory=deque)

    def note(self, now: float, *, ok: bool, is_retry: bool = False, count: int = 1) -> None:
        if not self.buckets or now >= self.buckets[-1][0] + BUCKET_S:
            self.buckets.append((now, AttemptCounts()))
        self.forget(now)
        counts = self.buckets[-1][1]
        counts.attempts += count
        counts.failures += 0 if ok else count
        counts.retries += count if is_retry else 0

    def forget(self, now: float) -> None:
        while self.buckets and self.buckets[0][0] <= now - WINDOW_S:
            self.buckets.popleft()

    def total(self, now: float) -> AttemptCounts:
        self.forget(now)
        return AttemptCounts(
            sum(counts.attempts for _, counts in self.buckets),
            sum(counts.failures for _, counts in self.buckets),
            sum(counts.retries for _, counts in self.buckets),
        )

    def is_failing(self, now: float, attempts_min: int = ATTEMPTS_MIN) -> bool:
        total = self.total(now)
        return total.attempts >= attempts_min and total.failures > total.attempts * FAILED_SHARE_MAX

    def is_over_budget(self, now: float) -> bool:
        """So many of the attempts are retries that they would keep the host down by themselves."""
        total = self.total(now)
        return (
            total.attempts >= RETRY_ATTEMPTS_MIN
            and total.retries > total.attempts * RETRY_SHARE_MAX
        )


@dataclass(slots=True)
class TypeWindow(FailureWindow):
    """Of a type of workers' tasks."""

    tasks: set[UUID] = field(default_factory=set)

    def note_failure(self, now: float, task: UUID) -> None:
        if not self.total(now).failures:
            self.tasks.clear()
        self.note(now, ok=False)
        if len(self.tasks) < ATTEMPTS_MIN:
            self.tasks.add(task)

    def is_failing(self, now: float, attempts_min: int = ATTEMPTS_MIN) -> bool:
        return len(self.tasks) >= attempts_min // FAILED_TASKS_PART and FailureWindow.is_failing(
            self, now, attempts_min
        )


@dataclass(slots=True)
class PoolWindow(FailureWindow):
    """Of a pool of workers: what fails in one type alone is that type's trouble."""

    types: Counter[str] = field(default_factory=Counter)

    def note_failure(self, now: float, task_type: str) -> None:
        if not self.total(now).failures:
            self.types.clear()
        self.note(now, ok=False)
        if task_type in self.types or len(self.types) < ATTEMPTS_MIN:
            self.types[task_type] += 1

    def is_failing(self, now: float, attempts_min: int = ATTEMPTS_MIN) -> bool:
        enough = max(attempts_min // FAILED_OF_TYPE_PART, 1)
        failing = sum(count >= enough for count in self.types.values())
        return failing >= FAILED_TYPES_MIN and FailureWindow.is_failing(self, now, attempts_min)


def make_window(subject: str) -> FailureWindow:
    match kind_of(subject)[0]:
        case BreakerKind.TYPE:
            return TypeWindow()
        case BreakerKind.POOL:
            return PoolWindow()
        case _:
            return FailureWindow()
