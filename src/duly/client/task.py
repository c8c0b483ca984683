"""A task as the server describes it. What can be done to it is in the clients."""

from datetime import datetime
from typing import Any

import msgspec

from duly.domain.states import TERMINAL, State


class TaskData(msgspec.Struct, kw_only=True):
    id: str
    state: State
    type: str
    run_at: datetime
    created_at: datetime
    attempt: int = 0
    max_attempts: int = 0
    priority: int = 5
    target: dict[str, Any] = {}
    timeout_s: float = 0.0
    retry: dict[str, Any] = {}
    start_by: datetime | None = None
    jitter_s: float = 0.0
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    idempotency_key: str | None = None
    execution_key: str | None = None
    tags: dict[str, str] | None = None
    replay_of: str | None = None
    next_at: datetime | None = None
    payload: Any = None
    holder: str | None = None
    fence: int | None = None
    lease_until: datetime | None = None
    cancel_requested: bool = False
    progress: Any = None
    result: Any = None
    error: str | None = None
    reason: str | None = None
    finished_at: datetime | None = None
    purged: bool = False

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL


class Attempt(msgspec.Struct, kw_only=True):
    """The one that runs has the outcome "running", a `lease_until` and no `ended_at`."""

    fence: int
    attempt: int
    outcome: str
    ended_at: datetime | None = None
    lease_until: datetime | None = None
    holder: str | None = None
    started_at: datetime | None = None
    state: State | None = None
    reason: str | None = None
    result: Any = None
    error: str | None = None
