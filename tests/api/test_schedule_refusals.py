"""Schedules that are refused: with the field and the reason, and without a row."""

from typing import Any

import pytest

from tests.api.conftest import Front
from tests.api.scheduling import HOURLY, SCHEDULES

pytestmark = pytest.mark.asyncio(loop_scope="module")
CRON = {"every_s": None}

REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "30 February": (CRON | {"cron": "0 0 30 2 *"}, "/cron", "never fires"),
    "minute 60": (CRON | {"cron": "60 * * * *"}, "/cron", "minute"),
    "hour 24": (CRON | {"cron": "0 24 * * *"}, "/cron", "hour"),
    "day 0": (CRON | {"cron": "0 0 0 * *"}, "/cron", "day_of_month"),
    "month 13": (CRON | {"cron": "0 0 1 13 *"}, "/cron", "month"),
    "an unknown weekday": (CRON | {"cron": "0 0 * * someday"}, "/cron", "day_of_week"),
    "a reversed range": (CRON | {"cron": "0 5-1 * * *"}, "/cron", "hour"),
    "a step of zero": (CRON | {"cron": "*/0 * * * *"}, "/cron", "minute"),
    "four fields": (CRON | {"cron": "* * * *"}, "/cron", "fields"),
    "an unknown nickname": (CRON | {"cron": "@sometimes"}, "/cron", ""),
    "random": (CRON | {"cron": "R * * * *"}, "/cron", "minute"),
    "other digits": (CRON | {"cron": "\u0661 * * * *"}, "/cron", ""),
    "an endless expression": (CRON | {"cron": "1," * 300}, "/cron", ""),
    "a null byte": (CRON | {"cron": "0 0 * * *\x00"}, "/cron", ""),
    "both rules": ({"cron": "@daily"}, "/cron", "exactly one"),
    "no rule": (CRON, "/cron", "exactly one"),
    "an interval of zero": ({"every_s": 0}, "/every_s", ""),
    "a negative interval": ({"every_s": -60}, "/every_s", ""),
    "half a second": ({"every_s": 1.5}, "/every_s", "whole"),
    "two years": ({"every_s": 2 * 366 * 86400}, "/every_s", ""),
    "text for a number": ({"every_s": "60"}, "/every_s", ""),
    "an unknown zone": ({"timezone": "Europe/Atlantis"}, "/timezone", "IANA"),
    "a zone like a path": ({"timezone": "../../etc/passwd"}, "/timezone", "IANA"),
    "an absolute path": ({"timezone": "/etc/localtime"}, "/timezone", "IANA"),
    "an offset for a zone": ({"timezone": "+02:00"}, "/timezone", "IANA"),
    "no zone": ({"timezone": ""}, "/timezone", ""),
    "an unknown policy": ({"misfire": "later"}, "/misfire", ""),
    "an unknown overlap": ({"overlap": "queue_two"}, "/overlap", ""),
    "an unknown gap": ({"dst_gap": "both"}, "/dst_gap", ""),
    "an unknown repeat": ({"dst_repeat": "third"}, "/dst_repeat", ""),
    "a window past its bound": ({"misfire_window_s": 2592001}, "/misfire_window_s", ""),
    "jitter past its bound": ({"jitter_s": 3600.5}, "/jitter_s", ""),
    "jitter as wide as the interval": ({"every_s": 60, "jitter_s": 60}, "/jitter_s", "60 s"),
    "no running task at all": ({"max_running": 0}, "/max_running", ""),
    "too many running": ({"max_running": 1001}, "/max_running", ""),
    "max_running where none may overlap": (
        {"overlap": "skip", "max_running": 2},
        "/max_running",
        "allow",
    ),
    "no fire at all": ({"max_fires": 0}, "/max_fires", ""),
    "too many fires": ({"max_fires": 1_000_000_001}, "/max_fires", ""),
    "a start without offset": ({"start_at": "2097-01-01T00:00:00"}, "/start_at", ""),
    "a start in another age": ({"start_at": "9999-12-31T23:59:59-12:00"}, "/start_at", "2499"),
    "an end before the start": (
        {"start_at": "2098-01-01T00:00:00Z", "end_at": "2097-01-01T00:00:00Z"},
        "/end_at",
        "before",
    ),
    "an end in the past": ({"end_at": "2020-01-01T00:00:00Z"}, "/end_at", "nothing would fire"),
    "a date that is none": ({"exclude_dates": ["2097-02-30"]}, "/exclude_dates/0", ""),
    "too many dates": ({"exclude_dates": ["2097-01-01"] * 1001}, "/exclude_dates", ""),
    "no name": ({"name": ""}, "/name", ""),
    "a name too long": ({"name": "a" * 129}, "/name", ""),
    "a name with a newline": ({"name": "a\n"}, "/name", ""),
    "a name that ends in a space": ({"name": "a "}, "/name", ""),
    "an unknown field": ({"timezon": "UTC"}, "/timezon", "did you mean timezone?"),
    "no task": ({"task": None}, "/task", "is required, or /workflow instead"),
    "a task and a workflow": (
        {"workflow": {"name": "w", "nodes": {"a": {"type": "a"}}}},
        "/workflow",
        "does not go with /task",
    ),
    "a task without a type": ({"task": {}}, "/task/type", "required"),
    "a task with its own time": (
        {"task": {"type": "a", "run_at": "2097-01-01T00:00:00Z"}},
        "/task/run_at",
        "a schedule says when",
    ),
    "a task with a delay": ({"task": {"type": "a", "delay_s": 0}}, "/task/delay_s", "says when"),
    "a task with a deadline": (
        {"task": {"type": "a", "start_by": "2020-01-01T00:00:00Z"}},
        "/task/start_by",
        "says when",
    ),
    "a task with a key": (
        {"task": {"type": "a", "idempotency_key": "k"}},
        "/task/idempotency_key",
        "says when",
    ),
    "a queue beside a key": (
        {"overlap": "queue_one", "task": {"type": "a", "concurrency_key": "k"}},
        "/task/concurrency_key",
        "queue_one",
    ),
    "a task to this machine": (
        {"task": {"type": "a", "target": {"url": "https://127.0.0.1/"}}},
        "/task/target/url",
        "",
    ),
    "a task to two places": (
        {"task": {"type": "a", "target": {"url": "https://example.com/", "pool": "p"}}},
        "/task/target",
        "",
    ),
    "a task with an unknown field": ({"task": {"type": "a", "prio": 1}}, "/task/prio", ""),
    "a payload too large": (
        {"task": {"type": "a", "payload": "x" * 65536}},
        "/task/payload",
        "bytes",
    ),
}


@pytest.fixture
def front(shared_front: Front) -> Front:
    """Shared: what is refused leaves nothing for the next test to find."""
    return shared_front


async def rows(front: Front) -> int:
    tables = ("schedules", "schedule_timers", "occurrences", "audit", "pools", "remembered_calls")
    counts = " + ".join(f"(SELECT count(*) FROM duly.{table})" for table in tables)
    (row,) = await front.database.fetch(f"SELECT {counts} AS rows")
    count: int = row["rows"]
    return count


@pytest.mark.parametrize("case", REFUSED)
async def test_a_wrong_definition_is_refused_where_it_is_wrong(front: Front, case: str) -> None:
    """Accepted, it fires at another time than its author believes, or never."""
    more, pointer, reason = REFUSED[case]
    before = await rows(front)
    reply = await front.call("POST", SCHEDULES, HOURLY | more)
    assert (reply.status, reply.code) == (422, "invalid"), reply.body
    found = {error["pointer"]: error["detail"] for error in reply.json["errors"]}
    assert list(found) == [pointer], reply.body
    assert reason in found[pointer], reply.body
    assert await rows(front) == before


async def test_everything_wrong_is_said_at_once(front: Front) -> None:
    """One error for each attempt makes a conversation of what could be an answer."""
    task = {"type": "a", "delay_s": 1, "target": {"pool": "p", "headers": {"X-A": "1"}}}
    wrong = {"cron": "0 25 * * *", "every_s": None, "timezone": "Nowhere", "task": task}
    reply = await front.call("POST", SCHEDULES, HOURLY | wrong)
    pointers = {error["pointer"] for error in reply.json["errors"]}
    assert pointers == {"/cron", "/timezone", "/task/delay_s", "/task/target/headers"}


async def test_a_payload_is_held_against_the_schema_of_its_type(front: Front) -> None:
    """The first to learn of a wrong payload would be the receiver, at night."""
    schema = {"type": "object", "required": ["to"]}
    await front.call("PUT", "/v1/task-types/strict", {"schema": schema})
    task = {"type": "strict", "payload": {}}
    reply = await front.call("POST", SCHEDULES, HOURLY | {"task": task})
    assert [error["pointer"] for error in reply.json["errors"]] == ["/task/payload"]


async def test_a_rule_is_not_more_frequent_than_its_tenant_may(front: Front) -> None:
    """One tenant's schedule of each second is another's delay."""
    await front.call("PATCH", "/v1/tenants/other", {"schedule_s_min": 60})
    key = front.other_admin
    for rule in ({"every_s": 59}, {"every_s": None, "cron": "*/30 * * * * *"}):
        reply = await front.call("POST", SCHEDULES, HOURLY | rule, key=key)
        (error,) = reply.json["errors"]
        assert error["pointer"] == ("/cron" if "cron" in rule else "/every_s")
        assert "60 s is the least" in error["detail"]
    made = await front.call("POST", SCHEDULES, HOURLY | {"every_s": 60}, key=key)
    assert made.status == 201
    await front.call("PATCH", "/v1/tenants/other", {"schedule_s_min": 3600})
    path = f"{SCHEDULES}/{made.json['id']}"
    # What stands may stay, and be changed in other ways.
    assert (await front.call("PATCH", path, {"name": "kept"}, key=key)).status == 200
    assert (await front.call("PATCH", path, {"every_s": 120}, key=key)).status == 422


async def test_an_edit_is_held_against_the_same_rules(front: Front) -> None:
    """A definition that cannot be made must not come about by a change either."""
    made = await front.call("POST", SCHEDULES, HOURLY | {"name": "sound"})
    path = f"{SCHEDULES}/{made.json['id']}"
    for change, pointer in (
        ({"cron": "0 0 31 6 *"}, "/cron"),
        ({"timezone": "Nowhere"}, "/timezone"),
        ({"jitter_s": 3600}, "/jitter_s"),
        ({"task": {"type": "a", "delay_s": 1}}, "/task/delay_s"),
        ({"name": "a\n"}, "/name"),
    ):
        for key in ("PATCH", "PUT"):
            body = change if key == "PATCH" else HOURLY | {"every_s": None} | change
            if key == "PUT" and "cron" not in change:
                body = HOURLY | change
            reply = await front.call(key, path, body)
            assert [error["pointer"] for error in reply.json["errors"]] == [pointer], reply.body
    assert (await front.call("GET", path)).json == made.json
