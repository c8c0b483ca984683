"""Request and response bodies of dead letters."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from duly.api.cursors import Cursor
from duly.api.wire import Instant, Limit, Target, TypeName, node_fields, raw, target_view
from duly.domain import limits
from duly.domain.retry import RetryPolicy
from duly.domain.states import FailureReason
from duly.store.dead_letters import DeadLetter, Group

REPLAY_RATE_DEFAULT = 100.0

Fingerprint = Annotated[str, Meta(pattern="^[0-9a-f]{1,64}$")]
LetterIds = Annotated[list[UUID], Meta(min_length=1, max_length=limits.LETTERS_AT_ONCE_MAX)]


class LettersQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Groups leave out what was replayed, unless `replayed` says otherwise."""

    type: TypeName | None = None
    reason: FailureReason | None = None
    fingerprint: Fingerprint | None = None
    replayed: bool | None = None
    group_by: Literal["fingerprint"] | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class ReplayFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every field that is given must match; an empty filter is every letter."""

    type: TypeName | None = None
    reason: FailureReason | None = None
    fingerprint: Fingerprint | None = None


class PurgeFilter(ReplayFilter, frozen=True, forbid_unknown_fields=True, kw_only=True):
    replayed: bool | None = None


class ReplayMany(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A `filter` or `ids`. The new tasks are due one after another, at `rate_per_s`, from
    `start_at` on, or from now on if that is later."""

    filter: ReplayFilter | None = None
    ids: LetterIds | None = None
    dry_run: bool = False
    rate_per_s: Annotated[float, Meta(ge=limits.REPLAY_RATE_MIN, le=limits.REPLAY_RATE_MAX)] = (
        REPLAY_RATE_DEFAULT
    )
    start_at: Instant | None = None


class PurgeMany(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A `filter` or `ids`."""

    filter: PurgeFilter | None = None
    ids: LetterIds | None = None
    dry_run: bool = False


class ManyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`has_more`: the filter matches further letters; ask again."""

    dry_run: bool
    matched: int
    done: int
    has_more: bool


class ReplayManyAnswer(ManyAnswer, frozen=True, kw_only=True):
    """`last_at` is when the last of these is due: the `start_at` of the next request."""

    last_at: datetime | None


class DeadLetterView(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="letter"
):
    """A task that failed for good. Lists leave out the payload. `workflow`, `node`: of a node;
    `index`: of an item of a map."""

    id: UUID
    type: str
    reason: FailureReason
    fingerprint: str
    attempts: int
    max_attempts: int
    priority: int
    target: Target
    timeout_s: float
    retry: RetryPolicy
    created_at: datetime
    run_at: datetime
    failed_at: datetime
    execution_key: str
    error: str | None = None
    replayed_as: UUID | None = None
    workflow: UUID | None = None
    node: str | None = None
    index: int | None = None
    start_by: datetime | None = None
    jitter_s: float = 0.0
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    tags: dict[str, str] | None = None
    payload: msgspec.Raw | None = None


class LetterGroup(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="group"
):
    """Letters with the same cause, among the newest 100,000; `example` is the error of one."""

    fingerprint: str
    type: str
    reason: FailureReason
    count: int
    first_at: datetime
    last_at: datetime
    example: str | None = None


def letter_view(letter: DeadLetter) -> DeadLetterView:
    policy = letter.policy
    return DeadLetterView(
        id=letter.id,
        type=letter.type,
        reason=FailureReason(letter.reason),
        fingerprint=letter.fingerprint,
        attempts=letter.attempts,
        max_attempts=policy.retry.max_attempts,
        priority=letter.priority,
        target=target_view(letter.url, letter.pool, policy),
        timeout_s=policy.timeout_s,
        retry=policy.retry,
        created_at=letter.created_at,
        run_at=letter.run_at,
        failed_at=letter.failed_at,
        execution_key=letter.execution_key,
        error=letter.error,
        replayed_as=letter.replayed_as,
        **node_fields(letter.id, letter.execution_key),
        start_by=policy.start_by,
        jitter_s=policy.jitter_s,
        concurrency_key=policy.concurrency_key,
        concurrency_limit=policy.concurrency_limit,
        tags=letter.tags,
        payload=raw(letter.payload),
    )


def group_view(group: Group) -> LetterGroup:
    return LetterGroup(
        fingerprint=group.fingerprint,
        type=group.type,
        reason=FailureReason(group.reason),
        count=group.letters,
        first_at=group.first_at,
        last_at=group.last_at,
        example=group.example,
    )
