"""Backfill: tasks for what was missed, once each, spread over time, and only for the past."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from duly.domain.errors import DatabaseUnavailable
from duly.testing.clock import MovableClock
from tests.api.conftest import Front, Reply
from tests.api.scheduling import define, fire_due, ledger, path_of, verdicts

Moving = tuple[Front, MovableClock]
HOUR = timedelta(hours=1)


async def backfill(front: Front, schedule: dict[str, Any], **asked: Any) -> Reply:
    since, until = asked.pop("since"), asked.pop("until")
    body = {"from": since.isoformat(), "to": until.isoformat()} | asked
    return await front.call("POST", path_of(schedule, "backfill"), body)


async def missed(front: Front, clock: MovableClock) -> tuple[dict[str, Any], datetime]:
    """A schedule that skipped five hours of its life, and the hour it began with."""
    made = await define(front, misfire="skip")
    clock.advance(hours=5, minutes=30)
    await fire_due(front)
    assert await verdicts(front, made) == ["SKIPPED_MISFIRE"] * 5
    return made, datetime.fromisoformat(made["next_at"])


async def test_what_was_missed_is_made_once_however_often_it_is_asked(
    moving_front: Moving,
) -> None:
    """A backfill that is sent again, because its answer was lost, must not run all of it twice."""
    front, clock = moving_front
    made, first_at = await missed(front, clock)
    span = {"since": first_at, "until": first_at + 3 * HOUR}
    looked = (await backfill(front, made, **span, dry_run=True)).json
    assert (looked["matched"], looked["made"], looked["known"]) == (4, 4, 0)
    assert await verdicts(front, made) == ["SKIPPED_MISFIRE"] * 5
    done = await backfill(front, made, **span)
    assert done.status == 200, done.body
    assert (done.json["matched"], done.json["made"], done.json["known"]) == (4, 4, 0)
    again = (await backfill(front, made, **span)).json
    assert (again["made"], again["known"], again["last_at"]) == (0, 4, None)
    assert await verdicts(front, made) == ["BACKFILLED"] * 4 + ["SKIPPED_MISFIRE"]
    assert len((await front.call("GET", "/v1/tasks")).json["items"]) == 4


async def test_the_tasks_are_spread_by_the_rate(moving_front: Moving) -> None:
    """A month of hours at once is the herd that schedules were smeared to avoid."""
    front, clock = moving_front
    made, first_at = await missed(front, clock)
    await backfill(front, made, since=first_at, until=first_at)
    span = {"since": first_at, "until": first_at + 4 * HOUR}
    done = (await backfill(front, made, **span, rate_per_s=0.5)).json
    assert (done["made"], done["known"]) == (4, 1)
    entries = [entry["task_id"] for entry in (await ledger(front, made))[1:]]
    tasks = [(await front.call("GET", f"/v1/tasks/{task_id}")).json for task_id in entries]
    times = [datetime.fromisoformat(task["run_at"]) for task in tasks]
    assert [(at - times[0]).total_seconds() for at in times] == [0, 2, 4, 6]
    assert datetime.fromisoformat(done["last_at"]) == times[-1]
    keys = [task["execution_key"] for task in tasks]
    assert keys[0] == f"{made['id']}:{(first_at + HOUR).isoformat().replace('+00:00', 'Z')}"


async def test_the_time_before_a_schedule_existed_can_be_made_up(front: Front) -> None:
    """A schedule is often defined after the day on which it was needed."""
    made = await define(front, cron="0 * * * *", exclude_dates=["2020-01-01"])
    until = datetime.fromisoformat(made["next_at"]) - HOUR
    done = (await backfill(front, made, since=until - 23 * HOUR, until=until)).json
    assert (done["matched"], done["made"], done["pending"]) == (24, 24, 0)
    everything = (await front.call("GET", "/v1/tasks")).json["items"]
    assert len(everything) == 24


async def test_what_the_schedule_will_rule_on_is_left_to_it(moving_front: Moving) -> None:
    """Made by both, a run that is a minute late would run twice, or have two verdicts."""
    front, clock = moving_front
    made = await define(front)
    first_at = datetime.fromisoformat(made["next_at"])
    clock.advance(hours=3, minutes=30)
    left = (await backfill(front, made, since=first_at, until=first_at + 2 * HOUR)).json
    assert (left["matched"], left["made"], left["pending"]) == (3, 0, 3)
    assert await ledger(front, made) == []
    await fire_due(front)
    assert await verdicts(front, made) == ["COALESCED", "COALESCED", "LATE"]
    done = (await backfill(front, made, since=first_at, until=first_at + 2 * HOUR)).json
    assert (done["made"], done["known"], done["pending"]) == (2, 1, 0)


async def test_only_a_past_that_is_on_record_and_bounded_is_made_up(front: Front) -> None:
    """Beyond retention nobody knows what ran; without a bound one call fills the database."""
    made = await define(front, cron="* * * * *")
    now = datetime.fromisoformat(made["created_at"])
    days = timedelta(days=1)
    for since, until, pointer in (
        (now - 31 * days, now - 30 * days, "/from"),
        (now - HOUR, now + HOUR, "/to"),
        (now - HOUR, now - 2 * HOUR, "/to"),
        (now - 8 * days, now, "/to"),
    ):
        refused = await backfill(front, made, since=since, until=until, dry_run=True)
        assert (refused.status, refused.code) == (422, "invalid"), refused.body
        assert [error["pointer"] for error in refused.json["errors"]] == [pointer]
    most = timedelta(minutes=9_999)
    until = now.replace(second=0)
    taken = await backfill(front, made, since=until - most, until=until, dry_run=True)
    assert (taken.status, taken.json["matched"]) == (200, 10_000)
    for rate in (0, 10_001, -1):
        refused = await backfill(front, made, since=now - HOUR, until=now, rate_per_s=rate)
        assert [error["pointer"] for error in refused.json["errors"]] == ["/rate_per_s"]


async def test_a_backfill_that_breaks_off_keeps_its_bites_and_goes_on(
    moving_front: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is a commit of its own, and between two of them everything can happen."""
    front, clock = moving_front
    monkeypatch.setattr("duly.api.schedule_backfill.BATCH_SIZE", 2)
    made, first_at = await missed(front, clock)
    schedule_firer, calls = front.door.scheduling.schedule_firer, 0
    fire_manually = schedule_firer.fire_manually

    async def break_off(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise DatabaseUnavailable(address="x", problem="gone")
        return await fire_manually(*arguments)

    monkeypatch.setattr(schedule_firer, "fire_manually", break_off)
    span = {"since": first_at, "until": first_at + 4 * HOUR}
    assert (await backfill(front, made, **span)).status == 503
    assert await verdicts(front, made) == ["BACKFILLED"] * 2 + ["SKIPPED_MISFIRE"] * 3
    # Who asked is on record with the first batch, although the call as a whole failed.
    audit = (await front.call("GET", "/v1/audit?action=schedule.backfill")).json["items"]
    assert len(audit) == 1
    done = (await backfill(front, made, **span)).json
    assert (done["made"], done["known"]) == (3, 2)
    assert await verdicts(front, made) == ["BACKFILLED"] * 5


async def test_one_backfill_at_a_time(moving_front: Moving) -> None:
    """Each holds two connections; a handful of them would leave none for the schedulers."""
    front, clock = moving_front
    made, first_at = await missed(front, clock)
    (endpoint,) = [
        each for each in front.door.recurring() if each.path == "/v1/schedules/{id}/backfill"
    ]
    assert endpoint.timeout_s > 30
    async with front.door.backfilling:
        busy = await backfill(front, made, since=first_at, until=first_at)
    assert (busy.status, busy.code) == (503, "overloaded")
    assert "Retry-After" in busy.headers


async def test_runs_of_a_workflow_are_made_up_for_at_the_rate(moving_front: Moving) -> None:
    """A month of runs at once, or runs that the ledger does not know."""
    front, clock = moving_front
    graph = {
        "name": "invoice.month",
        "nodes": {"a": {"type": "x"}, "b": {"type": "x", "after": ["a"]}},
    }
    made = await define(front, misfire="skip", task=None, workflow=graph)
    first_at = datetime.fromisoformat(made["next_at"])
    clock.advance(hours=5, minutes=30)
    await fire_due(front)
    assert await verdicts(front, made) == ["SKIPPED_MISFIRE"] * 5
    span = {"since": first_at, "until": first_at + 2 * HOUR}
    done = (await backfill(front, made, **span, rate_per_s=0.5)).json
    assert (done["made"], done["known"]) == (3, 0)
    assert await verdicts(front, made) == ["BACKFILLED"] * 3 + ["SKIPPED_MISFIRE"] * 2
    ids = [entry["workflow_id"] for entry in (await ledger(front, made))[:3]]
    runs = [(await front.call("GET", f"/v1/workflows/{each}")).json for each in ids]
    assert [run["tags"]["nominal_at"] for run in runs] == [
        (first_at + hours * HOUR).strftime("%Y-%m-%dT%H:%M:%SZ") for hours in range(3)
    ]
    nodes = [
        (await front.call("GET", f"/v1/workflows/{each}/nodes")).json["items"][0] for each in ids
    ]
    assert {node["state"] for node in nodes[1:]} == {"SCHEDULED"}
    again = (await backfill(front, made, **span)).json
    assert (again["made"], again["known"]) == (0, 3)
