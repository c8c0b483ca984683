"""Request and response bodies that several resources share, above all the task.

The bounds in the annotations are those of `domain/limits.py`; request validation and the OpenAPI
description both read them here.
"""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta

from duly.domain import limits
from duly.domain.ids import is_node, workflow_of
from duly.domain.retry import RetryPolicy
from duly.domain.states import State
from duly.domain.task import (
    DEFAULT_POLICY,
    DEFAULT_POOL,
    Callback,
    Policy,
    Submission,
    made_key,
    submitted_key,
)
from duly.store.read import AttemptRecord, Task
from duly.store.submit import Stored
from duly.store.submit_throttles import ThrottleKey

Item = TypeVar("Item")
Instant = Annotated[datetime, Meta(tz=True, description="RFC 3339, with an offset.")]
TypeName = Annotated[str, Meta(pattern=f"^{limits.TYPE_PATTERN.pattern}$", max_length=128)]
PoolName = Annotated[str, Meta(pattern=f"^{limits.POOL_PATTERN.pattern}$", max_length=64)]
KeyText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.KEY_CHARACTERS_MAX,
        description="Without control, zero-width or directional characters.",
    ),
]
IdempotencyKey = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.KEY_CHARACTERS_MAX,
        description="Visible ASCII without spaces, as in the Idempotency-Key header.",
        extra_json_schema={"pattern": f"^{limits.IDEMPOTENCY_KEY_PATTERN.pattern}$"},
    ),
]
Tags = Annotated[
    dict[str, str],
    Meta(
        max_length=limits.TAGS_MAX,
        description="Names and values without control, zero-width or directional characters.",
    ),
]
Priority = Annotated[int, Meta(ge=0, le=limits.PRIORITY_MAX)]
Seconds = Annotated[float, Meta(ge=0, le=limits.DELAY_S_MAX)]
Limit = Annotated[int, Meta(ge=1, le=200, description="Items on one page.")]
# How the execution key of what undoes a node, and its name, end.
COMPENSATE = ":compensate"
NULL = msgspec.Raw(b"null")
EARLIEST, LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Page(msgspec.Struct, Generic[Item], frozen=True):
    items: list[Item]
    next_cursor: str | None = None


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A webhook (`url`, `headers`) or a worker pool."""

    url: Annotated[str, Meta(min_length=1, max_length=limits.URL_CHARACTERS_MAX)] | None = None
    pool: PoolName | None = None
    headers: dict[str, str] = {}


class RetryOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    max_attempts: Annotated[int, Meta(ge=1, le=limits.MAX_ATTEMPTS_MAX)] = 5
    backoff: Literal["fixed", "exponential"] = "exponential"
    initial_s: Annotated[float, Meta(ge=0, le=limits.BACKOFF_S_MAX)] = 2.0
    factor: Annotated[float, Meta(ge=limits.FACTOR_MIN, le=limits.FACTOR_MAX)] = 2.0
    max_s: Annotated[float, Meta(ge=0, le=limits.BACKOFF_S_MAX)] = 3600.0
    jitter: bool = True
    non_retryable: Annotated[list[str], Meta(max_length=limits.NON_RETRYABLE_MAX)] = []
    retry_4xx: bool = False

    def policy(self) -> RetryPolicy:
        return RetryPolicy(
            self.max_attempts,
            self.backoff,
            self.initial_s,
            self.factor,
            self.max_s,
            self.jitter,
            tuple(self.non_retryable),
            self.retry_4xx,
        )


class TaskDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a task type fills in where a submission says nothing."""

    target: Target | None = None
    priority: Priority | None = None
    retry: RetryOptions | None = None
    timeout_s: Annotated[float, Meta(ge=limits.TIMEOUT_S_MIN, le=limits.TIMEOUT_S_MAX)] | None = (
        None
    )
    jitter_s: Annotated[float, Meta(ge=0, le=limits.JITTER_S_MAX)] | None = None


NO_DEFAULTS = TaskDefaults()

PeriodSeconds = Annotated[float, Meta(ge=limits.PERIOD_S_MIN, le=limits.PERIOD_S_MAX)]


class Unique(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One task of its type in `period_s`: of the same payload, or of the same `key`. A submit that
    comes later in the period is answered with the first one's task."""

    period_s: PeriodSeconds
    key: KeyText | None = None


class Debounce(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The task fires `wait_s` after the last submit of its type and payload, or `key`, but at most
    `max_wait_s` after the first. It keeps the first one's payload."""

    wait_s: PeriodSeconds
    max_wait_s: PeriodSeconds | None = None
    key: KeyText | None = None


class SubmitThrottle(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """At most `limit` tasks of its type, or of its `key`, become due in `period_s`, evenly spread;
    each further one is due that much later."""

    limit: Annotated[int, Meta(ge=1, le=limits.THROTTLE_LIMIT_MAX)]
    period_s: PeriodSeconds
    key: KeyText | None = None


class CallbackRequest(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """A task made at the end of a task or a workflow: its payload says how that ended."""

    type: TypeName
    target: Target

    def callback(self) -> Callback:
        target = self.target
        return Callback(self.type, target.url, target.pool or DEFAULT_POOL, target.headers)


class TaskRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A submitted task; null means the same as not given. `run_at` or `delay_s`, not both. No text
    in it, the payload's included, has the character U+0000."""

    type: TypeName
    # Made by a call, because the description of the API cannot show a Raw as a default.
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)
    run_at: Instant | None = None
    delay_s: Seconds | None = None
    target: Target | None = None
    priority: Priority | None = None
    retry: RetryOptions | None = None
    timeout_s: Annotated[float, Meta(ge=limits.TIMEOUT_S_MIN, le=limits.TIMEOUT_S_MAX)] | None = (
        None
    )
    start_by: Instant | None = None
    jitter_s: Annotated[float, Meta(ge=0, le=limits.JITTER_S_MAX)] | None = None
    concurrency_key: KeyText | None = None
    concurrency_limit: Annotated[int, Meta(ge=1, le=limits.CONCURRENCY_LIMIT_MAX)] | None = None
    idempotency_key: IdempotencyKey | None = None
    tags: Tags | None = None
    unique: Unique | None = None
    debounce: Debounce | None = None
    throttle: SubmitThrottle | None = None
    callback: CallbackRequest | None = None

    def submission(
        self, tenant: int, key: str | None = None, defaults: TaskDefaults = NO_DEFAULTS
    ) -> Submission:
        """`key` is the header's; what neither says, the type's defaults say, then duly's."""
        target = self.target or defaults.target
        priority = self.priority if self.priority is not None else defaults.priority
        made = self.made_key()
        used_key, ttl_s = (key if key is not None else self.idempotency_key), None
        if made is not None:
            # It does what a key that was only given for repeated calls would do, and more.
            used_key, ttl_s = made, self.key_ttl_s
        return Submission(
            tenant=tenant,
            type=self.type,
            payload=bytes(self.payload).decode(),
            run_at=None if self.run_at is None else in_utc(self.run_at),
            delay_s=(self.delay_s or 0.0) if self.debounce is None else self.debounce.wait_s,
            url=None if target is None else target.url,
            pool=DEFAULT_POOL if target is None or target.pool is None else target.pool,
            priority=5 if priority is None else priority,
            policy=self.policy(defaults, target),
            idempotency_key=used_key,
            key_ttl_s=ttl_s,
            tags=self.tags,
            # What is unique by its key alone never asks for something else.
            asked=None if used_key is None else b"" if made is not None else self.digest(),
        )

    @property
    def key_ttl_s(self) -> float | None:
        if self.debounce is not None:
            return self.debounce.wait_s
        return None if self.unique is None else self.unique.period_s

    def made_key(self) -> str | None:
        """The idempotency key that `unique` or `debounce` stands for."""
        option = self.unique or self.debounce
        if option is None:
            return None
        name = "debounce" if self.unique is None else "unique"
        if option.key is not None:
            return made_key(name, self.type, option.key)
        content = msgspec.json.encode(msgspec.json.decode(self.payload), order="sorted")
        return made_key(name, self.type, content)

    def throttle_key(self, tenant: int) -> ThrottleKey | None:
        if self.throttle is None:
            return None
        key = made_key("throttle", self.type, self.throttle.key or "")
        return ThrottleKey(tenant, key, self.throttle.period_s / self.throttle.limit)

    def policy(self, defaults: TaskDefaults, target: Target | None) -> Policy:
        retry = self.retry or defaults.retry
        timeout_s = self.timeout_s if self.timeout_s is not None else defaults.timeout_s
        jitter_s = self.jitter_s if self.jitter_s is not None else defaults.jitter_s
        headers = {} if target is None else target.headers
        departs = (retry, timeout_s, jitter_s, self.start_by, self.concurrency_key) != NOTHING
        rest = self.concurrency_limit, self.callback
        if not departs and not headers and rest == (None, None):
            return DEFAULT_POLICY
        return Policy(
            retry=DEFAULT_POLICY.retry if retry is None else retry.policy(),
            timeout_s=DEFAULT_POLICY.timeout_s if timeout_s is None else timeout_s,
            start_by=None if self.start_by is None else in_utc(self.start_by),
            jitter_s=jitter_s or 0.0,
            concurrency_key=self.concurrency_key,
            concurrency_limit=self.concurrency_limit,
            headers=headers,
            callback=None if self.callback is None else self.callback.callback(),
        )

    def digest(self) -> bytes:
        """Equal for equal requests however they were written; the key itself is left out."""
        facts = msgspec.to_builtins(self, builtin_types=(datetime, msgspec.Raw))
        facts |= {"idempotency_key": None, "payload": msgspec.json.decode(self.payload)}
        for name in ("run_at", "start_by"):
            facts[name] = None if facts[name] is None else in_utc(facts[name])
        if self.callback is None:
            # As it was before there were callbacks: keys stand for what was asked then.
            del facts["callback"]
        return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).digest()


NOTHING = (None, None, None, None, None)


def in_utc(instant: datetime) -> datetime:
    """What an offset pushes off the calendar stays at its edge, where the bounds refuse it."""
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        return EARLIEST if instant.year == 1 else LATEST


class TaskView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task as it stands."""

    id: UUID
    state: State
    type: str
    run_at: Instant
    created_at: Instant
    attempt: int
    max_attempts: int
    priority: int
    target: Target
    timeout_s: float
    retry: RetryPolicy
    start_by: Instant | None = None
    jitter_s: float = 0.0
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    idempotency_key: str | None = None
    execution_key: str | None = None
    tags: dict[str, str] | None = None
    replay_of: UUID | None = None
    # Of a workflow node: whose it is, and its name there; of an item of a map, its place in that.
    workflow: UUID | None = None
    node: str | None = None
    index: int | None = None
    next_at: Instant | None = None
    payload: msgspec.Raw | None = None
    holder: str | None = None
    fence: int | None = None
    lease_until: Instant | None = None
    cancel_requested: bool = False
    progress: msgspec.Raw | None = None
    result: msgspec.Raw | None = None
    error: str | None = None
    reason: str | None = None
    finished_at: Instant | None = None
    purged: bool = False
    callback: CallbackRequest | None = None


class AttemptView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One that has ended, or the one that runs: outcome `running`, `lease_until`, no `ended_at`."""

    fence: int
    attempt: int
    outcome: str
    ended_at: Instant | None = None
    lease_until: Instant | None = None
    holder: str | None = None
    started_at: Instant | None = None
    state: State | None = None
    reason: str | None = None
    result: msgspec.Raw | None = None
    error: str | None = None


def fresh_view(task: Submission, stored: Stored) -> TaskView:
    """A task that was stored a moment ago, without reading it back."""
    policy = task.policy
    return TaskView(
        id=stored.id,
        state=State.READY if stored.run_at <= stored.created_at else State.SCHEDULED,
        type=task.type,
        run_at=stored.run_at,
        created_at=stored.created_at,
        attempt=0,
        max_attempts=policy.retry.max_attempts,
        priority=task.priority,
        target=target_view(task.url, task.pool, policy),
        timeout_s=policy.timeout_s,
        retry=policy.retry,
        start_by=policy.start_by,
        jitter_s=policy.jitter_s,
        concurrency_key=policy.concurrency_key,
        concurrency_limit=policy.concurrency_limit,
        idempotency_key=submitted_key(task),
        execution_key=task.execution_key or submitted_key(task) or str(stored.id),
        tags=task.tags,
        next_at=max(stored.run_at, stored.created_at),
        callback=callback_view(policy.callback),
    )


def task_view(task: Task, *, is_whole: bool = True) -> TaskView:
    """As read; a list leaves out payload, result and progress."""
    policy = task.policy
    return TaskView(
        id=task.id,
        state=task.state,
        type=task.type,
        run_at=task.run_at,
        created_at=task.created_at,
        attempt=task.attempt,
        max_attempts=policy.retry.max_attempts,
        priority=task.priority,
        target=target_view(task.url, task.pool, policy),
        timeout_s=policy.timeout_s,
        retry=policy.retry,
        start_by=policy.start_by,
        jitter_s=policy.jitter_s,
        concurrency_key=policy.concurrency_key,
        concurrency_limit=policy.concurrency_limit,
        execution_key=task.execution_key,
        tags=task.tags,
        replay_of=task.replay_of,
        **node_fields(task.id, task.execution_key),
        next_at=task.next_at,
        payload=raw(task.payload) if is_whole else None,
        holder=None if task.holder is None else str(task.holder),
        fence=task.fence,
        lease_until=task.lease_until,
        cancel_requested=task.cancel_requested,
        progress=raw(task.progress) if is_whole else None,
        result=raw(task.result) if is_whole else None,
        error=task.error,
        reason=task.reason,
        finished_at=task.finished_at,
        purged=task.is_purged,
        callback=callback_view(policy.callback),
    )


def node_fields(task_id: UUID, execution_key: str | None) -> dict[str, Any]:
    """Of a node, what its id and its execution key (`workflow:node`) say; of an item of a map, its
    place in that (`workflow:node:index`). The key of what undoes either ends so."""
    if not is_node(task_id):
        return {}
    key = (execution_key or "").removesuffix(COMPENSATE)
    _, name, index = [*key.split(":", 2), "", ""][:3]
    if name and key != execution_key:
        name += COMPENSATE
    place = int(index) if index.isdecimal() else None
    return {"workflow": workflow_of(task_id), "node": name or None, "index": place}


def callback_view(callback: Callback | None) -> CallbackRequest | None:
    if callback is None:
        return None
    pool = callback.pool if callback.url is None else None
    target = Target(url=callback.url, pool=pool, headers=callback.headers)
    return CallbackRequest(type=callback.type, target=target)


def target_view(url: str | None, pool: str | None, policy: Policy) -> Target:
    if url is not None:
        return Target(url=url, headers=policy.headers)
    return Target(pool=pool)


def attempt_view(attempt: AttemptRecord) -> AttemptView:
    return AttemptView(
        fence=attempt.fence,
        attempt=attempt.charged,
        ended_at=attempt.ended_at,
        lease_until=attempt.lease_until,
        outcome=attempt.outcome,
        holder=None if attempt.holder is None else str(attempt.holder),
        started_at=attempt.started_at,
        state=None if attempt.state is None else State(attempt.state),
        reason=attempt.reason,
        result=raw(attempt.result),
        error=attempt.error,
    )


def raw(text: str | None) -> msgspec.Raw | None:
    """JSON text that is carried as it was given; other text becomes a JSON string."""
    if text is None:
        return None
    encoded = text.encode()
    try:
        msgspec.json.decode(encoded)
    except msgspec.DecodeError:
        return msgspec.Raw(msgspec.json.encode(text))
    return msgspec.Raw(encoded)


def as_stored(text: str | None) -> msgspec.Raw | None:
    """JSON that was read when it came in, and is not read again."""
    return None if text is None else msgspec.Raw(text.encode())


def page(items: Sequence[Item], next_cursor: str | None) -> Page[Item]:
    return Page(list(items), next_cursor)
