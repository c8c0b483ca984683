"""Bounds on what one caller takes from the others: shares, turns, and how long the loop is held."""

import asyncio
import base64
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from random import Random

import msgspec
import pytest

from duly.api.admission import Admission, AdmissionLimits, FairLimiter
from duly.api.credentials import UNPROVEN_BYTES_MAX, sign
from duly.api.list_body import ITEM_BYTES_MAX, SHORT_BYTES_MAX, WHOLE_BYTES_MAX
from duly.api.problems import ApiProblem, Code
from duly.environment import Environment, SystemClock
from duly.store.database import Database
from tests.api.conftest import Front, Reply, open_front
from tests.api.watching import watched_loop

SMALL = AdmissionLimits(waiting_share=2, wait_s=60.0)
BATCH = "/v1/tasks/batch"
JSON = "application/json"
# A refused batch of so many items was decoded for 0.3 s before; counting them takes a millisecond.
HOLD_MAX_S = 0.15


def limiter(most: int = 4, share: int = 2, limits: AdmissionLimits = SMALL) -> FairLimiter:
    return FairLimiter("things", most, share, limits)


async def test_one_tenant_gets_its_share_and_no_more() -> None:
    """All of it would leave nothing for who comes next."""
    limited = limiter()
    await limited.acquire("a")
    await limited.acquire("a")
    third = asyncio.ensure_future(limited.acquire("a"))
    await limited.acquire("b")
    await asyncio.sleep(0)
    assert not third.done()
    limited.release("a")
    await third


async def test_waiting_tenants_come_in_by_turns() -> None:
    """In the order of arrival, a hundred waiting calls of one are before the first of another."""
    limited = limiter(most=1, share=1)
    order: list[str] = []
    await limited.acquire("x")

    async def wait(tenant: str) -> None:
        await limited.acquire(tenant)
        order.append(tenant)
        limited.release(tenant)

    waiting = [asyncio.ensure_future(wait(tenant)) for tenant in ("a", "a", "b", "b", "c")]
    await asyncio.sleep(0)
    limited.release("x")
    await asyncio.gather(*waiting)
    assert order == ["a", "b", "c", "a", "b"]
    assert (limited.used, dict(limited.used_by), dict(limited.waiting)) == (0, {}, {})


async def test_a_large_wish_is_not_passed_by_small_ones_for_ever() -> None:
    """What fits into every gap would keep out what needs a wide one."""
    limited = limiter(most=10, share=10)
    await limited.acquire("a", 6)
    large = asyncio.ensure_future(limited.acquire("b", 8))
    await asyncio.sleep(0)
    small = asyncio.ensure_future(limited.acquire("c", 1))
    await asyncio.sleep(0)
    assert not small.done()
    limited.release("a", 6)
    await large
    await small


async def test_so_many_may_wait_and_one_more_is_told() -> None:
    """A queue without an end is memory without an end."""
    limited = limiter(most=1, share=1)
    await limited.acquire("a")
    waiting = [asyncio.ensure_future(limited.acquire("a")) for _ in range(SMALL.waiting_share)]
    await asyncio.sleep(0)
    with pytest.raises(ApiProblem) as refused:
        await limited.acquire("a")
    assert refused.value.code is Code.CONCURRENCY_LIMITED
    assert refused.value.headers["retry-after"] == "1"
    other = asyncio.ensure_future(limited.acquire("b"))
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    limited.release("a")
    await other
    limited.release("b")
    assert (limited.used, dict(limited.waiting)) == (0, {})


async def test_who_waits_too_long_is_told_whose_fault_it_is() -> None:
    """429 says: you have enough in work. 503 says: we have."""
    limited = limiter(most=2, share=1, limits=AdmissionLimits(wait_s=0.01))
    await limited.acquire("a")
    with pytest.raises(ApiProblem) as mine:
        await limited.acquire("a")
    assert mine.value.code is Code.CONCURRENCY_LIMITED
    await limited.acquire("b")
    with pytest.raises(ApiProblem) as ours:
        await limited.acquire("c")
    assert ours.value.code is Code.OVERLOADED
    limited.release("a")
    await limited.acquire("c")


async def test_a_turn_that_comes_while_its_caller_goes_is_not_lost() -> None:
    """A unit that nobody gives back is lost until the next start."""
    limited = limiter(most=1, share=1)
    await limited.acquire("a")
    late = asyncio.ensure_future(limited.acquire("b"))
    await asyncio.sleep(0)
    limited.release("a")
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    assert limited.used == 0
    await limited.acquire("c")


async def test_a_tenant_has_so_many_calls_in_work_and_operators_any_number(
    database: Database,
) -> None:
    """Long polls of one tenant would take every connection."""
    environment = Environment(clock=SystemClock(), random=Random(7))
    admission = Admission(AdmissionLimits(calls_share=2))
    async with open_front(database, environment, admission=admission) as front:
        made = await front.call("POST", "/v1/tasks", {"type": "a", "delay_s": 60})
        path = f"/v1/tasks/{made.json['id']}/wait?timeout_s=30"
        waiting = [asyncio.ensure_future(front.call("GET", path, key=front.producer)) for _ in "12"]
        async with asyncio.timeout(5):
            while admission.calls[front.tenant.id] < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        reply = await front.call("GET", path, key=front.producer)
        assert (reply.status, reply.code) == (429, "concurrency_limited")
        assert reply.headers["Retry-After"] == "1"
        other = await front.call("POST", "/v1/tasks", {"type": "a"}, key=front.other_producer)
        assert other.status == 201
        assert (await front.call("POST", f"/v1/tasks/{made.json['id']}/cancel")).status == 200
        assert [reply.status for reply in await asyncio.gather(*waiting)] == [200, 200]
    assert not admission.calls


def items(count: int, task: bytes = b'{"type":"a"}') -> bytes:
    return b'{"tasks":[' + b",".join([task] * count) + b"]}"


async def post(front: Front, body: bytes, kind: str = "application/json") -> Reply:
    headers = {"Content-Type": kind}
    return await front.call("POST", BATCH, raw=body, key=front.producer, headers=headers)


@pytest.mark.parametrize(
    ("body", "kind", "pointer"),
    [
        (items(76_001), "application/json", "/tasks"),
        (items(400_000), "application/json", "/tasks"),
        (items(400_000, b"[]"), "application/json", "/tasks/0"),
        (
            items(1, b'{"type":"a","payload":[' + b"[]," * 1_500_000 + b"1]}"),
            "application/json",
            "",
        ),
        (b"\n" * 5_000_000, "application/x-ndjson", "/tasks"),
        (b'{"type":"a"}\n' * 400_000, "application/x-ndjson", "/tasks"),
    ],
    ids=["1 MB", "5 MB", "no objects", "one large", "newlines", "lines"],
)
async def test_a_batch_that_is_refused_does_not_hold_the_loop(
    front: Front, body: bytes, kind: str, pointer: str
) -> None:
    """Every item was walked before they were counted: seconds for everybody else."""
    await post(front, items(1))
    async with watched_loop() as watch:
        reply = await post(front, body, kind)
    assert (reply.status, reply.code) == (422, "invalid")
    (error,) = reply.json["errors"]
    assert error["pointer"].startswith(pointer)
    assert watch.longest_s < HOLD_MAX_S


async def test_a_sound_batch_is_decoded_in_slices(front: Front) -> None:
    """A thousand tasks of a kilobyte each are twenty milliseconds; of sixteen, much longer."""
    task = msgspec.json.encode({"type": "a", "payload": ["x" * 100] * 60, "delay_s": 60})
    async with watched_loop() as watch:
        reply = await post(front, items(1000, task))
    assert reply.status == 201
    assert len(reply.json["items"]) == 1000
    assert watch.longest_s < HOLD_MAX_S


async def test_a_batch_holds_a_thousand_and_not_one_more(front: Front) -> None:
    """The bound itself is allowed, whole or in slices, as a document or as lines."""
    long = msgspec.json.encode({"type": "a", "payload": "x" * 100})
    for task in (b'{"type":"a"}', long):
        assert (await post(front, items(1000, task))).status == 201
        reply = await post(front, items(1001, task))
        assert (reply.status, reply.json["errors"][0]["pointer"]) == (422, "/tasks")
        lines = b"\n\n".join([task] * 1000)
        assert (await post(front, lines, "application/x-ndjson")).status == 201
        reply = await post(front, lines + b"\n" + task, "application/x-ndjson")
        assert (reply.status, reply.json["errors"][0]["pointer"]) == (422, "/tasks")


FILLER = b'{"type":"a","payload":"' + b"x" * 60_000 + b'"}'
# Past the first it is counted, past the second also decoded in slices.
COUNTS = [SHORT_BYTES_MAX // len(FILLER) + 1, WHOLE_BYTES_MAX // len(FILLER) + 1]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("spoil", "status", "pointer"),
    [
        (lambda sound: sound[:-1], 400, None),
        (lambda sound: sound + b"x", 400, None),
        (lambda sound: sound[:-1] + b',"tasks":[{"type":"b"}]}', 400, None),
        (lambda sound: sound[:-1] + b',"t\\u0061sks":[{"type":"b"}]}', 400, None),
        (lambda sound: sound[:-1] + b',"more":1}', 422, "/more"),
        (lambda sound: b"[" + sound + b"]", 422, ""),
        (lambda sound: sound.replace(b"tasks", b"tusks"), 422, "/tusks"),
        (lambda sound: sound[:-2] + b',{"type":"b","type":"c"}]}', 400, None),
        (lambda sound: sound[:-2] + b',{"type":"b","payload":NaN}]}', 400, None),
        (lambda sound: sound[:-2] + b',{"tipe":"b"},{"type":7}]}', 422, "/tasks/{count}/tipe"),
        (lambda sound: sound[:-2] + b',{"type":7}]}', 422, "/tasks/{count}/type"),
        (lambda sound: b'{"tasks":' + b"[" * len(sound), 422, "/tasks/0"),
        (lambda sound: sound[:-4] + b"[" * len(sound), 400, None),
        (lambda sound: b'{"tasks":[],' + sound[1:], 422, "/tasks"),
    ],
)
async def test_what_is_wrong_with_a_large_batch_is_said_as_of_a_small_one(
    front: Front, spoil: Callable[[bytes], bytes], status: int, pointer: str | None, count: int
) -> None:
    """Decoded in parts, a second member or a broken end could slip through."""
    reply = await post(front, spoil(items(count, FILLER)))
    assert reply.status == status, reply.body
    if pointer is not None:
        assert reply.json["errors"][0]["pointer"] == pointer.format(count=count)


async def test_an_item_may_be_as_long_as_a_task_of_its_own(front: Front) -> None:
    """A payload that no single submit could have would be decoded at once."""
    room = ITEM_BYTES_MAX - len(b'{"type":"a","payload":""}')
    for size, reason in ((room, "payload"), (room + 1, "longer than")):
        task = b'{"type":"a","payload":"' + b"x" * size + b'"}'
        reply = await post(front, items(2, task))
        assert reply.status == 422
        error = reply.json["errors"][0]
        assert reason in error["pointer"] + error["detail"]


async def test_settlements_and_heartbeats_are_counted_before_they_are_decoded(
    front: Front,
) -> None:
    """A worker's key is no better than a producer's."""
    one = b'{"id":"0195fd9a-0000-7000-8000-000000000000","fence":1}'
    for name, path in (("leases", "heartbeat"), ("settlements", "settle")):
        body = b'{"worker_id":"w","%s":[%s]}' % (name.encode(), b",".join([one] * 50_000))
        async with watched_loop() as watch:
            reply = await front.call("POST", f"/v1/worker/{path}", raw=body, key=front.worker)
        assert (reply.status, reply.json["errors"][0]["pointer"]) == (422, f"/{name}")
        assert watch.longest_s < HOLD_MAX_S
    body = b'{"leases":[' + b",".join([one] * 1000) + b'],"worker_id":"w","lease_s":20}'
    reply = await front.call("POST", "/v1/worker/heartbeat", raw=body, key=front.worker)
    assert (reply.status, len(reply.json["items"])) == (200, 1000)
    reply = await front.call(
        "POST", "/v1/worker/heartbeat", raw=body.replace(b"20}", b"-1}"), key=front.worker
    )
    assert (reply.status, reply.json["errors"][0]["pointer"]) == (422, "/lease_s")


@contextlib.asynccontextmanager
async def crowded_front(database: Database, limits: AdmissionLimits) -> AsyncIterator[Front]:
    environment = Environment(clock=SystemClock(), random=Random(7))
    admission = Admission(limits)
    async with open_front(database, environment, admission=admission) as front:
        yield front
        for used in (admission.bodies, admission.batches, admission.reads, admission.changes):
            assert (used.used, dict(used.waiting)) == (0, {})


async def test_bytes_in_flight_are_bounded_and_given_back(database: Database) -> None:
    """Sixty bodies of sixteen megabytes are a gigabyte."""
    body = items(1000, msgspec.json.encode({"type": "a", "payload": "x" * 100}))
    limits = AdmissionLimits(
        body_bytes_max=2 * len(body), body_bytes_share=len(body), waiting_share=1
    )
    async with crowded_front(database, limits) as front:
        replies = await asyncio.gather(*(post(front, body) for _ in range(6)))
        assert {reply.status for reply in replies} == {201, 429}
        assert (await post(front, body)).status == 201


async def test_reads_of_one_tenant_wait_for_one_another_and_submits_do_not(
    database: Database,
) -> None:
    """Fifty readers with a filter had every connection, and submits waited behind them."""
    limits = AdmissionLimits(reads_max=2, reads_share=1, waiting_share=1, wait_s=30.0)
    async with crowded_front(database, limits) as front:
        admission = front.door.admission
        await admission.reads.acquire(front.tenant.id)
        read = asyncio.ensure_future(front.call("GET", "/v1/tasks?tag=a:b", key=front.producer))
        async with asyncio.timeout(5):
            while not admission.reads.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        dry_run = {"filter": {"tag": "a:b"}, "dry_run": True}
        reply = await front.call("POST", "/v1/tasks/cancel", dry_run, key=front.producer)
        assert (reply.status, reply.code) == (429, "concurrency_limited")
        sent = await front.call("POST", "/v1/tasks", {"type": "a"}, key=front.producer)
        assert sent.status == 201
        other = await front.call("GET", "/v1/tasks?tag=a:b", key=front.other_producer)
        assert other.status == 200
        assert (await front.call("GET", "/v1/tasks?tag=a:b")).status == 200
        admission.reads.release(front.tenant.id)
        assert (await read).status == 200


async def test_a_read_that_takes_too_long_is_given_up(database: Database) -> None:
    """Without a bound of its own, one holds one of the few connections for half a minute."""
    database.tenant_statement_s = 0.05
    began = time.monotonic()
    async with database.tenant(1) as session:
        (row,) = await session.fetch("SHOW statement_timeout")
    assert row["statement_timeout"] == "50ms"
    assert time.monotonic() - began < 30


async def signing_key(front: Front) -> tuple[str, str]:
    asked = {"name": "signs", "role": "producer", "signing": True}
    made = await front.call("POST", "/v1/keys", asked)
    _, key_id, secret = made.json["key"].split("_")
    return key_id, secret


def signed(key: tuple[str, str], body: bytes, nonce: str, *, told: bool) -> dict[str, str]:
    key_id, secret = key
    timestamp = str(int(time.time()))
    headers = {
        "Content-Type": JSON,
        "X-Duly-Key": key_id,
        "X-Duly-Timestamp": timestamp,
        "X-Duly-Nonce": nonce,
        "X-Duly-Signature": sign(
            secret.encode(), "POST", BATCH, timestamp, nonce, content_type=JSON, body=body
        ),
    }
    if told:
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        headers["Content-Digest"] = f"sha-256=:{digest}:"
    return headers


async def test_a_large_signed_body_is_read_only_if_its_digest_is_told(front: Front) -> None:
    """A forged signature is found out after the body: sixteen megabytes for each of them."""
    key = await signing_key(front)
    filler = b'{"type":"a","payload":"' + b"x" * 1000 + b'"}'
    body = items(300, filler)
    assert len(body) > UNPROVEN_BYTES_MAX
    headers = signed(key, body, "nonce-number-1", told=False)
    reply = await front.call("POST", BATCH, raw=body, key=None, headers=headers)
    assert (reply.status, reply.code) == (413, "body_too_large")
    assert "Content-Digest" in reply.json["detail"]
    headers = signed(key, body, "nonce-number-2", told=True)
    reply = await front.call("POST", BATCH, raw=body, key=None, headers=headers)
    assert reply.status == 201


async def test_a_body_that_is_not_the_one_that_was_signed_is_refused(front: Front) -> None:
    """The digest in the header is only what the caller says."""
    key, body = await signing_key(front), items(2)
    for number, changed in enumerate((body.replace(b'"a"', b'"b"'), body[:-1], b"")):
        headers = signed(key, body, f"nonce-number-{number}", told=True)
        reply = await front.call("POST", BATCH, raw=changed, key=None, headers=headers)
        assert (reply.status, reply.code) == (401, "unauthenticated")
    for wrong in ("sha-256=:AAAA:", "md5=:AAAA:", ""):
        headers = signed(key, body, "nonce-number-9", told=True) | {"Content-Digest": wrong}
        reply = await front.call("POST", BATCH, raw=body, key=None, headers=headers)
        assert (reply.status, reply.code) == (401, "unauthenticated")
    headers = signed(key, body, "nonce-number-9", told=False)
    assert (await front.call("POST", BATCH, raw=body, key=None, headers=headers)).status == 201
