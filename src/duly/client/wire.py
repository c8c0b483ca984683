"""What every way of talking to duly shares: the bounds of trying again, keys, errors, queries."""

import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from duly.client.errors import ApiError, error_of

TRIES_MAX = 5
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0
RETRY_AFTER_MAX_S = 30.0
TIMEOUT_S = 30.0


def new_key() -> str:
    """An idempotency key that nobody else has."""
    return secrets.token_hex(16)


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
    return pause_s * (0.5 + secrets.randbelow(1000) / 2000)
