"""Retry decisions: bounded waits, the order of the reasons to give up, and a fair jitter."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.domain.limits import BACKOFF_S_MAX, FACTOR_MAX, FACTOR_MIN, MAX_ATTEMPTS_MAX
from duly.domain.retry import (
    POISON_LOSSES,
    RETRY_AFTER_MAX_S,
    Failure,
    GiveUp,
    Retry,
    RetryPolicy,
    backoff_s,
    decide,
)
from duly.domain.states import FailureReason, Outcome

seeds = st.integers(0, 2**32)
seconds = st.floats(0, BACKOFF_S_MAX)
policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, MAX_ATTEMPTS_MAX),
    backoff=st.sampled_from(["fixed", "exponential"]),
    initial_s=seconds,
    factor=st.floats(FACTOR_MIN, FACTOR_MAX),
    max_s=seconds,
    jitter=st.booleans(),
)
attempts = st.integers(1, MAX_ATTEMPTS_MAX)
FAILED = Failure(Outcome.FAILED)
PLAIN = RetryPolicy(jitter=False)


@given(policies, attempts, seeds)
def test_a_backoff_is_never_negative_and_never_past_its_cap(
    policy: RetryPolicy, attempt: int, seed: int
) -> None:
    """A wait beyond the cap looks like a lost task; a NaN would be refused by the database."""
    assert 0.0 <= backoff_s(policy, attempt, Random(seed)) <= policy.max_s


@given(policies, attempts)
def test_without_jitter_waits_never_shrink(policy: RetryPolicy, attempt: int) -> None:
    """An exponential backoff that falls hammers a receiver that is down."""
    steady = replace(policy, jitter=False)
    assert backoff_s(steady, attempt, Random(1)) <= backoff_s(steady, attempt + 1, Random(1))


def test_exponential_doubles_and_fixed_stays() -> None:
    """The documented default: 2, 4, 8 seconds and so on, up to an hour."""
    waits = [backoff_s(PLAIN, attempt, Random(1)) for attempt in (1, 2, 3, 11, 12, 90)]
    assert waits == [2.0, 4.0, 8.0, 2048.0, 3600.0, 3600.0]
    fixed = replace(PLAIN, backoff="fixed")
    assert [backoff_s(fixed, attempt, Random(1)) for attempt in (1, 2, 50)] == [2.0, 2.0, 2.0]


def test_growth_past_all_numbers_ends_at_the_cap() -> None:
    """An OverflowError in the decision would leave the lease unsettled for ever."""
    steep = replace(PLAIN, factor=1e10)
    assert backoff_s(steep, 99, Random(1)) == steep.max_s


def test_full_jitter_uses_the_whole_interval() -> None:
    """A herd that retries in one wave fails in one wave."""
    random = Random(1)
    waits = [backoff_s(RetryPolicy(), 3, random) for _ in range(1000)]
    assert min(waits) < 0.2
    assert max(waits) > 7.8
    assert 3.7 < sum(waits) / len(waits) < 4.3


@given(policies, attempts, seeds)
def test_the_last_attempt_is_the_last(policy: RetryPolicy, attempt: int, seed: int) -> None:
    """One attempt too many is an effect nobody asked for; one too few is a broken promise."""
    verdict = decide(policy, attempt, 0, FAILED, Random(seed))
    if attempt >= policy.max_attempts:
        assert verdict == GiveUp(FailureReason.EXHAUSTED)
    else:
        assert isinstance(verdict, Retry)
        assert 0.0 <= verdict.in_s <= policy.max_s


@given(policies, attempts, seeds)
def test_a_rejection_is_never_tried_again(policy: RetryPolicy, attempt: int, seed: int) -> None:
    """The receiver said that it will never take this."""
    verdict = decide(policy, attempt, POISON_LOSSES, Failure(Outcome.REJECTED), Random(seed))
    assert verdict == GiveUp(FailureReason.REJECTED)


def test_a_named_kind_of_error_is_not_tried_again() -> None:
    """Retrying a bad address is noise; not retrying an unnamed error is loss."""
    policy = replace(PLAIN, non_retryable=("BadAddress", ""))
    named = Failure(Outcome.FAILED, kind="BadAddress", retry_in_s=1.0)
    assert decide(policy, 1, 0, named, Random(1)) == GiveUp(FailureReason.NON_RETRYABLE)
    other = Failure(Outcome.FAILED, kind="badaddress")
    assert isinstance(decide(policy, 1, 0, other, Random(1)), Retry)
    unnamed = Failure(Outcome.FAILED, kind="")
    assert isinstance(decide(policy, 1, 0, unnamed, Random(1)), Retry)


@pytest.mark.parametrize(("losses", "is_poison"), [(0, False), (2, False), (3, True), (4, True)])
def test_three_losses_blame_the_task(losses: int, is_poison: bool) -> None:
    """A task that kills its worker each time would take every worker down, one after another."""
    verdict = decide(PLAIN, 1, losses, Failure(Outcome.LEASE_LOST), Random(1))
    assert (verdict == GiveUp(FailureReason.POISON)) is is_poison


@given(st.floats(allow_nan=False), seeds)
def test_a_receivers_wish_is_kept_within_a_day(wish_s: float, seed: int) -> None:
    """An absurd Retry-After parks a task for a century, or fires it in the past."""
    failure = Failure(Outcome.FAILED, retry_in_s=wish_s)
    verdict = decide(RetryPolicy(), 1, 0, failure, Random(seed))
    assert isinstance(verdict, Retry)
    assert 0.0 <= verdict.in_s <= RETRY_AFTER_MAX_S
    if 0.0 <= wish_s <= RETRY_AFTER_MAX_S:
        assert verdict.in_s == wish_s


@pytest.mark.parametrize(
    ("initial_s", "wish_s", "least_s", "chosen_s"),
    [
        (3600.0, None, 45.0, 3600.0),
        (2.0, None, 45.0, 45.0),
        (2.0, 5.0, 45.0, 45.0),
        (2.0, 90.0, 45.0, 90.0),
        (2.0, None, None, 2.0),
    ],
)
def test_a_host_that_limps_is_left_alone_for_at_least_so_long(
    initial_s: float, wish_s: float | None, least_s: float | None, chosen_s: float
) -> None:
    """Meant to slow retries down, it must never bring one forward."""
    policy = RetryPolicy(backoff="fixed", initial_s=initial_s, jitter=False)
    failure = Failure(Outcome.FAILED, retry_in_s=wish_s, at_least_s=least_s)
    assert decide(policy, 1, 0, failure, Random(1)) == Retry(chosen_s)


def test_a_receivers_wish_gives_no_further_attempt() -> None:
    """Retry-After on the last attempt must not make it the last but one."""
    failure = Failure(Outcome.FAILED, retry_in_s=1.0)
    assert decide(PLAIN, 5, 0, failure, Random(1)) == GiveUp(FailureReason.EXHAUSTED)
