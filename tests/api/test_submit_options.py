"""`unique`, `debounce` and `throttle`: what a submit says about others like it."""

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.api.conftest import Front, Reply
from tests.api.test_reschedule import leased, read, settle

FAR_S = 3600.0
MANY = 12


async def submit(front: Front, key: str = "", **more: Any) -> Reply:
    body = {"type": "t.a", **more}
    return await front.call("POST", "/v1/tasks", body, key=key or front.producer)


async def stored(front: Front, **more: Any) -> dict[str, Any]:
    reply = await submit(front, **more)
    assert reply.status in (200, 201), reply.body
    task: dict[str, Any] = reply.json
    return task


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def count(front: Front, table: str) -> int:
    rows = await front.database.fetch(f"SELECT count(*) AS number FROM duly.{table}")
    return int(rows[0]["number"])


async def expire_keys(front: Front) -> None:
    """Long after."""
    await front.database.fetch(
        "UPDATE duly.idempotency_keys SET expires_at = duly.now() - interval '1 s' RETURNING key"
    )


async def test_equal_arguments_are_one_task_in_a_period(front: Front) -> None:
    """The button that was pressed twice charges twice."""
    unique = {"period_s": 60}
    submits = [
        submit(front, payload={"b": 1, "a": [n % 2]}, unique=unique, delay_s=FAR_S)
        for n in range(MANY)
    ]
    replies = await asyncio.gather(*submits)
    assert sorted(reply.status for reply in replies) == [200] * (MANY - 2) + [201] * 2
    assert len({reply.json["id"] for reply in replies}) == 2
    same = await submit(front, payload={"a": [0], "b": 1}, unique=unique, priority=9)
    assert (same.status, same.headers["Idempotent-Replay"]) == (200, "true")
    others: list[dict[str, Any]] = [
        {"type": "t.b"},
        {"payload": {"a": [2]}},
        {"key": front.other_producer},
    ]
    for other in others:
        asked: dict[str, Any] = {"payload": {"a": [0], "b": 1}, "unique": unique, **other}
        assert (await submit(front, **asked)).status == 201, other
    await expire_keys(front)
    assert (await submit(front, payload={"a": [0], "b": 1}, unique=unique)).status == 201


async def test_a_unique_task_has_an_execution_key_of_its_own(front: Front) -> None:
    """A receiver that acts once for each execution key would ignore the task of the next period."""
    first = await stored(front, unique={"period_s": 60, "key": "customer 1"}, payload=1)
    again = await stored(front, unique={"period_s": 60, "key": "customer 1"}, payload=2)
    assert (again["id"], again["payload"]) == (first["id"], 1)
    assert first["execution_key"] == first["id"]
    assert "idempotency_key" not in first
    assert "idempotency_key" not in again
    task = await leased(front)
    assert task["execution_key"] == first["id"]
    rows = await front.database.fetch("SELECT key FROM duly.idempotency_keys")
    assert not any("customer" in row["key"] for row in rows), "no text of a user's is kept"


async def test_a_batch_has_unique_tasks_too(front: Front) -> None:
    """A client that batches behind the scenes must not make two of one."""
    task = {"type": "t.a", "payload": 1, "unique": {"period_s": 60}}
    body = {"tasks": [task, task, {**task, "payload": 2}]}
    for _ in range(2):
        reply = await front.call("POST", "/v1/tasks/batch", body, key=front.producer)
        assert reply.status == 201, reply.body
    assert len({item["id"] for item in reply.json["items"]}) == 2
    assert await count(front, "tasks") == 2


async def test_a_debounced_task_fires_after_the_last_submit(front: Front) -> None:
    """A document that is saved ten times is indexed ten times."""
    debounce = {"wait_s": 60}
    first = await stored(front, payload={"doc": 1}, debounce=debounce)
    replies = await asyncio.gather(
        *(submit(front, payload={"doc": 1}, debounce=debounce) for _ in range(MANY))
    )
    assert {(reply.status, reply.json["id"]) for reply in replies} == {(200, first["id"])}
    assert await count(front, "tasks") == 1
    task = await read(front, first["id"])
    assert instant(task["next_at"]) > instant(first["run_at"])
    (row,) = await front.database.fetch(
        "SELECT keys.expires_at - timers.due_at AS apart FROM duly.idempotency_keys keys"
        " JOIN duly.timers ON timers.id = keys.task_id"
    )
    assert abs(row["apart"]) < timedelta(seconds=1)


async def test_a_debounced_task_waits_no_longer_than_it_may(front: Front) -> None:
    """Work that is put off for ever is never done."""
    debounce = {"wait_s": 60, "max_wait_s": 60.5}
    first = await stored(front, debounce=debounce)
    await asyncio.sleep(0.6)
    again = await stored(front, debounce=debounce)
    assert again["id"] == first["id"]
    latest = instant(first["created_at"]) + timedelta(seconds=61)
    assert instant((await read(front, first["id"]))["next_at"]) <= latest


@pytest.mark.parametrize("has_ended", [False, True])
async def test_after_its_start_a_submit_is_another_task(front: Front, has_ended: bool) -> None:
    """What was saved while the index was being written must be indexed, too."""
    debounce = {"wait_s": 60}
    first = await stored(front, debounce=debounce)
    run_now = await front.call("POST", f"/v1/tasks/{first['id']}/run-now", key=front.producer)
    assert run_now.status == 200
    task = await leased(front)
    assert task["id"] == first["id"]
    if has_ended:
        await settle(front, task, "completed")
    second = await submit(front, debounce=debounce)
    assert second.status == 201, second.body
    assert second.json["id"] != first["id"]
    assert (await stored(front, debounce=debounce))["id"] == second.json["id"]


async def test_a_throttle_spreads_starts_and_loses_none(front: Front) -> None:
    """A limit that each process keeps for itself is the sum of them."""
    throttle = {"limit": 2, "period_s": 10}
    tasks = await asyncio.gather(
        *(stored(front, payload=n, throttle=throttle) for n in range(MANY))
    )
    starts = sorted(instant(task["run_at"]) for task in tasks)
    gaps = {round((b - a).total_seconds(), 3) for a, b in itertools.pairwise(starts)}
    assert gaps == {5.0}
    assert abs(starts[0] - datetime.now(UTC)) < timedelta(seconds=30)
    for other in ({"type": "t.b"}, {"throttle": {**throttle, "key": "x"}}):
        free = await stored(front, **{"throttle": throttle, **other})
        assert instant(free["run_at"]) - datetime.now(UTC) < timedelta(seconds=1), other
    another = await submit(front, key=front.other_producer, throttle=throttle)
    assert instant(another.json["run_at"]) - datetime.now(UTC) < timedelta(seconds=1)


async def test_a_throttled_batch_takes_its_starts_in_order(front: Front) -> None:
    """Else the last of a batch would start first."""
    task = {"type": "t.a", "throttle": {"limit": 1, "period_s": 1}}
    items = [{**task, "payload": n} for n in range(4)]
    reply = await front.call("POST", "/v1/tasks/batch", {"tasks": items}, key=front.producer)
    starts = [instant(item["run_at"]) for item in reply.json["items"]]
    assert [round((at - starts[0]).total_seconds()) for at in starts] == [0, 1, 2, 3]


async def test_a_throttle_that_is_full_for_weeks_refuses(front: Front) -> None:
    """A task that would start next year is refused where somebody can still hear it."""
    throttle = {"limit": 1, "period_s": 31 * 86400}
    for status in (201, 201, 429):
        reply = await submit(front, throttle=throttle)
        assert reply.status == status, reply.body
    assert reply.code == "rate_limited"


@pytest.mark.parametrize(
    ("asked", "pointer"),
    [
        ({"unique": {"period_s": 1}, "idempotency_key": "k"}, "/idempotency_key"),
        ({"debounce": {"wait_s": 1}, "idempotency_key": "k"}, "/idempotency_key"),
        ({"debounce": {"wait_s": 1}, "unique": {"period_s": 1}}, "/debounce"),
        ({"debounce": {"wait_s": 1}, "delay_s": 1}, "/debounce"),
        ({"debounce": {"wait_s": 1}, "jitter_s": 1}, "/jitter_s"),
        ({"throttle": {"limit": 1, "period_s": 1}, "delay_s": 0}, "/throttle"),
        ({"throttle": {"limit": 1, "period_s": 1}, "debounce": {"wait_s": 1}}, "/throttle"),
        ({"throttle": {"limit": 0, "period_s": 1}}, "/throttle/limit"),
        ({"unique": {"period_s": 32 * 86400}}, "/unique/period_s"),
        ({"unique": {"period_s": 60, "keys": "x"}}, "/unique"),
    ],
)
async def test_options_that_contradict_each_other_are_refused(
    front: Front, asked: dict[str, Any], pointer: str
) -> None:
    """An option that is ignored in silence is found in production."""
    reply = await submit(front, **asked)
    assert (reply.status, reply.code) == (422, "invalid")
    assert any(error["pointer"].startswith(pointer) for error in reply.json["errors"]), reply.body
    assert await count(front, "tasks") == 0


async def test_a_schedule_has_no_options_of_single_submits(front: Front) -> None:
    """Each occurrence would be answered with the first one's task."""
    for option in ({"unique": {"period_s": 60}}, {"throttle": {"limit": 1, "period_s": 1}}):
        body = {"name": "n", "cron": "0 * * * *", "task": {"type": "t.a", **option}}
        reply = await front.call("POST", "/v1/schedules", body, key=front.operator)
        assert reply.status == 422, reply.body
