"""Control-plane calls with an Idempotency-Key: one effect, one answer, and no secret kept."""

import asyncio

import msgspec

from tests.api.conftest import Front

PRODUCER = {"name": "billing", "role": "producer"}


async def answer_kept(front: Front) -> str:
    rows = await front.database.fetch("SELECT answer FROM duly.remembered_calls")
    return "\n".join(row["answer"] for row in rows)


async def test_the_same_call_twice_makes_one_key_and_keeps_no_secret(front: Front) -> None:
    """A retry after a lost answer must not leave a key that nobody knows of."""
    headers = {"Idempotency-Key": "make-1"}
    first = await front.call("POST", "/v1/keys", PRODUCER, headers=headers)
    again = await front.call("POST", "/v1/keys", PRODUCER, headers=headers)
    assert (first.status, again.status) == (201, 201)
    assert "Idempotent-Replay" not in first.headers
    assert again.headers["Idempotent-Replay"] == "true"
    assert again.json == first.json | {"key": None}
    secret = first.json["key"].split("_")[2]
    assert secret not in await answer_kept(front)
    rotate = f"/v1/keys/{first.json['id']}/rotate"
    rotated, replayed = [
        await front.call("POST", rotate, headers={"Idempotency-Key": "r"}) for _ in range(2)
    ]
    assert replayed.json == rotated.json | {"key": None}
    assert rotated.json["key"].split("_")[2] not in await answer_kept(front)
    audit = (await front.call("GET", "/v1/audit")).json["items"]
    assert [entry["action"] for entry in audit] == ["key.rotate", "key.create"]


async def test_the_same_call_by_many_at_once_makes_one_key(front: Front) -> None:
    """A client with a nervous retry races itself."""
    headers = {"Idempotency-Key": "make-1"}
    replies = await asyncio.gather(
        *(front.call("POST", "/v1/keys", PRODUCER, headers=headers) for _ in range(6))
    )
    assert [reply.status for reply in replies] == [201] * 6
    assert len({reply.json["id"] for reply in replies}) == 1
    shown = [reply for reply in replies if reply.json["key"] is not None]
    assert ["Idempotent-Replay" in reply.headers for reply in shown] == [False]
    (row,) = await front.database.fetch(
        "SELECT count(*) AS keys FROM duly.api_keys WHERE name = 'billing'"
    )
    assert row["keys"] == 1


async def test_a_key_of_a_call_belongs_to_one_call_of_one_tenant(front: Front) -> None:
    """The answer to another question, or to another tenant's, must never come back."""
    headers = {"Idempotency-Key": "k"}
    first = await front.call("POST", "/v1/keys", PRODUCER, headers=headers)
    for method, path, body in (
        ("POST", "/v1/keys", PRODUCER | {"name": "other"}),
        ("POST", "/v1/pauses", {"kind": "tenant", "reason": "r"}),
        ("DELETE", f"/v1/keys/{first.json['id']}", None),
    ):
        clash = await front.call(method, path, body, headers=headers)
        assert (clash.status, clash.code) == (409, "idempotency_mismatch")
    theirs = await front.call("POST", "/v1/keys", PRODUCER, headers=headers, key=front.other_admin)
    assert (theirs.status, theirs.json["key"] is None) == (201, False)
    assert (await front.call("GET", f"/v1/keys/{first.json['id']}")).json["revoked_at"] is None


async def test_a_refused_call_keeps_no_answer(front: Front) -> None:
    """Who mends the call that was refused uses the same key again."""
    headers = {"Idempotency-Key": "k"}
    wrong = await front.call("POST", "/v1/pauses/resume", {"kind": "tenant"}, headers=headers)
    assert wrong.status == 404
    right = await front.call("POST", "/v1/keys", PRODUCER, headers=headers)
    assert right.status == 201
    assert msgspec.json.decode(await answer_kept(front))["id"] == right.json["id"]
