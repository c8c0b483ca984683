"""Pauses over HTTP: what is stopped, by whom, and that the gates are told the same."""

from typing import Any

import pytest

from duly.store import tenants as store
from duly.store.tenants import PauseKind, read_gate_inputs
from tests.api.conftest import Front


async def paused(front: Front, **how: Any) -> list[tuple[str, str | None]]:
    reply = await front.call("GET", "/v1/pauses", **how)
    assert reply.status == 200, reply.body
    return [(pause["kind"], pause["name"]) for pause in reply.json["items"]]


@pytest.mark.parametrize(
    ("kind", "name"), [("tenant", None), ("type", "mail.send"), ("pool", "billing")]
)
async def test_a_pause_says_who_when_and_why_and_ends_with_resume(
    front: Front, kind: str, name: str | None
) -> None:
    """At three in the morning somebody asks why nothing runs."""
    subject = {"kind": kind} if name is None else {"kind": kind, "name": name}
    reply = await front.call(
        "POST", "/v1/pauses", subject | {"reason": "refunds are wrong"}, key=front.operator
    )
    assert reply.status == 200, reply.body
    assert reply.json["actor"] == f"key:{front.operator.split('_')[1]}"
    assert (reply.json["kind"], reply.json["name"]) == (kind, name)
    assert reply.json["reason"] == "refunds are wrong"
    assert (await front.call("GET", "/v1/pauses")).json["items"] == [reply.json]
    (gate,) = (await read_gate_inputs(front.database)).pauses
    assert (gate.tenant, gate.kind, gate.name) == (front.tenant.id, PauseKind(kind), name or "")
    resumed = await front.call("POST", "/v1/pauses/resume", subject, key=front.operator)
    assert (resumed.status, resumed.json) == (200, reply.json)
    assert await paused(front) == []
    again = await front.call("POST", "/v1/pauses/resume", subject, key=front.operator)
    assert (again.status, again.code) == (404, "not_found")


async def test_pausing_again_replaces_the_reason_and_the_name(front: Front) -> None:
    """The one to ask is the one who last said that it must stay stopped."""
    await front.call("POST", "/v1/pauses", {"kind": "tenant", "reason": "one"})
    await front.call("POST", "/v1/pauses", {"kind": "tenant", "reason": "two"}, key=front.operator)
    (only,) = (await front.call("GET", "/v1/pauses")).json["items"]
    assert (only["reason"], only["actor"]) == ("two", f"key:{front.operator.split('_')[1]}")


async def test_a_pause_of_one_tenant_is_none_of_anothers(front: Front) -> None:
    """A pool named `default` exists at every tenant; stopping one must stop one."""
    pool = {"kind": "pool", "name": "default"}
    await front.call("POST", "/v1/pauses", pool | {"reason": "r"}, key=front.operator)
    assert await paused(front, key=front.other_admin) == []
    foreign = await front.call("POST", "/v1/pauses/resume", pool, key=front.other_admin)
    missing = await front.call(
        "POST", "/v1/pauses/resume", pool | {"name": "none"}, key=front.other_admin
    )
    assert (foreign.status, foreign.unnamed) == (404, missing.unnamed)
    await front.call("POST", "/v1/pauses?tenant=other", pool | {"reason": "ours"})
    assert await paused(front, key=front.other_admin) == [("pool", "default")]
    assert await paused(front) == [("pool", "default")]


async def test_who_does_not_operate_neither_pauses_nor_resumes(front: Front) -> None:
    """A worker's key that leaked must not stop a business."""
    for method, path, body in (
        ("GET", "/v1/pauses", None),
        ("POST", "/v1/pauses", {"kind": "tenant", "reason": "r"}),
        ("POST", "/v1/pauses/resume", {"kind": "tenant"}),
    ):
        for key in (front.producer, front.worker):
            reply = await front.call(method, path, body, key=key)
            assert (reply.status, reply.code) == (403, "forbidden")


WRONG_PAUSES: list[tuple[dict[str, Any], str]] = [
    ({"kind": "tenant"}, "/reason"),
    ({"kind": "tenant", "reason": ""}, "/reason"),
    ({"kind": "tenant", "reason": "r" * 501}, "/reason"),
    ({"kind": "tenant", "reason": "a\u0000b"}, "/reason"),
    ({"kind": "tenant", "name": "x", "reason": "r"}, "/name"),
    ({"kind": "type", "reason": "r"}, "/name"),
    ({"kind": "type", "name": "Bad", "reason": "r"}, "/name"),
    ({"kind": "type", "name": "a" * 129, "reason": "r"}, "/name"),
    ({"kind": "pool", "name": "a" * 65, "reason": "r"}, "/name"),
    ({"kind": "pool", "name": "a\n", "reason": "r"}, "/name"),
    ({"kind": "host", "name": "x", "reason": "r"}, "/kind"),
    ({"kind": "tenant", "reason": "r", "resaon": "r"}, "/resaon"),
]


async def test_a_wrong_pause_names_the_field_and_leaves_nothing(front: Front) -> None:
    """A pause of a misspelt pool that is accepted stops nothing and comforts somebody."""
    for body, pointer in WRONG_PAUSES:
        reply = await front.call("POST", "/v1/pauses", body)
        assert (reply.status, reply.code) == (422, "invalid"), reply.body
        assert [error["pointer"] for error in reply.json["errors"]] == [pointer]
    assert await paused(front) == []


async def test_an_unknown_field_comes_with_a_suggestion(front: Front) -> None:
    """A typing mistake should cost a second, not a search."""
    body = {"kind": "tenant", "reason": "r", "resaon": "r"}
    reply = await front.call("POST", "/v1/pauses", body)
    assert reply.json["errors"][0]["detail"] == "is not a known field; did you mean reason?"


async def test_the_longest_names_and_reasons_are_taken(front: Front) -> None:
    """A bound that the table or an index refuses is a 5xx for an honest operator."""
    for kind, characters in (("type", 128), ("pool", 64)):
        body = {"kind": kind, "name": "a" * characters, "reason": "ä" * 500}
        assert (await front.call("POST", "/v1/pauses", body)).status == 200


async def test_pauses_are_bounded_for_each_tenant(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gates read all of them every few seconds."""
    monkeypatch.setattr(store, "PAUSES_PER_TENANT_MAX", 2)
    for name in ("a", "b"):
        body = {"kind": "type", "name": name, "reason": "r"}
        assert (await front.call("POST", "/v1/pauses", body)).status == 200
    past = await front.call("POST", "/v1/pauses", body | {"name": "c"})
    assert (past.status, past.code) == (409, "too_many")
    assert (await front.call("POST", "/v1/pauses", body)).status == 200


async def test_the_list_pages_by_kind_and_name(front: Front) -> None:
    """A pause that no page shows is one that nobody resumes."""
    for kind, name in (("type", "b"), ("type", "a"), ("pool", "z"), ("tenant", None)):
        body = {"kind": kind, "reason": "r"} | ({} if name is None else {"name": name})
        assert (await front.call("POST", "/v1/pauses", body)).status == 200
    seen: list[tuple[str, str | None]] = []
    cursor = ""
    while True:
        reply = await front.call("GET", f"/v1/pauses?limit=1{cursor}")
        seen += [(pause["kind"], pause["name"]) for pause in reply.json["items"]]
        if reply.json["next_cursor"] is None:
            break
        cursor = f"&cursor={reply.json['next_cursor']}"
    assert seen == [("pool", "z"), ("tenant", None), ("type", "a"), ("type", "b")]
