"""I9 at the front door: every route, every kind of id, asked by another tenant.

Generated from the route table, so that a new route is tested before anybody thinks of it.
"""

from typing import Any
from uuid import UUID

import msgspec
import pytest

from duly.api.asgi import Endpoint, Kind
from duly.domain.access import Access
from tests.api.conftest import Front, Reply

MISSING = {"id": str(UUID(int=7 << 76 | 2 << 62 | 1)), "name": "nothing-here"}
TASK = {"type": "a.b", "payload": 1, "delay_s": 3600}
NOTIFICATION = {"to": {"url": "https://hooks.example.com/ops"}, "dead_letters": True}
SCHEDULE = {"name": "nightly", "cron": "0 2 * * *", "task": {"type": "a.b"}}
BODIES: dict[tuple[str, str], Any] = {
    ("PATCH", "/v1/tasks/{id}"): {"priority": 1},
    ("PUT", "/v1/notifications/{name}"): NOTIFICATION,
    ("POST", "/v1/tasks/{id}/settle"): {"fence": 1, "outcome": "completed"},
    ("PATCH", "/v1/tenants/{name}"): {"weight": 2},
    ("PATCH", "/v1/keys/{id}"): {"request_rate": 1},
    ("POST", "/v1/keys/{id}/rotate"): {},
    ("POST", "/v1/dead-letters/{id}/replay"): {},
    ("PUT", "/v1/schedules/{id}"): SCHEDULE,
    ("PATCH", "/v1/schedules/{id}"): {"jitter_s": 1},
    ("POST", "/v1/schedules/{id}/pause"): {"reason": "x"},
    ("POST", "/v1/schedules/{id}/backfill"): {
        "from": "2026-01-01T00:00:00Z",
        "to": "2026-01-02T00:00:00Z",
    },
}


# Never ends; tests/api/test_live_events.py has its wall.
STREAMS = {"/v1/events"}
# Signs in with a credential of its own.
SIGN_IN = "/v1/session"
TABLES = (
    "bulk_operations",
    "timers",
    "api_keys",
    "task_types",
    "pauses",
    "dead_letters",
    "tenants",
    "schedules",
    "schedule_timers",
    "occurrences",
    "notifications",
)


async def ids_of(front: Front) -> dict[str, str]:
    """One of each kind of thing, of the tenant `default`."""
    task = await front.call("POST", "/v1/tasks", TASK, key=front.producer)
    made = await front.call("POST", "/v1/keys", {"name": "k", "role": "producer"})
    schedule = await front.call("POST", "/v1/schedules", SCHEDULE)
    await front.call("PUT", "/v1/task-types/a.b", {"defaults": {"priority": 1}})
    operation = await front.call("POST", "/v1/bulk", {"action": "cancel", "filter": {}})
    await front.call("PUT", "/v1/notifications/ops", NOTIFICATION)
    return {
        "notifications": "ops",
        "tasks": task.json["id"],
        "keys": made.json["id"],
        "task-types": "a.b",
        "tenants": "default",
        "dead-letters": task.json["id"],
        "schedules": schedule.json["id"],
        "bulk": operation.json["id"],
    }


def named(front: Front) -> list[Endpoint]:
    return [endpoint for endpoint in front.door.endpoints() if "{" in endpoint.path]


def path_of(endpoint: Endpoint, value: str) -> str:
    parameter = next(part for part in endpoint.segments if part[0] == "{")
    return endpoint.path.replace(parameter, value)


async def ask(front: Front, endpoint: Endpoint, value: str, key: str) -> Reply:
    body = BODIES.get((endpoint.method, endpoint.path))
    if body is None and endpoint.body is not None and endpoint.method == "PUT":
        body = {}
    return await front.call(endpoint.method, path_of(endpoint, value), body, key=key)


async def everything(front: Front) -> bytes:
    """All rows of the tenant `default` that a foreign call could have changed."""
    rows = []
    for table in TABLES:
        found = await front.database.fetch(f"SELECT t::text FROM duly.{table} AS t ORDER BY 1")
        rows += [row[0] for row in found]
    return msgspec.json.encode(rows)


async def test_a_foreign_id_is_answered_exactly_as_a_missing_one(front: Front) -> None:
    """A difference of one byte tells a stranger what exists."""
    ids = await ids_of(front)
    before = await everything(front)
    asked = 0
    for endpoint in named(front):
        resource = endpoint.segments[1]
        if resource not in ids:
            continue
        parameter = next(part for part in endpoint.segments if part[0] == "{")[1:-1]
        if endpoint.method == "PUT" and parameter == "name":
            # Making one's own of the same name is no look at another's.
            continue
        foreign = await ask(front, endpoint, ids[resource], front.other_admin)
        missing = await ask(front, endpoint, MISSING[parameter], front.other_admin)
        where = f"{endpoint.method} {endpoint.path}"
        assert foreign.status in (403, 404), where
        assert (foreign.status, foreign.unnamed) == (missing.status, missing.unnamed), where
        asked += 1
    assert asked >= 12
    assert await everything(front) == before


async def test_no_list_shows_what_belongs_to_another(front: Front) -> None:
    """Lists are where a forgotten predicate shows everything at once."""
    ids = await ids_of(front)
    secret_words = {ids["tasks"], ids["keys"], ids["schedules"]}
    asked = 0
    for endpoint in front.door.endpoints():
        if endpoint.method != "GET" or "{" in endpoint.path or endpoint.kind is Kind.OPEN:
            continue
        if endpoint.path in STREAMS:
            continue
        reply = await front.call("GET", endpoint.path, key=front.other_admin)
        assert reply.status in (200, 403), endpoint.path
        assert not any(word in reply.body.decode() for word in secret_words), endpoint.path
        asked += 1
    assert asked >= 8


async def test_naming_another_tenant_needs_reach(front: Front) -> None:
    """`?tenant=` is for operators of the installation; for others it must not even be a hint."""
    for endpoint in front.door.endpoints():
        if endpoint.kind is Kind.OPEN or "{" in endpoint.path:
            continue
        body = b"{}" if endpoint.method != "GET" else None
        real, unreal = [
            await front.call(
                endpoint.method, f"{endpoint.path}?tenant={name}", raw=body, key=front.other_admin
            )
            for name in ("default", "no-such-tenant")
        ]
        where = f"{endpoint.method} {endpoint.path}"
        assert real.status in (403, 404), where
        assert (real.status, real.unnamed) == (unreal.status, unreal.unnamed), where


async def test_an_operator_of_the_installation_may_name_a_tenant(front: Front) -> None:
    """An operator must be able to help."""
    await front.call("POST", "/v1/tasks", TASK, key=front.other_producer)
    mine = await front.call("GET", "/v1/tasks")
    theirs = await front.call("GET", "/v1/tasks?tenant=other")
    assert (len(mine.json["items"]), len(theirs.json["items"])) == (0, 1)


@pytest.mark.parametrize("role", list(Access))
async def test_every_route_asks_for_its_role(front: Front, role: Access) -> None:
    """A route that forgot to ask is open to whoever has any key."""
    key = await front.make_key(front.tenant, role.value)
    for endpoint in front.door.endpoints():
        if endpoint.kind is Kind.OPEN or role in endpoint.roles:
            continue
        path = endpoint.path.replace("{id}", MISSING["id"]).replace("{name}", MISSING["name"])
        reply = await front.call(endpoint.method, path, key=key)
        assert (reply.status, reply.code) == (403, "forbidden"), f"{endpoint.method} {path}"


async def test_every_route_asks_who_calls(front: Front) -> None:
    """Without a credential nothing answers but the probes and the description."""
    for endpoint in front.door.endpoints():
        path = endpoint.path.replace("{id}", MISSING["id"]).replace("{name}", MISSING["name"])
        reply = await front.call(endpoint.method, path, key=None)
        if endpoint.path == SIGN_IN:
            assert reply.status in (204, 403), path
        elif endpoint.kind is Kind.OPEN:
            assert reply.status in (200, 503), path
        else:
            assert (reply.status, reply.code) == (401, "unauthenticated"), path
