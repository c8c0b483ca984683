"""Schedules over HTTP: what is defined is what is read, edited and fired, and nothing else."""

from datetime import datetime, timedelta
from typing import Any

from duly.testing.clock import MovableClock
from tests.api.conftest import Front
from tests.api.scheduling import (
    HOURLY,
    SCHEDULES,
    define,
    fire_due,
    ledger,
    path_of,
    read,
    verdicts,
)

Moving = tuple[Front, MovableClock]
EVERYTHING = {
    "name": "Nightly report: of Berlin",
    "cron": "0 2 * * mon-fri",
    "timezone": "Europe/Berlin",
    "misfire": "fire_all",
    "misfire_window_s": 600.0,
    "overlap": "allow",
    "max_running": 3,
    "dst_gap": "skip",
    "dst_repeat": "both",
    "jitter_s": 60.5,
    "start_at": "2097-01-01T00:00:00Z",
    "end_at": "2400-01-01T00:00:00Z",
    "max_fires": 1000,
    "exclude_dates": ["2097-12-24", "2097-12-25"],
}
TEMPLATE = {
    "type": "report.write",
    "payload": {"kind": "daily", "to": ["a"]},
    "target": {"pool": "reports"},
    "priority": 7,
    "tags": {"env": "prod"},
}
DEFAULTS: dict[str, Any] = {
    "cron": None,
    "timezone": "UTC",
    "misfire": "coalesce",
    "misfire_window_s": 3600.0,
    "overlap": "allow",
    "max_running": None,
    "dst_gap": "shift",
    "dst_repeat": "first",
    "jitter_s": 0.0,
    "start_at": None,
    "end_at": None,
    "max_fires": None,
    "exclude_dates": [],
    "paused": None,
    "jitter_offset_s": 0.0,
    "fires": 0,
    "running": None,
    "state": "ACTIVE",
    "cadence": {"expected": 0, "fired": 0, "flag": None},
}


async def test_a_schedule_is_read_as_it_was_defined(front: Front) -> None:
    """A field that is lost on the way is cron that is silently wrong."""
    reply = await front.call("POST", SCHEDULES, EVERYTHING | {"task": TEMPLATE})
    assert reply.status == 201, reply.body
    made = reply.json
    assert {name: made[name] for name in EVERYTHING} == EVERYTHING
    assert (made["task"], made["every_s"], made["running"]) == (TEMPLATE, None, 0)
    assert made["next_at"] == "2097-01-01T01:00:00Z"
    assert 0 <= made["jitter_offset_s"] < 60.5
    assert await read(front, made) == made
    (told,) = front.expecting
    assert str(told[0]) == made["id"]


async def test_what_is_not_said_has_the_documented_default(front: Front) -> None:
    """A default that moves changes schedules that nobody touched."""
    made = await define(front)
    assert {name: made[name] for name in DEFAULTS} == DEFAULTS
    assert (made["every_s"], made["task"]) == (3600, {"type": "report.write"})
    assert made["next_at"] == made["next_due_at"]
    created_at = datetime.fromisoformat(made["created_at"])
    assert datetime.fromisoformat(made["next_at"]) == created_at + timedelta(hours=1)


async def test_a_name_that_is_taken_is_refused_and_changes_nothing(front: Front) -> None:
    """A second definition must not replace the first, nor stand beside it."""
    made = await define(front)
    again = await front.call("POST", SCHEDULES, HOURLY | {"every_s": 60})
    assert (again.status, again.code) == (409, "conflict")
    assert await read(front, made) == made
    other = await define(front, name="other")
    renamed = await front.call("PATCH", path_of(other), {"name": "report"})
    assert (renamed.status, renamed.code) == (409, "conflict")
    theirs = await front.call("POST", SCHEDULES, HOURLY, key=front.other_admin)
    assert theirs.status == 201


async def test_a_repeated_call_with_its_key_defines_one_schedule(front: Front) -> None:
    """An answer that was lost must not cost a conflict, or a second schedule."""
    headers = {"Idempotency-Key": "once"}
    first = await front.call("POST", SCHEDULES, HOURLY, headers=headers)
    again = await front.call("POST", SCHEDULES, HOURLY, headers=headers)
    assert (first.status, again.status) == (201, 201)
    assert again.headers["Idempotent-Replay"] == "true"
    assert again.json == first.json
    other = await front.call("POST", SCHEDULES, HOURLY | {"every_s": 60}, headers=headers)
    assert (other.status, other.code) == (409, "idempotency_mismatch")
    assert len((await front.call("GET", SCHEDULES)).json["items"]) == 1


async def test_a_change_touches_only_the_fields_that_are_given(front: Front) -> None:
    """A change of the time that forgets the policies is a change of the policies."""
    made = (await front.call("POST", SCHEDULES, EVERYTHING | {"task": TEMPLATE})).json
    reply = await front.call("PATCH", path_of(made), {"timezone": "UTC", "max_running": None})
    assert reply.status == 200, reply.body
    changed = reply.json
    assert changed["next_at"] == "2097-01-01T02:00:00Z"
    moved = {"timezone", "max_running", "running", "next_at", "next_due_at", "updated_at"}
    assert {name for name in made if changed[name] != made[name]} == moved


async def test_one_kind_of_rule_takes_the_place_of_the_other(front: Front) -> None:
    """A schedule with two rules, or none, could not be reckoned with."""
    made = await define(front)
    by_cron = (await front.call("PATCH", path_of(made), {"cron": "@daily"})).json
    assert (by_cron["cron"], by_cron["every_s"]) == ("@daily", None)
    by_interval = (await front.call("PATCH", path_of(made), {"every_s": 60})).json
    assert (by_interval["cron"], by_interval["every_s"]) == (None, 60)
    neither = await front.call("PATCH", path_of(made), {"every_s": None})
    assert [error["pointer"] for error in neither.json["errors"]] == ["/cron"]
    nothing = await front.call("PATCH", path_of(made), {})
    assert (nothing.status, nothing.code) == (422, "invalid")


async def test_a_replacement_brings_back_the_defaults(front: Front) -> None:
    """What PUT leaves out would otherwise stay, and no file would say what stands."""
    made = (await front.call("POST", SCHEDULES, EVERYTHING | {"task": TEMPLATE})).json
    replaced = (await front.call("PUT", path_of(made), HOURLY)).json
    assert {name: replaced[name] for name in DEFAULTS} == DEFAULTS
    assert (replaced["id"], replaced["name"]) == (made["id"], "report")


async def test_what_was_due_is_ruled_on_under_the_old_definition(moving_front: Moving) -> None:
    """An edit would otherwise take runs away that were owed, without a trace."""
    front, clock = moving_front
    made = await define(front, misfire="fire_all", misfire_window_s=86400)
    clock.advance(hours=3, minutes=30)
    changed = await front.call("PATCH", path_of(made), {"every_s": 86400, "misfire": "skip"})
    assert changed.status == 200
    assert await verdicts(front, made) == ["LATE"] * 3
    assert changed.json["fires"] == 3
    assert front.expecting[-1][1] == datetime.fromisoformat(changed.json["next_due_at"])
    tasks = (await front.call("GET", "/v1/tasks")).json["items"]
    assert len(tasks) == 3


async def test_a_schedule_that_has_ended_can_be_named_anew(moving_front: Moving) -> None:
    """Only a new rule must have something to fire; the old one stands as it is."""
    front, clock = moving_front
    began_at = clock.now()
    made = await define(front, end_at=(began_at + timedelta(hours=2)).isoformat())
    clock.advance(hours=3)
    await fire_due(front)
    assert (await read(front, made))["state"] == "ENDED"
    renamed = await front.call("PATCH", path_of(made), {"name": "of old"})
    assert (renamed.status, renamed.json["state"]) == (200, "ENDED")
    over = await front.call("PATCH", path_of(made), {"end_at": began_at.isoformat()})
    assert [error["pointer"] for error in over.json["errors"]] == ["/end_at"]
    going_on = await front.call("PATCH", path_of(made), {"end_at": None})
    assert going_on.json["state"] == "ACTIVE"


async def test_a_deleted_schedule_is_gone_and_its_tasks_stay(moving_front: Moving) -> None:
    """A deletion that takes work along, or leaves the timer, is worse than none."""
    front, clock = moving_front
    made = await define(front)
    assert (await front.call("POST", path_of(made) + "/trigger")).status == 201
    clock.advance(hours=1, minutes=30)
    assert (await front.call("DELETE", path_of(made))).status == 204
    assert (await front.call("GET", path_of(made))).status == 404
    assert (await front.call("DELETE", path_of(made))).status == 404
    assert len((await front.call("GET", "/v1/tasks")).json["items"]) == 1
    assert await front.database.fetch("SELECT id FROM duly.schedule_timers") == []
    assert (await define(front))["id"] != made["id"]


async def test_the_defaults_of_a_type_are_those_of_the_last_edit(front: Front) -> None:
    """A default that changes must not change, overnight, what an old schedule does."""
    kind = "/v1/task-types/report.write"
    await front.call("PUT", kind, {"defaults": {"priority": 8}})
    made = await define(front)
    await front.call("PUT", kind, {"defaults": {"priority": 2}})
    assert (await front.call("POST", path_of(made, "trigger"))).json["priority"] == 8
    await front.call("PATCH", path_of(made), {"jitter_s": 1})
    assert (await front.call("POST", path_of(made, "trigger"))).json["priority"] == 2


async def test_a_credential_defines_only_what_it_may_submit(front: Front) -> None:
    """A schedule would be the way around the types that a key is held to."""
    key = await front.make_key(front.tenant, "operator", types=("mail",))
    refused = await front.call("POST", SCHEDULES, HOURLY, key=key)
    assert (refused.status, refused.code) == (403, "forbidden")
    made = await define(front)
    for method, more, body in (
        ("PATCH", [], {"jitter_s": 1}),
        ("POST", ["trigger"], None),
    ):
        reply = await front.call(method, path_of(made, *more), body, key=key)
        assert (reply.status, reply.code) == (403, "forbidden"), more


async def test_lists_are_filtered_and_paged_and_leave_out_payloads(front: Front) -> None:
    """A page of payloads is megabytes; a filter that lets through is a pause of the wrong ones."""
    for name, kind in (("mail a", "mail"), ("mail b", "mail"), ("report", "report.write")):
        await define(front, name=name, task={"type": kind, "payload": "large"})
    everything = (await front.call("GET", SCHEDULES)).json["items"]
    assert [each["name"] for each in everything] == ["report", "mail b", "mail a"]
    assert all("payload" not in each["task"] for each in everything)
    await front.call("POST", path_of(everything[2], "pause"), {"reason": "x"})
    for query, names in (
        ("name_prefix=mail%20", ["mail b", "mail a"]),
        ("type=report.write", ["report"]),
        ("paused=true", ["mail a"]),
        ("paused=false&type=mail", ["mail b"]),
        ("flagged=true", []),
    ):
        found = (await front.call("GET", f"{SCHEDULES}?{query}")).json["items"]
        assert [each["name"] for each in found] == names, query
    first = (await front.call("GET", f"{SCHEDULES}?limit=2")).json
    rest = (await front.call("GET", f"{SCHEDULES}?cursor={first['next_cursor']}")).json
    assert [each["name"] for each in rest["items"]] == ["mail a"]


async def test_a_schedule_that_does_not_keep_its_cadence_is_flagged(moving_front: Moving) -> None:
    """Late for a week, and nobody would know."""
    front, clock = moving_front
    late = await define(front, name="late", misfire="fire_all", misfire_window_s=86400)
    clock.advance(hours=6, minutes=30)
    await fire_due(front)
    await define(front, name="fresh")
    shown = (await read(front, late))["cadence"]
    assert shown == {"expected": 6, "fired": 0, "flag": "late_or_skipped"}
    flagged = (await front.call("GET", f"{SCHEDULES}?flagged=true")).json["items"]
    assert [each["name"] for each in flagged] == ["late"]
    others = (await front.call("GET", f"{SCHEDULES}?flagged=false")).json["items"]
    assert [each["name"] for each in others] == ["fresh"]


async def test_the_ledger_is_read_in_pages_and_by_verdict(moving_front: Moving) -> None:
    """Every occurrence has its verdict; one that cannot be found might as well have none."""
    front, clock = moving_front
    made = await define(front)
    clock.advance(hours=4, minutes=30)
    await fire_due(front)
    entries = await ledger(front, made)
    assert [entry["verdict"] for entry in entries] == ["COALESCED"] * 3 + ["LATE"]
    assert [entry["task_id"] is None for entry in entries] == [True] * 3 + [False]
    assert entries[-1]["late_s"] >= 1800
    path = path_of(made, "occurrences")
    first = (await front.call("GET", f"{path}?limit=3")).json
    rest = (await front.call("GET", f"{path}?cursor={first['next_cursor']}")).json
    assert (first["items"] + rest["items"], rest["next_cursor"]) == (entries[::-1], None)
    late = (await front.call("GET", f"{path}?verdict=LATE")).json["items"]
    assert late == entries[-1:]
    since = entries[1]["nominal_at"]
    assert len((await front.call("GET", f"{path}?since={since}")).json["items"]) == 3


async def test_the_audit_says_who_and_what_and_no_secrets(front: Front) -> None:
    """Headers may hold a token; the audit is read by more people than the schedule."""
    target = {"url": "https://example.com/", "headers": {"X-Token": "hush-hush"}}
    task = {"type": "report.write", "payload": "hush-hush", "target": target}
    made = await define(front, task=task)
    await front.call("PATCH", path_of(made), {"task": task | {"payload": "hush-hush 2"}})
    await front.call("DELETE", path_of(made))
    reply = await front.call("GET", "/v1/audit")
    actions = [item["action"] for item in reply.json["items"]]
    assert actions == ["schedule.delete", "schedule.edit", "schedule.create"]
    assert reply.json["items"][1]["detail"]["changed"] == ["task"]
    assert b"hush-hush" not in reply.body
