"""What the end of a handler means, and how little of it the server must be able to refuse."""

from random import Random

import pytest

from duly.client.outcomes import Reject, Retry, Snooze, bounded, completed, judged, with_policy
from duly.domain.limits import ERROR_BYTES_MAX, RESULT_BYTES_MAX, bytes_reason
from duly.domain.retry import RetryPolicy


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_each_way_to_end_has_its_outcome() -> None:
    """A rejection that is retried, or a snooze that is charged, surprises at night."""
    assert completed(None).outcome == "completed"
    assert completed({"a": 1}).result == b'{"a":1}'
    assert judged(raised(Reject("no"))).outcome == "rejected"
    assert judged(raised(Retry(in_s=30)))[0::4] == ("failed", 30)
    assert judged(raised(Snooze(5)))[0::4] == ("snoozed", 5)
    verdict = judged(raised(KeyError("id")))
    assert (verdict.outcome, verdict.kind) == ("failed", "KeyError")
    assert verdict.error is not None
    assert verdict.error.startswith("KeyError: 'id'\n")
    assert "test_outcomes.py" in verdict.error


def test_a_subclass_of_a_rejection_is_one_too() -> None:
    """People give their errors names of their own."""

    class NoSuchCustomer(Reject):
        pass

    assert judged(raised(NoSuchCustomer("c1")))[0:4:3] == ("rejected", "NoSuchCustomer")


@pytest.mark.parametrize("result", [object(), "x" * RESULT_BYTES_MAX, "\ud800", ["\x00"]])
def test_a_result_that_cannot_be_kept_is_rejected_and_not_repeated(result: object) -> None:
    """The effect has happened: doing it again would not make the result any shorter."""
    verdict = completed(result)
    assert (verdict.outcome, verdict.kind) == ("rejected", "InvalidResult")


def test_the_longest_result_is_kept() -> None:
    """The bound itself is allowed."""
    assert completed("x" * (RESULT_BYTES_MAX - 2)).outcome == "completed"


@pytest.mark.parametrize(
    "text", ["x" * ERROR_BYTES_MAX, "x" * (ERROR_BYTES_MAX + 1), "é€😀" * 9999, "\x00\ud800", ""]
)
def test_no_error_text_can_be_refused(text: str) -> None:
    """An attempt whose end cannot be told is tried again for ever."""
    short = bounded(text)
    assert bytes_reason(short, ERROR_BYTES_MAX) is None
    assert short[:5] == text[:5] or "\\" in short


def test_a_long_error_keeps_its_first_and_its_last_words() -> None:
    """The message stands first, and where it happened last."""
    short = bounded("FIRST" + "x" * 2 * ERROR_BYTES_MAX + "LAST")
    assert short.startswith("FIRST")
    assert short.endswith("LAST")


def test_a_handlers_own_policy_gives_up_earlier_and_chooses_the_pause() -> None:
    """It narrows what the task allows, which the server goes on to enforce."""
    policy = RetryPolicy(
        max_attempts=2, backoff="fixed", initial_s=7, jitter=False, non_retryable=("KeyError",)
    )
    failed = judged(raised(ValueError("x")))
    assert with_policy(failed, policy, 1, Random(1))[0::4] == ("failed", 7)
    assert with_policy(failed, policy, 2, Random(1)).outcome == "rejected"
    assert with_policy(judged(raised(KeyError("x"))), policy, 1, Random(1)).outcome == "rejected"
    assert with_policy(judged(raised(Retry(in_s=3))), policy, 1, Random(1)).retry_in_s == 3
    assert with_policy(judged(raised(Snooze(9))), policy, 9, Random(1)).outcome == "snoozed"
