"""Bad input: never a 5xx, never a row, always a problem that its author can act on."""

from typing import Any

import msgspec
import pytest

from tests.api.conftest import Front, Reply

pytestmark = pytest.mark.asyncio(loop_scope="module")
TASK = {"type": "a.b", "payload": 1}

FRAMING: dict[str, bytes] = {
    "empty": b"",
    "truncated": b'{"type": "a.b", "payl',
    "trailing bytes": b'{"type": "a.b"} x',
    "two documents": b'{"type": "a.b"}{"type": "a.b"}',
    "byte order mark": b'\xef\xbb\xbf{"type": "a.b"}',
    "UTF-16": '{"type": "a.b"}'.encode("utf-16"),
    "invalid UTF-8 in a field": b'{"type": "a.b", "concurrency_key": "\xff"}',
    "invalid UTF-8 in the payload": b'{"type": "a.b", "payload": "\xff"}',
    "NaN": b'{"type": "a.b", "payload": NaN}',
    "Infinity": b'{"type": "a.b", "payload": -Infinity}',
    "1e400": b'{"type": "a.b", "payload": 1e400}',
    "an integer of 5,000 digits": b'{"type": "a.b", "payload": ' + b"9" * 5000 + b"}",
    "deep arrays": b'{"type": "a.b", "payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"type": "a.b", "payload": ' + b'{"a":' * 65 + b"1" + b"}" * 65 + b"}",
    "a field twice": b'{"type": "a.b", "type": "a.c"}',
    "a member of the payload twice": b'{"type": "a.b", "payload": {"x": 1, "x": 2}}',
    "a member twice by escape": b'{"type": "a.b", "payload": {"x": 1, "\\u0078": 2}}',
    "a lone surrogate": b'{"type": "a.b", "payload": "\\ud800"}',
    "comments": b'{"type": "a.b" /* x */}',
    "single quotes": b"{'type': 'a.b'}",
}

FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"prioritty": 5}, "/prioritty"),
    "type missing": ({"type": None}, "/type"),
    "type with a capital": ({"type": "A.b"}, "/type"),
    "type too long": ({"type": "a" * 129}, "/type"),
    "type with a newline": ({"type": "a\n"}, "/type"),
    "type as a number": ({"type": 3}, "/type"),
    "payload too large": ({"payload": "x" * (64 * 1024 - 1)}, "/payload"),
    "priority too high": ({"priority": 10}, "/priority"),
    "priority negative": ({"priority": -1}, "/priority"),
    "priority as text": ({"priority": "5"}, "/priority"),
    "priority with a fraction": ({"priority": 5.5}, "/priority"),
    "priority as a boolean": ({"priority": True}, "/priority"),
    "run_at without offset": ({"run_at": "2097-01-01T00:00:00"}, "/run_at"),
    "run_at in year 10000": ({"run_at": "10000-01-01T00:00:00Z"}, "/run_at"),
    "run_at at infinity": ({"run_at": "infinity"}, "/run_at"),
    "run_at on 30 February": ({"run_at": "2097-02-30T00:00:00Z"}, "/run_at"),
    "run_at two years ago": ({"run_at": "2024-01-01T00:00:00Z"}, "/run_at"),
    "run_at in 20 years": ({"run_at": "2048-01-01T00:00:00Z"}, "/run_at"),
    "run_at as a number": ({"run_at": 1893456000}, "/run_at"),
    "run_at and delay_s": ({"run_at": "2097-01-01T00:00:00Z", "delay_s": 1}, "/delay_s"),
    "run_at and no delay": ({"run_at": "2097-01-01T00:00:00Z", "delay_s": 0}, "/delay_s"),
    "delay_s negative": ({"delay_s": -0.001}, "/delay_s"),
    "delay_s of a century": ({"delay_s": 3.2e9}, "/delay_s"),
    "start_by in the past": ({"start_by": "2024-01-01T00:00:00Z"}, "/start_by"),
    "max_attempts zero": ({"retry": {"max_attempts": 0}}, "/retry/max_attempts"),
    "max_attempts huge": ({"retry": {"max_attempts": 101}}, "/retry/max_attempts"),
    "unknown backoff": ({"retry": {"backoff": "random"}}, "/retry/backoff"),
    "factor below one": ({"retry": {"factor": 0.5}}, "/retry/factor"),
    "unknown retry field": ({"retry": {"max_atempts": 3}}, "/retry/max_atempts"),
    "retry as a number": ({"retry": 5}, "/retry"),
    "timeout_s zero": ({"timeout_s": 0}, "/timeout_s"),
    "jitter_s negative": ({"jitter_s": -1}, "/jitter_s"),
    "idempotency key of 4 KB": ({"idempotency_key": "k" * 4096}, "/idempotency_key"),
    "idempotency key with a newline": ({"idempotency_key": "a\nb"}, "/idempotency_key"),
    "idempotency key empty": ({"idempotency_key": ""}, "/idempotency_key"),
    "concurrency key with a null": ({"concurrency_key": "a\x00b"}, "/concurrency_key"),
    "concurrency limit alone": ({"concurrency_limit": 1}, "/concurrency_limit"),
    "concurrency limit zero": (
        {"concurrency_key": "k", "concurrency_limit": 0},
        "/concurrency_limit",
    ),
    "tags as a list": ({"tags": ["a"]}, "/tags"),
    "tag value as a number": ({"tags": {"a": 1}}, "/tags/..."),
    "too many tags": ({"tags": {str(n): "" for n in range(33)}}, "/tags"),
    "tag with a null": ({"tags": {"a": "\x00"}}, "/tags/a"),
    "tag with a zero-width space": ({"tags": {"a": "b\u200b"}}, "/tags"),
    "idempotency key beyond ASCII": ({"idempotency_key": "schüssel"}, "/idempotency_key"),
    "idempotency key with a space": ({"idempotency_key": "a b"}, "/idempotency_key"),
    "payload with a null": ({"payload": {"a": ["\x00"]}}, "/payload/a/0"),
    "payload with a null in a name": ({"payload": {"a": {"\x00": 1}}}, "/payload/a"),
    "pool with a slash": ({"target": {"pool": "a/b"}}, "/target/pool"),
    "url and pool": ({"target": {"url": "https://example.com/", "pool": "p"}}, "/target"),
    "headers without url": ({"target": {"pool": "p", "headers": {"X-A": "1"}}}, "/target/headers"),
    "header with a newline": (
        {"target": {"url": "https://example.com/", "headers": {"X-A": "1\r\nX-B: 2"}}},
        "/target/headers",
    ),
    "unknown target field": ({"target": {"uri": "https://example.com/"}}, "/target/uri"),
}


@pytest.fixture
def front(shared_front: Front) -> Front:
    """Shared: what is refused leaves nothing for the next test to find."""
    return shared_front


async def rows(front: Front) -> int:
    (row,) = await front.database.fetch(
        "SELECT (SELECT count(*) FROM duly.tasks) + (SELECT count(*) FROM duly.idempotency_keys)"
        " AS rows"
    )
    count: int = row["rows"]
    return count


def assert_refused(reply: Reply, *statuses: int) -> None:
    assert reply.status in statuses, reply.body
    assert reply.code
    assert reply.json["type"].startswith("/docs#problem-")
    assert "Traceback" not in reply.body.decode()
    assert "duly." not in reply.json.get("detail", "")


@pytest.mark.parametrize("case", FRAMING)
async def test_what_is_not_sound_json_is_refused(front: Front, case: str) -> None:
    """Two readers that read it differently are how money is paid twice."""
    before = await rows(front)
    reply = await front.call("POST", "/v1/tasks", raw=FRAMING[case], key=front.producer)
    assert_refused(reply, 400, 413)
    assert await rows(front) == before


@pytest.mark.parametrize("case", FIELDS)
async def test_a_wrong_field_is_pointed_at(front: Front, case: str) -> None:
    """A refusal that does not say where costs its author an afternoon."""
    before = await rows(front)
    more, pointer = FIELDS[case]
    reply = await front.call("POST", "/v1/tasks", TASK | more, key=front.producer)
    assert_refused(reply, 422)
    assert pointer in {error["pointer"] for error in reply.json["errors"]}, reply.body
    assert await rows(front) == before


async def test_an_unknown_field_comes_with_a_suggestion(front: Front) -> None:
    """Ignored, a misspelt delay fires at once."""
    reply = await front.call("POST", "/v1/tasks", TASK | {"delay": 60}, key=front.producer)
    (error,) = reply.json["errors"]
    assert error == {"pointer": "/delay", "detail": "is not a known field; did you mean delay_s?"}


async def test_everything_wrong_is_said_at_once(front: Front) -> None:
    """One error for each attempt makes a conversation of what could be an answer."""
    body = {"type": "A", "priority": 99, "retry": {"factor": 0, "backof": 1}, "x": 1}
    reply = await front.call("POST", "/v1/tasks", body, key=front.producer)
    pointers = {error["pointer"] for error in reply.json["errors"]}
    assert pointers == {"/type", "/priority", "/retry/factor", "/retry/backof", "/x"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": ""}, 415),
        ({"Content-Type": "application/xml"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 201),
        ({"Content-Encoding": "gzip"}, 415),
    ],
)
async def test_only_plain_json_is_read(front: Front, headers: dict[str, str], status: int) -> None:
    """A compressed body is a bomb; another type is a mistake."""
    reply = await front.call("POST", "/v1/tasks", TASK, key=front.producer, headers=headers)
    assert reply.status == status


async def test_a_body_over_the_bound_is_refused(front: Front) -> None:
    """Read whole before it is refused, it is the server's memory."""
    body = msgspec.json.encode(TASK | {"payload": "x" * 300_000})
    reply = await front.call("POST", "/v1/tasks", raw=body, key=front.producer)
    assert_refused(reply, 413)


@pytest.mark.parametrize("key", ["", "a" * 256, "tab\there"])
async def test_a_wrong_key_in_the_header_is_refused(front: Front, key: str) -> None:
    """It would be stored for a week."""
    headers = {"Idempotency-Key": key}
    reply = await front.call("POST", "/v1/tasks", TASK, key=front.producer, headers=headers)
    assert_refused(reply, 422)
    task = await front.call("POST", "/v1/tasks", TASK, key=front.producer)
    path = f"/v1/tasks/{task.json['id']}/cancel"
    reply = await front.call("POST", path, key=front.producer, headers=headers)
    assert_refused(reply, 422)


async def test_two_different_keys_are_refused(front: Front) -> None:
    """Which one would count?"""
    reply = await front.call(
        "POST",
        "/v1/tasks",
        TASK | {"idempotency_key": "a"},
        key=front.producer,
        headers={"Idempotency-Key": "b"},
    )
    assert_refused(reply, 422)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/nothing", 404),
        ("POST", "/", 405),
        ("GET", "/v1/tasks/", 404),
        ("GET", "/v1/tasks/x/y/z", 404),
        ("PUT", "/v1/tasks", 405),
        ("POST", "/healthz", 405),
        ("GET", "/v1/tasks/..%2f..%2fetc", 404),
        ("GET", "/v1/tasks/not-an-id", 404),
    ],
)
async def test_a_path_that_is_not_there_is_a_problem_too(
    front: Front, method: str, path: str, status: int
) -> None:
    """A page of HTML is no answer to a program."""
    reply = await front.call(method, path)
    assert_refused(reply, status)


async def test_payloads_at_the_bound_are_taken(front: Front) -> None:
    """A bound that refuses its own maximum is off by one."""
    reply = await front.call(
        "POST", "/v1/tasks", TASK | {"payload": "x" * (64 * 1024 - 2)}, key=front.producer
    )
    assert reply.status == 201
    nested: Any = 1
    for _ in range(60):
        nested = [nested]
    reply = await front.call("POST", "/v1/tasks", TASK | {"payload": nested}, key=front.producer)
    assert reply.status == 201


@pytest.mark.parametrize("payload", [None, 0, False, "", [], {}, "\\u0000", 1e308, 2**63, "🙂"])
async def test_every_sound_payload_comes_back_as_it_was(front: Front, payload: Any) -> None:
    """JSONB would refuse a null character and print 131,072 digits for eight."""
    reply = await front.call("POST", "/v1/tasks", TASK | {"payload": payload}, key=front.producer)
    assert reply.status == 201, reply.body
    read = await front.call("GET", f"/v1/tasks/{reply.json['id']}", key=front.producer)
    assert read.json.get("payload") == payload
