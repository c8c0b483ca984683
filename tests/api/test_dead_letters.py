"""Dead letters over HTTP: found, understood, replayed once and without a flood, or purged."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from duly.domain.limits import LETTERS_AT_ONCE_MAX, REPLAY_RATE_MAX, REPLAY_RATE_MIN
from tests.api.conftest import Front, Reply
from tests.api.letters import fail, fail_many

LETTERS = "/v1/dead-letters"
ALL: dict[str, Any] = {"filter": {}}


async def get(front: Front, query: str = "", key: str = "") -> Any:
    reply = await front.call("GET", LETTERS + query, key=key or front.producer)
    assert reply.status == 200, reply.body
    return reply.json


async def post(
    front: Front, what: str, body: Any, key: str = "", headers: dict[str, str] | None = None
) -> Reply:
    return await front.call(
        "POST", f"{LETTERS}/{what}", body, key=key or front.operator, headers=headers
    )


async def rows(front: Front, table: str) -> int:
    (row,) = await front.database.fetch(f"SELECT count(*) AS rows FROM duly.{table}")
    count: int = row["rows"]
    return count


async def audited(front: Front) -> list[str]:
    found = await front.database.fetch("SELECT action FROM duly.audit ORDER BY id")
    return [row["action"] for row in found]


def ids_of(page: Any) -> list[UUID]:
    return [UUID(item["id"]) for item in page["items"]]


async def test_letters_are_listed_newest_first_by_page(front: Front) -> None:
    """A letter that no page shows is a failure that nobody mends."""
    ids = [await fail(front, payload='{"secret": 1}') for _ in range(3)]
    await fail(front, tenant=front.other.id)
    first = await get(front, "?limit=2")
    assert ids_of(first) == [ids[2], ids[1]]
    rest = await get(front, f"?limit=2&cursor={first['next_cursor']}")
    assert ids_of(rest) == [ids[0]]
    assert rest["next_cursor"] is None
    letter = first["items"][0]
    assert (letter["kind"], letter["reason"], letter["error"]) == ("letter", "exhausted", "boom")
    assert "payload" not in letter


async def test_letters_are_narrowed_by_every_filter(front: Front) -> None:
    """What the list shows is what a replay of the same filter would take."""
    one = await fail(front, type="a", error="boom")
    two = await fail(front, type="b", error="bang")
    await post(front, f"{two}/replay", None)
    mark = (await get(front, "?type=a"))["items"][0]["fingerprint"]
    assert ids_of(await get(front, "?type=a")) == [one]
    assert ids_of(await get(front, f"?fingerprint={mark}")) == [one]
    assert ids_of(await get(front, "?reason=exhausted")) == [two, one]
    assert ids_of(await get(front, "?reason=poison")) == []
    assert ids_of(await get(front, "?replayed=true")) == [two]
    assert ids_of(await get(front, "?replayed=false")) == [one]


async def test_letters_are_grouped_by_cause(front: Front) -> None:
    """A thousand failures of one cause must read as one line."""
    await fail_many(front, 3, "timeout after 5 s")
    replayed = await fail(front, "refused", type="b")
    await post(front, f"{replayed}/replay", None)
    await fail(front, "refused", type="b")
    page = await get(front, "?group_by=fingerprint&limit=1")
    (group,) = page["items"]
    assert (group["kind"], group["count"], group["example"]) == ("group", 3, "timeout after 5 s")
    assert group["first_at"] <= group["last_at"]
    page = await get(front, f"?group_by=fingerprint&limit=2&cursor={page['next_cursor']}")
    (group,) = page["items"]
    assert (group["type"], group["count"], page["next_cursor"]) == ("b", 1, None)
    (group,) = (await get(front, "?group_by=fingerprint&replayed=true"))["items"]
    assert group["type"] == "b"


@pytest.mark.parametrize(
    "query",
    [
        "?limit=0",
        "?limit=201",
        "?cursor=x",
        "?group_by=fingerprint&cursor=x",
        "?group_by=type",
        "?reason=tired",
        "?fingerprint=%00",
        "?replayed=maybe",
        "?type=A",
        "?state=FAILED",
    ],
)
async def test_a_wrong_query_is_refused(front: Front, query: str) -> None:
    """A filter that is not understood must not be taken for none."""
    reply = await front.call("GET", LETTERS + query, key=front.producer)
    assert (reply.status, reply.code) == (400, "invalid_query")


async def test_a_letter_is_inspected_whole(front: Front) -> None:
    """An operator who decides about a replay must see what would be done again, and to whom."""
    task_id = await fail(
        front,
        payload='{"a": 1}',
        url="https://example.com/x",
        tags={"env": "prod"},
        idempotency_key="order-7",
    )
    letter = (await front.call("GET", f"{LETTERS}/{task_id}", key=front.producer)).json
    assert letter["payload"] == {"a": 1}
    assert letter["target"] == {"url": "https://example.com/x"}
    assert (letter["attempts"], letter["max_attempts"]) == (1, 1)
    assert letter["retry"]["max_attempts"] == 1
    assert (letter["execution_key"], letter["tags"]) == ("order-7", {"env": "prod"})


async def test_a_replay_is_a_new_task_with_the_old_execution_key(front: Front) -> None:
    """The receiver may have acted on the first; only the same key lets it see that."""
    old = await fail(front, payload='{"a": 1}', execution_key="order-7")
    reply = await post(front, f"{old}/replay", None)
    assert reply.status == 201
    task = reply.json
    assert (task["replay_of"], task["execution_key"]) == (str(old), "order-7")
    assert (task["state"], task["payload"]) == ("READY", {"a": 1})
    letter = (await front.call("GET", f"{LETTERS}/{old}")).json
    assert letter["replayed_as"] == task["id"]
    assert len(front.hints) == 1
    assert await audited(front) == ["dead_letter.replay"]
    read = (await front.call("GET", f"/v1/tasks/{old}", key=front.producer)).json
    assert read["state"] == "FAILED"


async def test_a_letter_is_replayed_once_however_often_it_is_asked(front: Front) -> None:
    """Two people press the button; the task must run once more, not twice."""
    old = await fail(front)
    replies = await asyncio.gather(*(post(front, f"{old}/replay", None) for _ in range(5)))
    assert sorted(reply.status for reply in replies) == [201, 409, 409, 409, 409]
    new = next(reply.json["id"] for reply in replies if reply.status == 201)
    refused = next(reply for reply in replies if reply.status == 409)
    assert refused.code == "conflict"
    assert new in refused.json["detail"]
    assert (await post(front, "replay", {"ids": [str(old)]})).json["done"] == 0
    assert await rows(front, "timers") == 1


async def test_a_retried_replay_with_its_key_gets_the_same_answer(front: Front) -> None:
    """The answer got lost on the way: the operator must learn the new task's id all the same."""
    old = await fail(front)
    same = {"Idempotency-Key": "k"}
    first = await post(front, f"{old}/replay", None, headers=same)
    second = await post(front, f"{old}/replay", None, headers=same)
    assert (first.status, second.status) == (201, 201)
    assert second.json["id"] == first.json["id"]
    assert len(front.hints) == 1


async def test_a_purged_letter_is_gone_and_its_task_stays_failed(front: Front) -> None:
    """Emptying the box must not rewrite history."""
    old = await fail(front)
    assert (await front.call("DELETE", f"{LETTERS}/{old}", key=front.operator)).status == 204
    assert (await front.call("GET", f"{LETTERS}/{old}")).status == 404
    assert (await front.call("DELETE", f"{LETTERS}/{old}", key=front.operator)).status == 404
    assert (await post(front, f"{old}/replay", None)).status == 404
    assert (await front.call("GET", f"/v1/tasks/{old}")).json["state"] == "FAILED"
    assert await audited(front) == ["dead_letter.purge"]


@pytest.mark.parametrize("what", ["replay", "purge"])
async def test_a_dry_run_counts_and_changes_nothing(front: Front, what: str) -> None:
    """People look first; looking must not be doing."""
    await fail_many(front, 3)
    reply = await post(front, what, ALL | {"dry_run": True})
    assert reply.status == 200
    assert reply.json | {"dry_run": True, "matched": 3, "done": 0, "has_more": False} == reply.json
    assert (await rows(front, "timers"), await rows(front, "dead_letters")) == (0, 3)
    assert (await audited(front), front.hints) == ([], [])


async def test_many_are_replayed_one_after_another(front: Front) -> None:
    """A thousand at once would be the outage that made them, once more."""
    ids = await fail_many(front, 5)
    before = datetime.now(UTC)
    answer = (await post(front, "replay", ALL | {"rate_per_s": 2})).json
    assert (answer["matched"], answer["done"], answer["has_more"]) == (5, 5, False)
    found = await front.database.fetch(
        "SELECT replay_of, run_at FROM duly.tasks WHERE replay_of IS NOT NULL ORDER BY run_at"
    )
    assert [row["replay_of"] for row in found] == ids
    gaps = [(row["run_at"] - found[0]["run_at"]).total_seconds() for row in found]
    assert gaps == [0, 0.5, 1, 1.5, 2]
    assert found[0]["run_at"] - before < timedelta(seconds=10)
    assert datetime.fromisoformat(answer["last_at"]) == found[-1]["run_at"]
    assert sorted(due_at for _, due_at in front.hints) == [row["run_at"] for row in found]
    assert await audited(front) == ["dead_letter.replay_many"]
    again = (await post(front, "replay", ALL)).json
    assert (again["matched"], again["done"], again["last_at"]) == (0, 0, None)
    assert await rows(front, "timers") == 5


async def test_the_next_bite_goes_on_where_the_last_one_ended(front: Front) -> None:
    """Batches that each begin at once add up to the flood that the rate was to prevent."""
    one, two = await fail_many(front, 2)
    far = datetime.now(UTC) + timedelta(hours=1)
    body = {"ids": [str(one)], "start_at": far.isoformat()}
    answer = (await post(front, "replay", body)).json
    assert datetime.fromisoformat(answer["last_at"]) == far
    past = datetime.now(UTC) - timedelta(hours=1)
    answer = (await post(front, "replay", {"ids": [str(two)], "start_at": past.isoformat()})).json
    assert datetime.fromisoformat(answer["last_at"]) > past + timedelta(minutes=59)


async def test_a_bite_is_bounded_and_says_that_more_is_left(front: Front) -> None:
    """One call over a million letters would hold its locks for minutes."""
    await fail_many(front, LETTERS_AT_ONCE_MAX + 1)
    look = (await post(front, "replay", ALL | {"dry_run": True})).json
    assert (look["matched"], look["has_more"]) == (LETTERS_AT_ONCE_MAX, True)
    first = (await post(front, "replay", ALL | {"rate_per_s": REPLAY_RATE_MAX})).json
    assert (first["done"], first["has_more"]) == (LETTERS_AT_ONCE_MAX, True)
    second = (await post(front, "replay", ALL)).json
    assert (second["done"], second["has_more"]) == (1, False)
    purged = (await post(front, "purge", {"filter": {"replayed": True}})).json
    assert (purged["done"], purged["has_more"]) == (LETTERS_AT_ONCE_MAX, True)
    purged = (await post(front, "purge", ALL)).json
    assert (purged["done"], purged["has_more"]) == (1, False)
    assert await rows(front, "dead_letters") == 0


async def test_a_purge_by_filter_leaves_the_rest(front: Front) -> None:
    """Purged is gone for good: one letter too many cannot be brought back."""
    keep = await fail(front, type="a")
    gone = await fail(front, type="b")
    answer = (await post(front, "purge", {"filter": {"type": "b"}})).json
    assert (answer["matched"], answer["done"]) == (1, 1)
    assert ids_of(await get(front)) == [keep]
    assert (await front.call("GET", f"/v1/tasks/{gone}")).json["state"] == "FAILED"
    answer = (await post(front, "purge", {"ids": [str(keep), str(keep), str(gone)]})).json
    assert (answer["matched"], answer["done"], answer["has_more"]) == (1, 1, False)


def many(count: int) -> list[str]:
    return [str(UUID(int=number)) for number in range(count)]


@pytest.mark.parametrize(
    ("what", "body", "pointer"),
    [
        ("replay", {}, ""),
        ("replay", {"filter": {}, "ids": many(1)}, ""),
        ("replay", {"ids": []}, "/ids"),
        ("replay", {"ids": many(LETTERS_AT_ONCE_MAX + 1)}, "/ids"),
        ("replay", {"ids": ["x"]}, "/ids"),
        ("replay", ALL | {"rate_per_s": REPLAY_RATE_MIN / 2}, "/rate_per_s"),
        ("replay", ALL | {"rate_per_s": REPLAY_RATE_MAX + 1}, "/rate_per_s"),
        ("replay", ALL | {"start_at": "2026-01-01T00:00:00"}, "/start_at"),
        ("replay", ALL | {"start_at": "9999-12-31T23:59:59Z"}, "/start_at"),
        ("replay", {"filter": {"replayed": True}}, "/filter/replayed"),
        ("replay", {"filter": {"reason": "tired"}}, "/filter/reason"),
        ("replay", {"filters": {}}, "/filters"),
        ("purge", {}, ""),
        ("purge", {"filter": {}, "ids": many(1)}, ""),
        ("purge", {"filter": {"fingerprint": "\x00"}}, "/filter/fingerprint"),
        ("purge", {"ids": many(LETTERS_AT_ONCE_MAX + 1)}, "/ids"),
        ("purge", ALL | {"rate_per_s": 1}, "/rate_per_s"),
    ],
)
async def test_a_wrong_request_is_refused_with_its_place_and_changes_nothing(
    front: Front, what: str, body: Any, pointer: str
) -> None:
    """A request that is half understood replays or purges what nobody meant."""
    await fail(front)
    reply = await post(front, what, body)
    assert (reply.status, reply.code) == (422, "invalid"), reply.body
    assert reply.json["errors"][0]["pointer"].startswith(pointer)
    assert (await rows(front, "timers"), await rows(front, "dead_letters")) == (0, 1)


@pytest.mark.parametrize("rate", [REPLAY_RATE_MIN, REPLAY_RATE_MAX])
async def test_the_bounds_themselves_are_taken(front: Front, rate: float) -> None:
    """A bound that refuses itself is another bound than the one that is written down."""
    body = {"ids": many(LETTERS_AT_ONCE_MAX), "rate_per_s": rate}
    reply = await post(front, "replay", body)
    assert (reply.status, reply.json["matched"]) == (200, 0)


async def test_a_stranger_finds_changes_and_counts_nothing(front: Front) -> None:
    """Another tenant's letter is as missing as one that never was, to the last byte."""
    theirs = await fail(front)
    missing = uuid4()
    for method, path in (
        ("GET", f"{LETTERS}/%s"),
        ("POST", f"{LETTERS}/%s/replay"),
        ("DELETE", f"{LETTERS}/%s"),
    ):
        replies = [
            await front.call(method, path % name, key=front.other_admin)
            for name in (theirs, missing, "no-id")
        ]
        assert [reply.status for reply in replies] == [404] * 3
        assert len({reply.unnamed for reply in replies}) == 1
    for what in ("replay", "purge"):
        for body in (ALL, {"ids": [str(theirs)]}):
            reply = await post(front, what, body, key=front.other_admin)
            assert (reply.status, reply.json["matched"]) == (200, 0)
    assert await get(front, key=front.other_producer) == {"items": [], "next_cursor": None}
    groups = await get(front, "?group_by=fingerprint", key=front.other_producer)
    assert groups["items"] == []
    assert (await rows(front, "timers"), await rows(front, "dead_letters")) == (0, 1)


async def test_an_admin_of_the_installation_may_name_a_tenant(front: Front) -> None:
    """Operators mend what others broke; the audit row belongs to the tenant it happened to."""
    old = await fail(front, tenant=front.other.id)
    reply = await front.call("POST", f"{LETTERS}/{old}/replay?tenant=other")
    assert reply.status == 201
    (row,) = await front.database.fetch("SELECT tenant FROM duly.audit")
    assert row["tenant"] == front.other.id


async def test_who_may_read_may_not_replay(front: Front) -> None:
    """A producer's key lies in many places; it must not start a thousand tasks anew."""
    old = await fail(front)
    for method, path, body in (
        ("POST", f"{LETTERS}/{old}/replay", None),
        ("DELETE", f"{LETTERS}/{old}", None),
        ("POST", f"{LETTERS}/replay", ALL),
        ("POST", f"{LETTERS}/purge", ALL),
    ):
        reply = await front.call(method, path, body, key=front.producer)
        assert (reply.status, reply.code) == (403, "forbidden")
        assert (await front.call(method, path, body, key=None)).status == 401
    for path in (LETTERS, f"{LETTERS}/{old}"):
        assert (await front.call("GET", path, key=front.worker)).status == 403
    assert (await rows(front, "timers"), await rows(front, "dead_letters")) == (0, 1)
