"""What is written on the command line, read as its author meant it or not at all."""

import click
import msgspec
import pytest

from duly.cli import values
from duly.cli.output import clean, worded, worded_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("5m", 300), ("2h", 7200), ("1d", 86400), ("0.5m", 30), ("0", 0)],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    """5m as five seconds, or months, would fire at the wrong time."""
    assert values.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 m", "-5", "5M", "1e9", "nan", "1h30", "٣s", "5ms"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """A guess here is a task at the wrong time."""
    with pytest.raises(click.BadParameter):
        values.duration(text)


@pytest.mark.parametrize("text", ["", "nan", "inf", "-1", "1e3", "None", "0x10", "1_000"])
def test_what_is_no_bound_is_refused(text: str) -> None:
    """A limit that was misread is a limit that does not hold."""
    with pytest.raises(click.BadParameter):
        values.bound(text)


def test_json_is_kept_as_it_was_written() -> None:
    """Read and written again, a long number would be another one."""
    text = '{"n": 1.10, "big": 123456789012345678901234567890}'
    assert bytes(values.json_document(text)).decode() == text
    for wrong in ("", "{", "NaN", "'a'", "\udc80", "[" * 100_000):
        with pytest.raises(click.BadParameter):
            values.json_document(wrong)
    assert isinstance(values.json_document("null"), msgspec.Raw)


@pytest.mark.parametrize(
    "text", ["localhost:8080", "ftp://x", "http://", "http://user@host", "http://a b", "http://x?y"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """A key must never be sent to somewhere that was not meant."""
    with pytest.raises(click.BadParameter):
        values.server_url(text)
    assert values.server_url("https://duly.example.com/prefix")


def test_values_are_worded_for_people() -> None:
    """86400.0 and 2026-11-15T23:34:03.123456Z are for programs."""
    assert [worded_seconds(each) for each in (0, 0.0123, 1.25, 90, 3700, 200_000)] == [
        "0s",
        "12ms",
        "1.25s",
        "1m 30s",
        "1h 2m",
        "2d 7h",
    ]
    assert worded("run_at", "2026-11-15T23:34:03.5+01:00") == "2026-11-15 22:34:03Z"
    assert worded("started_per_s", 12345.6) == "12,345.6"
    assert (worded("x", None), worded("x", True), worded("x", 1234)) == ("-", "yes", "1,234")


def test_nothing_that_a_terminal_obeys_is_left() -> None:
    """Text from a stranger must not clear the screen or hide what it says."""
    assert clean("a\x1b[2J\x9b\x7f\r\u202eb\tc\n") == "a\\x1b[2J\\x9b\\x7f\\r\\u202eb\tc\n"
