"""Tasks over HTTP: what is acknowledged is stored, what is refused leaves nothing."""

import asyncio
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from tests.api.conftest import NEXT_YEAR, Front

TASK = {"type": "invoice.charge", "payload": {"invoice": 1}, "delay_s": 3600}


async def submitted(front: Front, **more: Any) -> dict[str, Any]:
    reply = await front.call("POST", "/v1/tasks", TASK | more, key=front.producer)
    assert reply.status == 201, reply.body
    task: dict[str, Any] = reply.json
    return task


async def stored(front: Front) -> int:
    (row,) = await front.database.fetch("SELECT count(*) AS tasks FROM duly.tasks")
    count: int = row["tasks"]
    return count


async def test_a_submitted_task_reads_back_as_it_was_asked(front: Front) -> None:
    """A field that gets lost on the way changes what somebody's money does."""
    asked = {
        "type": "invoice.charge",
        "payload": {"invoice": "ä", "list": [1, 2.5, None]},
        "run_at": f"{NEXT_YEAR}-12-24T18:00:00+01:00",
        "target": {"url": "https://api.example.com/charge", "headers": {"X-Team": "billing"}},
        "priority": 8,
        "retry": {"max_attempts": 3, "backoff": "fixed", "initial_s": 1},
        "timeout_s": 12,
        "start_by": f"{NEXT_YEAR + 1}-01-01T00:00:00Z",
        "concurrency_key": "customer:1",
        "concurrency_limit": 2,
        "idempotency_key": "k-1",
        "tags": {"env": "prod"},
    }
    created = (await front.call("POST", "/v1/tasks", asked, key=front.producer)).json
    assert created["state"] == "SCHEDULED"
    assert created["run_at"] == f"{NEXT_YEAR}-12-24T17:00:00Z"
    read = (await front.call("GET", f"/v1/tasks/{created['id']}", key=front.producer)).json
    for name in ("type", "target", "priority", "timeout_s", "start_by", "concurrency_key", "tags"):
        assert read[name] == asked[name] == created[name], name
    assert read["payload"] == asked["payload"]
    assert read["max_attempts"] == 3
    assert read["retry"] | asked["retry"] == read["retry"]
    assert read["execution_key"] == "k-1"


async def test_the_same_key_and_body_give_the_same_task(front: Front) -> None:
    """A retry after a lost answer must not charge twice, however its JSON is written."""
    first = await front.call(
        "POST", "/v1/tasks", TASK, key=front.producer, headers={"Idempotency-Key": "k"}
    )
    again = await front.call(
        "POST",
        "/v1/tasks",
        key=front.producer,
        raw=b'{ "idempotency_key": "k", "delay_s":3600.0, "payload": { "invoice" :1},'
        b' "type":"invoice.charge"}',
    )
    assert (first.status, again.status) == (201, 200)
    assert again.headers["Idempotent-Replay"] == "true"
    assert again.json["id"] == first.json["id"]
    other = await front.call(
        "POST", "/v1/tasks", TASK | {"priority": 9, "idempotency_key": "k"}, key=front.producer
    )
    assert (other.status, other.code) == (409, "idempotency_mismatch")
    assert await stored(front) == 1


async def test_many_at_once_with_one_key_are_one_task(front: Front) -> None:
    """A client with a nervous retry races itself."""
    replies = await asyncio.gather(
        *(
            front.call("POST", "/v1/tasks", TASK | {"idempotency_key": "k"}, key=front.producer)
            for _ in range(20)
        )
    )
    assert sorted({reply.status for reply in replies}) in ([200, 201], [201])
    assert len({reply.json["id"] for reply in replies}) == 1
    assert await stored(front) == 1


async def test_a_batch_is_stored_as_a_whole(front: Front) -> None:
    """Half a batch is worse than none: its author cannot tell which half."""
    tasks = [TASK | {"payload": n, "idempotency_key": f"k{n}" if n % 2 else None} for n in range(9)]
    reply = await front.call("POST", "/v1/tasks/batch", {"tasks": tasks}, key=front.producer)
    assert reply.status == 201
    ids = [item["id"] for item in reply.json["items"]]
    assert len(set(ids)) == 9
    for number, task_id in enumerate(ids):
        read = await front.call("GET", f"/v1/tasks/{task_id}", key=front.producer)
        assert read.json["payload"] == number


async def test_one_bad_item_refuses_the_whole_batch_and_is_pointed_at(front: Front) -> None:
    """Its author must learn which one, and find nothing stored."""
    tasks = [TASK, TASK | {"priority": 10}, TASK | {"nmae": 1}]
    reply = await front.call("POST", "/v1/tasks/batch", {"tasks": tasks}, key=front.producer)
    assert (reply.status, reply.code) == (422, "invalid")
    pointers = {error["pointer"] for error in reply.json["errors"]}
    assert pointers == {"/tasks/1/priority", "/tasks/2/nmae"}
    assert await stored(front) == 0


async def test_a_key_that_means_something_else_refuses_the_whole_batch(front: Front) -> None:
    """The rest of the batch must not slip in beside a mismatch."""
    await submitted(front, idempotency_key="known")
    tasks = [TASK, TASK | {"idempotency_key": "known", "priority": 1}]
    reply = await front.call("POST", "/v1/tasks/batch", {"tasks": tasks}, key=front.producer)
    assert (reply.status, reply.code) == (409, "idempotency_mismatch")
    assert reply.json["errors"][0]["pointer"] == "/tasks/1/idempotency_key"
    assert await stored(front) == 1


async def test_a_key_that_outlived_its_task_refuses_the_whole_batch(
    front: Front, owner: asyncpg.Connection
) -> None:
    """Refused after the commit, the rest is stored, and whoever sends it again has it twice."""
    known = await submitted(front, idempotency_key="old")
    for table in ("timers", "tasks"):
        await owner.execute(f"DELETE FROM duly.{table} WHERE id = $1", UUID(known["id"]))
    tasks = [TASK, TASK | {"idempotency_key": "new"}, TASK | {"idempotency_key": "old"}]
    reply = await front.call("POST", "/v1/tasks/batch", {"tasks": tasks}, key=front.producer)
    assert (reply.status, reply.code) == (409, "conflict")
    assert [error["pointer"] for error in reply.json["errors"]] == ["/tasks/2/idempotency_key"]
    assert await stored(front) == 0
    reply = await front.call("POST", "/v1/tasks/batch", {"tasks": tasks[:2]}, key=front.producer)
    assert reply.status == 201
    assert await stored(front) == 2


async def test_the_same_key_twice_in_a_batch_is_one_task_or_a_clash(front: Front) -> None:
    """Two rows of one key in one statement would make the database refuse all of it."""
    same = TASK | {"idempotency_key": "k"}
    reply = await front.call("POST", "/v1/tasks/batch", {"tasks": [same, same]}, key=front.producer)
    assert len({item["id"] for item in reply.json["items"]}) == 1
    clash = [same | {"idempotency_key": "n"}, same | {"idempotency_key": "n", "priority": 1}]
    reply = await front.call("POST", "/v1/tasks/batch", {"tasks": clash}, key=front.producer)
    assert reply.code == "idempotency_mismatch"
    assert await stored(front) == 1


async def test_a_batch_may_come_as_lines(front: Front) -> None:
    """Who streams rows out of a database has lines, not one document."""
    lines = b"\n".join(msgspec.json.encode(TASK | {"payload": n}) for n in range(3)) + b"\n"
    headers = {"Content-Type": "application/x-ndjson"}
    reply = await front.call(
        "POST", "/v1/tasks/batch", raw=lines, key=front.producer, headers=headers
    )
    assert len(reply.json["items"]) == 3
    broken = lines + b'{"type": 1}'
    reply = await front.call(
        "POST", "/v1/tasks/batch", raw=broken, key=front.producer, headers=headers
    )
    assert reply.json["errors"][0]["pointer"] == "/tasks/3/type"


@pytest.mark.parametrize(("count", "status"), [(0, 422), (1000, 201), (1001, 422)])
async def test_a_batch_has_from_one_to_a_thousand_tasks(
    front: Front, count: int, status: int
) -> None:
    """An unbounded batch is an unbounded transaction."""
    body = {"tasks": [TASK] * count}
    reply = await front.call("POST", "/v1/tasks/batch", body, key=front.producer)
    assert reply.status == status


async def test_a_batch_under_one_key_is_repeated_without_a_second_task(front: Front) -> None:
    """The answer to a whole batch can be lost too."""
    body, headers = {"tasks": [TASK, TASK]}, {"Idempotency-Key": "batch-1"}
    first = await front.call("POST", "/v1/tasks/batch", body, key=front.producer, headers=headers)
    again = await front.call("POST", "/v1/tasks/batch", body, key=front.producer, headers=headers)
    assert [i["id"] for i in first.json["items"]] == [i["id"] for i in again.json["items"]]
    assert await stored(front) == 2


async def test_lists_narrow_and_page(front: Front) -> None:
    """A list that loses or repeats one at a page's edge hides a task from its owner."""
    for number in range(5):
        await submitted(front, tags={"n": str(number)}, type="a" if number % 2 else "b")
    seen: list[str] = []
    cursor = ""
    while True:
        reply = await front.call("GET", f"/v1/tasks?limit=2{cursor}", key=front.producer)
        seen += [item["id"] for item in reply.json["items"]]
        if reply.json["next_cursor"] is None:
            break
        cursor = f"&cursor={reply.json['next_cursor']}"
    assert len(seen) == len(set(seen)) == 5
    typed = await front.call("GET", "/v1/tasks?type=a", key=front.producer)
    assert len(typed.json["items"]) == 2
    tagged = await front.call("GET", "/v1/tasks?tag=n:3&state=SCHEDULED", key=front.producer)
    assert [item["tags"] for item in tagged.json["items"]] == [{"n": "3"}]
    assert "payload" not in tagged.json["items"][0]


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "state=DONE", "tag=none", "cursor=x", "lmit=3", "limit=1&limit=2"],
)
async def test_a_wrong_query_is_refused(front: Front, query: str) -> None:
    """Ignored, it would answer a question that nobody asked."""
    reply = await front.call("GET", f"/v1/tasks?{query}", key=front.producer)
    assert (reply.status, reply.code) == (400, "invalid_query")


async def test_a_cancelled_task_stays_cancelled(front: Front) -> None:
    """Cancel is sent twice as often as once."""
    task = await submitted(front)
    first = await front.call("POST", f"/v1/tasks/{task['id']}/cancel", key=front.producer)
    assert (first.status, first.json["state"]) == (200, "CANCELLED")
    again = await front.call("DELETE", f"/v1/tasks/{task['id']}", key=front.producer)
    assert (again.status, again.json["state"]) == (200, "CANCELLED")
    moved = await front.call("POST", f"/v1/tasks/{task['id']}/run-now", key=front.producer)
    assert (moved.status, moved.code) == (409, "already_terminal")


async def test_rescheduling_moves_the_instant_and_rings(front: Front) -> None:
    """Without the ring the owner of the slot would not know before its next load."""
    task = await submitted(front)
    path = f"/v1/tasks/{task['id']}"
    later = await front.call(
        "PATCH", path, {"run_at": f"{NEXT_YEAR}-01-01T00:00:00Z", "priority": 9}, key=front.producer
    )
    assert (later.json["next_at"], later.json["priority"]) == (f"{NEXT_YEAR}-01-01T00:00:00Z", 9)
    now = await front.call("POST", f"{path}/run-now", key=front.producer)
    assert now.json["state"] == "READY"
    assert len(front.hints) == 2


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"run_at": f"{NEXT_YEAR}-01-01T00:00:00Z", "delay_s": 1},
        {"run_at": "2020-01-01T00:00:00Z"},
        {"priority": -1},
        {"delay_s": -1},
        {"type": "a"},
    ],
)
async def test_a_wrong_reschedule_is_refused(front: Front, body: dict[str, Any]) -> None:
    """A refusal must leave the instant as it was."""
    task = await submitted(front)
    reply = await front.call("PATCH", f"/v1/tasks/{task['id']}", body, key=front.producer)
    assert (reply.status, reply.code) == (422, "invalid")


async def test_many_are_cancelled_by_filter_after_a_dry_run(front: Front) -> None:
    """One filter with a mistake in it cancels a company's day."""
    for number in range(4):
        await submitted(front, type="a" if number % 2 else "b")
    body: dict[str, Any] = {"filter": {"type": "a"}, "dry_run": True}
    dry = await front.call("POST", "/v1/tasks/cancel", body, key=front.producer)
    assert (dry.json["matched"], dry.json["cancelled"]) == (2, 0)
    wet = await front.call(
        "POST", "/v1/tasks/cancel", body | {"dry_run": False}, key=front.producer
    )
    assert (wet.json["matched"], wet.json["cancelled"], wet.json["has_more"]) == (2, 2, False)
    left = await front.call("GET", "/v1/tasks?state=SCHEDULED", key=front.producer)
    assert {item["type"] for item in left.json["items"]} == {"b"}


async def test_a_wait_ends_with_the_task(front: Front) -> None:
    """A caller that polls by itself is slow or a load."""
    task = await submitted(front)
    path = f"/v1/tasks/{task['id']}"
    waiting = asyncio.create_task(front.call("GET", f"{path}/wait?timeout_s=30"))
    while not front.door.waiting.ended:  # noqa: ASYNC110 (until the call has arrived)
        await asyncio.sleep(0.005)
    await front.call("POST", f"{path}/cancel", key=front.producer)
    assert (await waiting).json["state"] == "CANCELLED"
    assert not front.door.waiting.ended


async def test_a_wait_that_is_up_answers_with_the_task_as_it_stands(front: Front) -> None:
    """A wait is no promise that the task will end."""
    task = await submitted(front)
    reply = await front.call("GET", f"/v1/tasks/{task['id']}/wait?timeout_s=0.01")
    assert (reply.status, reply.json["state"]) == (200, "SCHEDULED")


async def test_every_attempt_is_listed(front: Front) -> None:
    """The record is what is left when somebody asks what happened."""
    task = await submitted(front)
    await front.call("DELETE", f"/v1/tasks/{task['id']}", key=front.producer)
    reply = await front.call("GET", f"/v1/tasks/{task['id']}/attempts", key=front.producer)
    (attempt,) = reply.json["items"]
    assert (attempt["outcome"], attempt["state"], attempt["attempt"]) == (
        "cancelled",
        "CANCELLED",
        0,
    )


async def test_control_is_recorded_with_its_actor(front: Front) -> None:
    """The audit must tell who cancelled it."""
    task = await submitted(front)
    await front.call("POST", f"/v1/tasks/{task['id']}/run-now", key=front.producer)
    await front.call("DELETE", f"/v1/tasks/{task['id']}", key=front.producer)
    rows = await front.database.fetch("SELECT actor, action, subject FROM duly.audit ORDER BY id")
    assert [row["action"] for row in rows] == ["task.run_now", "task.cancel"]
    assert {row["subject"] for row in rows} == {task["id"]}
    assert all(row["actor"].startswith("key:") for row in rows)
