"""Tenants over HTTP: who sees them, who changes their limits, and when a change takes effect."""

import asyncio
from typing import Any

from duly.testing.clock import ManualClock
from tests.api.conftest import Front

MISSING = "/v1/tenants/no-such-tenant"
NO_LIMITS = {
    "weight": 1.0,
    "in_flight_max": None,
    "dispatch_rate": None,
    "dispatch_burst": None,
    "submit_rate": None,
    "submit_burst": None,
    "stored_max": None,
    "schedule_s_min": 1,
    "suspended": False,
}
ALL_LIMITS = {
    "weight": 2.5,
    "in_flight_max": 100,
    "dispatch_rate": 50.0,
    "dispatch_burst": 10.0,
    "submit_rate": 20.0,
    "submit_burst": 40.0,
    "stored_max": 1_000_000,
    "schedule_s_min": 60,
}
TASK = {"type": "mail", "delay_s": 3600}


async def test_a_tenant_is_created_with_its_limits_and_read_back(front: Front) -> None:
    """A limit that is lost on the way lets one tenant starve the others."""
    made = await front.call("POST", "/v1/tenants", {"name": "acme"} | ALL_LIMITS)
    assert (made.status, made.json) == (201, {"name": "acme", "suspended": False} | ALL_LIMITS)
    read = await front.call("GET", "/v1/tenants/acme")
    assert (read.status, read.json) == (200, made.json)
    plain = await front.call("POST", "/v1/tenants", {"name": "plain"})
    assert plain.json == {"name": "plain"} | NO_LIMITS


async def test_a_name_that_is_taken_is_refused_and_changes_nothing(front: Front) -> None:
    """A second creation must not reset the limits of the tenant that is there."""
    await front.call("POST", "/v1/tenants", {"name": "acme"} | ALL_LIMITS)
    again = await front.call("POST", "/v1/tenants", {"name": "acme"})
    assert (again.status, again.code) == (409, "conflict")
    assert (await front.call("GET", "/v1/tenants/acme")).json["weight"] == 2.5


async def test_a_change_touches_only_the_fields_that_are_given(front: Front) -> None:
    """A change of the weight that forgets the cap takes the cap away."""
    await front.call("POST", "/v1/tenants", {"name": "acme"} | ALL_LIMITS)
    changed = await front.call("PATCH", "/v1/tenants/acme", {"weight": 4, "stored_max": None})
    assert changed.status == 200
    wanted = {"name": "acme", "suspended": False} | ALL_LIMITS | {"weight": 4.0, "stored_max": None}
    assert changed.json == wanted
    assert (await front.call("GET", "/v1/tenants/acme")).json == wanted


async def test_changes_of_different_limits_at_once_all_stand(front: Front) -> None:
    """Two admins who each read, change and write the whole would undo one another."""
    changes: list[dict[str, Any]] = [{name: value} for name, value in ALL_LIMITS.items()]
    changes = [change for change in changes if not next(iter(change)).endswith("burst")]
    replies = await asyncio.gather(
        *(front.call("PATCH", "/v1/tenants/other", change) for change in changes)
    )
    assert {reply.status for reply in replies} == {200}
    read = (await front.call("GET", "/v1/tenants/other")).json
    assert {name: read[name] for change in changes for name in change} == {
        name: value for change in changes for name, value in change.items()
    }


BOUNDS = [
    ("weight", 100.0, 100.1),
    ("weight", 0.01, 0.009),
    ("in_flight_max", 1_000_000, 1_000_001),
    ("in_flight_max", 1, 0),
    ("dispatch_rate", 1_000_000.0, 1_000_001.0),
    ("dispatch_rate", 0.001, 0.0009),
    ("submit_rate", 1_000_000.0, 1_000_001.0),
    ("submit_rate", 0.001, 0.0009),
    ("stored_max", 1_000_000_000, 1_000_000_001),
    ("stored_max", 1, 0),
    ("schedule_s_min", 86400, 86401),
    ("schedule_s_min", 1, 0),
]


async def test_each_limit_is_taken_at_its_bound_and_refused_past_it(front: Front) -> None:
    """A bound that is off by one, or that the table refuses, is a 5xx for an honest admin."""
    for name, most, past in BOUNDS:
        taken = await front.call("PATCH", "/v1/tenants/other", {name: most})
        assert (taken.status, taken.json.get(name)) == (200, most), taken.body
        refused = await front.call("PATCH", "/v1/tenants/other", {name: past})
        assert (refused.status, refused.code) == (422, "invalid"), name
        assert [item["pointer"] for item in refused.json["errors"]] == [f"/{name}"]
        assert (await front.call("GET", "/v1/tenants/other")).json[name] == most


WRONG_CHANGES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "", "give one of weight"),
    ({"wieght": 2}, "/wieght", "is not a known field; did you mean weight?"),
    ({"name": "x"}, "/name", "is not a known field"),
    ({"schedule_s_min": None}, "/schedule_s_min", "expected int, got null"),
    ({"weight": None}, "/weight", "expected float, got null"),
    ({"weight": "2"}, "/weight", "expected float, got str"),
    ({"dispatch_burst": 5}, "/dispatch_burst", "needs a dispatch_rate"),
    ({"submit_burst": 5}, "/submit_burst", "needs a submit_rate"),
    ({"submit_rate": 5, "submit_burst": 0.5}, "/submit_burst", "expected float >= 1.0"),
]


async def test_a_wrong_change_names_the_field_and_the_reason(front: Front) -> None:
    """An admin who is told only `invalid` guesses."""
    for body, pointer, detail in WRONG_CHANGES:
        reply = await front.call("PATCH", "/v1/tenants/other", body)
        assert (reply.status, reply.code) == (422, "invalid")
        (error,) = reply.json["errors"]
        assert error["pointer"] == pointer
        assert error["detail"].startswith(detail), error


async def test_a_wrong_name_is_refused(front: Front) -> None:
    """A name with a newline in it breaks every list and log that shows it."""
    for name in ("", "Acme", "-a", "a b", "a\n", "a" * 65, "ä"):
        reply = await front.call("POST", "/v1/tenants", {"name": name})
        assert (reply.status, reply.json["errors"][0]["pointer"]) == (422, "/name"), name
    longest = await front.call("POST", "/v1/tenants", {"name": "a" * 64})
    assert longest.status == 201


async def test_the_list_pages_through_all_tenants_by_name(front: Front) -> None:
    """A cursor that skips hides a tenant from its operators."""
    for name in ("zeta", "acme", "mid"):
        await front.call("POST", "/v1/tenants", {"name": name})
    seen: list[str] = []
    path = "/v1/tenants?limit=2"
    while True:
        reply = await front.call("GET", path)
        assert reply.status == 200
        seen += [tenant["name"] for tenant in reply.json["items"]]
        if reply.json["next_cursor"] is None:
            break
        path = f"/v1/tenants?limit=2&cursor={reply.json['next_cursor']}"
    assert seen == ["acme", "default", "mid", "other", "zeta"]


async def test_every_role_reads_its_own_tenant_and_no_other(front: Front) -> None:
    """A tenant's limits, and that it exists at all, are no business of its neighbours."""
    for key in (front.operator, front.producer, front.worker):
        own = await front.call("GET", "/v1/tenants/default", key=key)
        assert (own.status, own.json["name"]) == (200, "default")
        foreign = await front.call("GET", "/v1/tenants/other", key=key)
        missing = await front.call("GET", MISSING, key=key)
        malformed = await front.call("GET", "/v1/tenants/A%20b", key=key)
        assert foreign.status == missing.status == malformed.status == 404
        assert foreign.unnamed == missing.unnamed == malformed.unnamed


async def test_a_tenants_admin_cannot_raise_its_own_limits(front: Front) -> None:
    """The wall between tenants would be as high as each of them likes."""
    replies = [
        await front.call("PATCH", path, {"weight": 100}, key=front.other_admin)
        for path in ("/v1/tenants/other", "/v1/tenants/default", MISSING)
    ]
    assert [reply.status for reply in replies] == [403, 403, 403]
    assert len({reply.unnamed for reply in replies}) == 1
    assert (await front.call("GET", "/v1/tenants/other")).json["weight"] == 1.0


async def test_only_who_reaches_the_installation_may(front: Front) -> None:
    """A producer's key that leaked must not make tenants."""
    narrow = await front.make_key(front.tenant, "admin")
    for method, path, body in (
        ("GET", "/v1/tenants", None),
        ("POST", "/v1/tenants", {"name": "x"}),
        ("PATCH", "/v1/tenants/default", {"weight": 2}),
    ):
        for key in (front.operator, front.producer, front.worker, front.other_admin, narrow):
            reply = await front.call(method, path, body, key=key)
            assert (reply.status, reply.code) == (403, "forbidden")
    found = await front.database.fetch("SELECT name, weight FROM duly.tenants ORDER BY name")
    assert [tuple(row) for row in found] == [("default", 1.0), ("other", 1.0)]


async def test_an_installations_operator_lists_tenants_and_changes_none(front: Front) -> None:
    """Looking and changing are two roles."""
    key = await front.make_key(front.tenant, "operator", reach="installation")
    assert (await front.call("GET", "/v1/tenants", key=key)).status == 200
    assert (await front.call("GET", "/v1/tenants/other", key=key)).status == 200
    assert (await front.call("PATCH", "/v1/tenants/other", {"weight": 2}, key=key)).status == 403


async def test_a_missing_tenant_is_not_found_by_who_may_see_all(front: Front) -> None:
    """The same words for what is missing and what is malformed."""
    for method, body in (("GET", None), ("PATCH", {"weight": 2})):
        missing = await front.call(method, MISSING, body)
        malformed = await front.call(method, "/v1/tenants/A%20b", body)
        assert (missing.status, missing.code) == (404, "not_found")
        assert missing.unnamed == malformed.unnamed


async def test_a_tenant_named_in_the_query_must_be_one(front: Front) -> None:
    """A name that no tenant can have is as missing as one that no tenant has."""
    missing = await front.call("GET", "/v1/keys?tenant=no-such-tenant")
    for name in ("Other", "other%20", "-"):
        reply = await front.call("GET", f"/v1/keys?tenant={name}")
        assert (reply.status, reply.unnamed) == (404, missing.unnamed)
    foreign = await front.call("GET", "/v1/keys?tenant=default", key=front.other_admin)
    assert (foreign.status, foreign.unnamed) == (404, missing.unnamed)


async def test_a_changed_limit_holds_at_once(still_front: tuple[Front, ManualClock]) -> None:
    """What an admin sees changed and the door still ignores is a bug report each time."""
    front, _clock = still_front
    path, key = "/v1/tenants/other", front.other_producer
    assert (await front.call("POST", "/v1/tasks", TASK, key=key)).status == 201
    await front.call("PATCH", path, {"stored_max": 1})
    full = await front.call("POST", "/v1/tasks", TASK, key=key)
    assert (full.status, full.code) == (429, "quota_exceeded")
    await front.call("PATCH", path, {"stored_max": None, "submit_rate": 0.001, "submit_burst": 1})
    assert (await front.call("POST", "/v1/tasks", TASK, key=key)).status == 201
    fast = await front.call("POST", "/v1/tasks", TASK, key=key)
    assert (fast.status, fast.code) == (429, "rate_limited")
    await front.call("PATCH", path, {"submit_rate": None, "submit_burst": None})
    assert (await front.call("POST", "/v1/tasks", TASK, key=key)).status == 201


async def test_a_tenant_that_was_asked_for_too_early_is_found_once_it_is_there(
    still_front: tuple[Front, ManualClock],
) -> None:
    """A remembered absence must not outlive the creation."""
    front, _clock = still_front
    assert (await front.call("GET", "/v1/keys?tenant=acme")).status == 404
    assert (await front.call("POST", "/v1/tenants", {"name": "acme"})).status == 201
    assert (await front.call("GET", "/v1/keys?tenant=acme")).status == 200


async def test_a_change_is_in_the_audit_of_who_did_it_and_whom_it_concerns(front: Front) -> None:
    """A tenant that suddenly runs slower must find out who lowered its share."""
    await front.call("PATCH", "/v1/tenants/other", {"weight": 0.5})
    await front.call("PATCH", "/v1/tenants/other", {"weight": 0})
    own = (await front.call("GET", "/v1/audit")).json["items"]
    theirs = (await front.call("GET", "/v1/audit", key=front.other_admin)).json["items"]
    assert len(own) == len(theirs) == 1
    for entry in (*own, *theirs):
        assert (entry["action"], entry["subject"]) == ("tenant.change", "other")
        assert entry["detail"] == {"weight": 0.5}
        assert entry["actor"] == f"key:{front.admin.split('_')[1]}"
