"""The herd forecast over HTTP: counted from what is stored, for one tenant, within its bounds."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly.domain import forecast as rules_of_forecast
from duly.store import forecast as counting
from duly.testing.clock import MovableClock
from tests.api.conftest import Front
from tests.api.scheduling import define, path_of

Moving = tuple[Front, MovableClock]
FORECAST = "/v1/forecast"
# Definitions in bulk, as a thousand calls would leave them.
MANY = """
INSERT INTO duly.schedules (shard, tenant, id, name, cron, timezone, dst_gap, dst_repeat, misfire,
                            misfire_window_s, overlap, jitter_s, exclude_dates, type, task,
                            template, created_at, updated_at, anchor_at)
SELECT $1, $2, gen_random_uuid(), 'n' || n, (n % 60) || ' ' || (n / 60 % 24) || ' * * *', 'UTC',
       'shift', 'first', 'coalesce', 3600, 'allow', 0, '{}', 'x', '{}', '{}', now(), now(), now()
  FROM generate_series(0, $3 - 1) n
"""


async def look(front: Front, query: str = "", **more: Any) -> dict[str, Any]:
    reply = await front.call("GET", FORECAST + query, **more)
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json
    return found


def minute_of(found: dict[str, Any], at: datetime) -> int:
    return (at - datetime.fromisoformat(found["from"])) // timedelta(minutes=1)


async def test_schedules_and_waiting_tasks_stand_in_their_minutes(front: Front) -> None:
    """A peak that is not in the forecast is met unprepared."""
    for number in range(12):
        await define(front, name=f"herd {number}", cron="0 3 * * *", task={"type": "x"})
    await define(front, name="smeared", cron="30 4 * * *", jitter_s=600)
    due_at = (datetime.now(UTC) + timedelta(hours=5)).replace(second=30, microsecond=0)
    for _ in range(3):
        await front.call("POST", "/v1/tasks", {"type": "x", "run_at": due_at.isoformat()})
    await front.call("POST", "/v1/tasks", {"type": "x"})
    found = await look(front)
    schedules, tasks = found["minutes"]["schedules"], found["minutes"]["tasks"]
    assert (len(schedules), len(tasks)) == (1440, 1440)
    first_at = datetime.fromisoformat(found["from"])
    assert (first_at.second, first_at.microsecond) == (0, 0)
    assert timedelta(0) < first_at - datetime.now(UTC) + timedelta(minutes=1)
    assert (sum(schedules), sum(tasks)) == (pytest.approx(13, abs=0.01), 3)
    assert tasks[minute_of(found, due_at)] == 3
    worst = found["worst"][0]
    assert (worst["expected"], worst["schedules"], worst["tasks"]) == (12, 12, 0)
    assert datetime.fromisoformat(worst["minute"]).hour == 3
    (top,) = worst["top"]
    assert top == {"rule": "0 3 * * *", "timezone": "UTC", "name": "herd 0", "count": 12}
    (advice,) = found["advice"]
    assert (advice["minute"], advice["peak_before"]) == (worst["minute"], 12)
    assert advice["peak_after"] < 4
    assert advice["rules"][0]["schedules"] == 12
    counted = ("schedules_counted", "rules_counted", "tasks_counted", "limits")
    assert [found[name] for name in counted] == [13, 2, 3, []]


async def test_what_will_not_fire_is_not_expected(moving_front: Moving) -> None:
    """A peak of paused and ended schedules is a false alarm, and the next one is not believed."""
    front, clock = moving_front
    await define(front, name="fires")
    paused = await define(front, name="paused")
    await front.call("POST", path_of(paused, "pause"), {"reason": "x"})
    far = (clock.now() + timedelta(days=30)).isoformat()
    await define(front, name="later", start_at=far)
    once = await define(front, name="once", max_fires=1)
    soon = (clock.now() + timedelta(hours=2, minutes=30)).isoformat()
    await define(front, name="ends", end_at=soon)
    found = await look(front)
    assert found["schedules_counted"] == 3
    assert sum(found["minutes"]["schedules"]) == pytest.approx(24 + 1 + 2, abs=1)
    clock.advance(hours=1, minutes=1)
    await front.call("PATCH", path_of(once), {"jitter_s": 0})
    assert (await look(front))["schedules_counted"] == 2


async def test_hours_are_bounded(front: Front) -> None:
    """A year of minutes is a question that costs a server its afternoon."""
    assert len((await look(front, "?hours=1"))["minutes"]["tasks"]) == 60
    assert len((await look(front, "?hours=48"))["minutes"]["tasks"]) == 2880
    for wrong in ("0", "49", "1.5", "x"):
        reply = await front.call("GET", f"{FORECAST}?hours={wrong}")
        assert (reply.status, reply.code) == (400, "invalid_query"), wrong


async def test_nobody_sees_what_others_will_fire(front: Front) -> None:
    """Numbers give away what a competitor plans."""
    await define(front)
    await front.call("POST", "/v1/tasks", {"type": "x", "delay_s": 3600})
    theirs = await look(front, key=front.other_producer)
    assert (theirs["schedules_counted"], theirs["tasks_counted"]) == (0, 0)
    assert sum(theirs["minutes"]["schedules"]) == 0
    refused = await front.call("GET", FORECAST, key=front.worker)
    assert (refused.status, refused.code) == (403, "forbidden")


async def test_intervals_of_one_phase_are_one_rule(moving_front: Moving) -> None:
    """Each with its own second, a million intervals would be a million rules."""
    front, clock = moving_front
    whole = clock.now().replace(second=0, microsecond=0) + timedelta(minutes=5)
    for second in (0, 20, 59):
        start_at = (whole - timedelta(minutes=60, seconds=-second)).isoformat()
        await define(front, name=f"s{second}", every_s=600, start_at=start_at)
    found = await look(front)
    assert (found["schedules_counted"], found["rules_counted"]) == (3, 1)
    fires = [minute for minute, count in enumerate(found["minutes"]["schedules"]) if count]
    assert len(fires) == 144
    assert (fires[0] - minute_of(found, whole)) % 10 == 0


async def test_many_schedules_cost_by_their_rules_and_what_is_left_out_is_said(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forecast that forgets the rest without a word is believed."""
    await front.database.fetch(MANY, 1, front.tenant.id, 5000)
    found = await look(front)
    assert (found["schedules_counted"], found["rules_counted"]) == (5000, 1440)
    assert found["limits"] == []
    monkeypatch.setattr(rules_of_forecast, "FIRES_MAX", 1000)
    found = await look(front)
    assert found["rules_counted"] == 1000
    assert sum(found["minutes"]["schedules"]) == found["schedules_counted"] < 5000
    (limit,) = found["limits"]
    assert limit.startswith(f"{5000 - found['schedules_counted']:,} schedules are left out")


async def test_counting_that_takes_too_long_is_given_up(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look ahead must not keep the database from the work of now."""
    await front.database.fetch(MANY, 1, front.tenant.id, 1000)
    monkeypatch.setattr(counting, "COUNTING_S_MAX", 0.05)
    slow = counting.SQL.count_rules.replace("count(*) DESC", "count(*) DESC, pg_sleep(60) IS NULL")
    monkeypatch.setitem(counting.SQL.blocks, "count_rules", slow)
    reply = await front.call("GET", FORECAST)
    assert (reply.status, reply.code) == (503, "timeout")
    assert reply.json["detail"].startswith("the database took too long")
    assert "Retry-After" in reply.headers


async def test_a_zone_that_is_gone_is_said_and_spoils_nothing(front: Front) -> None:
    """One schedule that cannot be read must not cost the forecast of all."""
    await define(front)
    await define(front, name="lost", cron="0 2 * * *")
    await front.database.fetch(
        "UPDATE duly.schedules SET timezone = 'No/Where' WHERE name = 'lost'"
    )
    found = await look(front)
    assert found["schedules_counted"] == 1
    assert "does not know their zone" in found["limits"][0]


async def test_a_schedule_is_found_whole_by_its_exact_name(front: Front) -> None:
    """Who knows a schedule by its name must not be given its neighbour."""
    made = await define(front, name="mail", task={"type": "x", "payload": {"a": 1}})
    await define(front, name="mail 2")
    (found,) = (await front.call("GET", "/v1/schedules?name=mail")).json["items"]
    assert found == made
    assert (await front.call("GET", "/v1/schedules?name=mai")).json["items"] == []
    theirs = await front.call("GET", "/v1/schedules?name=mail", key=front.other_producer)
    assert theirs.json["items"] == []
    both = await front.call("GET", "/v1/schedules?name=mail&type=x")
    assert (both.status, both.code) == (400, "invalid_query")
