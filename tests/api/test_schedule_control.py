"""Schedules in the hands of people: pause and resume, one or many, and fire one now."""

import asyncio

import pytest

from duly.store.tenants import TenantLimits, update_tenant
from duly.testing.clock import MovableClock
from tests.api.conftest import Front
from tests.api.scheduling import SCHEDULES, define, fire_due, ledger, path_of, read, verdicts

Moving = tuple[Front, MovableClock]


async def test_a_pause_skips_with_a_verdict_and_says_who_and_why(moving_front: Moving) -> None:
    """Runs that were left out on purpose must not look like runs that were lost."""
    front, clock = moving_front
    made = await define(front)
    paused = await front.call(
        "POST", path_of(made, "pause"), {"reason": "moving house"}, key=front.operator
    )
    assert (paused.status, paused.json["state"]) == (200, "PAUSED")
    assert paused.json["paused"]["reason"] == "moving house"
    clock.advance(hours=2, minutes=30)
    again = await front.call("POST", path_of(made, "pause"), {"reason": "another"})
    assert again.json["paused"] == paused.json["paused"]
    resumed = await front.call("POST", path_of(made, "resume"))
    assert (resumed.status, resumed.json["state"]) == (200, "ACTIVE")
    assert resumed.json["paused"] is None
    clock.advance(hours=1)
    await fire_due(front)
    assert await verdicts(front, made) == ["SKIPPED_PAUSED"] * 2 + ["LATE"]


async def test_resuming_twice_and_a_reason_that_is_no_text(front: Front) -> None:
    """Asking twice is no error; a control character in a reason is one."""
    made = await define(front)
    for _ in range(2):
        reply = await front.call("POST", path_of(made, "resume"), {"reason": "done"})
        assert (reply.status, reply.json["state"]) == (200, "ACTIVE")
    for action in ("pause", "resume"):
        wrong = await front.call("POST", path_of(made, action), {"reason": "a\nb"})
        assert [error["pointer"] for error in wrong.json["errors"]] == ["/reason"]
    audit = (await front.call("GET", "/v1/audit")).json["items"]
    assert [item["action"] for item in audit] == ["schedule.create"]


async def test_a_schedule_whose_zone_is_gone_is_not_resumed(front: Front) -> None:
    """Resumed, it would be paused again a moment later, and its owner would not know why."""
    made = await define(front)
    await front.call("POST", path_of(made, "pause"), {"reason": "x"})
    await front.database.fetch("UPDATE duly.schedules SET timezone = 'Mars/Phobos'")
    refused = await front.call("POST", path_of(made, "resume"))
    assert (refused.status, refused.code) == (409, "conflict")
    assert "Mars/Phobos" in refused.json["detail"]
    many = (await front.call("POST", f"{SCHEDULES}/resume", {"filter": {}})).json
    assert (many["done"], len(many["left"])) == (0, 1)
    assert "Mars/Phobos" in many["left"][0]["detail"]
    mended = await front.call("PATCH", path_of(made), {"timezone": "UTC"})
    assert mended.json["state"] == "PAUSED"
    assert (await front.call("POST", path_of(made, "resume"))).json["state"] == "ACTIVE"


async def test_a_schedule_that_is_far_behind_is_changed_later(moving_front: Moving) -> None:
    """A change must not take the verdicts of a hundred thousand occurrences, nor wait for them."""
    front, clock = moving_front
    made = await define(front, every_s=1)
    clock.advance(days=3)
    reply = await front.call("PATCH", path_of(made), {"every_s": 60})
    assert (reply.status, reply.code) == (409, "conflict"), reply.body
    assert "catching up" in reply.json["detail"]
    assert int(reply.headers["Retry-After"]) > 0
    assert await ledger(front, made) == []


async def test_a_schedule_that_is_far_behind_is_stopped_at_once(moving_front: Moving) -> None:
    """A brake that first works off the backlog is none."""
    front, clock = moving_front
    made = await define(front, every_s=60, misfire="fire_all", misfire_window_s=86400)
    clock.advance(hours=6)
    paused = await front.call("POST", path_of(made, "pause"), {"reason": "too much"})
    assert paused.json["state"] == "PAUSED", paused.body
    assert (await front.call("DELETE", path_of(made))).status == 204
    assert (await front.call("GET", "/v1/tasks")).json["items"] == []


async def test_a_trigger_counts_against_the_quota(front: Front) -> None:
    """A key that may not submit any more would trigger instead."""
    made = await define(front)
    await update_tenant(front.database, front.tenant.id, TenantLimits(stored_max=1))
    replies = [await front.call("POST", path_of(made, "trigger")) for _ in range(3)]
    assert {reply.status for reply in replies[1:]} == {429}, [each.body for each in replies]


async def test_many_are_paused_by_a_filter_in_bounded_bites(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter that takes too many, or goes round in circles, is an outage made by hand."""
    monkeypatch.setattr("duly.api.schedule_control.SCHEDULES_AT_ONCE_MAX", 2)
    for number in range(5):
        await define(front, name=f"mail {number}")
    other = await define(front, name="report")
    asked = {"filter": {"name_prefix": "mail"}, "reason": "no mail today"}
    looked = (await front.call("POST", f"{SCHEDULES}/pause", asked | {"dry_run": True})).json
    assert (looked["matched"], looked["done"]) == (2, 0)
    done, cursor = 0, None
    for _ in range(3):
        reply = await front.call("POST", f"{SCHEDULES}/pause", asked | {"cursor": cursor})
        assert reply.status == 200, reply.body
        done += reply.json["done"]
        cursor = reply.json["next_cursor"]
    assert (done, cursor) == (5, None)
    found = (await front.call("GET", f"{SCHEDULES}?paused=true")).json["items"]
    assert {each["name"] for each in found} == {f"mail {number}" for number in range(5)}
    assert {each["paused"]["reason"] for each in found} == {"no mail today"}
    assert (await read(front, other))["state"] == "ACTIVE"
    noted = (await front.call("GET", "/v1/audit?action=schedule.pause_many")).json["items"]
    assert [item["detail"]["done"] for item in noted] == [1, 2, 2]
    assert noted[0]["detail"]["reason"] == "no mail today"


async def test_many_are_resumed_and_what_they_missed_is_on_record(moving_front: Moving) -> None:
    """Resuming without ruling would fire, late, everything that the pause was to keep back."""
    front, clock = moving_front
    made = [await define(front, name=name, task={"type": "mail"}) for name in ("a", "b")]
    asked = {"filter": {"type": "mail"}, "reason": "x"}
    assert (await front.call("POST", f"{SCHEDULES}/pause", asked)).json["done"] == 2
    clock.advance(hours=2, minutes=30)
    theirs = await front.call("POST", f"{SCHEDULES}/resume", asked, key=front.other_admin)
    assert theirs.json["matched"] == 0
    assert (await front.call("POST", f"{SCHEDULES}/resume", asked)).json["done"] == 2
    await fire_due(front)
    for each in made:
        assert await verdicts(front, each) == ["SKIPPED_PAUSED"] * 2
        assert (await read(front, each))["state"] == "ACTIVE"


async def test_a_trigger_makes_a_task_now_also_while_paused(front: Front) -> None:
    """A manual trigger must not move a schedule, nor use up its occurrence."""
    made = await define(front, task={"type": "report.write", "payload": {"n": 1}})
    await front.call("POST", path_of(made, "pause"), {"reason": "x"})
    headers = {"Idempotency-Key": "by-hand"}
    first = await front.call("POST", path_of(made, "trigger"), headers=headers)
    assert (first.status, first.json["state"]) == (201, "READY")
    assert first.json["payload"] == {"n": 1}
    assert first.json["execution_key"].startswith(made["id"] + ":")
    again = await front.call("POST", path_of(made, "trigger"), headers=headers)
    assert again.json == first.json
    other = await front.call("POST", path_of(made, "trigger"))
    assert other.json["id"] != first.json["id"]
    entries = await ledger(front, made)
    assert [entry["verdict"] for entry in entries] == ["TRIGGERED"] * 2
    assert [entry["task_id"] for entry in entries] == [first.json["id"], other.json["id"]]
    after = await read(front, made)
    assert (after["next_at"], after["fires"]) == (made["next_at"], 0)


async def test_what_was_triggered_counts_as_running(moving_front: Moving) -> None:
    """`skip` promises that two runs never meet, whoever started the first."""
    front, clock = moving_front
    made = await define(front, overlap="skip")
    task = (await front.call("POST", path_of(made, "trigger"))).json
    assert (await read(front, made))["running"] == 1
    clock.advance(hours=1, minutes=30)
    await fire_due(front)
    assert await verdicts(front, made) == ["TRIGGERED", "SKIPPED_OVERLAP"]
    await front.call("POST", f"/v1/tasks/{task['id']}/cancel")
    assert (await read(front, made))["running"] == 0


async def test_triggers_at_once_each_make_their_task(front: Front) -> None:
    """Calls that hold a connection and wait for another would wait for one another."""
    made = await define(front)
    front.door.scheduling.schedule_firer.submitter.range = None
    front.door.scheduling.schedule_firer.submitter.pools.numbers.clear()
    replies = await gather_calls(front, path_of(made, "trigger"), 20)
    assert set(replies) == {201}
    assert len(await ledger(front, made)) == 20


async def gather_calls(front: Front, path: str, count: int) -> list[int]:
    replies = await asyncio.gather(*(front.call("POST", path) for _ in range(count)))
    return [reply.status for reply in replies]
