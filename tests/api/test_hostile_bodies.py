"""Bodies made to cost the server more than their sender, and keys that meet themselves again."""

import asyncio
import time

import msgspec
import pytest

from duly.api.json_body import decode
from duly.api.problems import ApiProblem
from duly.api.rate_limit import Throttle
from duly.api.task_batch import Batch
from duly.api.wire import TaskRequest
from duly.store.tenants import TenantLimits, update_tenant
from tests.api.conftest import Front

TASK = {"type": "a.b", "payload": 1, "delay_s": 3600}
# Quadratic work took seconds on these; linear work takes milliseconds, on a slow machine too.
PATIENCE_S = 2.0
HOSTILE = {
    "many members and one of them twice": b"{"
    + b",".join(b'"n%d":0' % n for n in range(20_000))
    + b',"n19999":0}',
    "a text without an end": b"[" * 65 + b'"' + b'\\"' * 16_000,
    "a batch of what are no tasks": b'{"tasks":[' + b",".join([b"0"] * 20_000) + b"]}",
    "thousands of unknown names": b"{" + b",".join(b'"x%d":0' % n for n in range(5_000)) + b"}",
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("model", [TaskRequest, Batch])
def test_a_hostile_body_is_refused_in_time(case: str, model: type) -> None:
    """The work is done between two awaits: meanwhile no other tenant is answered."""
    began = time.process_time()
    with pytest.raises(ApiProblem):
        decode(HOSTILE[case], model)
    assert time.process_time() - began < PATIENCE_S


async def test_a_repetition_is_answered_though_its_time_has_passed(front: Front) -> None:
    """The first answer was lost; told that it is too late, the caller believes that nothing was
    stored (I8)."""
    await front.call("PUT", "/v1/task-types/a.b", {"defaults": {"priority": 1}})
    body = TASK | {"idempotency_key": "k"}
    first = await front.call("POST", "/v1/tasks", body, key=front.producer)
    refuse = {"schema": {"type": "string"}}
    await front.call("PUT", "/v1/task-types/a.b", refuse)
    again = await front.call("POST", "/v1/tasks", body, key=front.producer)
    assert (first.status, again.status) == (201, 200)
    assert again.json["id"] == first.json["id"]
    fresh = await front.call("POST", "/v1/tasks", TASK, key=front.producer)
    assert fresh.status == 422


async def test_a_repeated_batch_is_answered_though_its_rules_have_changed(front: Front) -> None:
    """The same for a whole call under one key."""
    body, headers = {"tasks": [TASK, TASK]}, {"Idempotency-Key": "b"}
    first = await front.call("POST", "/v1/tasks/batch", body, key=front.producer, headers=headers)
    await front.call("PUT", "/v1/task-types/a.b", {"schema": {"type": "string"}})
    again = await front.call("POST", "/v1/tasks/batch", body, key=front.producer, headers=headers)
    assert [i["id"] for i in again.json["items"]] == [i["id"] for i in first.json["items"]]


async def test_a_batch_under_a_key_of_another_call_is_a_mismatch(front: Front) -> None:
    """What is remembered there is no list of tasks."""
    headers = {"Idempotency-Key": "k"}
    pause = {"kind": "tenant", "reason": "why"}
    await front.call("POST", "/v1/pauses", pause, key=front.operator, headers=headers)
    reply = await front.call(
        "POST", "/v1/tasks/batch", {"tasks": [TASK]}, key=front.operator, headers=headers
    )
    assert (reply.status, reply.code) == (409, "idempotency_mismatch")


async def test_one_tenant_with_too_many_pools_fails_nobody_else(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Submits of all tenants share a statement, and must not share a refusal."""
    await front.database.fetch(
        "INSERT INTO duly.pools (tenant, number, name)"
        " SELECT $1, n, 'p' || n FROM generate_series(1, 10000) AS n",
        front.other.id,
    )
    replies = await asyncio.gather(
        *(
            front.call(
                "POST",
                "/v1/tasks",
                TASK | {"target": {"pool": f"new{n}"}} if n % 2 else TASK,
                key=front.other_producer if n % 2 else front.producer,
            )
            for n in range(20)
        )
    )
    assert {reply.status for reply in replies[0::2]} == {201}
    assert {reply.code for reply in replies[1::2]} == {"too_many"}


async def test_a_strangers_body_is_not_read(front: Front) -> None:
    """Sixteen megabytes from each of a thousand strangers would be the server's memory."""

    async def receive() -> dict[str, object]:
        raise AssertionError("a stranger's body was read")

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/tasks/batch",
        "query_string": b"",
        "headers": [(b"authorization", b"Bearer duly_abcdefghjkmn_wrong")],
    }
    assert (await front.door.application().answer(scope, receive)).status == 401


async def test_a_guess_at_a_key_is_not_remembered(front: Front) -> None:
    """Guesses may be long, and come by the thousand."""
    for key_id in ("x" * 4000, "ABCDEFGHIJKL", "abc"):
        assert (await front.call("GET", "/v1/tasks", key=f"duly_{key_id}_s")).status == 401
    assert all(len(name) == 12 for name in front.door.authenticator.keys.kept)


async def test_what_is_remembered_of_a_call_holds_no_payload(front: Front) -> None:
    """A purge of personal data does not reach what is remembered."""
    task = await front.call("POST", "/v1/tasks", TASK | {"payload": "secret"}, key=front.producer)
    path = f"/v1/tasks/{task.json['id']}/cancel"
    headers = {"Idempotency-Key": "c"}
    first = await front.call("POST", path, key=front.producer, headers=headers)
    assert first.json["payload"] == "secret"
    (row,) = await front.database.fetch("SELECT answer FROM duly.remembered_calls")
    assert "secret" not in row["answer"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/tasks", TASK | {"retry": {"non_retryable": ["\x00"]}}),
        ("POST", "/v1/breakers/close", {"host": "\x00"}),
        ("GET", "/v1/breakers?cursor=%00", None),
        ("GET", "/v1/tasks?state=RUNNING&cursor=0001-01-01T00:00:00%2B23:59|" + "0" * 32, None),
    ],
)
async def test_what_cannot_be_stored_is_the_callers_mistake(
    front: Front, method: str, path: str, body: object
) -> None:
    """Told to try again, a program tries for ever."""
    reply = await front.call(method, path, body)
    assert reply.status in (400, 422), reply.body


async def test_a_tenants_operator_does_not_see_the_machines(front: Front) -> None:
    """Names of hosts and versions are the installation's."""
    for path in ("/v1/nodes", "/v1/shards"):
        assert (await front.call("GET", path, key=front.operator)).status == 403
        assert (await front.call("GET", path)).status == 200


async def test_a_quota_holds_while_it_is_being_counted(front: Front) -> None:
    """The first count takes a moment, and everybody comes in it."""
    await update_tenant(front.database, front.tenant.id, TenantLimits(stored_max=5))
    throttle = Throttle(front.database, front.environment)
    results = await asyncio.gather(
        *(throttle.admit(front.tenant.id, 1) for _ in range(20)), return_exceptions=True
    )
    assert sum(isinstance(result, dict) for result in results) == 5


async def test_a_refused_quota_costs_no_rate_and_a_refused_rate_no_quota(front: Front) -> None:
    """One bound must not be used up by what the other refused."""
    limits = TenantLimits(submit_rate=0.001, submit_burst=3, stored_max=2)
    await update_tenant(front.database, front.tenant.id, limits)
    throttle = Throttle(front.database, front.environment)
    await throttle.admit(front.tenant.id, 2)
    with pytest.raises(ApiProblem, match="unfinished"):
        await throttle.admit(front.tenant.id, 1)
    assert throttle.submits.tokens[front.tenant.id].left == pytest.approx(1, abs=0.1)
    await update_tenant(front.database, front.tenant.id, limits._replace(stored_max=100))
    throttle.tenants.forget(front.tenant.id)
    with pytest.raises(ApiProblem, match="more than the 3"):
        await throttle.admit(front.tenant.id, 4)
    assert throttle.quotas[front.tenant.id].count == 2


async def test_many_are_cancelled_by_a_rare_type_bite_by_bite(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter that looks at everything in one call never ends, and starts over each time."""
    monkeypatch.setattr("duly.api.task_control.LOOKED_AT_MAX", 1)
    monkeypatch.setattr("duly.store.read.STRETCH", 200)
    tasks = [TASK | {"type": "rare" if n == 0 else "plenty"} for n in range(450)]
    tasks[0]["delay_s"] = 7200
    await front.call("POST", "/v1/tasks/batch", {"tasks": tasks}, key=front.producer)
    body: dict[str, object] = {"filter": {"type": "rare"}}
    cancelled, calls = 0, 0
    while True:
        reply = await front.call("POST", "/v1/tasks/cancel", body, key=front.producer)
        cancelled += reply.json["cancelled"]
        calls += 1
        if not reply.json["has_more"]:
            break
        body = body | {"cursor": reply.json["next_cursor"]}
    assert (cancelled, calls >= 3) == (1, True)
    assert msgspec.json.decode(reply.body)["next_cursor"] is None
