"""Submissions: what a submitter asks for: a task with its target, policy and limits, before it is
stored."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from duly.domain.retry import RetryPolicy

DEFAULT_POOL = "default"
PRIORITY_DEFAULT = 5
BANDS = 3
HIGH, NORMAL, LOW = range(BANDS)
BAND_NAMES = {"high": HIGH, "normal": NORMAL, "low": LOW}
# Lane 0 belongs to leased tasks; pool 0 is the one that webhooks share.
LEASED_QUEUE = 0
WEBHOOK_POOL = 0
END_OF_HOST = re.compile(r"[/?#]")


@dataclass(frozen=True, slots=True)
class Callback:
    """A task made at the end of a task or a workflow, to tell of it: a webhook, or for a pool."""

    type: str
    url: str | None = None
    pool: str = DEFAULT_POOL
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a task is executed; stored as it was asked and never changed."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout_s: float = 60.0
    start_by: datetime | None = None
    jitter_s: float = 0.0
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    # Of workflow nodes: the webhook's body has the payload beside the results of the parents.
    envelope: bool = False
    callback: Callback | None = None


DEFAULT_POLICY = Policy()


class Submission(NamedTuple):
    """One request for a task. `payload` is JSON text, which duly carries and never reads."""

    tenant: int
    type: str
    payload: str = "null"
    run_at: datetime | None = None
    delay_s: float = 0.0
    url: str | None = None
    pool: str = DEFAULT_POOL
    priority: int = PRIORITY_DEFAULT
    policy: Policy = DEFAULT_POLICY
    idempotency_key: str | None = None
    # How long the key stands for the task; None is the time of a key that the submitter gave.
    key_ttl_s: float | None = None
    execution_key: str | None = None
    tags: dict[str, str] | None = None
    replay_of: UUID | None = None
    # What was asked, as a digest, before defaults of its type were filled in: those may change.
    asked: bytes | None = None
    # The caller's W3C trace context.
    traceparent: str | None = None


def submitted_key(task: Submission) -> str | None:
    """The submitter's own idempotency key. One that was made of `unique` or `debounce` stands for
    other tasks later, so it is no execution key."""
    return task.idempotency_key if task.key_ttl_s is None else None


def made_key(option: str, task_type: str, key: str | bytes) -> str:
    """The idempotency key of a submit option: no text of the user's, and with a space in it, unlike
    every key that a submitter may give."""
    content = key.encode() if isinstance(key, str) else key
    digest = hashlib.sha256(f"{task_type} {isinstance(key, str):d} ".encode() + content)
    return f"{option} {digest.hexdigest()}"


def band_of(priority: int) -> int:
    return HIGH if priority >= 7 else NORMAL if priority >= 3 else LOW


@lru_cache(4096)
def timer_queue(pool: int, priority: int) -> int:
    """The lane of an unleased task; `duly.timer_queue` in SQL is the same sum."""
    return 1 + pool * BANDS + band_of(priority)


@lru_cache(1024)
def host_of(url: str | None) -> str | None:
    """Where a webhook goes, for breakers; `duly.host_of` in SQL is the same."""
    _, mark, rest = (url or "").partition("://")
    return END_OF_HOST.split(rest, 1)[0].lower() or None if mark else None


def concurrency_limit_of(policy: Policy) -> int | None:
    """A key without a limit means one at a time; `duly.concurrency_limit_of` is the same."""
    if policy.concurrency_key is None:
        return None
    return policy.concurrency_limit if policy.concurrency_limit is not None else 1


def request_hash(submission: Submission) -> bytes:
    """Equal for equal requests: what decides between a replay and a mismatch of a key."""
    if submission.asked is not None:
        return submission.asked
    facts: dict[str, Any] = submission._asdict() | {"policy": asdict(submission.policy)}
    for name in ("idempotency_key", "key_ttl_s", "execution_key", "asked", "traceparent"):
        del facts[name]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).digest()
