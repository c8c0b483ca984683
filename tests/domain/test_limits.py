"""Limits: each field passes at its maximum and is named when it is one past it."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.domain.limits import (
    BACKOFF_S_MAX,
    CONCURRENCY_LIMIT_MAX,
    DELAY_S_MAX,
    FACTOR_MAX,
    FACTOR_MIN,
    HEADER_VALUE_CHARACTERS_MAX,
    HEADERS_MAX,
    JITTER_S_MAX,
    KEY_CHARACTERS_MAX,
    MAX_ATTEMPTS_MAX,
    NON_RETRYABLE_MAX,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    RUN_AT_FUTURE_MAX,
    RUN_AT_PAST_MAX,
    TAG_NAME_CHARACTERS_MAX,
    TAG_VALUE_CHARACTERS_MAX,
    TAGS_MAX,
    TIMEOUT_S_MAX,
    TIMEOUT_S_MIN,
    URL_CHARACTERS_MAX,
    bytes_reason,
    has_nul,
    key_reason,
    number_reason,
    submission_problems,
    tags_reason,
    tenant_problems,
    text_reason,
)
from duly.domain.retry import RetryPolicy
from duly.domain.task import DEFAULT_POLICY, Submission

NOW = datetime(2026, 1, 15, tzinfo=UTC)
PLAIN = Submission(tenant=1, type="mail.send")
TICK = timedelta(microseconds=1)


def pointers(**asked: Any) -> list[str]:
    return [problem.pointer for problem in submission_problems(PLAIN._replace(**asked), NOW)]


def policy_pointers(**asked: Any) -> list[str]:
    return pointers(policy=replace(DEFAULT_POLICY, **asked))


def retry_pointers(**asked: Any) -> list[str]:
    return policy_pointers(retry=replace(RetryPolicy(), **asked))


def entries(count: int) -> dict[str, str]:
    return {f"n{number}": "v" for number in range(count)}


def test_the_defaults_are_within_their_own_limits() -> None:
    """A default that is refused refuses everybody."""
    assert pointers() == []


@pytest.mark.parametrize(
    ("name", "pointer", "good", "bad"),
    [
        ("type", "/type", "a" + "b" * 127, "a" + "b" * 128),
        ("type", "/type", "0._-", ""),
        ("type", "/type", "a", "A"),
        ("type", "/type", "a", "a\n"),
        ("type", "/type", "a", ".a"),
        ("pool", "/target/pool", "a" + "b" * 63, "a" + "b" * 64),
        ("pool", "/target/pool", "default", ""),
        ("payload", "/payload", "x" * PAYLOAD_BYTES_MAX, "x" * (PAYLOAD_BYTES_MAX + 1)),
        ("payload", "/payload", "é" * (PAYLOAD_BYTES_MAX // 2), "é" * (PAYLOAD_BYTES_MAX // 2 + 1)),
        ("payload", "/payload", '"\\u0000"', '"\x00"'),
        ("payload", "/payload", '"\U0001f600"', '"\ud83d"'),
        ("url", "/target/url", "u" * URL_CHARACTERS_MAX, "u" * (URL_CHARACTERS_MAX + 1)),
        ("url", "/target/url", None, ""),
        ("url", "/target/url", "https://a/", "https://a/\n"),
        ("priority", "/priority", PRIORITY_MAX, PRIORITY_MAX + 1),
        ("priority", "/priority", 0, -1),
        ("delay_s", "/delay_s", DELAY_S_MAX, DELAY_S_MAX + 1),
        ("delay_s", "/delay_s", 0.0, -0.001),
        ("delay_s", "/delay_s", 1.5, float("nan")),
        ("delay_s", "/delay_s", 1.5, float("inf")),
        ("idempotency_key", "/idempotency_key", "k" * KEY_CHARACTERS_MAX, "k" * 256),
        ("idempotency_key", "/idempotency_key", None, ""),
        ("idempotency_key", "/idempotency_key", "a!~", "a b"),
        ("idempotency_key", "/idempotency_key", "~", "\x7f"),
        ("idempotency_key", "/idempotency_key", "e", "é"),
        ("idempotency_key", "/idempotency_key", "e", "\udc00"),
        ("run_at", "/run_at", NOW - RUN_AT_PAST_MAX, NOW - RUN_AT_PAST_MAX - TICK),
        ("run_at", "/run_at", NOW + RUN_AT_FUTURE_MAX, NOW + RUN_AT_FUTURE_MAX + TICK),
        ("run_at", "/run_at", None, NOW.replace(tzinfo=None)),
        ("tags", "/tags", entries(TAGS_MAX), entries(TAGS_MAX + 1)),
        (
            "tags",
            "/tags",
            {"n" * TAG_NAME_CHARACTERS_MAX: ""},
            {"n" * (TAG_NAME_CHARACTERS_MAX + 1): ""},
        ),
        ("tags", "/tags", {"n": "v"}, {"": "v"}),
        (
            "tags",
            "/tags",
            {"n": "v" * TAG_VALUE_CHARACTERS_MAX},
            {"n": "v" * (TAG_VALUE_CHARACTERS_MAX + 1)},
        ),
    ],
)
def test_a_field_passes_at_its_limit_and_is_named_past_it(
    name: str, pointer: str, good: Any, bad: Any
) -> None:
    """What passes the door and not the table fails a whole batch of other callers."""
    assert pointers(**{name: good}) == []
    assert pointers(**{name: bad}) == [pointer]


@pytest.mark.parametrize(
    ("name", "pointer", "good", "bad"),
    [
        ("timeout_s", "/timeout_s", TIMEOUT_S_MAX, TIMEOUT_S_MAX + 1),
        ("timeout_s", "/timeout_s", TIMEOUT_S_MIN, TIMEOUT_S_MIN / 2),
        ("start_by", "/start_by", NOW + TICK, NOW),
        ("start_by", "/start_by", None, (NOW + TICK).replace(tzinfo=None)),
        ("jitter_s", "/jitter_s", JITTER_S_MAX, JITTER_S_MAX + 1),
        ("jitter_s", "/jitter_s", 0.0, -1.0),
        ("concurrency_key", "/concurrency_key", "k" * KEY_CHARACTERS_MAX, "k" * 256),
        ("headers", "/target/headers", entries(HEADERS_MAX), entries(HEADERS_MAX + 1)),
        ("headers", "/target/headers", {"X-" + "a" * 62: ""}, {"X-" + "a" * 63: ""}),
        ("headers", "/target/headers", {"X-A": "v"}, {"X A": "v"}),
        ("headers", "/target/headers", {"X-A": "v"}, {"X-A": "v\r\nEvil: 1"}),
        (
            "headers",
            "/target/headers",
            {"X-A": "v" * HEADER_VALUE_CHARACTERS_MAX},
            {"X-A": "v" * (HEADER_VALUE_CHARACTERS_MAX + 1)},
        ),
    ],
)
def test_a_policy_passes_at_its_limits_and_is_named_past_them(
    name: str, pointer: str, good: Any, bad: Any
) -> None:
    """A policy is kept for as long as the task lives; a bad one fails at every attempt."""
    assert policy_pointers(**{name: good}) == []
    assert policy_pointers(**{name: bad}) == [pointer]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("max_attempts", MAX_ATTEMPTS_MAX, MAX_ATTEMPTS_MAX + 1),
        ("max_attempts", 1, 0),
        ("backoff", "fixed", "linear"),
        ("initial_s", BACKOFF_S_MAX, BACKOFF_S_MAX + 1),
        ("initial_s", 0.0, -1.0),
        ("factor", FACTOR_MAX, FACTOR_MAX + 1),
        ("factor", FACTOR_MIN, FACTOR_MIN / 2),
        ("max_s", BACKOFF_S_MAX, BACKOFF_S_MAX + 1),
        ("max_s", 0.0, -1.0),
        ("non_retryable", ("x",) * NON_RETRYABLE_MAX, ("x",) * (NON_RETRYABLE_MAX + 1)),
    ],
)
def test_a_retry_policy_passes_at_its_limits_and_is_named_past_them(
    name: str, good: Any, bad: Any
) -> None:
    """An attempt number past two bytes, or a wait of a century, is found too late at settle."""
    assert retry_pointers(**{name: good}) == []
    assert retry_pointers(**{name: bad}) == [f"/retry/{name}"]


def test_a_concurrency_limit_needs_its_key_and_its_bounds() -> None:
    """A limit without a key limits nothing and looks as if it did."""
    assert policy_pointers(concurrency_limit=1) == ["/concurrency_limit"]
    keyed = {"concurrency_key": "k"}
    assert policy_pointers(**keyed, concurrency_limit=CONCURRENCY_LIMIT_MAX) == []
    past = CONCURRENCY_LIMIT_MAX + 1
    assert policy_pointers(**keyed, concurrency_limit=past) == ["/concurrency_limit"]
    assert policy_pointers(**keyed, concurrency_limit=0) == ["/concurrency_limit"]


@pytest.mark.parametrize(
    ("character", "name"),
    [
        ("\x00", "U+0000 CONTROL CHARACTER"),
        ("\n", "U+000A CONTROL CHARACTER"),
        ("\x85", "U+0085 CONTROL CHARACTER"),
        ("\u00ad", "U+00AD SOFT HYPHEN"),
        ("\u200b", "U+200B ZERO WIDTH SPACE"),
        ("\u200d", "U+200D ZERO WIDTH JOINER"),
        ("\u202e", "U+202E RIGHT-TO-LEFT OVERRIDE"),
        ("\u2066", "U+2066 LEFT-TO-RIGHT ISOLATE"),
        ("\u2028", "U+2028 LINE SEPARATOR"),
        ("\u3164", "U+3164 HANGUL FILLER"),
        ("\ufeff", "U+FEFF ZERO WIDTH NO-BREAK SPACE"),
        ("\U000e0041", "U+E0041 TAG LATIN CAPITAL LETTER A"),
    ],
)
def test_what_cannot_be_seen_is_refused_by_its_name(character: str, name: str) -> None:
    """Two tags that look the same and are not: whoever filters by one never finds the other."""
    assert text_reason(f"a{character}b", 10) == f"contains {name}"
    assert tags_reason({f"a{character}": "b"}) == f"has a name that contains {name}"
    assert tags_reason({"a": character}) == f"has a value for 'a' that contains {name}"
    assert policy_pointers(concurrency_key=f"a{character}") == ["/concurrency_key"]


@pytest.mark.parametrize("text", ["é", "שלום", "日本語", "a b", "🙂", "❤\ufe0f", "نص", "\u0301e"])
def test_words_of_every_language_are_taken(text: str) -> None:
    """A rule for plain text that means English text is not one."""
    assert text_reason(text, 10) is None


def test_a_wrong_idempotency_key_is_told_by_its_character() -> None:
    """A key that is read in another encoding is another key: two tasks instead of one."""
    reason = key_reason("schüssel")
    assert reason is not None
    assert reason.startswith("contains U+00FC LATIN SMALL LETTER U WITH DIAERESIS; ")
    assert key_reason("".join(map(chr, range(0x21, 0x7F)))) is None
    assert key_reason(" ") == "contains U+0020 SPACE; a key is visible ASCII without spaces"


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_a_null_character_is_found_however_json_writes_it(document: Any) -> None:
    """A backslash before it makes it harmless, and another one harmful again."""

    def has_one(value: Any) -> bool:
        if isinstance(value, str):
            return "\x00" in value
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        return any(has_one(part) for part in parts)

    assert has_nul(json.dumps(document).encode()) is has_one(document)


@pytest.mark.parametrize(
    ("text", "is_there"),
    [
        (rb'"\u0000"', True),
        (rb'"\\u0000"', False),
        (rb'"\\\u0000"', True),
        (rb'"a\\\\u0000"', False),
        (rb'"u0000"', False),
    ],
)
def test_backslashes_are_counted(text: bytes, is_there: bool) -> None:
    """`\\\\u0000` in JSON is a backslash and five letters."""
    assert has_nul(text) is is_there


def test_all_problems_are_told_at_once() -> None:
    """An author who learns them one by one needs as many tries."""
    bad = replace(DEFAULT_POLICY, timeout_s=0.0, retry=replace(RetryPolicy(), max_attempts=0))
    told = pointers(type="", priority=10, policy=bad)
    assert told == ["/type", "/priority", "/timeout_s", "/retry/max_attempts"]


@given(st.text(st.characters(exclude_categories=[])), st.integers(0, 40))
def test_text_that_passes_can_always_be_stored(value: str, most: int) -> None:
    """PostgreSQL refuses a null character, and no driver can send a lone surrogate."""
    if bytes_reason(value, most) is None:
        assert len(value.encode()) <= most
        assert "\x00" not in value
    if text_reason(value, most) is None:
        assert 1 <= len(value) <= most
        assert value.encode().isascii() is value.isascii()
        assert "\x00" not in value


@given(st.floats(), st.floats(0, 10), st.floats(10, 20))
def test_a_number_that_passes_lies_between_its_bounds(
    value: float, least: float, most: float
) -> None:
    """NaN compares false with everything, and so slips past a careless check."""
    assert (number_reason(value, least, most) is None) is (least <= value <= most)


@pytest.mark.parametrize(
    ("change", "pointers"),
    [
        ({}, []),
        ({"name": "a" * 64, "weight": 100.0}, []),
        ({"name": "a" * 65}, ["/name"]),
        ({"name": "Acme"}, ["/name"]),
        ({"name": ""}, ["/name"]),
        ({"name": "-acme"}, ["/name"]),
        ({"name": "acme\n"}, ["/name"]),
        ({"weight": 0.0}, ["/weight"]),
        ({"weight": float("nan")}, ["/weight"]),
        ({"weight": 100.1}, ["/weight"]),
        ({"in_flight_max": 1}, []),
        ({"in_flight_max": 0}, ["/in_flight_max"]),
        ({"in_flight_max": 1_000_001}, ["/in_flight_max"]),
        ({"dispatch_rate": 0.0}, ["/dispatch_rate"]),
        ({"dispatch_rate": 5.0, "dispatch_burst": 1.0}, []),
        ({"dispatch_rate": 5.0, "dispatch_burst": 0.5}, ["/dispatch_burst"]),
        ({"dispatch_burst": 5.0}, ["/dispatch_burst"]),
        ({"submit_rate": 1_000_000.0, "submit_burst": 1_000_000.0}, []),
        ({"submit_rate": 1_000_001.0}, ["/submit_rate"]),
        ({"submit_rate": 0.0}, ["/submit_rate"]),
        ({"submit_rate": float("nan")}, ["/submit_rate"]),
        ({"submit_rate": 5.0, "submit_burst": 0.5}, ["/submit_burst"]),
        ({"submit_rate": 5.0, "submit_burst": 1_000_001.0}, ["/submit_burst"]),
        ({"submit_burst": 5.0}, ["/submit_burst"]),
        ({"stored_max": 1_000_000_000}, []),
        ({"stored_max": 1_000_000_001}, ["/stored_max"]),
        ({"stored_max": 0}, ["/stored_max"]),
        ({"schedule_s_min": 86400}, []),
        ({"schedule_s_min": 86401}, ["/schedule_s_min"]),
        ({"schedule_s_min": 0}, ["/schedule_s_min"]),
    ],
)
def test_a_tenants_bounds_are_bounded(change: dict[str, Any], pointers: list[str]) -> None:
    """A weight of zero starves a tenant for ever, and nobody paused it."""
    fields: dict[str, Any] = {
        "name": "acme",
        "weight": 1.0,
        "in_flight_max": None,
        "dispatch_rate": None,
        "dispatch_burst": None,
    }
    found = tenant_problems(**(fields | change))
    assert [problem.pointer for problem in found] == pointers
