"""A task as the server describes it. What can be done to it is in the clients."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from duly.client.errors import InvalidResult, TaskCancelled, TaskFailed
from duly.domain.states import TERMINAL, State

R = TypeVar("R")


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
    output: Any = msgspec.field(name="result", default=None)
    error: str | None = None
    reason: str | None = None
    finished_at: datetime | None = None
    purged: bool = False

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL

    def typed_output(self, decode: Callable[[bytes], R] | None) -> R:
        """What its handler returned, as the type that it says; raises if it did not complete."""
        if self.state is not State.COMPLETED:
            kind = TaskCancelled if self.state is State.CANCELLED else TaskFailed
            reason = (self.error or self.reason or "").partition("\n")[0]
            problem = reason or "it has no result"
            raise kind(id=self.id, type=self.type, state=self.state, problem=problem, task=self)
        if decode is None:
            untyped: R = self.output
            return untyped
        try:
            return decode(msgspec.json.encode(self.output))
        except msgspec.ValidationError as error:
            raise InvalidResult(id=self.id, problem=str(error)) from None


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
