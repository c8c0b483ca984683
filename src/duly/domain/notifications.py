"""Notifications: what happened, summed up into messages of which only so many leave in a minute.

Pure. A message is one event, or many of them as groups with a count and the newest example.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeAlias

# The type of the tasks that tell; nothing is told of their own failures.
TASK_TYPE = "duly.notification"
# Of their execution keys: with a space, unlike every key that a submitter may give.
KEY_PREFIX = "notification "
MAIL_SCHEME = "mailto"
COMMAND_SCHEME = "command"
COMMAND_URL = f"{COMMAND_SCHEME}:"
MINUTE = timedelta(minutes=1)
PER_MINUTE_MAX = 60
PER_MINUTE_DEFAULT = 10
RECIPIENTS_MAX = 10
MAIL_CHARACTERS_MAX = 254
# Groups of one message; the rest is counted.
GROUPS_MAX = 20
# As most mail servers take them, without quotes, comments and addresses in brackets.
MAIL_PATTERN = re.compile(
    r"[A-Za-z0-9!#$*+/=_{|}~-]+(?:\.[A-Za-z0-9!#$*+/=_{|}~-]+)*"
    r"@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
)

Facts: TypeAlias = Mapping[str, Any]


class EventKind(StrEnum):
    DEAD_LETTER = "dead_letter"
    MISSED_SCHEDULE = "missed_schedule"
    LAG = "lag"
    FAILURES = "failures"
    TEST = "test"


# What events have in common that are counted together; the rest of their facts is an example's.
GROUPED_BY: dict[EventKind, tuple[str, ...]] = {
    EventKind.DEAD_LETTER: ("type", "reason"),
    EventKind.MISSED_SCHEDULE: ("schedule", "verdict"),
    EventKind.LAG: ("state",),
    EventKind.FAILURES: ("state",),
    EventKind.TEST: (),
}


@dataclass(frozen=True, slots=True)
class NotedEvent:
    kind: EventKind
    at: datetime
    facts: Facts


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Events of one kind and cause; `facts` are those of the newest."""

    kind: EventKind
    count: int
    facts: Facts

    @property
    def key(self) -> tuple[object, ...]:
        return (self.kind, *(self.facts.get(name) for name in GROUPED_BY[self.kind]))


@dataclass(frozen=True, slots=True)
class Message:
    """`others`: how many events are in no group."""

    count: int
    first_at: datetime
    last_at: datetime
    groups: tuple[EventGroup, ...]
    others: int = 0

    def plus(self, events: Sequence[NotedEvent]) -> "Message":
        groups = {group.key: group for group in self.groups}
        others = self.others
        for event in events:
            group = EventGroup(event.kind, 1, event.facts)
            known = groups.get(group.key)
            if known is not None:
                groups[group.key] = replace(group, count=known.count + 1)
            elif len(groups) < GROUPS_MAX:
                groups[group.key] = group
            else:
                others += 1
        instants = [self.first_at, self.last_at, *(event.at for event in events)]
        count = self.count + len(events)
        return Message(count, min(instants), max(instants), tuple(groups.values()), others)

    @property
    def text(self) -> str:
        """For people: one sentence for each group."""
        sentences = [sentence_of(group) for group in self.groups]
        if self.others:
            sentences.append(f"{self.others} other events")
        return "; ".join(sentences)


@dataclass(frozen=True, slots=True)
class MessageMinute:
    """How many messages left in a minute, and what is held back until the next one."""

    began_at: datetime
    sent: int = 0
    held: Message | None = None


def message_of(events: Sequence[NotedEvent]) -> Message:
    first = events[0]
    return Message(0, first.at, first.at, ()).plus(events)


def plan_messages(
    minute: MessageMinute, events: Sequence[NotedEvent], this_minute: datetime, per_minute: int
) -> tuple[list[Message], MessageMinute]:
    """Which messages leave now: first what was held back, as one; then each event alone, as many as
    the minute has left. The rest is held back."""
    sent = minute.sent if minute.began_at >= this_minute else 0
    began_at, held = max(minute.began_at, this_minute), minute.held
    messages: list[Message] = []
    if held is not None and sent < per_minute:
        messages.append(held)
        sent, held = sent + 1, None
    alone = events[: max(per_minute - sent, 0)] if held is None else events[:0]
    messages += [message_of([event]) for event in alone]
    rest = events[len(alone) :]
    if rest:
        held = message_of(rest) if held is None else held.plus(rest)
    return messages, MessageMinute(began_at, sent + len(alone), held)


def sentence_of(group: EventGroup) -> str:
    facts, count = group.facts, group.count
    match group.kind:
        case EventKind.DEAD_LETTER:
            return f"{counted(count, 'dead letter')} of {facts['type']} ({facts['reason']})"
        case EventKind.MISSED_SCHEDULE:
            verdict = facts["verdict"]
            return f"{counted(count, 'missed occurrence')} of {facts['schedule']} ({verdict})"
        case EventKind.LAG:
            if facts["state"] == "above":
                return f"a task waits since {facts['lag_s']:g} s (bound: {facts['bound']:g} s)"
            return f"no task waits longer than {facts['bound']:g} s any more"
        case EventKind.FAILURES:
            told = f"{facts['per_minute']:g} dead letters a minute"
            return f"{told} (bound: {facts['bound']:g}, {facts['state']})"
        case EventKind.TEST:
            return "a test of this notification"


def counted(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def mail_url(recipients: Sequence[str]) -> str:
    return f"{MAIL_SCHEME}:{','.join(recipients)}"


def recipients_of(url: str) -> list[str]:
    return url.removeprefix(f"{MAIL_SCHEME}:").split(",")


def mail_reason(address: str) -> str | None:
    """Why this is no address that mail goes to; None if it is one."""
    if len(address) > MAIL_CHARACTERS_MAX:
        return f"has more than {MAIL_CHARACTERS_MAX} characters"
    return None if MAIL_PATTERN.fullmatch(address) else "is not a mail address like ops@example.com"
