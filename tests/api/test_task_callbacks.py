"""`callback` of a task over HTTP: what is accepted, shown, and refused with a pointer."""

from typing import Any

import pytest

from tests.api.conftest import Front, Reply

TOLD = {"type": "order.told", "target": {"pool": "told"}}
HOOK = {"type": "order.told", "target": {"url": "https://example.org/", "headers": {"X-A": "b"}}}
URL_OF_MOST = "https://example.org/" + "a" * (2048 - 20)


async def submit(front: Front, key: str = "", **more: Any) -> Reply:
    body = {"type": "t.a", "delay_s": 3600, **more}
    return await front.call("POST", "/v1/tasks", body, key=key or front.producer)


@pytest.mark.parametrize("callback", [TOLD, HOOK])
async def test_a_callback_is_stored_and_shown(front: Front, callback: dict[str, Any]) -> None:
    """A callback that nobody can see is one that nobody can explain."""
    reply = await submit(front, callback=callback)
    assert reply.status == 201, reply.body
    assert reply.json["callback"] == callback
    read = await front.call("GET", f"/v1/tasks/{reply.json['id']}", key=front.producer)
    assert read.json["callback"] == callback
    plain = await submit(front)
    assert "callback" not in plain.json


async def test_a_batch_and_a_schedule_may_have_callbacks(front: Front) -> None:
    """A way to submit that loses the callback in silence."""
    batch = {"tasks": [{"type": "t.a", "callback": TOLD}, {"type": "t.a"}]}
    reply = await front.call("POST", "/v1/tasks/batch", batch, key=front.producer)
    assert [item.get("callback") for item in reply.json["items"]] == [TOLD, None]
    schedule = {"name": "s", "every_s": 3600, "task": {"type": "t.a", "callback": TOLD}}
    made = await front.call("POST", "/v1/schedules", schedule, key=front.operator)
    assert made.status == 201, made.body
    fired = await front.call("POST", f"/v1/schedules/{made.json['id']}/trigger", key=front.operator)
    assert fired.status in (200, 201), fired.body
    found = await front.call("GET", "/v1/tasks", key=front.producer)
    assert [item.get("callback") for item in found.json["items"]].count(TOLD) == 2


@pytest.mark.parametrize(
    ("callback", "pointer"),
    [
        ({"type": "t"}, "/callback/target"),
        ({"type": "t", "target": {}}, "/callback/target"),
        ({"type": "T!", "target": {"pool": "p"}}, "/callback/type"),
        ({"type": "t", "target": {"pool": "p", "url": "https://a.org"}}, "/callback/target"),
        ({"type": "t", "target": {"pool": "P!"}}, "/callback/target/pool"),
        ({"type": "t", "target": {"url": "ftp://a.org"}}, "/callback/target/url"),
        ({"type": "t", "target": {"url": URL_OF_MOST + "a"}}, "/callback/target/url"),
        ({"type": "t", "target": {"pool": "p", "headers": {"A": "b"}}}, "/callback/target/headers"),
        ({"type": "t", "target": {"pool": "p"}, "payload": 1}, "/callback/payload"),
        ([], "/callback"),
    ],
)
async def test_what_is_wrong_with_a_callback_has_a_pointer(
    front: Front, callback: object, pointer: str
) -> None:
    """Found out at the end of the task, it is too late to say so."""
    reply = await submit(front, callback=callback)
    assert reply.status == 422, reply.body
    assert reply.json["errors"][0]["pointer"] == pointer, reply.body
    (row,) = await front.database.fetch("SELECT count(*) AS tasks FROM duly.tasks")
    assert row["tasks"] == 0


async def test_the_longest_address_is_accepted(front: Front) -> None:
    """The bound of a target's address is that of a callback's, too."""
    callback = {"type": "t", "target": {"url": URL_OF_MOST}}
    assert (await submit(front, callback=callback)).status == 201


async def test_a_key_tells_only_with_types_of_its_own(front: Front) -> None:
    """A limited key would submit any type: as the callback of its own."""
    key = await front.make_key(front.tenant, "producer", types=["t.a"])
    refused = await submit(front, key, callback=TOLD)
    assert (refused.status, refused.code) == (403, "forbidden")
    batch = {"tasks": [{"type": "t.a", "callback": TOLD}]}
    assert (await front.call("POST", "/v1/tasks/batch", batch, key=key)).status == 403
    workflow = {"name": "w", "nodes": {"a": {"type": "t.a"}}, "callback": TOLD}
    assert (await front.call("POST", "/v1/workflows", workflow, key=key)).status == 403
    own = {"type": "t.a", "target": {"pool": "told"}}
    assert (await submit(front, key, callback=own)).status == 201


async def test_a_callback_is_part_of_what_an_idempotency_key_stands_for(front: Front) -> None:
    """The same key with another callback is another request: the first one would be told."""
    first = await submit(front, idempotency_key="k", callback=TOLD)
    again = await submit(front, idempotency_key="k", callback=TOLD)
    other = await submit(front, idempotency_key="k")
    assert (first.status, again.status, other.status) == (201, 200, 409)
    assert again.json["id"] == first.json["id"]
