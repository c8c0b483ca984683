"""Bulk operations over HTTP: preview, start, follow, stop, continue; walls, roles, bad input."""

from typing import Any

import pytest

from duly.maintenance.bulk_operations import BulkOperationsRole
from duly.store.bulk import LIVE_MAX
from tests.api.conftest import Front, Reply
from tests.api.letters import fail_many

MISSING = "01a1e1c6-79a5-49e0-b8ce-d56541d3d148"
TASK = {"type": "mail.send", "delay_s": 3600, "tags": {"person": "ada"}}


async def submit_many(front: Front, count: int, **more: Any) -> list[str]:
    ids = []
    for _ in range(count):
        reply = await front.call("POST", "/v1/tasks", TASK | more, key=front.producer)
        assert reply.status == 201, reply.body
        ids.append(reply.json["id"])
    return ids


async def bulk(front: Front, action: str, key: str | None = "", **more: Any) -> Reply:
    body = {"action": action, "filter": {"type": "mail.send"}, "rate_per_s": 10_000} | more
    return await front.call("POST", "/v1/bulk", body, key=key)


async def run_out(front: Front) -> None:
    """As the maintenance leader would, until nothing is due."""
    role = BulkOperationsRole(front.database, front.environment, front.door.events, lambda: True)
    for _ in range(20):
        if await role.tick() > 1.0:
            return
    raise AssertionError("the operation does not end")


async def show(front: Front, operation: Reply, key: str | None = "") -> Any:
    return (await front.call("GET", f"/v1/bulk/{operation.json['id']}", key=key)).json


async def test_a_preview_is_followed_by_an_operation_that_ends(front: Front) -> None:
    """The dashboard's bulk bar asked a route that was not there."""
    ids = await submit_many(front, 3)
    (spared,) = await submit_many(front, 1, type="other")
    seen = await bulk(front, "cancel", dry_run=True)
    assert (seen.status, seen.json["matched"], seen.json["has_more"]) == (200, 3, False)
    assert {item["id"] for item in seen.json["sample"]} == set(ids)
    assert {item["type"] for item in seen.json["sample"]} == {"mail.send"}
    started = await bulk(front, "cancel", key=front.producer)
    assert (started.status, started.json["state"], started.json["matched"]) == (201, "RUNNING", 3)
    await run_out(front)
    ended = await show(front, started)
    assert (ended["state"], ended["done"], ended["refused"]) == ("DONE", 3, 0)
    for task_id in ids:
        assert (await front.call("GET", f"/v1/tasks/{task_id}")).json["state"] == "CANCELLED"
    assert (await front.call("GET", f"/v1/tasks/{spared}")).json["state"] == "SCHEDULED"


async def test_all_of_it_is_audited_as_the_persons_without_a_tags_value(front: Front) -> None:
    """The audit is for ever: a name that was erased everywhere else would still stand there."""
    await submit_many(front, 1)
    started = await bulk(front, "cancel", filter={"tag": "person:ada"}, key=front.operator)
    await run_out(front)
    entries = (await front.call("GET", "/v1/audit?limit=2")).json["items"]
    assert [entry["action"] for entry in entries] == ["bulk.cancel", "bulk.start"]
    assert {entry["subject"] for entry in entries} == {started.json["id"]}
    assert {entry["actor"] for entry in entries} == {started.json["actor"]}
    assert entries[1]["detail"]["filter"] == {"tag": "person"}
    assert entries[0]["detail"]["done"] == 1


async def test_run_now_and_reschedule_move_and_ring(front: Front) -> None:
    """A task that is due now and told to no scheduler waits for the next sweep."""
    (task_id,) = await submit_many(front, 1)
    front.hints.clear()
    await bulk(front, "run_now")
    await run_out(front)
    assert len(front.hints) == 1
    assert (await front.call("GET", f"/v1/tasks/{task_id}")).json["state"] == "READY"
    await bulk(front, "reschedule", delay_s=600)
    await run_out(front)
    assert (await front.call("GET", f"/v1/tasks/{task_id}")).json["state"] == "SCHEDULED"


async def test_replay_and_purge_take_a_group_of_dead_letters(front: Front) -> None:
    """Failures are decided by their cause, thousands at a time."""
    await fail_many(front, 2, "boom")
    await fail_many(front, 1, "another cause entirely")
    groups = (await front.call("GET", "/v1/dead-letters?group_by=fingerprint")).json["items"]
    group = {"fingerprint": groups[0]["fingerprint"]}
    front.hints.clear()
    started = await bulk(front, "replay", filter=group, key=front.operator)
    await run_out(front)
    assert (await show(front, started))["done"] == 2
    assert len(front.hints) == 2
    purging = await bulk(front, "purge", filter={"replayed": True})
    await run_out(front)
    assert (await show(front, purging))["done"] == 2
    assert len((await front.call("GET", "/v1/dead-letters")).json["items"]) == 1


async def test_a_stopped_operation_stays_stopped(front: Front) -> None:
    """A stop that is answered and not kept is worse than none."""
    (task_id,) = await submit_many(front, 1)
    started = await bulk(front, "cancel")
    path = f"/v1/bulk/{started.json['id']}"
    stopped = await front.call("POST", f"{path}/stop")
    assert (stopped.status, stopped.json["state"]) == (200, "STOPPED")
    assert (await front.call("POST", f"{path}/stop")).status == 200
    assert (await front.call("POST", f"{path}/continue")).code == "conflict"
    await run_out(front)
    assert (await front.call("GET", f"/v1/tasks/{task_id}")).json["state"] == "SCHEDULED"
    ended = await bulk(front, "cancel")
    await run_out(front)
    refused = await front.call("POST", f"/v1/bulk/{ended.json['id']}/stop")
    assert (refused.status, refused.code) == (409, "conflict")


async def test_a_canary_pauses_and_is_continued(front: Front) -> None:
    """The page follows until a state that does not go on by itself."""
    await submit_many(front, 3)
    started = await bulk(front, "cancel", canary=1)
    await run_out(front)
    paused = await show(front, started)
    assert (paused["state"], paused["done"]) == ("PAUSED_AFTER_CANARY", 1)
    await front.call("POST", f"/v1/bulk/{started.json['id']}/continue")
    await run_out(front)
    assert (await show(front, started))["done"] == 3


async def test_operations_are_listed_newest_first_page_by_page(front: Front) -> None:
    """What runs at this moment must be found without knowing its id."""
    made = [(await bulk(front, "cancel")).json["id"] for _ in range(3)]
    first = (await front.call("GET", "/v1/bulk?limit=2")).json
    rest = (await front.call("GET", f"/v1/bulk?limit=2&cursor={first['next_cursor']}")).json
    assert [item["id"] for item in first["items"] + rest["items"]] == made[::-1]
    assert rest["next_cursor"] is None


async def test_an_operation_of_another_tenant_is_not_there(front: Front) -> None:
    """I9: neither seen nor stopped, and not told apart from one that never was."""
    await submit_many(front, 1)
    started = await bulk(front, "cancel")
    for method, suffix in (("GET", ""), ("POST", "/stop"), ("POST", "/continue")):
        path = f"/v1/bulk/{started.json['id']}{suffix}"
        foreign = await front.call(method, path, key=front.other_admin)
        missing = await front.call(method, f"/v1/bulk/{MISSING}{suffix}", key=front.other_admin)
        assert (
            (foreign.status, foreign.code) == (missing.status, missing.code) == (404, "not_found")
        )
    assert (await front.call("GET", "/v1/bulk", key=front.other_admin)).json["items"] == []
    seen = await bulk(front, "cancel", key=front.other_admin, dry_run=True)
    assert seen.json["matched"] == 0
    assert (await show(front, started))["state"] == "RUNNING"


async def test_roles_and_limited_keys_are_respected(front: Front) -> None:
    """A bulk route must not do what one call at a time is refused."""
    limited = await front.make_key(front.tenant, "operator", types=["mail.send"])
    assert (await bulk(front, "cancel", key=limited)).status == 201
    assert (await bulk(front, "cancel", key=limited, filter={})).status == 403
    assert (await bulk(front, "purge", key=limited, filter={"type": "other"})).status == 403
    everything = await bulk(front, "cancel", filter={})
    for change in ("stop", "continue"):
        path = f"/v1/bulk/{everything.json['id']}/{change}"
        assert (await front.call("POST", path, key=limited)).status == 403
    for action in ("replay", "purge"):
        assert (await bulk(front, action, key=front.producer)).status == 403
        assert (await bulk(front, action, key=front.producer, dry_run=True)).status == 403
    assert (await bulk(front, "cancel", key=front.worker)).status == 403
    purging = await bulk(front, "purge", key=front.operator)
    stop = f"/v1/bulk/{purging.json['id']}/stop"
    assert (await front.call("POST", stop, key=front.producer)).status == 403


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"action": "cancel", "filter": {"state": "COMPLETED"}}, "/filter/state"),
        ({"action": "cancel", "filter": {"fingerprint": "ab"}}, "/filter/fingerprint"),
        ({"action": "replay", "filter": {"replayed": True}}, "/filter/replayed"),
        ({"action": "replay", "filter": {"state": "READY"}}, "/filter/state"),
        (
            {"action": "purge", "filter": {"run_before": "2026-01-01T00:00:00Z"}},
            "/filter/run_before",
        ),
        ({"action": "reschedule", "filter": {}}, "/delay_s"),
        ({"action": "run_now", "filter": {}, "delay_s": 1}, "/delay_s"),
        ({"action": "explode", "filter": {}}, "/action"),
        ({"action": "cancel"}, ""),
        ({"action": "cancel", "filter": {"tag": "no-colon"}}, "/filter/tag"),
        ({"action": "cancel", "filter": {}, "rate_per_s": 0}, "/rate_per_s"),
        ({"action": "cancel", "filter": {}, "rate_per_s": 10_001}, "/rate_per_s"),
        ({"action": "cancel", "filter": {}, "canary": 0}, "/canary"),
        ({"action": "cancel", "filter": {}, "canary": 1_000_001}, "/canary"),
        ({"action": "cancel", "filter": {"types": "x"}}, "/filter"),
    ],
)
async def test_bad_input_is_refused_and_stores_nothing(
    front: Front, body: dict[str, Any], pointer: str
) -> None:
    """A filter that is half understood acts on the other half."""
    reply = await front.call("POST", "/v1/bulk", body)
    assert (reply.status, reply.code) == (422, "invalid"), reply.body
    assert any(error["pointer"].startswith(pointer) for error in reply.json["errors"])
    assert await front.database.fetch("SELECT FROM duly.bulk_operations") == []


async def test_ids_that_are_none_are_not_found(front: Front) -> None:
    """A mistyped id is no fault of the server's."""
    for text in ("nothing", "%00", "'; drop", MISSING):
        reply = await front.call("GET", f"/v1/bulk/{text}")
        assert reply.status in (400, 404), reply.body


async def test_too_many_operations_are_refused(front: Front) -> None:
    """A script in a loop would fill the table."""
    for _ in range(LIVE_MAX):
        assert (await bulk(front, "cancel")).status == 201
    assert (await bulk(front, "cancel")).code == "too_many"


async def test_a_repeated_start_with_one_key_starts_once(front: Front) -> None:
    """A retry after a lost answer must not run a bulk replay twice."""
    body = {"action": "cancel", "filter": {}}
    headers = {"Idempotency-Key": "once"}
    first = await front.call("POST", "/v1/bulk", body, headers=headers)
    again = await front.call("POST", "/v1/bulk", body, headers=headers)
    assert first.json["id"] == again.json["id"]
    assert len(await front.database.fetch("SELECT FROM duly.bulk_operations")) == 1


async def start_workflows(front: Front, count: int, **more: Any) -> list[str]:
    ids = []
    for _ in range(count):
        body = {"name": "order.fulfil", "nodes": {"a": {"type": "x"}}} | more
        reply = await front.call("POST", "/v1/workflows", body, key=front.producer)
        assert reply.status == 201, reply.body
        ids.append(reply.json["id"])
    return ids


async def test_workflows_are_paused_cancelled_and_resumed_by_filter(front: Front) -> None:
    """An incident of one type of workflow is ended by one call, and nothing else is touched."""
    ids = await start_workflows(front, 3)
    (spared,) = await start_workflows(front, 1, name="other")
    wanted = {"name": "order.fulfil"}
    seen = await bulk(front, "pause_workflows", filter=wanted, dry_run=True)
    assert (seen.status, seen.json["matched"]) == (200, 3)
    assert {item["id"] for item in seen.json["sample"]} == set(ids)
    for action, state in (
        ("pause_workflows", "RUNNING"),
        ("unpause_workflows", "RUNNING"),
        ("cancel_workflows", "CANCELLED"),
        ("resume_workflows", "CANCELLED"),
    ):
        started = await bulk(front, action, filter=wanted, key=front.producer)
        await run_out(front)
        ended = await show(front, started)
        assert (ended["state"], ended["done"], ended["refused"]) == ("DONE", 3, 0), action
        for each in ids:
            found = (await front.call("GET", f"/v1/workflows/{each}")).json
            assert found["state"] == state
            assert ("paused_at" in found) == (action == "pause_workflows")
    assert (await front.call("GET", f"/v1/workflows/{spared}")).json["state"] == "RUNNING"
    listed = (await front.call("GET", "/v1/workflows?state=RUNNING")).json["items"]
    assert {each.get("resumed_from") for each in listed} == {*ids, None}


@pytest.mark.parametrize(
    ("action", "wanted", "pointer"),
    [
        ("cancel_workflows", {"state": "FAILED"}, "/filter/state"),
        ("resume_workflows", {"state": "RUNNING"}, "/filter/state"),
        ("resume_workflows", {"state": "COMPLETED"}, "/filter/state"),
        ("pause_workflows", {"type": "x"}, "/filter/type"),
        ("cancel", {"name": "x"}, "/filter/name"),
        ("replay", {"name": "x"}, "/filter/name"),
    ],
)
async def test_a_filter_that_does_not_fit_is_refused(
    front: Front, action: str, wanted: dict[str, str], pointer: str
) -> None:
    """A field that was left out without a word would match more than was meant."""
    reply = await bulk(front, action, filter=wanted)
    assert (reply.status, reply.json["errors"][0]["pointer"]) == (422, pointer)


async def test_a_limited_key_changes_no_workflows_by_filter(front: Front) -> None:
    """A workflow has tasks of many types."""
    key = await front.make_key(front.tenant, "producer", types=["x"])
    reply = await bulk(front, "cancel_workflows", key=key, filter={"name": "order.fulfil"})
    assert reply.status == 403, reply.body
