"""Notifications of tenants: their definitions, the events that are still to be told, and the tasks
that tell them.

| event | what happens |
|---|---|
| killed between an event and its telling | the event is a row of the same commit: told later |
| killed while it is told | event and task change places in one commit: told once, or later |
| two processes tell of one notification | the row's lock: the second passes it over |
| more messages than a minute may have | summed up on the row; one message of the next minute |
| deleted while an event of it is written | the event is deleted by the next look |
| a message cannot be delivered | its task is retried, then a dead letter that is not told |
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from duly.domain.notifications import (
    KEY_PREFIX,
    TASK_TYPE,
    EventGroup,
    EventKind,
    Message,
    MessageMinute,
    NotedEvent,
    message_of,
    plan_messages,
)
from duly.domain.retry import RetryPolicy
from duly.domain.task import Policy, Submission
from duly.store.database import Database, Session
from duly.store.statements import statements_beside
from duly.store.submit import Stored, Submitter

SQL = statements_beside(__file__)
NOTIFICATIONS_PER_TENANT_MAX = 20
# Of one commit.
EVENTS_AT_ONCE = 2000
PENDING_AT_ONCE = 100
# Timer queues of one tenant that are looked at for its oldest ready task.
PLACES_MAX = 5000
BOUNDS_PAGE = 100
FAILURES_WINDOW_MIN = 5
PRIORITY = 9
TIMEOUT_S = 30.0
RETRY = RetryPolicy(max_attempts=12, initial_s=5.0, max_s=1800.0)
KEY_BITS = 64


class NotificationDefinition(NamedTuple):
    """What a tenant describes. `url`: https:, mailto: or command:."""

    on_dead_letters: bool
    on_missed_schedules: bool
    lag_s: float | None
    failures_per_minute: float | None
    url: str
    # JSON.
    headers: str | None
    per_minute: int


class Notification(NamedTuple):
    tenant: int
    name: str
    on_dead_letters: bool
    on_missed_schedules: bool
    lag_s: float | None
    failures_per_minute: float | None
    url: str
    headers: str | None
    per_minute: int
    created_at: datetime
    updated_at: datetime
    created_by: str
    lag_since: datetime | None
    failing_since: datetime | None


class Pending(NamedTuple):
    """One that has something to tell."""

    tenant: int
    name: str


class StoredMessages(NamedTuple):
    """What one commit did, and what is to follow it."""

    messages: int
    has_more: bool
    after: Callable[[], Awaitable[None]] | None = None


class HeldGroup(msgspec.Struct, frozen=True):
    kind: EventKind
    count: int
    facts: dict[str, Any]


class HeldMessage(msgspec.Struct, frozen=True):
    """As it is stored until the next minute."""

    count: int
    first_at: datetime
    last_at: datetime
    groups: list[HeldGroup]
    others: int


async def list_notifications(session: Session, tenant: int) -> list[Notification]:
    rows = await session.fetch(SQL.list_notifications, tenant, NOTIFICATIONS_PER_TENANT_MAX)
    return [Notification(*row) for row in rows]


async def find_notification(session: Session, tenant: int, name: str) -> Notification | None:
    rows = await session.fetch(SQL.find_notification, tenant, name)
    return Notification(*rows[0]) if rows else None


async def put_notification(
    session: Session, tenant: int, name: str, asked: NotificationDefinition, actor: str
) -> Notification | None:
    """None: the tenant has too many."""
    rows = await session.fetch(
        SQL.put_notification, tenant, name, *asked, actor, NOTIFICATIONS_PER_TENANT_MAX
    )
    return Notification(*rows[0]) if rows else None


async def delete_notification(session: Session, tenant: int, name: str) -> bool:
    return bool(await session.fetch(SQL.delete_notification, tenant, name))


async def count_test(session: Session, tenant: int, name: str) -> bool:
    """False: the minute has as many messages as it may have."""
    return bool(await session.fetch(SQL.count_test, tenant, name))


async def find_pending(database: Database) -> list[Pending]:
    return [Pending(*row) for row in await database.fetch(SQL.find_pending, PENDING_AT_ONCE)]


async def store_messages(
    database: Database, submitter: Submitter, pending: Pending
) -> StoredMessages:
    """One batch of events becomes tasks, or is held back, in one commit."""
    async with database.transaction() as session:
        rows = await session.fetch(SQL.lock_notification, *pending)
        if not rows:
            gone = await session.fetch(SQL.forget_events, *pending, EVENTS_AT_ONCE)
            return StoredMessages(0, len(gone) == EVENTS_AT_ONCE)
        (row,) = rows
        taken = await session.fetch(SQL.take_events, *pending, EVENTS_AT_ONCE)
        events = [event_from(each) for each in sorted(taken, key=lambda each: each["number"])]
        minute = MessageMinute(row["minute"], row["sent"], read_held(row["held"]))
        messages, after = plan_messages(minute, events, row["this_minute"], row["per_minute"])
        held = None if after.held is None else encode_held(after.held)
        await session.fetch(SQL.note_sent, *pending, after.began_at, after.sent, held)
        tasks = [
            submission_of(submitter, pending, row["tenant_name"], row["url"], row["headers"], each)
            for each in messages
        ]
        _, publish = await store(session, submitter, tasks)
    return StoredMessages(len(messages), len(taken) == EVENTS_AT_ONCE, publish)


async def store_test(
    session: Session, submitter: Submitter, found: Notification, tenant_name: str, at: datetime
) -> tuple[UUID, Callable[[], Awaitable[None]]]:
    """The task of a message that says it is a test, and what follows the commit."""
    message = message_of([NotedEvent(EventKind.TEST, at, {})])
    pending = Pending(found.tenant, found.name)
    task = submission_of(submitter, pending, tenant_name, found.url, found.headers, message)
    ids, publish = await store(session, submitter, [task])
    return ids[0], publish


async def store(
    session: Session, submitter: Submitter, tasks: list[Submission]
) -> tuple[list[UUID], Callable[[], Awaitable[None]]]:
    entries = await submitter.assign_ids(tasks, session) if tasks else []
    answers = await submitter.store(session, entries) if entries else {}

    async def publish() -> None:
        if entries:
            await submitter.publish_stored(entries, dict(answers))

    assert all(isinstance(answer, Stored) for answer in answers.values()), "none has a key"
    return [entry.id for entry in entries], publish


def submission_of(
    submitter: Submitter,
    pending: Pending,
    tenant_name: str,
    url: str,
    headers: str | None,
    message: Message,
) -> Submission:
    number = submitter.environment.random.getrandbits(KEY_BITS)
    sent = {} if headers is None else msgspec.json.decode(headers, type=dict[str, str])
    return Submission(
        tenant=pending.tenant,
        type=TASK_TYPE,
        payload=payload_of(pending.name, tenant_name, message),
        url=url,
        priority=PRIORITY,
        policy=Policy(retry=RETRY, timeout_s=TIMEOUT_S, headers=sent),
        execution_key=f"{KEY_PREFIX}{pending.name} {number:016x}",
    )


def payload_of(name: str, tenant_name: str, message: Message) -> str:
    """The body of the webhook, the input of the command."""
    content = {
        "notification": name,
        "tenant": tenant_name,
        "text": message.text,
        "count": message.count,
        "first_at": message.first_at,
        "last_at": message.last_at,
        "groups": [
            {"event": group.kind.value, "count": group.count, **group.facts}
            for group in message.groups
        ],
        "others": message.others,
    }
    return msgspec.json.encode(content).decode()


async def look_at_bounds(database: Database, after: Pending) -> tuple[list[Pending], int]:
    """A page of notifications with bounds, and how many events followed from it."""
    rows = await database.fetch(
        SQL.look_at_bounds, *after, BOUNDS_PAGE, PLACES_MAX, FAILURES_WINDOW_MIN
    )
    pages = [Pending(row["tenant"], row["name"]) for row in rows]
    return pages, rows[0]["noted"] if rows else 0


def event_from(row: Any) -> NotedEvent:
    return NotedEvent(EventKind(row["event"]), row["at"], msgspec.json.decode(row["facts"]))


def encode_held(message: Message) -> str:
    groups = [HeldGroup(each.kind, each.count, dict(each.facts)) for each in message.groups]
    held = HeldMessage(message.count, message.first_at, message.last_at, groups, message.others)
    return msgspec.json.encode(held).decode()


def read_held(text: str | None) -> Message | None:
    if text is None:
        return None
    held = msgspec.json.decode(text, type=HeldMessage)
    groups = tuple(EventGroup(each.kind, each.count, each.facts) for each in held.groups)
    return Message(held.count, held.first_at, held.last_at, groups, held.others)
