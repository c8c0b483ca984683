"""Erasing personal data over HTTP: gone wherever it was, with a tombstone and an audit record."""

from typing import Any
from uuid import UUID

import asyncpg
import pytest

from duly.store.verify import verify
from duly.verify.report import Verification
from tests.api.conftest import Front, Reply
from tests.api.letters import fail, fail_many

SECRET = "ada@example.com"
TABLES = ("tasks", "timers", "attempts", "dead_letters", "remembered_calls", "audit")
PERSONAL: dict[str, Any] = {
    "payload": {"to": SECRET},
    "tags": {"person": SECRET},
    "concurrency_key": SECRET,
    "target": {"url": f"https://example.com/{SECRET}", "headers": {"X-Person": SECRET}},
    "delay_s": 3600,
}


async def submitted(front: Front, **more: Any) -> str:
    body = {"type": "mail.send", **PERSONAL, **more}
    reply = await front.call("POST", "/v1/tasks", body, key=front.producer)
    assert reply.status == 201, reply.body
    task_id: str = reply.json["id"]
    return task_id


async def cancelled(front: Front, **more: Any) -> str:
    """Ended, and with a call that is remembered."""
    task_id = await submitted(front, **more)
    headers = {"Idempotency-Key": f"cancel-{task_id}"}
    await front.call("POST", f"/v1/tasks/{task_id}/cancel", headers=headers)
    return task_id


async def erase(front: Front, key: str | None = "", **body: Any) -> Reply:
    return await front.call("POST", "/v1/erasures", body, key=key)


async def traces(front: Front) -> list[str]:
    """The tables in which a word still stands, in whatever column."""
    found = []
    for table in TABLES:
        rows = await front.database.fetch(
            f"SELECT row_to_json(t)::text AS text FROM duly.{table} t"
        )
        found += [table for row in rows if SECRET in row["text"]]
    return found


async def test_an_erased_task_leaves_a_tombstone_and_an_audit_record(front: Front) -> None:
    """A person's right to be forgotten was code that nothing called."""
    task_id = await cancelled(front)
    assert await traces(front) == ["tasks"]
    preview = await erase(front, task=task_id, dry_run=True)
    assert (preview.json["matched"], preview.json["erased"]) == (1, 0)
    assert await traces(front) == ["tasks"]
    reply = await erase(front, task=task_id)
    assert (reply.status, reply.json["erased"], reply.json["has_more"]) == (200, 1, False)
    assert await traces(front) == []
    task = (await front.call("GET", f"/v1/tasks/{task_id}")).json
    assert (task["state"], task["purged"]) == ("CANCELLED", True)
    assert "payload" not in task
    assert "tags" not in task
    assert task["target"] == {"url": "https://example.com"}
    (record, *_) = (await front.call("GET", "/v1/audit?action=task.erase")).json["items"]
    assert (record["subject"], record["detail"]["erased"]) == (task_id, 1)
    (stone,) = await front.database.fetch("SELECT id, actor FROM duly.tombstones")
    assert (stone["id"], stone["actor"]) == (UUID(task_id), record["actor"])
    again = await erase(front, task=task_id)
    assert (again.status, again.json["erased"]) == (200, 0)


async def test_a_live_task_is_not_erased(front: Front) -> None:
    """Without its payload it would run on nothing."""
    task_id = await submitted(front)
    reply = await erase(front, task=task_id)
    assert (reply.status, reply.code) == (409, "conflict")
    by_filter = (await erase(front, filter={"type": "mail.send"})).json
    assert (by_filter["erased"], by_filter["unfinished"]) == (0, 1)
    assert (await front.call("GET", f"/v1/tasks/{task_id}")).json["payload"] == {"to": SECRET}


async def test_a_purged_dead_letter_takes_the_tasks_data_along(front: Front) -> None:
    """Its payload stayed readable at the task, for whoever has the id."""
    one = await fail(front, payload=f'"{SECRET}"', error=SECRET)
    many = await fail(front, payload=f'"{SECRET}"', error=SECRET)
    assert (await front.call("DELETE", f"/v1/dead-letters/{one}")).status == 204
    assert (await front.call("DELETE", f"/v1/dead-letters/{one}")).status == 404
    reply = await front.call("POST", "/v1/dead-letters/purge", {"ids": [many]})
    assert reply.json["done"] == 1
    assert await traces(front) == []
    for task_id in (one, many):
        task = (await front.call("GET", f"/v1/tasks/{task_id}")).json
        assert (task["state"], task["purged"]) == ("FAILED", True)
        assert "payload" not in task
        (attempt,) = (await front.call("GET", f"/v1/tasks/{task_id}/attempts")).json["items"]
        assert "error" not in attempt


async def test_an_answer_that_is_remembered_holds_nothing_of_a_replay(front: Front) -> None:
    """A replay under an idempotency key kept the payload for a week, out of reach."""
    task_id = await fail(front, payload=f'"{SECRET}"', error="no")
    path, headers = f"/v1/dead-letters/{task_id}/replay", {"Idempotency-Key": "again"}
    made = await front.call("POST", path, headers=headers)
    assert made.json["payload"] == SECRET
    assert "remembered_calls" not in await traces(front)
    assert (await front.call("POST", path, headers=headers)).json["id"] == made.json["id"]


async def test_a_filter_erases_bite_by_bite_and_leaves_the_rest(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person's tasks among a million others: bounded, resumable, and none left out."""
    monkeypatch.setattr("duly.api.erasures.PAGE_MAX", 2)
    for _ in range(5):
        await cancelled(front)
    others = {"payload": 1, "tags": {"person": "bob"}, "concurrency_key": None, "target": None}
    kept = await cancelled(front, **others)
    body: dict[str, Any] = {"filter": {"tag": f"person:{SECRET}"}}
    batches = []
    for _ in range(10):
        batch = (await erase(front, **body)).json
        batches.append(batch["erased"])
        if not batch["has_more"]:
            break
        body["cursor"] = batch["next_cursor"]
    assert (sum(batches), max(batches)) == (5, 2)
    assert await traces(front) == []
    assert (await front.call("GET", f"/v1/tasks/{kept}")).json["tags"] == {"person": "bob"}
    assert (await erase(front, filter={"tag": f"person:{SECRET}"})).json["matched"] == 0


@pytest.mark.parametrize("asked", ["task", "filter", "tenant"])
async def test_a_dead_letter_that_outlived_its_task_is_erased(
    front: Front, owner: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """Old months are dropped, and their failures stay with a copy of the payload."""
    monkeypatch.setattr("duly.api.erasures.PAGE_MAX", 2)
    ids = await fail_many(front, 5, payload=f'"{SECRET}"')
    other = await fail(front, type="other", payload="1")
    for table in ("tasks", "attempts"):
        await owner.execute(f"DELETE FROM duly.{table} WHERE id = ANY ($1)", [*ids, other])
    assert await traces(front) == ["dead_letters"] * 5
    bodies: list[dict[str, Any]] = [{"filter": {"type": "mail.send"}}]
    if asked == "task":
        bodies = [{"task": str(task_id)} for task_id in ids]
    elif asked == "tenant":
        bodies = [{"tenant": "default"}]
    erased = 0
    for body in bodies:
        has_more = True
        cursor: dict[str, Any] = {}
        while has_more:
            batch = (await erase(front, **body, **cursor)).json
            erased += batch["erased"]
            has_more, cursor = batch["has_more"], {"cursor": batch["next_cursor"]}
    assert erased == (6 if asked == "tenant" else 5)
    assert await traces(front) == []
    assert (await erase(front, task=str(ids[0]))).json["erased"] == 0


async def test_a_whole_tenant_is_erased_by_its_name_and_no_other(front: Front) -> None:
    """One slip of a name, and another customer's history is gone."""
    theirs = await front.call(
        "POST", "/v1/tasks", {"type": "t", "payload": 1}, key=front.other_producer
    )
    await front.call("DELETE", f"/v1/tasks/{theirs.json['id']}", key=front.other_producer)
    await cancelled(front)
    await fail(front, payload=f'"{SECRET}"', error=SECRET)
    wrong = await erase(front, tenant="other")
    assert (wrong.status, wrong.code) == (422, "invalid")
    assert (await erase(front, tenant="default")).json["erased"] == 2
    assert await traces(front) == []
    read = await front.call("GET", f"/v1/tasks/{theirs.json['id']}", key=front.other_producer)
    assert read.json["payload"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"filter": {}},
        {"task": str(UUID(int=1)), "tenant": "default"},
        {"filter": {"tga": "a:b"}},
    ],
)
async def test_an_erasure_that_does_not_say_what_is_refused(
    front: Front, body: dict[str, Any]
) -> None:
    """An empty filter means everything, and everything is asked for by name."""
    await cancelled(front)
    assert (await erase(front, **body)).status == 422
    assert await traces(front) == ["tasks"]


async def test_only_an_admin_erases_and_only_what_is_its_tenants(front: Front) -> None:
    """There is no way back (I9)."""
    task_id = await cancelled(front)
    for key in (front.operator, front.producer, front.worker):
        assert (await erase(front, key, task=task_id)).status == 403
    assert (await erase(front, front.other_admin, task=task_id)).status == 404
    assert (await erase(front, task=str(UUID(int=7 << 76)))).status == 404
    assert await traces(front) == ["tasks"]


async def test_an_erased_installation_is_in_order(front: Front, engine_url: str) -> None:
    """What was erased is no loss (I1), and a tombstone over data that is still there is a lie."""
    erased = await cancelled(front)
    failed = await fail(front, payload=f'"{SECRET}"', error=SECRET)
    for task_id in (erased, failed):
        await erase(front, task=str(task_id))
    assert await violations(engine_url) == []
    liar = await cancelled(front)
    async with front.database.tenant(front.tenant.id) as session:
        await session.fetch("SET LOCAL ROLE duly_purger")
        await session.fetch(
            "INSERT INTO duly.tombstones (shard, id, tenant, purged_at, actor)"
            " SELECT shard, id, tenant, duly.now(), 'me' FROM duly.tasks WHERE id = $1",
            UUID(liar),
        )
    (found,) = await violations(engine_url)
    assert liar in found
    assert "has a tombstone, and still its data" in found


async def violations(url: str) -> list[str]:
    verification = Verification(kept_max=10)
    await verify(url, verification)
    return [str(each) for each in verification.violations]
