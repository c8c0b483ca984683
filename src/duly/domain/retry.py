"""Retry decision: whether a failed attempt is tried again, and when. Pure: randomness is passed
in."""

from dataclasses import dataclass
from random import Random
from typing import Literal

from duly.domain.states import FailureReason, Outcome

# Upper bound of a receiver's Retry-After: it must not park a task for ever.
RETRY_AFTER_MAX_S = 24 * 3600.0
# Losing this many leases in a row, each after the worker was seen alive, blames the task.
POISON_LOSSES = 3


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    max_attempts: int = 5
    backoff: Literal["fixed", "exponential"] = "exponential"
    initial_s: float = 2.0
    factor: float = 2.0
    max_s: float = 3600.0
    jitter: bool = True
    non_retryable: tuple[str, ...] = ()
    # A receiver's "your request is wrong" is final, unless it is known to change its mind.
    retry_4xx: bool = False


@dataclass(frozen=True, slots=True)
class Retry:
    in_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: FailureReason


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong in one attempt, as far as the decision needs it."""

    outcome: Outcome
    kind: str = ""
    retry_in_s: float | None = None
    # A lower bound of the delay: a failing host is spared.
    at_least_s: float | None = None


def decide(
    policy: RetryPolicy, attempt: int, losses: int, failure: Failure, random: Random
) -> Retry | GiveUp:
    """`attempt` is the charged number of the attempt that just ended; `losses` includes it."""
    if failure.outcome is Outcome.REJECTED:
        return GiveUp(FailureReason.REJECTED)
    if failure.kind and failure.kind in policy.non_retryable:
        return GiveUp(FailureReason.NON_RETRYABLE)
    if losses >= POISON_LOSSES:
        return GiveUp(FailureReason.POISON)
    if attempt >= policy.max_attempts:
        return GiveUp(FailureReason.EXHAUSTED)
    if failure.retry_in_s is not None:
        chosen_s = min(max(failure.retry_in_s, 0.0), RETRY_AFTER_MAX_S)
    else:
        chosen_s = backoff_s(policy, attempt, random)
    return Retry(max(chosen_s, failure.at_least_s or 0.0))


def backoff_s(policy: RetryPolicy, attempt: int, random: Random) -> float:
    """Full jitter spreads a herd over the whole interval, so retries do not come in waves."""
    longest_s = min(policy.initial_s * growth(policy, attempt), policy.max_s)
    return random.uniform(0.0, longest_s) if policy.jitter else longest_s


def growth(policy: RetryPolicy, attempt: int) -> float:
    if policy.backoff == "fixed":
        return 1.0
    try:
        return policy.factor ** (attempt - 1)
    except OverflowError:
        return float("inf")
