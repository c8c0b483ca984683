"""Which characters a text may have, wherever one comes in; one rule for idempotency keys."""

from typing import Any
from uuid import uuid4

import pytest

from tests.api.conftest import NEXT_YEAR, Front, Reply

TASK: dict[str, Any] = {"type": "a.b", "delay_s": 3600}
NUL = "a\x00b"


def settlement(**fields: Any) -> dict[str, Any]:
    item = {"id": str(uuid4()), "fence": 1, "outcome": "completed", **fields}
    return {"worker_id": "w", "settlements": [item]}


NULLS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "payload": ("POST", "/v1/tasks", TASK | {"payload": {"k": NUL}}, "/payload/k"),
    "tag": ("POST", "/v1/tasks", TASK | {"tags": {"k": NUL}}, "/tags/k"),
    "name of a tag": ("POST", "/v1/tasks", TASK | {"tags": {NUL: "v"}}, "/tags"),
    "batch": (
        "POST",
        "/v1/tasks/batch",
        {"tasks": [TASK, TASK | {"payload": NUL}]},
        "/tasks/1/payload",
    ),
    "schedule": (
        "POST",
        "/v1/schedules",
        {"name": "n", "every_s": 60, "task": {"type": "a", "payload": [NUL]}},
        "/task/payload/0",
    ),
    "result": ("POST", "/v1/worker/settle", settlement(result=[NUL]), "/settlements/0/result/0"),
    "error": ("POST", "/v1/worker/settle", settlement(error=NUL), "/settlements/0/error"),
    "kind": ("POST", "/v1/worker/settle", settlement(error_kind=NUL), "/settlements/0/error_kind"),
    "progress": (
        "POST",
        "/v1/worker/heartbeat",
        {"worker_id": "w", "leases": [{"id": str(uuid4()), "fence": 1, "progress": {"p": NUL}}]},
        "/leases/0/progress/p",
    ),
    "schema": ("PUT", "/v1/task-types/a", {"schema": {"const": NUL}}, "/schema/const"),
    "name of a key": ("POST", "/v1/keys", {"name": NUL, "role": "producer"}, "/name"),
    "reason": ("POST", "/v1/pauses", {"kind": "tenant", "reason": NUL}, "/reason"),
}


@pytest.mark.parametrize("way", NULLS)
async def test_a_null_character_is_refused_wherever_it_comes_in(front: Front, way: str) -> None:
    """Taken here, it breaks the first reader whose texts end with it."""
    method, path, body, pointer = NULLS[way]
    reply = await front.call(method, path, body, key=front.worker if "worker" in path else "")
    assert (reply.status, reply.code) == (422, "invalid"), reply.body
    (error,) = reply.json["errors"]
    assert error == {
        "pointer": pointer,
        "detail": "contains the character U+0000, which no text may have",
    }


async def test_the_letters_of_a_null_character_are_none(front: Front) -> None:
    """A path on Windows, or a program about JSON, is no attack."""
    payload = {"path": "C:\\u0000", "\\u0000": "\\\\u0000"}
    reply = await front.call("POST", "/v1/tasks", TASK | {"payload": payload})
    assert reply.status == 201, reply.body
    read = await front.call("GET", f"/v1/tasks/{reply.json['id']}")
    assert read.json["payload"] == payload


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("/v1/tasks", TASK | {"tags": {"a\u200b": "b"}}, "/tags"),
        ("/v1/tasks", TASK | {"concurrency_key": "a\u200b"}, "/concurrency_key"),
        ("/v1/tasks", TASK | {"idempotency_key": "a\u200b"}, "/idempotency_key"),
        ("/v1/keys", {"name": "a\u200b", "role": "producer"}, "/name"),
        ("/v1/pauses", {"kind": "tenant", "reason": "a\u200b"}, "/reason"),
    ],
)
async def test_a_character_that_cannot_be_seen_is_named(
    front: Front, path: str, body: dict[str, Any], pointer: str
) -> None:
    """Who sees two equal names must be told why they differ."""
    reply = await front.call("POST", path, body)
    assert (reply.status, reply.code) == (422, "invalid"), reply.body
    (error,) = reply.json["errors"]
    assert error["pointer"] == pointer
    assert "U+200B ZERO WIDTH SPACE" in error["detail"]


async def test_an_idempotency_key_is_the_same_in_header_and_body(front: Front) -> None:
    """Read as latin-1 in one place and as UTF-8 in the other, one key made two tasks."""

    async def submit(key: str) -> tuple[Reply, Reply]:
        by_header = await front.call("POST", "/v1/tasks", TASK, headers={"Idempotency-Key": key})
        by_body = await front.call("POST", "/v1/tasks", TASK | {"idempotency_key": key})
        return by_header, by_body

    for key in ("schüssel", "ключ", "a b", "é"):
        by_header, by_body = await submit(key)
        assert (by_header.status, by_body.status) == (422, 422), key
        assert "a key is visible ASCII" in by_header.json["detail"]
        assert "a key is visible ASCII" in by_body.json["errors"][0]["detail"]
    assert await front.database.fetch("SELECT id FROM duly.tasks") == []
    by_header, by_body = await submit("schuessel-!~")
    assert (by_header.status, by_body.status) == (201, 200)
    assert by_header.json["id"] == by_body.json["id"]


async def test_every_write_takes_the_same_keys(front: Front) -> None:
    """The header of a control call is remembered, too."""
    for key, status in (("schüssel", 422), ("a b", 422), ("key:1/2", 200)):
        headers = {"Idempotency-Key": key}
        reply = await front.call("PUT", "/v1/task-types/a", {}, headers=headers)
        assert reply.status == status, key
        batch = {"tasks": [TASK]}
        reply = await front.call("POST", "/v1/tasks/batch", batch, headers=headers)
        assert (reply.status == 422) is (status == 422), key


async def test_two_times_are_refused_also_when_one_is_now(front: Front) -> None:
    """Whichever we chose, half the callers would have meant the other."""
    twice = TASK | {"run_at": f"{NEXT_YEAR}-01-01T00:00:00Z", "delay_s": 0}
    alone = await front.call("POST", "/v1/tasks", twice)
    batch = await front.call("POST", "/v1/tasks/batch", {"tasks": [TASK, twice]})
    for reply, pointer in ((alone, "/delay_s"), (batch, "/tasks/1/delay_s")):
        (error,) = reply.json["errors"]
        assert (reply.status, error["pointer"]) == (422, pointer)
        assert error["detail"] == "give run_at or delay_s, not both"
