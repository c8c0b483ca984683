"""A task that was given another instant: each reader sees the new one, and none the old one."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.api.conftest import Front

LATER = "2030-05-01T12:00:00Z"
LAG_SUM = "duly_scheduling_lag_seconds_sum"


async def submitted(front: Front, **more: Any) -> str:
    reply = await front.call("POST", "/v1/tasks", {"type": "t.a", **more}, key=front.producer)
    assert reply.status == 201, reply.body
    task_id: str = reply.json["id"]
    return task_id


async def patched(front: Front, task_id: str, **asked: Any) -> dict[str, Any]:
    reply = await front.call("PATCH", f"/v1/tasks/{task_id}", asked, key=front.producer)
    assert reply.status == 200, reply.body
    task: dict[str, Any] = reply.json
    return task


async def read(front: Front, task_id: str) -> dict[str, Any]:
    task: dict[str, Any] = (await front.call("GET", f"/v1/tasks/{task_id}")).json
    return task


async def leased(front: Front) -> dict[str, Any]:
    await front.make_ready()
    reply = await front.call(
        "POST", "/v1/worker/lease", {"worker_id": "w", "wait_s": 0}, key=front.worker
    )
    (task,) = reply.json["tasks"]
    found: dict[str, Any] = task
    return found


async def settle(front: Front, task: dict[str, Any], outcome: str, **more: Any) -> None:
    settlement = {"id": task["id"], "fence": task["fence"], "outcome": outcome, **more}
    body = {"worker_id": "w", "settlements": [settlement]}
    reply = await front.call("POST", "/v1/worker/settle", body, key=front.worker)
    assert reply.json["items"][0]["status"] == "settled", reply.body


def an_hour_ago() -> str:
    return (datetime.now(UTC) - timedelta(hours=1)).isoformat()


async def metric(front: Front, name: str) -> float:
    text = (await front.call("GET", "/metrics")).body.decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


async def test_a_rescheduled_task_shows_its_new_instant_alone(front: Front) -> None:
    """A caller that postponed a task reads back the old instant, and postpones it again."""
    task_id = await submitted(front, delay_s=3600)
    moved = await patched(front, task_id, run_at=LATER)
    assert (moved["run_at"], moved["next_at"]) == (LATER, LATER)
    assert (await read(front, task_id))["run_at"] == LATER
    (listed,) = (await front.call("GET", "/v1/tasks")).json["items"]
    assert listed["run_at"] == LATER
    (scheduled,) = (await front.call("GET", "/v1/tasks?state=SCHEDULED")).json["items"]
    assert scheduled["run_at"] == LATER
    before = "/v1/tasks?run_before=2030-01-01T00:00:00Z"
    assert (await front.call("GET", before)).json["items"] == []
    await front.call("POST", f"/v1/tasks/{task_id}/cancel")
    assert (await read(front, task_id))["run_at"] == LATER


async def test_a_changed_priority_leaves_the_instant_alone(front: Front) -> None:
    """A fire time that moves with the priority is a reschedule that was never asked for."""
    task_id = await submitted(front, run_at=LATER)
    assert (await patched(front, task_id, priority=9))["run_at"] == LATER
    moved = await patched(front, task_id, delay_s=60)
    again = await patched(front, task_id, priority=1)
    assert again["run_at"] == moved["run_at"] != LATER


@pytest.mark.parametrize("way", ["run-now", "delay", "run_at"])
async def test_a_worker_is_told_the_instant_that_stands(front: Front, way: str) -> None:
    """A negative lag, and a `scheduled_for` in the future: the task seems to have run too early."""
    task_id = await submitted(front, delay_s=3600)
    if way == "run-now":
        moved = (await front.call("POST", f"/v1/tasks/{task_id}/run-now")).json
    elif way == "delay":
        moved = await patched(front, task_id, delay_s=0)
    else:
        moved = await patched(front, task_id, run_at=datetime.now(UTC).isoformat())
    task = await leased(front)
    assert task["scheduled_for"] == moved["run_at"] <= task["started_at"]
    assert 0.0 <= await metric(front, LAG_SUM) < 60.0
    await settle(front, task, "completed")
    assert (await read(front, task_id))["run_at"] == moved["run_at"]


async def test_a_retry_and_a_snooze_keep_the_fire_time(front: Front) -> None:
    """Taken for the fire time, a retry's due time tells the receiver of another occasion; taken
    for lag, a snooze of an hour is an hour's outage."""
    task_id = await submitted(front, retry={"max_attempts": 3, "initial_s": 0, "jitter": False})
    moved = await patched(front, task_id, run_at=an_hour_ago())
    first = await leased(front)
    known = await metric(front, LAG_SUM)
    await settle(front, first, "failed", error="no", retry_in_s=0)
    second = await leased(front)
    assert second["scheduled_for"] == first["scheduled_for"] == moved["run_at"]
    assert await metric(front, LAG_SUM) == known
    await settle(front, second, "rejected", error="no")
    letter = (await front.call("GET", f"/v1/dead-letters/{task_id}")).json
    assert letter["run_at"] == moved["run_at"] == (await read(front, task_id))["run_at"]


async def test_a_snoozed_task_adds_no_lag(front: Front) -> None:
    """A handler that puts its task off for an hour is not a scheduler that is an hour late."""
    await submitted(front)
    task = await leased(front)
    observed = await metric(front, "duly_scheduling_lag_seconds_count")
    await settle(front, task, "snoozed", retry_in_s=0)
    assert (await leased(front))["scheduled_for"] == task["scheduled_for"]
    assert await metric(front, "duly_scheduling_lag_seconds_count") == observed == 1


async def test_an_explanation_names_the_new_instant(front: Front) -> None:
    """The answer to "why does it not run" must not be an instant that was given up."""
    task_id = await submitted(front, delay_s=60)
    await patched(front, task_id, run_at=LATER)
    told = (await front.call("GET", f"/v1/tasks/{task_id}/explain")).json
    assert "2030-05-01T12:00:00Z" in told["summary"]
    assert told["estimate_at"] == LATER


async def test_a_task_may_be_moved_back_and_forth(front: Front) -> None:
    """The last word counts, however many there were."""
    task_id = await submitted(front, delay_s=60)
    await patched(front, task_id, run_at=LATER)
    soon = (datetime.now(UTC) + timedelta(seconds=90)).isoformat().replace("+00:00", "Z")
    assert (await patched(front, task_id, run_at=soon))["run_at"] == soon
