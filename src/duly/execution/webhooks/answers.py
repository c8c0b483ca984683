"""Outcome of a webhook from the receiver's answer. No network here.

| answer | verdict |
|---|---|
| 2xx | completed; the body, bounded, is the result |
| 202 with `Duly-Async: 1` | accepted asynchronously: the receiver settles later |
| 408, 425, 429, 5xx | failed and tried again, after a clamped Retry-After if there is one |
| 3xx | rejected: no redirect is followed |
| other 4xx | rejected, unless the policy says that they are tried again |
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import msgspec

from duly.domain.limits import RESULT_BYTES_MAX, has_nul
from duly.domain.retry import RETRY_AFTER_MAX_S, RetryPolicy
from duly.domain.states import Outcome
from duly.execution.attempt import AttemptResult

TRIED_AGAIN = frozenset({408, 425, 429})
# A receiver that asks for less gets the policy's backoff: it would be asked again at once.
RETRY_AFTER_MIN_S = 1.0
ASYNC_HEADER = "Duly-Async"
# Of a long answer, what is kept is its beginning; a character takes up to 6 bytes as JSON.
BEGINNING_BYTES = 8 * 1024
SHOWN_BYTES = 1024
SECONDS = re.compile(r"\d{1,10}")
NOT_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class WebhookAnswer:
    """`body` is what was kept of it; `size` is how much came before we stopped reading."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    size: int


def verdict_of(answer: WebhookAnswer, retry: RetryPolicy, now: datetime) -> AttemptResult:
    status = answer.status
    if status == 202 and answer.headers.get(ASYNC_HEADER) == "1":
        return AttemptResult(is_accepted_async=True)
    if 200 <= status < 300:
        return AttemptResult(Outcome.COMPLETED, result=result_of(answer))
    kind = f"http_{status}"
    if 300 <= status < 400:
        error = f"the receiver redirects ({status}), and no redirect is followed"
        return AttemptResult(Outcome.REJECTED, error=error, error_kind=kind)
    is_final = 400 <= status < 500 and status not in TRIED_AGAIN and not retry.retry_4xx
    return AttemptResult(
        Outcome.REJECTED if is_final else Outcome.FAILED,
        error=error_of(answer),
        error_kind=kind,
        retry_in_s=None if is_final else retry_after_s(answer.headers.get("Retry-After"), now),
    )


def result_of(answer: WebhookAnswer) -> str | None:
    """JSON as it came, other text as a JSON string; of more than fits, the beginning and a note. No
    text is kept with the character U+0000: JSON that has it is kept as a string."""
    if not answer.size:
        return None
    if answer.size <= RESULT_BYTES_MAX and len(answer.body) == answer.size:
        if is_json(answer.body) and not has_nul(answer.body):
            return answer.body.decode()
        text = msgspec.json.encode(text_of(answer.body))
        if len(text) <= RESULT_BYTES_MAX:
            return text.decode()
    beginning = text_of(answer.body[:BEGINNING_BYTES])
    note = f"the answer was longer than {RESULT_BYTES_MAX} bytes; only its beginning is kept"
    return msgspec.json.encode({"duly_note": note, "beginning": beginning}).decode()


def text_of(body: bytes) -> str:
    return body.decode(errors="replace").replace("\x00", "\ufffd")


def is_json(body: bytes) -> bool:
    try:
        body.decode()
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def error_of(answer: WebhookAnswer) -> str:
    """The status in words first, so that equal causes are known as such; then what was said."""
    try:
        phrase = HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = "an answer of no known kind"
    said = NOT_TEXT.sub(" ", answer.body[:SHOWN_BYTES].decode(errors="replace")).strip()
    return f"HTTP {answer.status} {phrase}" + (f"\n{said}" if said else "")


def retry_after_s(text: str | None, now: datetime) -> float | None:
    """Seconds or an HTTP date; what cannot be read is not there."""
    if text is None:
        return None
    text = text.strip()
    if SECONDS.fullmatch(text):
        wanted_s = float(text)
    else:
        try:
            instant = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        # Written without a zone, it is Greenwich's by the rules of HTTP.
        aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
        wanted_s = (aware - now).total_seconds()
    return min(wanted_s, RETRY_AFTER_MAX_S) if wanted_s >= RETRY_AFTER_MIN_S else None
