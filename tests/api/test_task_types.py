"""Task types over HTTP: what is said of a kind of task holds for the next submit of it."""

import time
from typing import Any

import pytest

from duly.domain.schemas import SCHEMA_BYTES_MAX
from duly.store import task_types as store
from duly.testing.clock import ManualClock
from tests.api.conftest import Front

MAIL = "/v1/task-types/mail"
SCHEMA = {"type": "object", "required": ["to"], "properties": {"to": {"type": "string"}}}
TASK: dict[str, Any] = {"type": "mail", "delay_s": 3600, "payload": {"to": "a@example.com"}}


async def put(front: Front, body: dict[str, Any], **how: Any) -> dict[str, Any]:
    reply = await front.call("PUT", MAIL, body, key=how.pop("key", front.operator), **how)
    assert reply.status == 200, reply.body
    described: dict[str, Any] = reply.json
    return described


async def test_a_type_reads_back_as_it_was_described(front: Front) -> None:
    """A schema that is stored otherwise than given checks something else."""
    key = front.producer.split("_")[1]
    defaults = {"priority": 0, "timeout_s": 5.0, "target": {"pool": "mails"}}
    described = await put(front, {"schema": SCHEMA, "defaults": defaults, "keys": [key]})
    assert (described["name"], described["schema"]) == ("mail", SCHEMA)
    assert (described["defaults"], described["keys"]) == (defaults, [key])
    read = await front.call("GET", MAIL, key=front.producer)
    listed = await front.call("GET", "/v1/task-types", key=front.producer)
    assert read.json == described
    assert listed.json == {"items": [described], "next_cursor": None}
    bare = await put(front, {})
    assert (bare["schema"], bare["defaults"], bare["keys"]) == (None, None, None)
    assert bare["created_at"] == described["created_at"] < bare["updated_at"]


async def test_what_is_said_of_a_type_holds_for_the_next_submit(
    still_front: tuple[Front, ManualClock],
) -> None:
    """A schema that holds only later lets through what it was made to stop."""
    front, _clock = still_front
    wrong = TASK | {"payload": {"to": 5}}
    assert (await front.call("POST", "/v1/tasks", wrong, key=front.producer)).status == 201
    await put(front, {"schema": SCHEMA, "defaults": {"priority": 8, "timeout_s": 7}})
    refused = await front.call("POST", "/v1/tasks", wrong, key=front.producer)
    assert (refused.status, refused.code) == (422, "invalid")
    assert [error["pointer"] for error in refused.json["errors"]] == ["/payload/to"]
    right = await front.call("POST", "/v1/tasks", TASK, key=front.producer)
    assert (right.json["priority"], right.json["timeout_s"]) == (8, 7.0)
    await put(front, {"keys": []})
    nobody = await front.call("POST", "/v1/tasks", wrong, key=front.producer)
    assert (nobody.status, nobody.code) == (403, "forbidden")
    deleted = await front.call("DELETE", MAIL, key=front.operator)
    assert (deleted.status, deleted.body) == (204, b"")
    assert (await front.call("POST", "/v1/tasks", wrong, key=front.producer)).status == 201


async def test_only_the_keys_that_are_named_may_submit(front: Front) -> None:
    """Which program may charge cards is the whole point."""
    second = await front.make_key(front.tenant, "producer")
    await put(front, {"keys": [second.split("_")[1]]})
    assert (await front.call("POST", "/v1/tasks", TASK, key=second)).status == 201
    refused = await front.call("POST", "/v1/tasks", TASK, key=front.producer)
    assert (refused.status, refused.code) == (403, "forbidden")


async def test_a_type_of_one_tenant_is_none_of_anothers(front: Front) -> None:
    """Two tenants use one name for two things."""
    await put(front, {"schema": SCHEMA})
    for method in ("GET", "DELETE"):
        replies = [
            await front.call(method, path, key=front.other_admin)
            for path in (MAIL, "/v1/task-types/none", "/v1/task-types/A")
        ]
        assert {reply.status for reply in replies} == {404}
        assert len({reply.unnamed for reply in replies}) == 1
    assert (await front.call("GET", "/v1/task-types", key=front.other_admin)).json["items"] == []
    task = TASK | {"payload": 5}
    assert (await front.call("POST", "/v1/tasks", task, key=front.other_producer)).status == 201
    theirs = await front.call("PUT", MAIL, {"schema": {}}, key=front.other_admin)
    assert theirs.status == 200
    assert (await front.call("GET", MAIL)).json["schema"] == SCHEMA
    named = await front.call("PUT", MAIL + "?tenant=other", {"schema": {"type": "null"}})
    assert named.status == 200
    read = await front.call("GET", MAIL, key=front.other_producer)
    assert read.json["schema"] == {"type": "null"}


async def test_who_may_describe_and_who_may_read(front: Front) -> None:
    """A producer that may change the schema checks itself."""
    for method, body in (("PUT", {}), ("DELETE", None)):
        for key in (front.producer, front.worker):
            reply = await front.call(method, MAIL, body, key=key)
            assert (reply.status, reply.code) == (403, "forbidden")
    for path in (MAIL, "/v1/task-types"):
        reply = await front.call("GET", path, key=front.worker)
        assert (reply.status, reply.code) == (403, "forbidden")


def doubling(levels: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(levels)
    }
    definitions[f"d{levels}"] = {"type": "string"}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


WRONG_SCHEMAS: list[tuple[Any, str]] = [
    (5, "is not an object"),
    ("{}", "is not an object"),
    ({"type": "nonsense"}, "is no sound JSON Schema"),
    ({"minimum": "x"}, "is no sound JSON Schema"),
    ({"pattern": "(a"}, "is no sound JSON Schema"),
    ({"pattern": "(?=a)b"}, "is no sound JSON Schema"),
    ({"pattern": "(a{1000}){1000}"}, "is no sound JSON Schema"),
    ({"$schema": "https://example.com/schema"}, "is no sound JSON Schema"),
    ({"$ref": "https://example.com/schema"}, "must stay inside"),
    ({"$ref": "file:///etc/passwd"}, "must stay inside"),
    ({"description": "d" * SCHEMA_BYTES_MAX}, "bytes, and 65536 is the most"),
    (nested(33), "is nested deeper than 32 levels"),
    (doubling(30), "expands to more than"),
]


async def test_a_schema_that_is_not_sound_or_not_safe_is_refused(front: Front) -> None:
    """What compiles only at the next submit breaks that submit; what runs away stops all."""
    for schema, words in WRONG_SCHEMAS:
        began = time.perf_counter()
        reply = await front.call("PUT", MAIL, {"schema": schema})
        assert (reply.status, reply.code) == (422, "invalid"), words
        (error,) = reply.json["errors"]
        assert error["pointer"] == "/schema"
        assert words in error["detail"], schema
        assert time.perf_counter() - began < 2.0, words
    assert (await front.call("GET", MAIL)).status == 404


async def test_the_largest_and_deepest_schemas_are_taken(front: Front) -> None:
    """A bound that the door or the table refuses is a 5xx for an honest operator."""
    largest = {"description": "d" * (SCHEMA_BYTES_MAX - len('{"description":""}'))}
    assert (await put(front, {"schema": largest}))["schema"] == largest
    assert (await put(front, {"schema": nested(32)}))["schema"] == nested(32)
    assert (await front.call("POST", "/v1/tasks", TASK, key=front.producer)).status == 201


WRONG_TYPES: list[tuple[dict[str, Any], list[str]]] = [
    ({"shema": {}}, ["/shema"]),
    ({"defaults": {"priorty": 1}}, ["/defaults/priorty"]),
    ({"defaults": {"priority": 10}}, ["/defaults/priority"]),
    ({"defaults": {"timeout_s": 0}}, ["/defaults/timeout_s"]),
    ({"defaults": {"retry": {"max_attempts": 0}}}, ["/defaults/retry/max_attempts"]),
    ({"defaults": {"target": {"url": "https://a.example", "pool": "p"}}}, ["/defaults/target"]),
    ({"defaults": {"target": {"pool": "p", "headers": {"A": "b"}}}}, ["/defaults/target/headers"]),
    ({"keys": ["aaaaaaaaaaaa"]}, ["/keys/0"]),
    ({"keys": ["x"]}, ["/keys/0"]),
    ({"keys": [f"aaaaaaaaa{n:03}" for n in range(101)]}, ["/keys"]),
]


async def test_a_wrong_description_names_the_field_and_leaves_nothing(front: Front) -> None:
    """A default that no submit could say breaks every submit that says nothing."""
    for body, pointers in WRONG_TYPES:
        reply = await front.call("PUT", MAIL, body)
        assert (reply.status, reply.code) == (422, "invalid"), body
        assert [error["pointer"] for error in reply.json["errors"]] == pointers, reply.body
    close = await front.call("PUT", MAIL, {"shema": {}})
    assert close.json["errors"][0]["detail"] == "is not a known field; did you mean schema?"
    foreign = await front.call("PUT", MAIL, {"keys": [front.other_producer.split("_")[1]]})
    assert foreign.json["errors"][0]["detail"] == "is not a key of this tenant"
    for name in ("A", "a%20b", "a" * 129):
        reply = await front.call("PUT", f"/v1/task-types/{name}", {})
        assert (reply.status, reply.json["errors"][0]["pointer"]) == (422, "/name"), name
    assert (await front.call("GET", "/v1/task-types")).json["items"] == []
    assert (await front.call("PUT", f"/v1/task-types/{'a' * 128}", {})).status == 200


async def test_types_are_bounded_for_each_tenant(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that a loop can fill is a table that a loop fills."""
    monkeypatch.setattr(store, "TYPES_PER_TENANT_MAX", 2)
    for name in ("a", "b"):
        assert (await front.call("PUT", f"/v1/task-types/{name}", {})).status == 200
    past = await front.call("PUT", "/v1/task-types/c", {})
    assert (past.status, past.code) == (409, "too_many")
    assert (await front.call("PUT", "/v1/task-types/b", {})).status == 200


async def test_the_list_of_types_pages_by_name(front: Front) -> None:
    """A type that no page shows still refuses tasks."""
    for name in ("c", "a", "b"):
        await front.call("PUT", f"/v1/task-types/{name}", {})
    first = await front.call("GET", "/v1/task-types?limit=2")
    assert [kind["name"] for kind in first.json["items"]] == ["a", "b"]
    rest = await front.call("GET", f"/v1/task-types?limit=2&cursor={first.json['next_cursor']}")
    assert [kind["name"] for kind in rest.json["items"]] == ["c"]
    assert (await front.call("GET", "/v1/task-types?cursor=%00")).code == "invalid_query"


async def test_the_audit_names_no_secret_of_the_defaults(front: Front) -> None:
    """A header of a webhook is often somebody's password."""
    target = {"url": "https://api.example.com", "headers": {"Authorization": "Bearer hidden"}}
    await put(front, {"defaults": {"target": target}})
    reply = await front.call("GET", "/v1/audit")
    (entry,) = reply.json["items"]
    assert entry["detail"] == {"schema": False, "defaults": ["target"], "keys": None}
    assert b"hidden" not in reply.body
