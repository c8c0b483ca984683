"""Keys that are limited to task types: every route that changes something, with a thing of a type
that the key has, and with one that it has not."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest

from duly.api.asgi import Endpoint
from tests.api.conftest import Front, Reply
from tests.api.letters import fail
from tests.api.scheduling import define

OWN, FOREIGN = "own.type", "foreign.type"
UNTIL_NOW = {"from": "2020-01-01T00:00:00Z", "to": "2020-01-02T00:00:00Z"}


@dataclass(frozen=True)
class Ids:
    """One thing of each kind, of one task type."""

    type: str
    task: str
    schedule: str
    letter: UUID
    operation: str
    # Ended.
    workflow: str


def schedule_of(ids: Ids, name: str) -> dict[str, Any]:
    return {"name": name, "cron": "0 2 * * *", "task": {"type": ids.type}}


# What each route that compares types is asked: its path and body for a thing of that type. The
# status is that of the key's own type.
Asked = Callable[[Ids], tuple[str, Any]]
ROUTES: dict[tuple[str, str], tuple[int, Asked]] = {
    ("POST", "/v1/tasks"): (201, lambda ids: ("/v1/tasks", {"type": ids.type, "delay_s": 60})),
    ("POST", "/v1/tasks/batch"): (
        201,
        lambda ids: ("/v1/tasks/batch", {"tasks": [{"type": OWN}, {"type": ids.type}]}),
    ),
    ("POST", "/v1/tasks/cancel"): (
        200,
        lambda ids: ("/v1/tasks/cancel", {"filter": {"type": ids.type}, "dry_run": True}),
    ),
    ("PATCH", "/v1/tasks/{id}"): (200, lambda ids: (f"/v1/tasks/{ids.task}", {"priority": 1})),
    ("POST", "/v1/tasks/{id}/run-now"): (
        200,
        lambda ids: (f"/v1/tasks/{ids.task}/run-now", None),
    ),
    ("POST", "/v1/tasks/{id}/cancel"): (200, lambda ids: (f"/v1/tasks/{ids.task}/cancel", None)),
    ("DELETE", "/v1/tasks/{id}"): (200, lambda ids: (f"/v1/tasks/{ids.task}", None)),
    ("POST", "/v1/schedules"): (201, lambda ids: ("/v1/schedules", schedule_of(ids, "new"))),
    ("POST", "/v1/schedules/preview"): (
        200,
        lambda ids: ("/v1/schedules/preview", schedule_of(ids, "other")),
    ),
    # To a type that the key has, also from one that it has not.
    ("PUT", "/v1/schedules/{id}"): (
        200,
        lambda ids: (
            f"/v1/schedules/{ids.schedule}",
            {"name": "put", "cron": "0 3 * * *", "task": {"type": OWN}},
        ),
    ),
    ("PATCH", "/v1/schedules/{id}"): (
        200,
        lambda ids: (f"/v1/schedules/{ids.schedule}", {"jitter_s": 1}),
    ),
    ("POST", "/v1/schedules/{id}/pause"): (
        200,
        lambda ids: (f"/v1/schedules/{ids.schedule}/pause", {"reason": "x"}),
    ),
    ("POST", "/v1/schedules/{id}/resume"): (
        200,
        lambda ids: (f"/v1/schedules/{ids.schedule}/resume", None),
    ),
    ("POST", "/v1/schedules/{id}/trigger"): (
        201,
        lambda ids: (f"/v1/schedules/{ids.schedule}/trigger", None),
    ),
    # Too long ago, which is said only after the type was compared.
    ("POST", "/v1/schedules/{id}/backfill"): (
        422,
        lambda ids: (f"/v1/schedules/{ids.schedule}/backfill", UNTIL_NOW),
    ),
    ("POST", "/v1/schedules/pause"): (
        200,
        lambda ids: ("/v1/schedules/pause", {"filter": {"type": ids.type}, "reason": "x"}),
    ),
    ("POST", "/v1/schedules/resume"): (
        200,
        lambda ids: ("/v1/schedules/resume", {"filter": {"type": ids.type}}),
    ),
    ("DELETE", "/v1/schedules/{id}"): (204, lambda ids: (f"/v1/schedules/{ids.schedule}", None)),
    ("POST", "/v1/dead-letters/replay"): (
        200,
        lambda ids: ("/v1/dead-letters/replay", {"filter": {"type": ids.type}, "dry_run": True}),
    ),
    ("POST", "/v1/dead-letters/purge"): (
        200,
        lambda ids: ("/v1/dead-letters/purge", {"ids": [ids.letter], "dry_run": True}),
    ),
    ("POST", "/v1/dead-letters/{id}/replay"): (
        201,
        lambda ids: (f"/v1/dead-letters/{ids.letter}/replay", None),
    ),
    ("DELETE", "/v1/dead-letters/{id}"): (
        204,
        lambda ids: (f"/v1/dead-letters/{ids.letter}", None),
    ),
    ("POST", "/compat/v1/tasks"): (
        201,
        lambda ids: ("/compat/v1/tasks", {"type": ids.type, "payload": {}, "delay_sec": 60}),
    ),
    ("POST", "/compat/v1/tasks/recurring"): (
        201,
        lambda ids: (
            "/compat/v1/tasks/recurring",
            {"cron": "0 2 * * *", "payload_template": {}, "task_defaults": {"type": ids.type}},
        ),
    ),
    ("POST", "/v1/workflows"): (
        201,
        lambda ids: ("/v1/workflows", {"name": "w", "nodes": {"a": {"type": ids.type}}}),
    ),
    ("POST", "/v1/workflows/{id}/resume"): (
        201,
        lambda ids: (f"/v1/workflows/{ids.workflow}/resume", None),
    ),
    ("PUT", "/v1/workflow-types/{name}"): (
        201,
        lambda ids: (f"/v1/workflow-types/w.{ids.type}", {"nodes": {"a": {"type": ids.type}}}),
    ),
    ("POST", "/v1/bulk"): (
        200,
        lambda ids: (
            "/v1/bulk",
            {"action": "cancel", "filter": {"type": ids.type}, "dry_run": True},
        ),
    ),
    # One that has no canary is not paused after it.
    ("POST", "/v1/bulk/{id}/continue"): (
        409,
        lambda ids: (f"/v1/bulk/{ids.operation}/continue", None),
    ),
    ("POST", "/v1/bulk/{id}/stop"): (200, lambda ids: (f"/v1/bulk/{ids.operation}/stop", None)),
    ("PUT", "/v1/task-types/{name}"): (200, lambda ids: (f"/v1/task-types/{ids.type}", {})),
    ("DELETE", "/v1/task-types/{name}"): (204, lambda ids: (f"/v1/task-types/{ids.type}", None)),
    ("POST", "/v1/pauses"): (
        200,
        lambda ids: ("/v1/pauses", {"kind": "type", "name": ids.type, "reason": "x"}),
    ),
    ("POST", "/v1/pauses/resume"): (
        200,
        lambda ids: ("/v1/pauses/resume", {"kind": "type", "name": ids.type}),
    ),
}
# Their types are compared by what a key may hand on; tests/api/test_keys.py has them.
OF_KEYS = {"/v1/keys", "/v1/keys/{id}", "/v1/keys/{id}/rotate"}
# A filter without a type, and what concerns every type.
TOO_WIDE: list[tuple[str, Any]] = [
    ("/v1/tasks/cancel", {"filter": {}, "dry_run": True}),
    ("/v1/schedules/pause", {"filter": {}, "reason": "x", "dry_run": True}),
    ("/v1/schedules/resume", {"filter": {}, "dry_run": True}),
    ("/v1/dead-letters/replay", {"filter": {}, "dry_run": True}),
    ("/v1/dead-letters/purge", {"filter": {}, "dry_run": True}),
    ("/v1/bulk", {"action": "cancel", "filter": {}, "dry_run": True}),
    ("/v1/pauses", {"kind": "tenant", "reason": "x"}),
    ("/v1/pauses", {"kind": "pool", "name": "default", "reason": "x"}),
    ("/v1/pauses/resume", {"kind": "tenant"}),
]


async def ids_of(front: Front, task_type: str) -> Ids:
    task = await front.call("POST", "/v1/tasks", {"type": task_type, "delay_s": 3600})
    schedule = await define(front, name=f"of {task_type}", task={"type": task_type})
    letter = await fail(front, type=task_type)
    cancelling = {"action": "cancel", "filter": {"type": task_type}}
    operation = await front.call("POST", "/v1/bulk", cancelling)
    graph = {"name": "ended", "nodes": {"a": {"type": task_type, "delay_s": 3600}}}
    workflow = await front.call("POST", "/v1/workflows", graph)
    await front.call("POST", f"/v1/workflows/{workflow.json['id']}/cancel")
    return Ids(
        *(task_type, task.json["id"], schedule["id"], letter, operation.json["id"]),
        workflow.json["id"],
    )


def changing(front: Front) -> list[Endpoint]:
    return [each for each in front.door.endpoints() if each.method != "GET" and each.access]


def is_forbidden(reply: Reply) -> bool:
    return reply.status == 403 and reply.code == "forbidden"


@pytest.mark.parametrize("role", ["operator", "admin"])
async def test_a_limited_key_changes_only_what_is_of_its_types(front: Front, role: str) -> None:
    """An operator of one team replayed the dead letters of another."""
    key = await front.make_key(front.tenant, role, types=[OWN])
    own, foreign = await ids_of(front, OWN), await ids_of(front, FOREIGN)
    await front.call("POST", "/v1/pauses", {"kind": "type", "name": FOREIGN, "reason": "x"})
    await front.call("PUT", f"/v1/task-types/{FOREIGN}", {})
    compared = [each for each in changing(front) if each.checks_types]
    assert {(each.method, each.path) for each in compared if each.path not in OF_KEYS} == set(
        ROUTES
    )
    for (method, route), (status, asked) in ROUTES.items():
        path, body = asked(foreign)
        reply = await front.call(method, path, body, key=key)
        assert is_forbidden(reply), (method, route, reply.body)
        if (method, route) == ("DELETE", "/v1/tasks/{id}"):
            # Cancelled already: the answer is that of the first time.
            own_task = await front.call("POST", "/v1/tasks", {"type": OWN, "delay_s": 3600})
            own = replace(own, task=own_task.json["id"])
        path, body = asked(own)
        reply = await front.call(method, path, body, key=key)
        assert reply.status == status, (method, route, reply.body)


async def test_a_limited_key_changes_nothing_that_concerns_every_type(front: Front) -> None:
    """A filter without a type means all of them, as do a tenant, a pool, a breaker, a secret."""
    key = await front.make_key(front.tenant, "admin", reach="installation", types=[OWN])
    for path, body in TOO_WIDE:
        assert is_forbidden(await front.call("POST", path, body, key=key)), (path, body)
    others = [each for each in changing(front) if not each.checks_types]
    assert len(others) > 8
    for endpoint in others:
        path = endpoint.path.replace("{id}", str(UUID(int=7))).replace("{name}", "default")
        reply = await front.call(endpoint.method, path, {}, key=key)
        assert is_forbidden(reply), (endpoint.method, endpoint.path, reply.body)


async def test_letters_of_other_types_among_the_ids_refuse_the_call(front: Front) -> None:
    """Left out in silence, nobody would know that they were not replayed."""
    key = await front.make_key(front.tenant, "operator", types=[OWN])
    own, foreign = await fail(front, type=OWN), await fail(front, type=FOREIGN)
    for verb in ("replay", "purge"):
        path = f"/v1/dead-letters/{verb}"
        assert is_forbidden(await front.call("POST", path, {"ids": [own, foreign]}, key=key))
        unknown = {"ids": [own, UUID(int=9)], "dry_run": True}
        assert (await front.call("POST", path, unknown, key=key)).json["matched"] == 1


async def test_a_limited_key_reads_what_its_tenant_has(front: Front) -> None:
    """It is limited in what it changes; reading is the role's."""
    key = await front.make_key(front.tenant, "operator", types=[OWN])
    foreign = await ids_of(front, FOREIGN)
    for path in (f"/v1/tasks/{foreign.task}", f"/v1/schedules/{foreign.schedule}", "/v1/tasks"):
        assert (await front.call("GET", path, key=key)).status == 200, path


async def test_a_workers_key_has_no_types(front: Front) -> None:
    """A pool holds tasks of every type; such a key would lease nothing."""
    body = {"name": "w", "role": "worker", "types": [OWN]}
    reply = await front.call("POST", "/v1/keys", body)
    assert (reply.status, reply.json["errors"][0]["pointer"]) == (422, "/types")
