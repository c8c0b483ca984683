"""API keys over HTTP: made once, shown once, never wider than their maker, gone when revoked."""

import asyncio
import time
from datetime import datetime, timedelta
from typing import Any

import pytest

from duly import ttl_cache
from duly.api.credentials import sign
from duly.store import keys as store
from duly.store.keys import revoke_key
from duly.testing.clock import ManualClock
from duly.ttl_cache import TtlCache
from tests.api.conftest import Front, Reply

PRODUCER = {"name": "billing", "role": "producer"}
UNKNOWN = "/v1/keys/aaaaaaaaaaaa"
TASK = {"type": "mail", "delay_s": 3600}
# Any role may ask it, so it tells whether a credential is let in at all.
OWN_TENANT = "/v1/tenants/default"


async def made(front: Front, body: dict[str, Any], query: str = "", **how: Any) -> dict[str, Any]:
    reply = await front.call("POST", f"/v1/keys{query}", body, **how)
    assert reply.status == 201, reply.body
    key: dict[str, Any] = reply.json
    return key


async def is_let_in(front: Front, text: str) -> bool:
    reply = await front.call("GET", OWN_TENANT, key=text)
    assert reply.status in (200, 401), reply.body
    return reply.status == 200


def stand_at(clock: ManualClock, instant: datetime) -> None:
    clock.start = instant - timedelta(seconds=clock.elapsed_s)


async def test_a_made_key_works_and_its_text_is_never_shown_again(front: Front) -> None:
    """A list that shows secrets makes every admin's screen a leak."""
    key = await made(front, PRODUCER | {"types": ["mail", "bill", "mail"]})
    _, key_id, secret = key["key"].split("_")
    assert (key_id, key["types"], key["reach"]) == (key["id"], ["bill", "mail"], "tenant")
    assert await is_let_in(front, key["key"])
    read = await front.call("GET", f"/v1/keys/{key['id']}")
    listed = await front.call("GET", "/v1/keys?limit=200")
    assert read.json == {name: value for name, value in key.items() if name != "key"}
    assert read.json in listed.json["items"]
    for reply in (read, listed, await front.call("GET", "/v1/audit")):
        assert secret.encode() not in reply.body
    tables = await front.database.fetch("SELECT api_keys::text AS row FROM duly.api_keys")
    assert not any(secret in row["row"] for row in tables)


async def test_a_key_submits_only_the_types_it_is_for(front: Front) -> None:
    """A key for mail that charges cards is one leak away from a loss."""
    key = (await made(front, PRODUCER | {"types": ["mail"]}))["key"]
    assert (await front.call("POST", "/v1/tasks", TASK, key=key)).status == 201
    refused = await front.call("POST", "/v1/tasks", TASK | {"type": "charge"}, key=key)
    assert (refused.status, refused.code) == (403, "forbidden")


async def test_a_revoked_key_is_refused_at_once_here(
    still_front: tuple[Front, ManualClock],
) -> None:
    """The minutes after a leak are the ones that count."""
    front, _clock = still_front
    key = await made(front, PRODUCER)
    assert await is_let_in(front, key["key"])
    revoked = await front.call("DELETE", f"/v1/keys/{key['id']}")
    assert (revoked.status, revoked.json["id"]) == (200, key["id"])
    assert not await is_let_in(front, key["key"])
    again = await front.call("DELETE", f"/v1/keys/{key['id']}")
    assert (again.status, again.json) == (200, revoked.json)
    audit = await front.call("GET", "/v1/audit?action=key.revoke")
    assert len(audit.json["items"]) == 1


async def test_a_key_revoked_elsewhere_is_refused_within_seconds(
    still_front: tuple[Front, ManualClock],
) -> None:
    """What a process remembers of a key must not outlive it by much."""
    front, clock = still_front
    key = await made(front, PRODUCER)
    assert await is_let_in(front, key["key"])
    await revoke_key(front.database, front.tenant.id, key["id"])
    clock.advance(ttl_cache.KEEP_S)
    assert ttl_cache.KEEP_S <= 5
    assert not await is_let_in(front, key["key"])


async def test_a_look_that_a_revocation_overtook_is_not_remembered() -> None:
    """A look that began before the change and ends after it knows only what was before."""
    seen, gate = ["live", "revoked"], asyncio.Event()

    async def look(_name: str) -> str:
        found = seen.pop(0)
        await gate.wait()
        return found

    known: TtlCache[str, str] = TtlCache(ManualClock(), look)
    early = asyncio.ensure_future(known.get("key"))
    await asyncio.sleep(0)
    known.forget("key")
    late = asyncio.ensure_future(known.get("key"))
    await asyncio.sleep(0)
    gate.set()
    assert [await early, await late] == ["live", "revoked"]
    assert await known.get("key") == "revoked"
    assert known.looking == {}


async def test_a_rotated_key_and_its_successor_both_live_for_the_grace(
    still_front: tuple[Front, ManualClock],
) -> None:
    """Without an overlap every rotation is an outage; without its end it is no rotation."""
    front, clock = still_front
    old = await made(front, PRODUCER | {"types": ["mail"]})
    reply = await front.call("POST", f"/v1/keys/{old['id']}/rotate", {"grace_s": 600})
    assert reply.status == 201, reply.body
    new = reply.json
    assert new["rotated_from"] == old["id"]
    assert {name: new[name] for name in ("name", "role", "reach", "types", "signing")} == {
        name: old[name] for name in ("name", "role", "reach", "types", "signing")
    }
    ends_at = datetime.fromisoformat(
        (await front.call("GET", f"/v1/keys/{old['id']}")).json["expires_at"]
    )
    stand_at(clock, ends_at - timedelta(seconds=1))
    assert await is_let_in(front, old["key"])
    assert await is_let_in(front, new["key"])
    # Its end is obeyed to the moment, also by who remembers the key.
    clock.advance(1.0)
    assert not await is_let_in(front, old["key"])
    assert await is_let_in(front, new["key"])


async def test_a_rotation_without_grace_ends_the_old_key_at_once(front: Front) -> None:
    """After a leak nobody wants an overlap."""
    old = await made(front, PRODUCER)
    assert await is_let_in(front, old["key"])
    new = (await front.call("POST", f"/v1/keys/{old['id']}/rotate", {"grace_s": 0})).json
    assert not await is_let_in(front, old["key"])
    assert await is_let_in(front, new["key"])


async def test_a_key_is_rotated_once_also_by_two_at_once(front: Front) -> None:
    """Two admins who rotate the same key leave one stray key that nobody knows of."""
    old = await made(front, PRODUCER)
    path = f"/v1/keys/{old['id']}/rotate"
    replies = await asyncio.gather(*(front.call("POST", path) for _ in range(4)))
    assert sorted(reply.status for reply in replies) == [201, 409, 409, 409]
    assert {reply.code for reply in replies if reply.status == 409} == {"conflict"}
    for dead in (old["id"], next(reply for reply in replies if reply.status == 201).json["id"]):
        await front.call("DELETE", f"/v1/keys/{dead}")
        refused = await front.call("POST", f"/v1/keys/{dead}/rotate")
        assert (refused.status, refused.code) == (409, "conflict")


async def test_a_successor_lives_as_long_as_the_key_was_made_for(front: Front) -> None:
    """A key for a day that a rotation makes eternal was a key for a day on paper."""
    old = await made(front, PRODUCER | {"expires_in_s": 86400})
    new = (await front.call("POST", f"/v1/keys/{old['id']}/rotate")).json
    lives = [
        datetime.fromisoformat(key["expires_at"]) - datetime.fromisoformat(key["created_at"])
        for key in (old, new)
    ]
    assert lives == [timedelta(days=1)] * 2


async def test_a_successor_may_submit_what_its_predecessor_might(front: Front) -> None:
    """A rotation that loses rights stops a business, and looks like a wrong key."""
    old = await made(front, PRODUCER)
    dead = await made(front, PRODUCER)
    described = await front.call("PUT", "/v1/task-types/mail", {"keys": [old["id"], dead["id"]]})
    assert described.status == 200, described.body
    await front.call("DELETE", f"/v1/keys/{dead['id']}")
    assert (await front.call("POST", "/v1/tasks", TASK, key=old["key"])).status == 201
    new = (await front.call("POST", f"/v1/keys/{old['id']}/rotate")).json
    for text in (old["key"], new["key"]):
        assert (await front.call("POST", "/v1/tasks", TASK, key=text)).status == 201
    listed = (await front.call("GET", "/v1/task-types/mail")).json["keys"]
    assert sorted(listed) == sorted([old["id"], new["id"]])


async def test_an_expired_key_is_refused(still_front: tuple[Front, ManualClock]) -> None:
    """A key that was lent for a day must not open the door on the next."""
    front, clock = still_front
    key = await made(front, PRODUCER | {"expires_in_s": 60})
    ends_at = datetime.fromisoformat(key["expires_at"])
    stand_at(clock, ends_at - timedelta(milliseconds=1))
    assert await is_let_in(front, key["key"])
    clock.advance(0.001)
    assert not await is_let_in(front, key["key"])
    # And by the database's clock, whatever ours says.
    past = await front.make_key(front.tenant, "producer", expires_in_s=-1.0)
    stand_at(clock, ends_at - timedelta(days=1))
    assert not await is_let_in(front, past)


async def signed(front: Front, text: str, nonce: str) -> Reply:
    _, key_id, secret = text.split("_")
    timestamp = str(int(time.time()))
    signature = sign(secret.encode(), "GET", OWN_TENANT, timestamp, nonce)
    headers = {
        "X-Duly-Key": key_id,
        "X-Duly-Timestamp": timestamp,
        "X-Duly-Nonce": nonce,
        "X-Duly-Signature": signature,
    }
    return await front.call("GET", OWN_TENANT, key=None, headers=headers)


async def test_signing_keys_and_bearer_keys_are_not_interchangeable(front: Front) -> None:
    """A signing secret that also bears makes the signature an ornament."""
    bearer = (await made(front, PRODUCER))["key"]
    signing = (await made(front, PRODUCER | {"signing": True}))["key"]
    assert await is_let_in(front, bearer)
    assert not await is_let_in(front, signing)
    assert (await signed(front, signing, "nonce-001")).status == 200
    assert (await signed(front, signing, "nonce-001")).status == 401
    assert (await signed(front, bearer, "nonce-002")).status == 401


async def test_a_rotated_signing_key_still_signs(front: Front) -> None:
    """A successor of another kind locks its owner out."""
    old = await made(front, PRODUCER | {"signing": True})
    new = (await front.call("POST", f"/v1/keys/{old['id']}/rotate")).json
    assert new["signing"] is True
    assert (await signed(front, new["key"], "nonce-001")).status == 200
    assert (await signed(front, old["key"], "nonce-002")).status == 200
    await front.call("DELETE", f"/v1/keys/{old['id']}")
    assert (await signed(front, old["key"], "nonce-003")).status == 401


async def test_nobody_makes_a_key_that_reaches_further_than_their_own(front: Front) -> None:
    """A tenant's admin who can make an installation's admin is one."""
    wide = {"name": "w", "role": "admin", "reach": "installation"}
    refused = await front.call("POST", "/v1/keys", wide, key=front.other_admin)
    assert (refused.status, refused.code) == (403, "forbidden")
    narrow = (await made(front, wide | {"reach": "tenant", "types": ["mail"]}))["key"]
    for types in (None, ["mail", "charge"]):
        body = PRODUCER | {"types": types}
        assert (await front.call("POST", "/v1/keys", body, key=narrow)).status == 403
    await made(front, PRODUCER | {"types": ["mail"]}, key=narrow)
    reaching = await made(front, wide)
    assert (await front.call("GET", "/v1/tenants", key=reaching["key"])).status == 200


async def test_nobody_takes_over_a_key_that_reaches_further_than_their_own(front: Front) -> None:
    """Rotation answers with the text of a key as wide as the old one."""
    own_admin = await front.make_key(front.tenant, "admin")
    wide = front.admin.split("_")[1]
    for method, path in (("POST", f"/v1/keys/{wide}/rotate"), ("DELETE", f"/v1/keys/{wide}")):
        refused = await front.call(method, path, key=own_admin)
        assert (refused.status, refused.code) == (403, "forbidden")
    assert await is_let_in(front, front.admin)


async def test_a_foreign_key_is_exactly_as_missing_as_one_that_never_was(front: Front) -> None:
    """An id that answers differently tells a neighbour that it exists."""
    foreign = f"/v1/keys/{front.admin.split('_')[1]}"
    for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/rotate")):
        replies = [
            await front.call(method, path + rest, key=front.other_admin)
            for path in (foreign, UNKNOWN, "/v1/keys/AAAAAAAAAAAA", "/v1/keys/x")
        ]
        assert {reply.status for reply in replies} == {404}
        assert len({reply.unnamed for reply in replies}) == 1
    assert await is_let_in(front, front.admin)
    ids = [
        key["id"]
        for key in (await front.call("GET", "/v1/keys", key=front.other_admin)).json["items"]
    ]
    assert sorted(ids) == sorted(
        text.split("_")[1] for text in (front.other_admin, front.other_producer)
    )


async def test_an_installations_admin_makes_keys_for_other_tenants(front: Front) -> None:
    """A new tenant has nobody yet who could make its first key."""
    key = await made(front, {"name": "first", "role": "admin"}, "?tenant=other")
    reply = await front.call("GET", "/v1/tenants/other", key=key["key"])
    assert reply.status == 200
    assert (await front.call("GET", "/v1/tenants/default", key=key["key"])).status == 404
    (entry,) = (await front.call("GET", "/v1/audit", key=front.other_admin)).json["items"]
    assert (entry["action"], entry["subject"]) == ("key.create", key["id"])
    for query in ("default", "nobody"):
        refused = await front.call(
            "POST", f"/v1/keys?tenant={query}", PRODUCER, key=front.other_admin
        )
        assert (refused.status, refused.code) == (404, "not_found")


async def test_who_is_no_admin_has_no_business_with_keys(front: Front) -> None:
    """An operator who can make keys is an admin with one step more."""
    own = f"/v1/keys/{front.producer.split('_')[1]}"
    for method, path, body in (
        ("GET", "/v1/keys", None),
        ("POST", "/v1/keys", PRODUCER),
        ("GET", own, None),
        ("DELETE", own, None),
        ("POST", f"{own}/rotate", {"grace_s": 0}),
    ):
        for key in (front.operator, front.producer, front.worker):
            reply = await front.call(method, path, body, key=key)
            assert (reply.status, reply.code) == (403, "forbidden")


TEN_YEARS_S = 10 * 366 * 86400
WRONG_KEYS: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "/name"),
    ({"name": "n" * 101}, "/name"),
    ({"name": "a\u0000"}, "/name"),
    ({"role": "king"}, "/role"),
    ({"reach": "world"}, "/reach"),
    ({"reach": "installation"}, "/reach"),
    ({"types": []}, "/types"),
    ({"types": [f"t{n}" for n in range(101)]}, "/types"),
    ({"types": ["Mail"]}, "/types/0"),
    ({"types": ["mail\n"]}, "/types/0"),
    ({"expires_in_s": 0.9}, "/expires_in_s"),
    ({"expires_in_s": TEN_YEARS_S + 1}, "/expires_in_s"),
    ({"signing": "yes"}, "/signing"),
    ({"tenant": "other"}, "/tenant"),
    ({"expires_in": 5}, "/expires_in"),
]


async def test_a_wrong_key_names_the_field_and_leaves_nothing(front: Front) -> None:
    """A scope that is misspelt and ignored is a key that may do everything."""
    for change, pointer in WRONG_KEYS:
        reply = await front.call("POST", "/v1/keys", PRODUCER | change)
        assert (reply.status, reply.code) == (422, "invalid"), change
        assert [error["pointer"] for error in reply.json["errors"]] == [pointer], reply.body
    assert reply.json["errors"][0]["detail"].endswith("did you mean expires_in_s?")
    assert len((await front.call("GET", "/v1/keys")).json["items"]) == 4
    most = {
        "name": "ä" * 100,
        "types": [f"t{n:0127d}"[:128] for n in range(100)],
        "expires_in_s": TEN_YEARS_S,
    }
    assert len(set(most["types"])) == 100  # type: ignore[call-overload]
    await made(front, PRODUCER | most)
    await made(front, PRODUCER | {"expires_in_s": 1})


async def test_the_grace_of_a_rotation_is_bounded(front: Front) -> None:
    """A rotation with a grace of a year is none."""
    for grace_s, status in ((-1, 422), (7 * 86400 + 1, 422), (7 * 86400, 201)):
        key = await made(front, PRODUCER)
        reply = await front.call("POST", f"/v1/keys/{key['id']}/rotate", {"grace_s": grace_s})
        assert reply.status == status, reply.body


async def test_dead_keys_make_room_and_live_ones_are_bounded(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant that rotates for years must not run out of keys, nor fill a table."""
    monkeypatch.setattr(store, "KEYS_PER_TENANT_MAX", 5)
    dead = await made(front, PRODUCER)
    await front.call("DELETE", f"/v1/keys/{dead['id']}")
    live = await made(front, PRODUCER)
    assert (await front.call("GET", f"/v1/keys/{dead['id']}")).status == 404
    past = await front.call("POST", "/v1/keys", PRODUCER)
    assert (past.status, past.code) == (409, "too_many")
    rotated = await front.call("POST", f"/v1/keys/{live['id']}/rotate")
    assert (rotated.status, rotated.code) == (409, "too_many")
    assert await is_let_in(front, live["key"])


async def test_the_list_of_keys_pages(front: Front) -> None:
    """A key that no page shows is never revoked."""
    seen: list[str] = []
    cursor = ""
    while True:
        reply = await front.call("GET", f"/v1/keys?limit=3{cursor}")
        seen += [key["id"] for key in reply.json["items"]]
        if reply.json["next_cursor"] is None:
            break
        cursor = f"&cursor={reply.json['next_cursor']}"
    texts = (front.admin, front.operator, front.producer, front.worker)
    assert seen == sorted(text.split("_")[1] for text in texts)
    assert (await front.call("GET", "/v1/keys?cursor=%00")).code == "invalid_query"


async def test_a_viewer_reads_what_an_operator_reads_and_changes_nothing(front: Front) -> None:
    """A screen on the wall has a key, too."""
    viewer = await front.make_key(front.tenant, "viewer")
    for path in ("/v1/tasks", "/v1/pauses", "/v1/workers", "/v1/audit", "/v1/stats/now"):
        assert (await front.call("GET", path, key=viewer)).status == 200, path
    for path in ("/v1/keys", "/v1/webhook-secrets", "/v1/nodes"):
        assert (await front.call("GET", path, key=viewer)).status == 403, path
    preview = {"cron": "0 2 * * *", "count": 1}
    assert (await front.call("POST", "/v1/schedules/preview", preview, key=viewer)).status == 200
    for endpoint in front.door.endpoints():
        if endpoint.method != "GET" and endpoint.path not in LOOKS:
            assert "viewer" not in endpoint.roles, f"{endpoint.method} {endpoint.path}"


# Neither changes anything but who is signed in.
LOOKS = ("/v1/schedules/preview", "/v1/session/links")
