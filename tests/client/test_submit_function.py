"""`duly.submit_task`: what HTTP would have stored, inside somebody's own transaction."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from duly.domain import limits
from duly.domain.ids import key_shard, placement_time_of, shard_of, tenant_shard
from duly.domain.webhook_headers import RESERVED, RESERVED_PREFIXES
from duly.environment import Environment, SystemClock
from duly.store.database import Database
from duly.store.notify import DOORBELL
from duly.store.submit import DOORBELL_REACH
from duly.store.task_types import put_task_type
from duly.store.tenants import create_tenant
from tests.api.conftest import Front, open_front
from tests.client.producers import as_producer, call, count, rows_of

pytestmark = pytest.mark.slow

TENANT = "default"
HOUR = timedelta(hours=1)
INVALID, NO_TENANT, MISMATCH, TOO_MANY_POOLS = "DU001", "DU002", "DU003", "DU004"


@pytest.fixture
async def producer(owner_url: str, database: Database) -> AsyncIterator[asyncpg.Connection]:
    assert await create_tenant(database, TENANT) is not None
    connection = await asyncpg.connect(as_producer(owner_url))
    yield connection
    await connection.close()


@pytest.fixture
async def front(database: Database) -> AsyncIterator[Front]:
    async with open_front(database, Environment(SystemClock(), Random(7))) as opened:
        yield opened


REQUESTS: dict[str, dict[str, Any]] = {
    "nothing but a type": {},
    "a payload": {"payload": {"to": ["a", 1.5, None, "ü"], "when": "\\u0000"}},
    "a delay": {"delay_s": 90},
    "a fraction of a second": {"delay_s": 0.25},
    "a pool": {"target": {"pool": "billing"}, "priority": 9},
    "a pool of nobody": {"target": {}, "priority": 0},
    "a webhook": {"target": {"url": "HTTPS://Api.example.com:8443/x?y"}, "priority": 3},
    "headers": {"target": {"url": "https://a.example", "headers": {"X-Team": 'bil"ling'}}},
    "a retry": {"retry": {"max_attempts": 7, "initial_s": 1, "factor": 1.5, "max_s": 10}},
    "a retry as usual": {"retry": {"max_attempts": 5, "backoff": "exponential"}},
    "a fixed retry": {
        "retry": {"backoff": "fixed", "jitter": False, "non_retryable": ["A B", "ü"]}
    },
    "a retry of refusals": {"retry": {"retry_4xx": True}},
    "a timeout": {"timeout_s": 0.1},
    "a timeout as usual": {"timeout_s": 60},
    "a long timeout": {"timeout_s": 86400},
    "a start by": {"start_by": "2036-01-01T00:00:00+01:00"},
    "a start by with microseconds": {"start_by": "2036-01-01T00:00:00.000120Z"},
    "a concurrency key": {"concurrency_key": "customer:ü"},
    "a concurrency limit": {"concurrency_key": "c", "concurrency_limit": 3},
    "tags": {"tags": {"env": "prod", "empty": "", "ü": "x"}},
    "nulls": {"tags": None, "priority": None, "target": None, "retry": None, "delay_s": None},
    "a key": {"idempotency_key": "order-1", "payload": 1},
    "everything": {
        "payload": [1],
        "delay_s": 3600.5,
        "target": {"url": "https://a.example/x", "headers": {"A": "1"}},
        "priority": 7,
        "retry": {"max_attempts": 1},
        "timeout_s": 12.345,
        "start_by": "2036-01-01T00:00:00Z",
        "concurrency_key": "k",
        "concurrency_limit": 10000,
        "idempotency_key": "all",
        "tags": {"a": "b"},
    },
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_the_function_stores_what_http_stores(
    front: Front, owner: asyncpg.Connection, name: str
) -> None:
    """Two ways in that differ in one column are two kinds of task, and only one is tested."""
    request = {"type": "email.send", **REQUESTS[name]}
    over_http = (await front.call("POST", "/v1/tasks", request)).json["id"]
    theirs = await rows_of(owner, over_http)
    # The key is the request's own: free it for the other way in.
    await owner.execute("DELETE FROM duly.idempotency_keys")
    mine = await rows_of(owner, await submit_like(owner, request))
    assert mine == theirs
    assert await count(owner, "new_placements") == 0


async def test_a_request_gets_the_defaults_of_its_type(
    front: Front, database: Database, owner: asyncpg.Connection
) -> None:
    """A type that says where its tasks go must be heeded however they come in."""
    defaults = {
        "target": {"url": "https://a.example"},
        "priority": 8,
        "retry": {"max_attempts": 2},
        "timeout_s": 5,
    }
    text = msgspec.json.encode(defaults).decode()
    await put_task_type(database, front.tenant.id, "email.send", None, text, None)
    for request in ({}, {"priority": 1, "retry": {"factor": 3}}, {"target": {"pool": "p"}}):
        asked = {"type": "email.send", **request}
        theirs = await rows_of(owner, (await front.call("POST", "/v1/tasks", asked)).json["id"])
        assert await rows_of(owner, await submit_like(owner, asked)) == theirs


async def submit_like(connection: asyncpg.Connection, request: dict[str, Any]) -> UUID:
    """An HTTP body as arguments of the function."""
    fields = dict(request)
    given: dict[str, Any] = {}
    if "payload" in fields:
        given["payload"] = msgspec.json.encode(fields.pop("payload")).decode()
    if "start_by" in fields:
        given["start_by"] = datetime.fromisoformat(fields.pop("start_by"))
    if "delay_s" in fields:
        given["delay_s"] = fields.pop("delay_s")
    return await call(connection, TENANT, fields.pop("type"), options=fields, **given)


def over(text_max: int) -> str:
    return "x" * (text_max + 1)


NOW = datetime.now(UTC)
# What is refused, and where the refusal points.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"type": "Email"}, "/type"),
    ({"type": "e" * 129}, "/type"),
    ({"type": "e\n"}, "/type"),
    ({"payload": '"' + "x" * (limits.PAYLOAD_BYTES_MAX - 1) + '"'}, "/payload"),
    ({"payload": '{"a": {"b": 1, "b": 2}}'}, "/payload"),
    ({"payload": '[[{"\\u0000": 1}]]'}, "/payload"),
    ({"payload": '"\\\\\\u0000"'}, "/payload"),
    ({"payload": '"\\ud800"'}, "/payload"),
    ({"payload": "[1e400]"}, "/payload"),
    ({"payload": "-1" + "0" * 400}, "/payload"),
    ({"payload": "[" * 64 + "]" * 64}, "/payload"),
    ({"run_at": NOW - limits.RUN_AT_PAST_MAX - HOUR}, "/run_at"),
    ({"run_at": NOW + limits.RUN_AT_FUTURE_MAX + HOUR}, "/run_at"),
    ({"delay_s": -1.0}, "/delay_s"),
    ({"delay_s": float("nan")}, "/delay_s"),
    ({"delay_s": float("inf")}, "/delay_s"),
    ({"delay_s": limits.DELAY_S_MAX + 1}, "/delay_s"),
    ({"delay_s": 1.0, "run_at": NOW + HOUR}, "/delay_s"),
    ({"delay_s": 0.0, "run_at": NOW + HOUR}, "/delay_s"),
    ({"start_by": NOW - HOUR}, "/start_by"),
    ({"start_by": datetime.max.replace(tzinfo=UTC)}, "/start_by"),
    ({"options": {"priority": -1}}, "/priority"),
    ({"options": {"priority": 10}}, "/priority"),
    ({"options": {"priority": 1.5}}, "/priority"),
    ({"options": {"priority": "5"}}, "/priority"),
    ({"options": {"timeout_s": 0.09}}, "/timeout_s"),
    ({"options": {"timeout_s": limits.TIMEOUT_S_MAX + 1}}, "/timeout_s"),
    ({"options": {"jitter_s": -1}}, "/jitter_s"),
    ({"options": {"jitter_s": limits.JITTER_S_MAX + 1}}, "/jitter_s"),
    ({"options": {"idempotency_key": ""}}, "/idempotency_key"),
    ({"options": {"idempotency_key": over(limits.KEY_CHARACTERS_MAX)}}, "/idempotency_key"),
    ({"options": {"idempotency_key": "a\nb"}}, "/idempotency_key"),
    ({"options": {"idempotency_key": "a b"}}, "/idempotency_key"),
    ({"options": {"idempotency_key": "schüssel"}}, "/idempotency_key"),
    ({"options": {"concurrency_key": "a\u200b"}}, "/concurrency_key"),
    ({"options": {"tags": {"a\u202e": "b"}}}, "/tags"),
    ({"options": {"tags": {"a": "\ufeff"}}}, "/tags"),
    ({"options": {"retry": {"non_retryable": ["A\u200b"]}}}, "/retry/non_retryable"),
    ({"options": {"concurrency_key": over(limits.KEY_CHARACTERS_MAX)}}, "/concurrency_key"),
    ({"options": {"concurrency_key": 5}}, "/concurrency_key"),
    ({"options": {"concurrency_limit": 5}}, "/concurrency_limit"),
    ({"options": {"concurrency_key": "k", "concurrency_limit": 0}}, "/concurrency_limit"),
    (
        {
            "options": {
                "concurrency_key": "k",
                "concurrency_limit": limits.CONCURRENCY_LIMIT_MAX + 1,
            }
        },
        "/concurrency_limit",
    ),
    ({"options": {"tags": {str(n): "" for n in range(limits.TAGS_MAX + 1)}}}, "/tags"),
    ({"options": {"tags": {"": "x"}}}, "/tags"),
    ({"options": {"tags": {over(limits.TAG_NAME_CHARACTERS_MAX): "x"}}}, "/tags"),
    ({"options": {"tags": {"a": over(limits.TAG_VALUE_CHARACTERS_MAX)}}}, "/tags"),
    ({"options": {"tags": {"a": 1}}}, "/tags"),
    ({"options": {"tags": []}}, "/tags"),
    ({"options": {"retry": 5}}, "/retry"),
    ({"options": {"retry": {"max_attempts": 0}}}, "/retry/max_attempts"),
    ({"options": {"retry": {"max_attempts": 101}}}, "/retry/max_attempts"),
    ({"options": {"retry": {"backoff": "linear"}}}, "/retry/backoff"),
    ({"options": {"retry": {"initial_s": -1}}}, "/retry/initial_s"),
    ({"options": {"retry": {"initial_s": limits.BACKOFF_S_MAX + 1}}}, "/retry/initial_s"),
    ({"options": {"retry": {"factor": 0.5}}}, "/retry/factor"),
    ({"options": {"retry": {"factor": 101}}}, "/retry/factor"),
    ({"options": {"retry": {"max_s": limits.BACKOFF_S_MAX + 1}}}, "/retry/max_s"),
    ({"options": {"retry": {"jitter": 1}}}, "/retry/jitter"),
    ({"options": {"retry": {"retry_4xx": "no"}}}, "/retry/retry_4xx"),
    ({"options": {"retry": {"non_retryable": "A"}}}, "/retry/non_retryable"),
    ({"options": {"retry": {"non_retryable": [1]}}}, "/retry/non_retryable"),
    ({"options": {"retry": {"non_retryable": ["A"] * 33}}}, "/retry/non_retryable"),
    ({"options": {"retry": {"max_atempts": 1}}}, "/retry/max_atempts"),
    ({"options": {"target": "pool"}}, "/target"),
    ({"options": {"target": {"pool": "p", "url": "https://a.example"}}}, "/target"),
    ({"options": {"target": {"pool": "P"}}}, "/target/pool"),
    ({"options": {"target": {"url": over(limits.URL_CHARACTERS_MAX)}}}, "/target/url"),
    ({"options": {"target": {"url": "https://a\u0001"}}}, "/target/url"),
    ({"options": {"target": {"pool": "p", "headers": {"A": "b"}}}}, "/target/headers"),
    ({"options": {"target": {"url": "https://a", "headers": {"A b": "c"}}}}, "/target/headers"),
    ({"options": {"target": {"url": "https://a", "headers": {"A": "b\n"}}}}, "/target/headers"),
    (
        {
            "options": {
                "target": {
                    "url": "https://a",
                    "headers": {"A": over(limits.HEADER_VALUE_CHARACTERS_MAX)},
                }
            }
        },
        "/target/headers",
    ),
    *[
        ({"options": {"target": {"url": "https://a", "headers": headers}}}, "/target/headers")
        for headers in (
            {"X": "ü"},
            {"X": " a"},
            {"X": "a "},
            {"X": "1", "x": "2"},
            *({name.title(): "1"} for name in sorted(RESERVED)),
            *({f"{prefix}x": "1"} for prefix in RESERVED_PREFIXES),
        )
    ],
    ({"options": {"target": {"uri": "https://a"}}}, "/target/uri"),
    ({"options": {"payload": 1}}, "/payload"),
    ({"options": {"colour": "red"}}, "/colour"),
    ({"options": []}, ""),
]


async def test_every_limit_is_kept_and_pointed_at(
    producer: asyncpg.Connection, owner: asyncpg.Connection
) -> None:
    """What the front door refuses must not come in by the back, nor leave anything behind."""
    wrong = []
    for given, pointer in REFUSED:
        fields = {"type": "email.send", **given}
        try:
            await call(producer, TENANT, fields.pop("type"), **fields)
        except asyncpg.PostgresError as error:
            if error.sqlstate != INVALID or pointer not in pointers_of(error):
                wrong.append((given, pointer, str(error)))
        else:
            wrong.append((given, pointer, "stored"))
    assert not wrong
    for table in ("tasks", "timers", "idempotency_keys", "placements", "pools"):
        assert await count(owner, table) == 0


ACCEPTED: list[dict[str, Any]] = [
    {"type": "e" * 128},
    {"payload": '"' + "x" * (limits.PAYLOAD_BYTES_MAX - 2) + '"'},
    {"payload": "[" * 63 + "]" * 63},
    {"payload": '{"a": {"b": 1}, "c": {"b": 1}, "d": [1.7e308]}'},
    {"run_at": NOW - limits.RUN_AT_PAST_MAX + HOUR},
    {"run_at": NOW + limits.RUN_AT_FUTURE_MAX - HOUR},
    {"delay_s": limits.DELAY_S_MAX},
    {"options": {"timeout_s": limits.TIMEOUT_S_MIN, "priority": limits.PRIORITY_MAX}},
    {"options": {"timeout_s": limits.TIMEOUT_S_MAX, "priority": 0}},
    {"options": {"jitter_s": limits.JITTER_S_MAX}},
    {"options": {"idempotency_key": "~" * limits.KEY_CHARACTERS_MAX}},
    {"options": {"concurrency_key": "ü" * limits.KEY_CHARACTERS_MAX}},
    {"options": {"concurrency_key": "k", "concurrency_limit": limits.CONCURRENCY_LIMIT_MAX}},
    {"options": {"tags": {str(n): "" for n in range(limits.TAGS_MAX)}}},
    {"options": {"tags": {"n" * limits.TAG_NAME_CHARACTERS_MAX: "v" * 256}}},
    {"options": {"retry": {"max_attempts": 100, "initial_s": 0, "factor": 100, "max_s": 0}}},
    {"options": {"retry": {"non_retryable": ["A"] * limits.NON_RETRYABLE_MAX}}},
    {"options": {"target": {"pool": "p" * 64}}},
    {"options": {"target": {"url": "u" * limits.URL_CHARACTERS_MAX}}},
]


async def test_the_function_sees_the_same_characters_as_http(owner: asyncpg.Connection) -> None:
    """Two rules that drift apart make one name good in one place and bad in the other."""
    surrogates = set(range(0xD800, 0xE000))
    rows = await owner.fetch(
        "SELECT code FROM generate_series(1, 1114111) AS code"
        " WHERE code NOT BETWEEN 55296 AND 57343 AND chr(code) ~ duly.invisible_characters()"
    )
    seen = {code for code in range(1, 0x110000) if limits.INVISIBLE.search(chr(code))}
    assert {row["code"] for row in rows} == seen - surrogates
    reason = await owner.fetchval("SELECT duly.text_reason(to_jsonb('a'||chr(8203)), 10)")
    assert reason == "contains U+200B"


async def test_every_limit_can_be_reached(producer: asyncpg.Connection) -> None:
    """One too strict refuses what the reference promises."""
    for given in ACCEPTED:
        fields = {"type": "email.send", **given}
        await call(producer, TENANT, fields.pop("type"), **fields)


async def test_everything_wrong_is_said_at_once(producer: asyncpg.Connection) -> None:
    """An author who mends one field after the other submits five times."""
    with pytest.raises(asyncpg.PostgresError) as refused:
        await call(producer, TENANT, "E", options={"priority": 10, "x": 1})
    assert pointers_of(refused.value) == ["/type", "/priority", "/x"]


def pointers_of(error: asyncpg.PostgresError) -> list[str]:
    return [problem["pointer"] for problem in msgspec.json.decode(error.detail)]


async def test_an_unknown_tenant_has_a_state_of_its_own(producer: asyncpg.Connection) -> None:
    """A misspelt tenant is not a bad task."""
    with pytest.raises(asyncpg.PostgresError, match="there is no tenant 'nobody'") as refused:
        await call(producer, "nobody", "email.send")
    assert refused.value.sqlstate == NO_TENANT


async def test_too_many_pools_have_a_state_of_their_own(
    producer: asyncpg.Connection, owner: asyncpg.Connection
) -> None:
    """The bound of two bytes in a timer, told as it is."""
    await owner.execute(
        "INSERT INTO duly.pools SELECT id, $1, 'last' FROM duly.tenants",
        limits.POOLS_PER_TENANT_MAX,
    )
    with pytest.raises(asyncpg.PostgresError) as refused:
        await call(producer, TENANT, "email.send", options={"target": {"pool": "more"}})
    assert refused.value.sqlstate == TOO_MANY_POOLS
    assert await call(producer, TENANT, "email.send", options={"target": {"pool": "last"}})


async def test_a_producer_can_do_nothing_else(producer: asyncpg.Connection) -> None:
    """Its login sits in somebody's web application: it must see nobody's tasks."""
    for forbidden in (
        "SELECT * FROM duly.tasks",
        "SELECT * FROM duly.tenants",
        "INSERT INTO duly.new_placements VALUES (1, 1, 1)",
        "SELECT duly.store_task(NULL, 1, 1::int2, 1::int2, 'e', '1', now(), NULL, '{}')",
        "SELECT duly.create_partition('tasks', current_date)",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await producer.execute(forbidden)


async def test_an_id_says_where_and_when(
    producer: asyncpg.Connection, owner: asyncpg.Connection
) -> None:
    """An id in the wrong shard or month is a task that nobody finds."""
    number: int = await owner.fetchval("SELECT id FROM duly.tenants")
    now = datetime.now(UTC)
    plain = await call(producer, TENANT, "e", run_at=now + HOUR)
    assert shard_of(plain) == tenant_shard(number, 1, 0)
    assert plain.version == 7
    assert abs(placement_time_of(plain) - now - HOUR) < timedelta(milliseconds=1)
    keyed = await call(producer, TENANT, "e", options={"concurrency_key": "ü"})
    assert shard_of(keyed) == key_shard(number, "ü")
    far = await call(producer, TENANT, "e", run_at=now + timedelta(days=3000))
    past = await call(producer, TENANT, "e", run_at=now - timedelta(days=6))
    assert placement_time_of(far) < now + timedelta(days=130)
    assert abs(placement_time_of(past) - now) < timedelta(minutes=1)
    await owner.execute("UPDATE duly.tenants SET spread = 4")
    spread = {shard_of(await call(producer, TENANT, "e")) for _ in range(60)}
    assert spread == {tenant_shard(number, 4, choice) for choice in range(4)}
    await owner.execute("UPDATE duly.tenants SET in_flight_max = 5")
    capped = {shard_of(await call(producer, TENANT, "e")) for _ in range(10)}
    assert capped == {tenant_shard(number, 1, 0)}
    capped_key = await call(producer, TENANT, "e", options={"concurrency_key": "ü"})
    assert shard_of(capped_key) == key_shard(number, "ü")


async def test_a_smear_moves_the_fire_time_and_not_the_bounds(
    producer: asyncpg.Connection, owner: asyncpg.Connection
) -> None:
    """A herd that was allowed to spread must spread, and never fire early."""
    run_at = datetime.now(UTC) + HOUR
    for _ in range(20):
        await call(producer, TENANT, "e", run_at=run_at, options={"jitter_s": 60})
    fires = [row["run_at"] for row in await owner.fetch("SELECT run_at FROM duly.tasks")]
    assert len(set(fires)) == 20
    assert run_at <= min(fires) <= max(fires) <= run_at + timedelta(seconds=60)


async def test_only_near_tasks_ring_and_only_when_asked(
    producer: asyncpg.Connection, owner: asyncpg.Connection
) -> None:
    """A notification makes commits wait for each other: it must be worth it, and be understood."""
    hints: list[str] = []
    await owner.add_listener(DOORBELL, lambda *heard: hints.append(heard[3]))
    reach_s = DOORBELL_REACH.total_seconds()
    await call(producer, TENANT, "e", notify=False)
    await call(producer, TENANT, "e", delay_s=reach_s + 1)
    local_tickets = await call(producer, TENANT, "e", delay_s=reach_s, options={"priority": 8})
    async with asyncio.timeout(10):
        while not hints:  # noqa: ASYNC110 (the driver calls back between awaits)
            await asyncio.sleep(0.01)
    timer = await owner.fetchrow("SELECT * FROM duly.timers WHERE id = $1", local_tickets)
    heard = [msgspec.json.decode(hint, type=tuple[int, int, int, datetime]) for hint in hints]
    assert heard == [(timer["tenant"], timer["shard"], timer["queue"], timer["due_at"])]
