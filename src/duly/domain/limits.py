"""The bounds of every field a submitter or a worker can fill, and one check for each.

A broken limit is an answer, not an error: a Problem with a JSON pointer to the field.
"""

import math
import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from duly.domain.addresses import OutboundRules, url_reason
from duly.domain.retry import RetryPolicy
from duly.domain.task import DEFAULT_POLICY, Policy, Submission, submitted_key
from duly.domain.webhook_headers import reserved_reason

TYPE_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
POOL_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
TENANT_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
# Words as people write them; not ending in a space, so that two names never look the same.
SCHEDULE_NAME_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9 ._:/-]{0,126}[A-Za-z0-9._:/-])?")
HEADER_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
# Visible ASCII: the same text in a header and in a body, in every encoding.
IDEMPOTENCY_KEY_PATTERN = re.compile(r"[!-~]{1,255}")
NOT_IN_KEYS = re.compile(r"[^!-~]")
# What cannot be seen, or changes the direction of what can: two names that look alike must be one.
# Controls, soft hyphen, joiners and fillers, zero-width and directional marks, line separators,
# surrogates, byte order mark, tags. `duly.text_reason` refuses the same.
INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e007f]"
)
# U+0000 as JSON writes it, and a backslash as JSON writes it.
NUL, BACKSLASH = b"\\u0000", b"\\\\"
NUL_REASON = "contains the character U+0000, which no text may have"

NAMES_REMEMBERED = 1000
PAYLOAD_BYTES_MAX = 64 * 1024
RESULT_BYTES_MAX = 64 * 1024
ERROR_BYTES_MAX = 8 * 1024
PROGRESS_BYTES_MAX = 4 * 1024
KEY_CHARACTERS_MAX = 255
URL_CHARACTERS_MAX = 2048
TAGS_MAX = 32
TAG_NAME_CHARACTERS_MAX = 64
TAG_VALUE_CHARACTERS_MAX = 256
HEADERS_MAX = 32
HEADER_VALUE_CHARACTERS_MAX = 1024
NON_RETRYABLE_MAX = 32
ERROR_KIND_CHARACTERS_MAX = 128
PRIORITY_MAX = 9
POOLS_PER_TENANT_MAX = 10_000
MAX_ATTEMPTS_MAX = 100
TIMEOUT_S_MIN, TIMEOUT_S_MAX = 0.1, 24 * 3600.0
DELAY_S_MAX = 10 * 366 * 86400.0
JITTER_S_MAX = 24 * 3600.0
FACTOR_MIN, FACTOR_MAX = 1.0, 100.0
BACKOFF_S_MAX = 30 * 86400.0
CONCURRENCY_LIMIT_MAX = 10_000
LEASE_S_MIN, LEASE_S_MAX = 0.05, 3600.0
WEIGHT_MIN, WEIGHT_MAX = 0.01, 100.0
IN_FLIGHT_MAX_MAX = 1_000_000
DISPATCH_RATE_MIN, DISPATCH_RATE_MAX = 0.001, 1_000_000.0
DISPATCH_BURST_MAX = 1_000_000.0
SUBMIT_RATE_MIN, SUBMIT_RATE_MAX = 0.001, 1_000_000.0
REQUEST_RATE_MIN, REQUEST_RATE_MAX = 0.001, 1_000_000.0
SUBMIT_BURST_MAX = 1_000_000.0
STORED_MAX_MAX = 1_000_000_000
SCHEDULE_S_MIN_MAX = 86400
SCHEDULE_JITTER_S_MAX = 3600.0
MISFIRE_WINDOW_S_MAX = 30 * 86400.0
MAX_RUNNING_MAX = 1000
MAX_FIRES_MAX = 1_000_000_000
PREVIEW_FIRES_MAX = 100
SCHEDULES_AT_ONCE_MAX = 100
BACKFILL_MAX = 10_000
BACKFILL_RATE_MIN, BACKFILL_RATE_MAX = 0.01, 10_000.0
API_KEY_ID_PATTERN = re.compile(r"[a-z0-9]{12}")
API_KEY_NAME_CHARACTERS_MAX = 100
API_KEY_TYPES_MAX = 100
API_KEY_LIFE_S_MIN, API_KEY_LIFE_S_MAX = 1.0, DELAY_S_MAX
GRACE_S_MAX = 7 * 86400.0
TYPE_KEYS_MAX = 100
PAUSE_REASON_CHARACTERS_MAX = 500
LETTERS_AT_ONCE_MAX = 1000
REPLAY_RATE_MIN, REPLAY_RATE_MAX = 0.01, 10_000.0
STATS_STEP_S_MIN, STATS_STEP_S_MAX = 60, 86400
STATS_POINTS_MAX = 1440
RUN_AT_PAST_MAX = timedelta(days=7)
# Of unique, debounce and throttle.
PERIOD_S_MIN, PERIOD_S_MAX = 0.1, 31 * 86400.0
THROTTLE_LIMIT_MAX = 1_000_000
# How far ahead the starts of throttled tasks may lie.
THROTTLE_AHEAD_S_MAX = 31 * 86400.0
RUN_AT_FUTURE_MAX = timedelta(seconds=DELAY_S_MAX)


@dataclass(frozen=True, slots=True)
class Problem:
    pointer: str
    reason: str


def submission_problems(
    task: Submission, now: datetime, outbound: OutboundRules | None = None
) -> list[Problem]:
    """Everything that is wrong with a submission, so that the submitter can correct it in one go.
    Without `outbound`, webhook destinations are left to the sender."""
    checks = [
        ("/type", type_reason(task.type)),
        ("/payload", bytes_reason(task.payload, PAYLOAD_BYTES_MAX)),
        ("/target/pool", pattern_reason(task.pool, POOL_PATTERN)),
        ("/priority", number_reason(task.priority, 0, PRIORITY_MAX)),
    ]
    # Most tasks say nothing more, and the default policy is within every bound.
    if task.run_at is not None or task.delay_s:
        checks += time_checks(task, now)
    if task.url is not None:
        checks.append(("/target/url", target_reason(task.url, outbound)))
    if (key := submitted_key(task)) is not None:
        checks.append(("/idempotency_key", key_reason(key)))
    if task.tags is not None:
        checks.append(("/tags", tags_reason(task.tags)))
    found = problems(checks)
    return found if task.policy is DEFAULT_POLICY else found + policy_problems(task.policy, now)


def time_checks(task: Submission, now: datetime) -> list[tuple[str, str | None]]:
    return [
        ("/run_at", run_at_reason(task.run_at, now)),
        ("/delay_s", number_reason(task.delay_s, 0.0, DELAY_S_MAX)),
    ]


def policy_problems(policy: Policy, now: datetime) -> list[Problem]:
    checks = [
        ("/timeout_s", number_reason(policy.timeout_s, TIMEOUT_S_MIN, TIMEOUT_S_MAX)),
        ("/start_by", start_by_reason(policy.start_by, now)),
        ("/jitter_s", number_reason(policy.jitter_s, 0.0, JITTER_S_MAX)),
        ("/concurrency_key", optional_text_reason(policy.concurrency_key, KEY_CHARACTERS_MAX)),
        ("/concurrency_limit", concurrency_reason(policy)),
        ("/target/headers", headers_reason(policy.headers)),
    ]
    return problems(checks) + retry_problems(policy.retry)


def retry_problems(retry: RetryPolicy) -> list[Problem]:
    return problems(
        [
            ("/retry/max_attempts", number_reason(retry.max_attempts, 1, MAX_ATTEMPTS_MAX)),
            (
                "/retry/backoff",
                None if retry.backoff in ("fixed", "exponential") else "is fixed or exponential",
            ),
            ("/retry/initial_s", number_reason(retry.initial_s, 0.0, BACKOFF_S_MAX)),
            ("/retry/factor", number_reason(retry.factor, FACTOR_MIN, FACTOR_MAX)),
            ("/retry/max_s", number_reason(retry.max_s, 0.0, BACKOFF_S_MAX)),
            (
                "/retry/non_retryable",
                non_retryable_reason(retry.non_retryable),
            ),
        ]
    )


def non_retryable_reason(kinds: tuple[str, ...]) -> str | None:
    if len(kinds) > NON_RETRYABLE_MAX:
        return f"has more than {NON_RETRYABLE_MAX} entries"
    wrong = (text_reason(kind, ERROR_KIND_CHARACTERS_MAX) for kind in kinds)
    return next((f"has an entry that {reason}" for reason in wrong if reason), None)


def tenant_problems(
    name: str,
    weight: float,
    in_flight_max: int | None,
    dispatch_rate: float | None,
    dispatch_burst: float | None,
    submit_rate: float | None = None,
    submit_burst: float | None = None,
    stored_max: int | None = None,
    schedule_s_min: int = 1,
) -> list[Problem]:
    """A bound that is None is no bound; a burst needs the rate that it saves up."""
    lonely = dispatch_burst is not None and dispatch_rate is None
    is_submit_lonely = submit_burst is not None and submit_rate is None
    return problems(
        [
            ("/name", pattern_reason(name, TENANT_PATTERN)),
            ("/weight", number_reason(weight, WEIGHT_MIN, WEIGHT_MAX)),
            ("/in_flight_max", bound_reason(in_flight_max, 1, IN_FLIGHT_MAX_MAX)),
            ("/dispatch_rate", bound_reason(dispatch_rate, DISPATCH_RATE_MIN, DISPATCH_RATE_MAX)),
            ("/dispatch_burst", bound_reason(dispatch_burst, 1, DISPATCH_BURST_MAX)),
            ("/dispatch_burst", "needs a dispatch_rate" if lonely else None),
            ("/submit_rate", bound_reason(submit_rate, SUBMIT_RATE_MIN, SUBMIT_RATE_MAX)),
            ("/submit_burst", bound_reason(submit_burst, 1, SUBMIT_BURST_MAX)),
            ("/submit_burst", "needs a submit_rate" if is_submit_lonely else None),
            ("/stored_max", bound_reason(stored_max, 1, STORED_MAX_MAX)),
            ("/schedule_s_min", number_reason(schedule_s_min, 1, SCHEDULE_S_MIN_MAX)),
        ]
    )


def bound_reason(value: float | None, least: float, most: float) -> str | None:
    return None if value is None else number_reason(value, least, most)


def problems(checks: list[tuple[str, str | None]]) -> list[Problem]:
    return [Problem(pointer, reason) for pointer, reason in checks if reason is not None]


def type_reason(value: str) -> str | None:
    return pattern_reason(value, TYPE_PATTERN)


@lru_cache(NAMES_REMEMBERED)
def pattern_reason(value: str, pattern: re.Pattern[str]) -> str | None:
    """The same few names come again and again."""
    return None if pattern.fullmatch(value) else f"does not match {pattern.pattern}"


def number_reason(value: float, least: float, most: float) -> str | None:
    if not math.isfinite(value) or not least <= value <= most:
        return f"is not from {least:g} to {most:g}"
    return None


def bytes_reason(value: str, most: int) -> str | None:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        size = None
    if size is None or "\x00" in value:
        return "contains a character that is not valid text"
    return f"is {size} bytes, and {most} is the most" if size > most else None


def text_reason(value: str, characters_max: int) -> str | None:
    if not 1 <= len(value) <= characters_max:
        return f"is not from 1 to {characters_max} characters"
    found = INVISIBLE.search(value)
    return None if found is None else f"contains {character_name(found[0])}"


def optional_text_reason(value: str | None, characters_max: int) -> str | None:
    return None if value is None else text_reason(value, characters_max)


def key_reason(value: str | None) -> str | None:
    """Of an idempotency key, in a header or a body."""
    if value is None or IDEMPOTENCY_KEY_PATTERN.fullmatch(value):
        return None
    if not 1 <= len(value) <= KEY_CHARACTERS_MAX:
        return f"is not from 1 to {KEY_CHARACTERS_MAX} characters"
    found = NOT_IN_KEYS.search(value)
    assert found is not None
    return f"contains {character_name(found[0])}; a key is visible ASCII without spaces"


def character_name(character: str) -> str:
    """`U+200B ZERO WIDTH SPACE`: it cannot be shown by itself."""
    return f"U+{ord(character):04X} {unicodedata.name(character, 'CONTROL CHARACTER')}"


def has_nul(text: bytes) -> bool:
    """Whether some string of this JSON has the character U+0000, and not its letters after a
    backslash."""
    return NUL in text and NUL in text.replace(BACKSLASH, b"")


def run_at_reason(run_at: datetime | None, now: datetime) -> str | None:
    if run_at is None:
        return None
    if run_at.tzinfo is None:
        return "has no offset from UTC"
    if run_at < now - RUN_AT_PAST_MAX:
        return f"is more than {RUN_AT_PAST_MAX.days} days ago"
    if run_at > now + RUN_AT_FUTURE_MAX:
        return f"is more than {RUN_AT_FUTURE_MAX.days} days ahead"
    return None


def start_by_reason(start_by: datetime | None, now: datetime) -> str | None:
    if start_by is None:
        return None
    if start_by.tzinfo is None:
        return "has no offset from UTC"
    return "has passed already" if start_by <= now else None


def target_reason(url: str, outbound: OutboundRules | None) -> str | None:
    reason = text_reason(url, URL_CHARACTERS_MAX)
    return url_reason(url, outbound) if reason is None and outbound is not None else reason


def concurrency_reason(policy: Policy) -> str | None:
    if policy.concurrency_limit is None:
        return None
    if policy.concurrency_key is None:
        return "needs a concurrency_key"
    return number_reason(policy.concurrency_limit, 1, CONCURRENCY_LIMIT_MAX)


def tags_reason(tags: dict[str, str]) -> str | None:
    if len(tags) > TAGS_MAX:
        return f"has more than {TAGS_MAX} entries"
    for name, value in tags.items():
        if reason := text_reason(name, TAG_NAME_CHARACTERS_MAX):
            return f"has a name that {reason}"
        if value and (reason := text_reason(value, TAG_VALUE_CHARACTERS_MAX)):
            return f"has a value for {name!r} that {reason}"
    return None


def headers_reason(headers: dict[str, str]) -> str | None:
    if len(headers) > HEADERS_MAX:
        return f"has more than {HEADERS_MAX} entries"
    for name, value in headers.items():
        if not HEADER_NAME_PATTERN.fullmatch(name):
            return f"has a name that does not match {HEADER_NAME_PATTERN.pattern}"
        if value and (reason := text_reason(value, HEADER_VALUE_CHARACTERS_MAX)):
            return f"has a value for {name} that {reason}"
    return reserved_reason(headers)
