"""`/compat/v1`: bodies of common task APIs, word for word, and what becomes of them."""

from typing import Any

import pytest

from duly.api.compat import our_priority
from tests.api.conftest import NEXT_YEAR, Front

CALLBACK = {
    "client_id": "billing",
    "callback_url": "https://api.example.com/charge",
    "execute_at": f"{NEXT_YEAR}-12-22T18:00:00Z",
    "idempotency_key": "invoice-1",
    "retry_policy": {"max_retries": 3, "backoff_seconds": 30},
    "payload": {"invoice_id": "inv_1"},
}
DELAYED = {
    "payload": {"to": "a@example.com"},
    "delay_sec": 90,
    "priority": 100,
    "max_attempts": 3,
    "idempotency_key": "mail-1",
}
RECURRING = {
    "cron": "0 9 * * MON-FRI",
    "timezone": "Europe/Berlin",
    "payload_template": {"report": "daily"},
    "task_defaults": {"max_attempts": 3},
}


async def test_a_callback_body_becomes_a_webhook_task(front: Front) -> None:
    """A body that is taken and half understood calls nobody, or too often."""
    reply = await front.call("POST", "/compat/v1/tasks", CALLBACK, key=front.producer)
    assert reply.status == 201
    task = reply.json
    assert (task["task_id"], task["status"]) == (task["id"], task["state"])
    assert task["target"] == {"url": CALLBACK["callback_url"]}
    assert task["run_at"] == f"{NEXT_YEAR}-12-22T18:00:00Z"
    assert (task["max_attempts"], task["tags"]) == (4, {"client_id": "billing"})
    assert (task["retry"]["backoff"], task["retry"]["initial_s"]) == ("fixed", 30)
    again = await front.call("POST", "/compat/v1/tasks", CALLBACK, key=front.producer)
    assert (again.status, again.json["task_id"]) == (200, task["id"])
    other = await front.call("POST", "/compat/v1/tasks", {**CALLBACK, "payload": 1})
    assert (other.status, other.json["code"]) == (409, "idempotency_mismatch")
    read = (await front.call("GET", f"/compat/v1/tasks/{task['id']}")).json
    assert (read["task_id"], read["status"]) == (task["id"], "SCHEDULED")
    assert read["payload"] == {"invoice_id": "inv_1"}
    missing = await front.call("GET", "/compat/v1/tasks/01a1e1ad-7bb2-79e1-9b6f-ba77a06ae3bb")
    assert missing.status == 404


async def test_a_queue_body_becomes_a_pool_task(front: Front) -> None:
    """With a time instead of a delay as well: the same body is sent either way."""
    task = (await front.call("POST", "/compat/v1/tasks", DELAYED)).json
    assert (task["type"], task["target"]) == ("task", {"pool": "default"})
    assert (task["priority"], task["max_attempts"], task["status"]) == (5, 3, "SCHEDULED")
    timed = {name: value for name, value in DELAYED.items() if name != "delay_sec"}
    timed |= {"run_at": f"{NEXT_YEAR}-12-22T18:00:00Z", "idempotency_key": "mail-2", "type": "mail"}
    task = (await front.call("POST", "/compat/v1/tasks", timed)).json
    assert (task["type"], task["run_at"]) == ("mail", f"{NEXT_YEAR}-12-22T18:00:00Z")


async def test_a_recurring_body_becomes_a_schedule(front: Front) -> None:
    """The second one must not replace the first, and neither may lose its defaults."""
    reply = await front.call("POST", "/compat/v1/tasks/recurring", RECURRING)
    assert reply.status == 201
    made = reply.json
    assert (made["task_id"], made["status"]) == (made["id"], "ACTIVE")
    assert (made["cron"], made["timezone"]) == ("0 9 * * MON-FRI", "Europe/Berlin")
    schedule = (await front.call("GET", f"/v1/schedules/{made['id']}")).json
    assert schedule["task"]["payload"] == {"report": "daily"}
    assert schedule["task"]["retry"]["max_attempts"] == 3
    second = await front.call("POST", "/compat/v1/tasks/recurring", RECURRING)
    assert second.json["name"] != made["name"]
    named = {**RECURRING, "name": "daily"}
    assert (await front.call("POST", "/compat/v1/tasks/recurring", named)).status == 201
    taken = await front.call("POST", "/compat/v1/tasks/recurring", named)
    assert (taken.status, taken.json["code"]) == (409, "conflict")
    refused = await front.call("POST", "/compat/v1/tasks/recurring", named, key=front.producer)
    assert refused.status == 403


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("", {**DELAYED, "run_at": f"{NEXT_YEAR}-12-22T18:00:00Z"}, "/delay_sec"),
        ("", {**CALLBACK, "run_at": f"{NEXT_YEAR}-12-22T18:00:00Z"}, "/execute_at"),
        ("", {**CALLBACK, "execute_at": f"{NEXT_YEAR}-12-22 18:00"}, "/execute_at"),
        ("", {**CALLBACK, "execute_at": "1999-12-22T18:00:00Z"}, "/execute_at"),
        ("", {**CALLBACK, "callback_url": "ftp://a.example.com/"}, "/callback_url"),
        ("", {**CALLBACK, "pool": "x"}, "/callback_url"),
        ("", {**CALLBACK, "max_attempts": 3}, "/max_attempts"),
        ("", {**CALLBACK, "client_id": ""}, "/client_id"),
        ("", {**DELAYED, "priority": -1}, "/priority"),
        ("", {**DELAYED, "priority": 1_000_001}, "/priority"),
        ("", {**DELAYED, "max_attempts": 0}, "/max_attempts"),
        ("", {**DELAYED, "delay_sec": -1}, "/delay_sec"),
        ("", {**CALLBACK, "retry_policy": {"max_retries": -1}}, "/retry_policy/max_retries"),
        ("", {**CALLBACK, "unknown": 1}, "/unknown"),
        ("/recurring", {**RECURRING, "cron": "61 * * * *"}, "/cron"),
        ("/recurring", {**RECURRING, "timezone": "Europe/Nowhere"}, "/timezone"),
        ("/recurring", {**RECURRING, "task_defaults": {"run_at": 1}}, "/task_defaults/run_at"),
        (
            "/recurring",
            {**RECURRING, "task_defaults": {"max_attempts": 2, "retry_policy": {"max_retries": 1}}},
            "/task_defaults/max_attempts",
        ),
    ],
)
async def test_what_is_wrong_is_named_as_it_was_written(
    front: Front, path: str, body: Any, pointer: str
) -> None:
    """A problem with `run_at` means nothing to a caller who wrote `execute_at`."""
    reply = await front.call("POST", f"/compat/v1/tasks{path}", body)
    assert reply.status == 422
    assert pointer in [each["pointer"] for each in reply.json["errors"]]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(0, 9), (12, 9), (13, 8), (50, 7), (62, 7), (63, 6), (100, 5), (162, 3), (163, 2), (225, 0)],
)
def test_priorities_count_the_other_way_round(theirs: int, ours: int) -> None:
    """The most urgent work would come last, or all of it in one band."""
    assert our_priority(theirs) == ours
    assert our_priority(1_000_000) == 0
