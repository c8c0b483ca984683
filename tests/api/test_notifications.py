"""Notifications over HTTP: described, tested, deleted; and what is refused."""

from typing import Any

import pytest

from duly.api.notifications import FAILURES_PER_MINUTE_MAX, LAG_S_MAX
from duly.domain.notifications import PER_MINUTE_MAX, RECIPIENTS_MAX
from duly.environment import Environment
from duly.store.database import Database
from duly.store.notifications import NOTIFICATIONS_PER_TENANT_MAX
from tests.api.conftest import Front, open_front

PATH = "/v1/notifications"
HOOK = {"url": "https://hooks.example.com/duly"}
ASKED = {"to": HOOK, "dead_letters": True}


async def test_a_notification_is_described_read_and_described_anew(front: Front) -> None:
    """One that keeps what was taken away tells of what no one wants to hear."""
    asked = {
        "to": {**HOOK, "headers": {"X-Team": "ops"}},
        "dead_letters": True,
        "missed_schedules": True,
        "lag_s": 60,
        "failures_per_minute": 2.5,
        "per_minute": 3,
    }
    made = await front.call("PUT", f"{PATH}/ops", asked)
    assert made.status == 200
    assert {name: made.json[name] for name in asked} == asked
    assert (made.json["name"], made.json["lag_since"]) == ("ops", None)
    assert (await front.call("GET", f"{PATH}/ops")).json == made.json
    assert (await front.call("GET", PATH)).json["items"] == [made.json]
    again = (await front.call("PUT", f"{PATH}/ops", {"to": HOOK, "lag_s": 5})).json
    assert (again["dead_letters"], again["lag_s"], again["failures_per_minute"]) == (False, 5, None)
    assert again["to"] == HOOK
    assert again["created_at"] == made.json["created_at"]
    assert (await front.call("DELETE", f"{PATH}/ops")).status == 204
    assert (await front.call("DELETE", f"{PATH}/ops")).code == "not_found"
    assert (await front.call("GET", f"{PATH}/ops")).code == "not_found"


async def test_a_test_message_is_a_task_and_counts_for_the_minute(front: Front) -> None:
    """A button that is pressed again and again would flood the room it is tested in."""
    await front.call("PUT", f"{PATH}/ops", ASKED | {"per_minute": 2})
    sent = await front.call("POST", f"{PATH}/ops/test", key=front.operator)
    assert sent.status == 202
    task = (await front.call("GET", f"/v1/tasks/{sent.json['task']}")).json
    assert (task["type"], task["target"]["url"]) == ("duly.notification", HOOK["url"])
    assert task["payload"]["text"] == "a test of this notification"
    assert task["payload"]["tenant"] == "default"
    assert (await front.call("POST", f"{PATH}/ops/test")).status == 202
    refused = await front.call("POST", f"{PATH}/ops/test")
    assert (refused.status, refused.code) == (429, "rate_limited")
    assert refused.headers["Retry-After"] == "60"
    assert (await front.call("POST", f"{PATH}/none/test")).code == "not_found"


async def test_admins_describe_operators_look_and_others_do_neither(front: Front) -> None:
    """The address of a chat room is its password."""
    await front.call("PUT", f"{PATH}/ops", ASKED)
    assert (await front.call("GET", PATH, key=front.operator)).status == 200
    assert (await front.call("PUT", f"{PATH}/x", ASKED, key=front.operator)).code == "forbidden"
    assert (await front.call("DELETE", f"{PATH}/ops", key=front.operator)).code == "forbidden"
    for key in (front.producer, front.worker):
        assert (await front.call("GET", PATH, key=key)).code == "forbidden"
        assert (await front.call("POST", f"{PATH}/ops/test", key=key)).code == "forbidden"


async def test_a_stranger_sees_changes_and_tests_nothing(front: Front) -> None:
    """Another tenant's notification of the same name is another one."""
    await front.call("PUT", f"{PATH}/ops", ASKED)
    before = (await front.call("GET", f"{PATH}/ops")).json
    other = front.other_admin
    assert (await front.call("GET", PATH, key=other)).json["items"] == []
    for method, path in (("GET", "ops"), ("DELETE", "ops"), ("POST", "ops/test")):
        assert (await front.call(method, f"{PATH}/{path}", key=other)).code == "not_found"
    assert (
        await front.call("PUT", f"{PATH}/ops", {"to": HOOK, "lag_s": 9}, key=other)
    ).status == 200
    assert (await front.call("GET", f"{PATH}/ops")).json == before


async def test_what_changed_is_audited_without_addresses(front: Front) -> None:
    """Who turned the alarm off is asked after every outage; the audit is read by many."""
    secret = {"url": "https://hooks.example.com/T0KEN", "headers": {"X-Key": "s3cret"}}
    await front.call("PUT", f"{PATH}/ops", {"to": secret, "dead_letters": True})
    await front.call("POST", f"{PATH}/ops/test")
    await front.call("DELETE", f"{PATH}/ops")
    reply = await front.call("GET", "/v1/audit")
    noted = {item["action"] for item in reply.json["items"] if item["subject"] == "ops"}
    assert noted == {"notification.put", "notification.test", "notification.delete"}
    assert b"T0KEN" not in reply.body
    assert b"s3cret" not in reply.body


async def test_mail_and_command_need_the_servers_configuration(front: Front) -> None:
    """Accepted without a relay, it is found to be mute at the first failure."""
    for to, pointer, named in (
        ({"mail": ["ops@example.com"]}, "/to/mail", "smtp_url"),
        ({"command": True}, "/to/command", "notification_command"),
    ):
        reply = await front.call("PUT", f"{PATH}/ops", {"to": to, "dead_letters": True})
        assert [error["pointer"] for error in reply.json["errors"]] == [pointer]
        assert named in reply.json["detail"]


async def test_only_the_installations_admin_chooses_the_command(database: Database) -> None:
    """A tenant that runs the operator's program is on the operator's machine."""
    async with open_front(database, Environment(), is_furnished=True) as front:
        asked = {"to": {"command": True}, "dead_letters": True}
        refused = await front.call("PUT", f"{PATH}/ops", asked, key=front.other_admin)
        assert (refused.status, refused.code) == (403, "forbidden")
        made = await front.call("PUT", f"{PATH}/ops", asked)
        assert made.json["to"] == {"command": True}


async def test_mail_goes_to_plain_addresses(database: Database) -> None:
    """A comma or a line break in an address is another recipient."""
    async with open_front(database, Environment(), is_furnished=True) as front:
        to = {"mail": ["a@example.com", "b@example.com"]}
        made = await front.call("PUT", f"{PATH}/ops", {"to": to, "lag_s": 5}, key=front.other_admin)
        assert made.json["to"] == to
        for addresses, pointer in (
            (["a@example.com", "b-b"], "/to/mail/1"),
            (["a@example.com,b@example.com"], "/to/mail/0"),
            (["a@example.com\r\nBcc: b@example.com"], "/to/mail/0"),
            (["a@example.com", "a@example.com"], "/to/mail"),
        ):
            asked = {"to": {"mail": addresses}, "dead_letters": True}
            reply = await front.call("PUT", f"{PATH}/bad", asked)
            assert [error["pointer"] for error in reply.json["errors"]] == [pointer]


BAD: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["/to"]),
    ({"to": HOOK}, [""]),
    ({"to": {}, "dead_letters": True}, ["/to"]),
    ({"to": {**HOOK, "command": True}, "dead_letters": True}, ["/to"]),
    ({"to": {**HOOK, "mail": ["a@b.c"]}, "dead_letters": True}, ["/to"]),
    ({"to": {"url": "http://127.0.0.1/"}, "dead_letters": True}, ["/to/url"]),
    ({"to": {"url": "mailto:a@example.com"}, "dead_letters": True}, ["/to/url"]),
    ({"to": {"url": "command:"}, "dead_letters": True}, ["/to/url"]),
    ({"to": {**HOOK, "headers": {"Host": "x"}}, "dead_letters": True}, ["/to/headers"]),
    ({"to": {"mail": ["a@b.c"], "headers": {"A": "b"}}, "dead_letters": True}, ["/to/headers"]),
    ({"to": {"mail": []}, "dead_letters": True}, ["/to/mail"]),
    ({"to": {"mail": ["a@b.c"] * (RECIPIENTS_MAX + 1)}, "dead_letters": True}, ["/to/mail"]),
    ({"to": {"command": "rm -rf /"}, "dead_letters": True}, ["/to/command"]),
    ({"to": HOOK, "dead_letters": "yes"}, ["/dead_letters"]),
    ({"to": HOOK, "lag_s": 0}, ["/lag_s"]),
    ({"to": HOOK, "lag_s": LAG_S_MAX + 1}, ["/lag_s"]),
    ({"to": HOOK, "failures_per_minute": 0}, ["/failures_per_minute"]),
    ({"to": HOOK, "failures_per_minute": FAILURES_PER_MINUTE_MAX + 1}, ["/failures_per_minute"]),
    ({**ASKED, "per_minute": 0}, ["/per_minute"]),
    ({**ASKED, "per_minute": PER_MINUTE_MAX + 1}, ["/per_minute"]),
    ({**ASKED, "dead_leters": True}, ["/dead_leters"]),
]


@pytest.mark.parametrize(("asked", "pointers"), BAD)
async def test_what_is_wrong_is_refused_with_its_place(
    front: Front, asked: dict[str, Any], pointers: list[str]
) -> None:
    """An alarm that was accepted and does nothing is worse than none."""
    reply = await front.call("PUT", f"{PATH}/ops", asked)
    assert (reply.status, reply.code) == (422, "invalid")
    assert [error["pointer"] for error in reply.json["errors"]] == pointers
    assert await front.database.fetch("SELECT 1 FROM duly.notifications") == []


async def test_bounds_are_taken_at_their_maximum(front: Front) -> None:
    """One less than what is documented is a bug, too."""
    asked = {
        "to": HOOK,
        "lag_s": LAG_S_MAX,
        "failures_per_minute": FAILURES_PER_MINUTE_MAX,
        "per_minute": PER_MINUTE_MAX,
    }
    assert (await front.call("PUT", f"{PATH}/{'n' * 64}", asked)).status == 200
    assert (await front.call("PUT", f"{PATH}/{'n' * 65}", asked)).status == 422
    assert (await front.call("PUT", f"{PATH}/a%20b", asked)).status == 422
    assert (await front.call("GET", f"{PATH}/a%20b")).code == "not_found"


async def test_a_tenant_may_have_only_so_many(front: Front) -> None:
    """Each costs every dead letter of the tenant a row."""
    for number in range(NOTIFICATIONS_PER_TENANT_MAX):
        assert (await front.call("PUT", f"{PATH}/n{number}", ASKED)).status == 200
    assert (await front.call("PUT", f"{PATH}/n0", ASKED)).status == 200
    assert (await front.call("PUT", f"{PATH}/more", ASKED)).code == "too_many"
