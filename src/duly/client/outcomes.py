"""How an attempt ended: what a handler raises to choose, and what the server is told about it.

A verdict is plain data, so that a handler's own process can send it home.
"""

import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from duly.client.json_values import encode
from duly.domain.limits import ERROR_BYTES_MAX, NUL_REASON, RESULT_BYTES_MAX, has_nul
from duly.domain.retry import Failure, GiveUp, RetryPolicy, decide
from duly.domain.states import Outcome

KIND_CHARACTERS_MAX = 128
# Of the frames of a failure, those that lead to the handler.
CALLERS = str(Path(__file__).parent)
# Of a text that is too long, the part kept from its end, where a traceback says the most.
TAIL_BYTES = ERROR_BYTES_MAX // 2
ELLIPSIS = "\n...\n"


class Reject(Exception):
    """Raised by a handler: this task can never succeed. It becomes a dead letter at once."""

    def __init__(self, reason: str = "rejected by its handler") -> None:
        super().__init__(reason)


class Retry(Exception):
    """Raised by a handler: this attempt failed; the next comes in `in_s` seconds."""

    def __init__(self, reason: str = "", *, in_s: float | None = None) -> None:
        super().__init__(reason or "the handler asked to be tried again")
        self.in_s = in_s


class Snooze(BaseException):
    """Raised by `ctx.snooze`. No Exception, so that no `except Exception` on its way keeps it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class HandlerOutcome(NamedTuple):
    outcome: str
    result: bytes | None = None
    error: str | None = None
    kind: str = ""
    retry_in_s: float | None = None


DONE = HandlerOutcome(Outcome.COMPLETED.value)
RELEASED = HandlerOutcome(Outcome.RELEASED.value)
CANCELLED = HandlerOutcome(Outcome.CANCELLED.value)


def completed(result: Any) -> HandlerOutcome:
    """A result that cannot be kept is no reason to do the work again."""
    if result is None:
        return DONE
    try:
        encoded = encode(result)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        return rejected(f"the result is not JSON: {error}", "InvalidResult")
    if len(encoded) > RESULT_BYTES_MAX:
        reason = f"the result is {len(encoded)} bytes, and {RESULT_BYTES_MAX} is the most"
        return rejected(reason, "InvalidResult")
    if has_nul(encoded):
        return rejected(f"the result {NUL_REASON}", "InvalidResult")
    return HandlerOutcome(Outcome.COMPLETED.value, encoded)


def rejected(reason: str, kind: str) -> HandlerOutcome:
    return HandlerOutcome(Outcome.REJECTED.value, error=bounded(reason), kind=kind)


def snoozed(seconds: float) -> HandlerOutcome:
    return HandlerOutcome(Outcome.SNOOZED.value, retry_in_s=max(seconds, 0.0))


def failed(reason: str, kind: str, retry_in_s: float | None = None) -> HandlerOutcome:
    error = bounded(reason)
    return HandlerOutcome(Outcome.FAILED.value, error=error, kind=kind, retry_in_s=retry_in_s)


def judged(error: BaseException) -> HandlerOutcome:
    """What a raised exception means."""
    if isinstance(error, Snooze):
        return snoozed(error.seconds)
    if isinstance(error, Reject):
        return rejected(str(error), type(error).__name__)
    if isinstance(error, Retry):
        return failed(str(error), type(error).__name__, error.in_s)
    kind = type(error).__name__[:KIND_CHARACTERS_MAX]
    return failed(error_text(error), kind)


def error_text(error: BaseException) -> str:
    """The message first: failures are grouped by it. Then where it happened."""
    first = "".join(traceback.format_exception_only(error)).strip()
    whole = traceback.format_exception(type(error), error, from_handler(error.__traceback__))
    return first + "\n\n" + "".join(whole).strip()


def from_handler(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames that lead to the handler, which are the same for every failure."""
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(CALLERS):
        rest = rest.tb_next
    return trace if rest is None else rest


def bounded(text: str) -> str:
    """At most what the server takes, without what it refuses."""
    clean = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace")
    if len(clean) <= ERROR_BYTES_MAX:
        return clean.decode()
    head = clean[: ERROR_BYTES_MAX - TAIL_BYTES - len(ELLIPSIS)].decode("utf-8", "ignore")
    return head + ELLIPSIS + clean[-TAIL_BYTES:].decode("utf-8", "ignore")


def with_policy(
    verdict: HandlerOutcome, policy: RetryPolicy, attempt: int, random: Any
) -> HandlerOutcome:
    """The handler's own policy: its pauses, and fewer attempts than the task itself allows."""
    if verdict.outcome != Outcome.FAILED.value:
        return verdict
    failure = Failure(Outcome.FAILED, verdict.kind, verdict.retry_in_s)
    decision = decide(policy, attempt, 0, failure, random)
    if isinstance(decision, GiveUp):
        return verdict._replace(outcome=Outcome.REJECTED.value)
    return verdict._replace(retry_in_s=decision.in_s)
