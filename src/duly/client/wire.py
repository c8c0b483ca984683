"""What every way of talking to duly shares: when a call is tried again, keys, errors, queries.

| event | what happens |
|---|---|
| connection refused, reset, timed out | tried again: a write carries the same idempotency key |
| 429, 503 | tried again after what the server asked for, or a growing pause |
| 4xx, a certificate that is not trusted | raised at once: the next try would end the same |
| all tries used up | the last error is raised; the outcome of a write is then unknown |
"""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from duly.client.errors import ApiError, RateLimited, Unavailable, Unreachable, error_of

TRIES_MAX = 5
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0
RETRY_AFTER_MAX_S = 30.0
TIMEOUT_S = 30.0
# One long poll; a longer wait is several of them.
WAIT_S_MAX = 50.0


class Retrying:
    """One call's tries: whether there is another one, and after how long."""

    def __init__(self, url: str, tries: int) -> None:
        self.url = url
        self.tries_left = tries
        self.pause_s = PAUSE_FIRST_S

    def pause_after(self, error: Exception) -> float:
        """Seconds until the next try; raises what the caller is told if there is none."""
        self.tries_left -= 1
        asked_s = 0.0
        if isinstance(error, ApiError):
            asked_s = error.retry_after_s or 0.0
            is_passing = isinstance(error, RateLimited | Unavailable)
            if not is_passing or not self.tries_left or asked_s > RETRY_AFTER_MAX_S:
                raise error
        elif (distrust := distrust_of(error)) or not self.tries_left:
            problem = distrust or plain_words(error) or str(error) or type(error).__name__
            raise Unreachable(url=self.url, problem=problem) from error
        pause_s = max(asked_s, jittered(self.pause_s))
        self.pause_s = min(self.pause_s * 2, PAUSE_MAX_S)
        return pause_s


def plain_words(error: Exception) -> str | None:
    """Of the system: without "[Errno 111]", and not "Connect call failed ('127.0.0.1', 3859)"."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return error.strerror if isinstance(error, OSError) else None


def distrust_of(error: Exception) -> str | None:
    """What is wrong with the server's certificate, and what to do about it."""
    import ssl

    if not isinstance(error, ssl.SSLCertVerificationError):
        return None
    return (
        f"its certificate is not trusted: {error.verify_message}"
        " (name the file of its authority in SSL_CERT_FILE)"
    )


def new_key() -> str:
    """A unique idempotency key."""
    # Not from `secrets`, which brings hashes and generators that most programs need for nothing.
    return os.urandom(16).hex()


def api_error(status: int, content: bytes, retry_after: str | None) -> ApiError:
    try:
        problem: Any = msgspec.json.decode(content)
    except msgspec.DecodeError:
        problem = None
    if not isinstance(problem, dict):
        problem = {"code": f"http_{status}", "detail": "the answer is not one of duly's"}
    wait_s = float(retry_after) if retry_after and retry_after.isdigit() else None
    return error_of(status, problem, wait_s)


def query_text(query: Mapping[str, object] | None) -> str:
    given = {name: str(value) for name, value in (query or {}).items() if value is not None}
    return "?" + urlencode(given) if given else ""


def jittered(pause_s: float) -> float:
    """Half of it for sure, the rest by chance, so that callers do not come back together."""
    return pause_s * (0.5 + os.urandom(1)[0] / 510)
