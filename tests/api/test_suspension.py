"""A suspended tenant: whose calls are refused, what may still be done, and who undoes it."""

from duly.store.tenants import PauseKind, read_gate_inputs
from duly.testing.clock import ManualClock
from duly.ttl_cache import KEEP_S
from tests.api.conftest import Front

TASK = {"type": "mail", "delay_s": 3600}
LEASE = {"worker_id": "w", "wait_s": 0}


async def set_suspended(front: Front, clock: ManualClock, is_suspended: bool) -> None:
    """And wait until nothing of before is remembered, as another node would."""
    path = "/v1/tenants/default"
    changed = await front.call("PATCH", path, {"suspended": is_suspended})
    assert (changed.status, changed.json["suspended"]) == (200, is_suspended)
    assert (await front.call("GET", path)).json["suspended"] is is_suspended
    clock.advance(KEEP_S)


async def test_every_call_of_a_suspended_tenant_is_refused_until_it_is_resumed(
    still_front: tuple[Front, ManualClock],
) -> None:
    """Revoking each of its keys is slow, and cannot be undone."""
    front, clock = still_front
    made = await front.call("POST", "/v1/tasks", TASK, key=front.producer)
    path = f"/v1/tasks/{made.json['id']}"
    await set_suspended(front, clock, True)
    for method, where, body, key in (
        ("POST", "/v1/tasks", TASK, front.producer),
        ("GET", path, None, front.producer),
        ("GET", "/v1/tasks", None, front.producer),
        ("POST", f"{path}/cancel", None, front.operator),
        ("POST", "/v1/worker/lease", LEASE, front.worker),
    ):
        reply = await front.call(method, where, body, key=key)
        assert (reply.status, reply.code) == (403, "tenant_suspended"), where
    other = await front.call("POST", "/v1/tasks", TASK, key=front.other_producer)
    assert other.status == 201
    assert (await front.call("GET", path)).status == 200
    await set_suspended(front, clock, False)
    assert (await front.call("GET", path, key=front.producer)).status == 200
    changes = await front.call("GET", "/v1/audit")
    noted = [item["detail"] for item in changes.json["items"] if item["action"] == "tenant.change"]
    assert noted == [{"suspended": False}, {"suspended": True}]


async def test_what_runs_when_its_tenant_is_suspended_may_be_settled(
    still_front: tuple[Front, ManualClock],
) -> None:
    """Refused, the work would be done again by another worker, weeks later."""
    front, clock = still_front
    made = await front.call("POST", "/v1/tasks", {"type": "mail"}, key=front.producer)
    await front.make_ready()
    leased = await front.call("POST", "/v1/worker/lease", LEASE, key=front.worker)
    (task,) = leased.json["tasks"]
    await set_suspended(front, clock, True)
    lease = {"id": task["id"], "fence": task["fence"]}
    beat = {"worker_id": "w", "leases": [lease]}
    held = await front.call("POST", "/v1/worker/heartbeat", beat, key=front.worker)
    assert (held.status, held.json["items"][0]["status"]) == (200, "held")
    ended = {"worker_id": "w", "settlements": [lease | {"outcome": "completed"}]}
    settled = await front.call("POST", "/v1/worker/settle", ended, key=front.worker)
    assert (settled.status, settled.json["items"][0]["status"]) == (200, "settled")
    assert (await front.call("GET", f"/v1/tasks/{made.json['id']}")).json["state"] == "COMPLETED"


async def test_the_gates_take_a_suspension_for_a_pause_of_the_tenant(
    still_front: tuple[Front, ManualClock],
) -> None:
    """Its tasks would go on to be dispatched."""
    front, clock = still_front
    await set_suspended(front, clock, True)
    inputs = await read_gate_inputs(front.database)
    (pause,) = inputs.pauses
    assert (pause.tenant, pause.kind, pause.name) == (front.tenant.id, PauseKind.TENANT, "")
    await set_suspended(front, clock, False)
    assert (await read_gate_inputs(front.database)).pauses == []


async def test_only_an_admin_of_the_installation_suspends(front: Front) -> None:
    """A tenant's own admin would resume it."""
    for key in (front.operator, front.other_admin):
        path = "/v1/tenants/other"
        reply = await front.call("PATCH", path, {"suspended": False}, key=key)
        assert reply.status == 403
    reply = await front.call("PATCH", "/v1/tenants/other", {"suspended": None})
    assert (reply.status, reply.code) == (422, "invalid")
