"""Messages of notifications: never too many in a minute, and nothing forgotten."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.domain.notifications import (
    GROUPS_MAX,
    MAIL_CHARACTERS_MAX,
    EventKind,
    Message,
    MessageMinute,
    NotedEvent,
    mail_reason,
    message_of,
    plan_messages,
)

START = datetime(2026, 1, 15, 12, tzinfo=UTC)


def letter(number: int = 0, task_type: str = "mail.send") -> NotedEvent:
    facts = {"type": task_type, "reason": "exhausted", "task": str(number)}
    return NotedEvent(EventKind.DEAD_LETTER, START + timedelta(seconds=number), facts)


def minute_after(minutes: int) -> datetime:
    return START + timedelta(minutes=minutes)


def test_events_leave_one_by_one_while_the_minute_has_room() -> None:
    """Summed without need, a message hides which task it was."""
    messages, after = plan_messages(MessageMinute(START), [letter(1), letter(2)], START, 3)
    assert [message.count for message in messages] == [1, 1]
    assert [message.groups[0].facts["task"] for message in messages] == ["1", "2"]
    assert after == MessageMinute(START, 2)


def test_what_comes_beyond_the_bound_is_one_message_of_the_next_minute() -> None:
    """A thousand dead letters as a thousand mails are read by no one."""
    events = [letter(number) for number in range(1000)]
    messages, after = plan_messages(MessageMinute(START), events, START, 3)
    assert len(messages) == 3
    again, still = plan_messages(after, [letter(2000)], START, 3)
    assert again == []
    (summed, alone), later = plan_messages(still, [letter(3000)], minute_after(1), 3)
    assert (summed.count, alone.count) == (998, 1)
    assert summed.text == "998 dead letters of mail.send (exhausted)"
    assert summed.groups[0].facts["task"] == "2000"
    assert later == MessageMinute(minute_after(1), 2)


def test_held_events_leave_without_a_new_one() -> None:
    """The last failures of a burst would wait for the next burst."""
    _, held = plan_messages(MessageMinute(START), [letter(1), letter(2)], START, 1)
    messages, after = plan_messages(held, [], minute_after(1), 1)
    assert [message.count for message in messages] == [1]
    assert after.held is None


def test_a_clock_set_back_opens_no_second_minute() -> None:
    """Each step back would be another full minute of messages."""
    messages, after = plan_messages(
        MessageMinute(START, 5), [letter()], START - timedelta(minutes=3), 5
    )
    assert messages == []
    assert after.began_at == START


def test_causes_beyond_the_groups_are_counted() -> None:
    """A message of ten thousand groups is larger than a payload may be."""
    events = [letter(number, f"type{number}") for number in range(GROUPS_MAX + 5)]
    message = message_of(events)
    assert len(message.groups) == GROUPS_MAX
    assert message.others == 5
    assert message.count == GROUPS_MAX + 5
    assert message.text.endswith("; 5 other events")


@given(
    per_minute=st.integers(1, 5),
    batches=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), max_size=30),
)
def test_no_minute_has_too_many_messages_and_no_event_is_lost(
    per_minute: int, batches: list[tuple[int, int]]
) -> None:
    """The two promises of a notification, for any rhythm of events."""
    minute, now, given_events = MessageMinute(START), 0, 0
    sent: dict[int, int] = {}
    told: list[Message] = []
    for step, count in [*batches, (1, 0), (1, 0)]:
        now += step
        given_events += count
        events = [letter(number) for number in range(count)]
        messages, minute = plan_messages(minute, events, minute_after(now), per_minute)
        sent[now] = sent.get(now, 0) + len(messages)
        told += messages
    assert max(sent.values()) <= per_minute
    assert sum(message.count for message in told) == given_events
    assert minute.held is None


@pytest.mark.parametrize(
    "address",
    [
        "",
        "ops",
        "@example.com",
        "ops@",
        "ops@example..com",
        "ops@-example.com",
        "a b@example.com",
        "ops@example.com\r\nBcc: all@example.com",
        "ops@example.com,all@example.com",
        "<ops@example.com>",
        '"ops"@example.com',
        "ops@[127.0.0.1]",
        "öps@example.com",
        "a" * (MAIL_CHARACTERS_MAX - 11) + "@example.com",
    ],
)
def test_what_is_no_plain_mail_address_is_refused(address: str) -> None:
    """A line break in an address is a header of its own, a comma another recipient."""
    assert mail_reason(address) is not None


@pytest.mark.parametrize(
    "address",
    [
        "ops@example.com",
        "on.call+duly@sub.example.co",
        "root@localhost",
        "a" * (MAIL_CHARACTERS_MAX - 12) + "@example.com",
    ],
)
def test_plain_mail_addresses_are_taken(address: str) -> None:
    """Refused, an operator on call hears of nothing."""
    assert mail_reason(address) is None
