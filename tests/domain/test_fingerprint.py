"""Fingerprints: the same cause counts as one, different causes do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.domain.fingerprint import FINGERPRINT_CHARACTERS, fingerprint


def mark(error: str | None, task_type: str = "mail.send", reason: str = "exhausted") -> str:
    return fingerprint(task_type, reason, error)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("timeout after 30 s", "timeout after 31 s"),
        ("user 'ada' is unknown", "user 'grace' is unknown"),
        ('no field "a"', 'no field "b"'),
        ("object at 0x7f00aa", "object at 0xdeadBEEF"),
        (
            "task 019bc1a0-0000-7000-8000-000000000001 failed",
            "task 01aaaaaa-bbbb-7ccc-9ddd-eeeeeeeeeeee failed",
        ),
        ("  boom\n  File one, line 3", "boom\nsomething else entirely"),
        (None, ""),
    ],
)
def test_accidents_do_not_make_another_cause(one: str | None, two: str | None) -> None:
    """A thousand groups of one letter each tell nobody what to mend."""
    assert mark(one) == mark(two)


def test_type_reason_and_words_make_another_cause() -> None:
    """One group for everything tells nobody either."""
    marks = {
        mark("connection refused"),
        mark("connection reset"),
        mark("connection refused", task_type="mail.delete"),
        mark("connection refused", reason="poison"),
        mark(None),
    }
    assert len(marks) == 5


@given(st.none() | st.text())
def test_any_text_has_a_short_fingerprint(error: str | None) -> None:
    """An error is whatever a program printed; it must not fail the settlement."""
    assert len(mark(error)) == FINGERPRINT_CHARACTERS


def test_a_lone_surrogate_has_one_too() -> None:
    """Not every string can be encoded, and errors come from strangers."""
    assert len(mark("\ud800")) == FINGERPRINT_CHARACTERS
