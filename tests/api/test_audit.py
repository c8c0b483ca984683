"""The audit: complete, readable by its own tenant alone, and never changed by anybody."""

from typing import Any

import asyncpg
import pytest

from tests.api.conftest import Front

CHANGES = [
    "UPDATE duly.audit SET actor = 'nobody'",
    "DELETE FROM duly.audit",
    "TRUNCATE duly.audit",
]
PAUSE = {"kind": "tenant", "reason": "an incident"}


async def entries(front: Front, query: str = "", **how: Any) -> list[dict[str, Any]]:
    reply = await front.call("GET", f"/v1/audit{query}", **how)
    assert reply.status == 200, reply.body
    items: list[dict[str, Any]] = reply.json["items"]
    return items


async def test_every_change_of_the_control_plane_leaves_one_row(front: Front) -> None:
    """What nobody wrote down, nobody did."""
    made = (await front.call("POST", "/v1/keys", {"name": "n", "role": "producer"})).json
    rotated = (await front.call("POST", f"/v1/keys/{made['id']}/rotate")).json
    await front.call("DELETE", f"/v1/keys/{made['id']}")
    await front.call("PUT", "/v1/task-types/mail", {"defaults": {"priority": 1}})
    await front.call("DELETE", "/v1/task-types/mail")
    await front.call("POST", "/v1/pauses", PAUSE)
    await front.call("POST", "/v1/pauses/resume", {"kind": "tenant"})
    found = await entries(front)
    assert [(entry["action"], entry["subject"]) for entry in reversed(found)] == [
        ("key.create", made["id"]),
        ("key.rotate", made["id"]),
        ("key.revoke", made["id"]),
        ("task_type.put", "mail"),
        ("task_type.delete", "mail"),
        ("pause.set", "tenant"),
        ("pause.clear", "tenant"),
    ]
    assert {entry["actor"] for entry in found} == {f"key:{front.admin.split('_')[1]}"}
    assert found[5]["detail"] == {"successor": rotated["id"], "grace_s": 3600.0}
    assert found[1]["detail"] == {"reason": "an incident"}


async def test_refused_calls_and_reads_leave_no_row(front: Front) -> None:
    """An audit full of what did not happen hides what did."""
    await front.call("POST", "/v1/pauses", {"kind": "tenant"})
    await front.call("POST", "/v1/pauses/resume", {"kind": "tenant"})
    await front.call("POST", "/v1/keys", {"name": "n", "role": "king"})
    await front.call("DELETE", "/v1/keys/aaaaaaaaaaaa")
    await front.call("GET", "/v1/keys")
    assert await entries(front) == []


async def test_the_list_is_newest_first_filtered_and_paged(front: Front) -> None:
    """An investigation that cannot page sees only its own noise."""
    for name in ("a", "b", "c"):
        await front.call("PUT", f"/v1/task-types/{name}", {}, key=front.operator)
    await front.call("POST", "/v1/pauses", PAUSE)
    first = await front.call("GET", "/v1/audit?limit=2")
    assert [entry["subject"] for entry in first.json["items"]] == ["tenant", "c"]
    rest = await entries(front, f"?limit=2&cursor={first.json['next_cursor']}")
    assert [entry["subject"] for entry in rest] == ["b", "a"]
    puts = await entries(front, "?action=task_type.put")
    assert [entry["subject"] for entry in puts] == ["c", "b", "a"]
    admin = await entries(front, f"?actor=key:{front.admin.split('_')[1]}")
    assert [entry["action"] for entry in admin] == ["pause.set"]
    assert await entries(front, "?actor=nobody") == []


async def test_a_tenant_reads_its_own_audit_only(front: Front) -> None:
    """What one tenant does is not for its neighbour to read."""
    await front.call("POST", "/v1/pauses", PAUSE, key=front.operator)
    await front.call("POST", "/v1/pauses?tenant=other", PAUSE)
    theirs = await entries(front, key=front.other_admin)
    assert [entry["actor"] for entry in theirs] == [f"key:{front.admin.split('_')[1]}"]
    assert await entries(front, "?tenant=other") == theirs
    refused = await front.call("GET", "/v1/audit?tenant=other", key=front.operator)
    missing = await front.call("GET", "/v1/audit?tenant=nobody", key=front.operator)
    assert (refused.status, refused.unnamed) == (404, missing.unnamed)


async def test_who_does_not_operate_reads_no_audit(front: Front) -> None:
    """Names and reasons are for those who answer for them."""
    for key in (front.producer, front.worker, front.other_producer):
        reply = await front.call("GET", "/v1/audit", key=key)
        assert (reply.status, reply.code) == (403, "forbidden")


WRONG_QUERIES = [
    "limit=0",
    "limit=201",
    "cursor=x",
    "actor=%00",
    f"actor={'a' * 201}",
    "action=DROP",
    "acton=x",
]


async def test_a_wrong_query_is_refused(front: Front) -> None:
    """A text that the database cannot take must not look like an outage."""
    for query in WRONG_QUERIES:
        reply = await front.call("GET", f"/v1/audit?{query}")
        assert (reply.status, reply.code) == (400, "invalid_query"), query
    most = f"limit=200&actor={'a' * 200}&action={'a' * 64}"
    assert (await front.call("GET", f"/v1/audit?{most}")).status == 200


async def test_nobody_can_change_what_was_recorded(front: Front, owner: asyncpg.Connection) -> None:
    """An attacker who can rewrite the audit can do anything unseen."""
    await front.call("POST", "/v1/pauses", PAUSE)
    for statement in CHANGES:
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match=r"duly\.audit is append-only"):
            await owner.execute(statement)
        for opened in (front.database.transaction(), front.database.tenant(front.tenant.id)):
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied"):
                async with opened as session:
                    await session.fetch(statement)
    assert [entry["action"] for entry in await entries(front)] == ["pause.set"]


async def test_a_row_and_its_cause_come_and_go_together(
    front: Front, owner: asyncpg.Connection
) -> None:
    """An action whose record failed must not have happened."""
    await owner.execute("REVOKE INSERT ON duly.audit FROM duly_tenant")
    try:
        reply = await front.call("POST", "/v1/pauses", PAUSE)
    finally:
        await owner.execute("GRANT INSERT ON duly.audit TO duly_tenant")
    assert reply.status == 500
    assert (await front.call("GET", "/v1/pauses")).json["items"] == []
