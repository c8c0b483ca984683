"""Environment: the injected source of time, randomness and crash points.

Everything that is not a pure function of its inputs is asked of one injected Environment, so that
a test can hold the clock, fix the seed and crash a node between any two steps. No other module
reads the clock or draws a random number.
"""

import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from random import Random, SystemRandom
from typing import Protocol

from duly.domain.errors import ConfigurationError


class Clock(Protocol):
    def now(self) -> datetime:
        """This process's idea of the instant, in UTC. PostgreSQL's clock decides what is due."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards, for measuring and waiting."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class CrashPoint(StrEnum):
    """Every place where a test may kill the process: the moments between two durable steps."""

    MIGRATION_BETWEEN = "migration.between"
    SUBMIT_BEFORE = "submit.before"
    SUBMIT_AFTER_COMMIT = "submit.after_commit"
    LEASE_AFTER_COMMIT = "lease.after_commit"
    SETTLE_BEFORE = "settle.before"
    SETTLE_AFTER_COMMIT = "settle.after_commit"
    REAP_BEFORE = "reap.before"
    EXECUTION_AFTER_EFFECT = "execution.after_effect"
    FIRE_BEFORE = "fire.before"
    FIRE_BETWEEN = "fire.between"
    FIRE_AFTER_COMMIT = "fire.after_commit"
    RELAY_BEFORE_SUBMIT = "relay.before_submit"
    RELAY_AFTER_SUBMIT = "relay.after_submit"
    RELAY_AFTER_DELETE = "relay.after_delete"
    RELAY_AFTER_COMMIT = "relay.after_commit"
    BULK_BEFORE_COMMIT = "bulk.before_commit"
    BULK_AFTER_COMMIT = "bulk.after_commit"
    CALLBACK_BEFORE_COMMIT = "callback.before_commit"
    CALLBACK_AFTER_COMMIT = "callback.after_commit"
    RESUME_BETWEEN = "resume.between"


async def never_crash(point: CrashPoint) -> None:
    """What production does at a crash point: nothing."""


def crash_at(chosen: CrashPoint) -> Callable[[CrashPoint], Awaitable[None]]:
    """A real process that dies at one point as if the power went: no cleanup, no flush."""

    async def crash(point: CrashPoint) -> None:
        if point is chosen:
            os.kill(os.getpid(), signal.SIGKILL)

    return crash


@dataclass(frozen=True)
class Environment:
    clock: Clock = field(default_factory=SystemClock)
    # Ids, jitter, spread: from a generator that costs no system call.
    random: Random = field(default_factory=Random)
    # Passwords and keys: from the operating system, never guessable.
    entropy: Random = field(default_factory=SystemRandom)
    crash_point: Callable[[CrashPoint], Awaitable[None]] = never_crash


def system_environment() -> Environment:
    """The real world; DULY_CRASH_AT names the crash point of a process that a test will lose."""
    chosen = os.environ.get("DULY_CRASH_AT")
    if chosen is None:
        return Environment()
    if chosen not in list(CrashPoint):
        points = ", ".join(CrashPoint)
        raise ConfigurationError(problem=f"DULY_CRASH_AT is {chosen!r}; the points are {points}")
    return Environment(crash_point=crash_at(CrashPoint(chosen)))
