"""Parameters of paths and queries: text that PostgreSQL cannot take is refused at every route."""

from urllib.parse import quote
from uuid import UUID

import msgspec
import pytest

from duly.api.asgi import Endpoint, Kind
from tests.api.conftest import Front

CONTROL = ["\x00", "\x01", "\n", "\x1f", "\x7f", "\x85", "a\x00", "a\x00b", f"{UUID(int=7)}\x00"]


def named(front: Front) -> list[tuple[Endpoint, str]]:
    """Each endpoint with each name of its query, as the description lists them."""
    return [
        (endpoint, name)
        for endpoint in front.door.endpoints()
        if endpoint.kind is not Kind.OPEN
        for name in ("tenant", *query_names(endpoint))
    ]


def query_names(endpoint: Endpoint) -> list[str]:
    query = endpoint.query
    if query is None:
        return []
    assert issubclass(query, msgspec.Struct)
    return [field.encode_name for field in msgspec.structs.fields(query)]


def path_of(endpoint: Endpoint, value: str) -> str:
    return "/".join(
        quote(value, safe="") if part.startswith("{") else part for part in endpoint.path.split("/")
    )


async def test_a_query_with_a_control_character_is_refused_by_every_route(front: Front) -> None:
    """`name=%00` reached the database, which refuses it in its own way."""
    asked = named(front)
    assert len({name for _, name in asked}) > 15
    for endpoint, name in asked:
        for text in CONTROL:
            path = f"{path_of(endpoint, str(UUID(int=7)))}?{name}={quote(text)}"
            reply = await front.call(endpoint.method, path)
            where = f"{endpoint.method} {path}"
            assert (reply.status, reply.code) == (400, "invalid_query"), where
            assert reply.json["errors"][0]["pointer"] == f"/{name}", where


async def test_a_path_with_a_control_character_is_refused_by_every_route(front: Front) -> None:
    """An id, a name: whatever stands in a path goes on into a statement."""
    endpoints = [each for each in front.door.endpoints() if "{" in each.path]
    assert len(endpoints) > 20
    for endpoint in endpoints:
        for text in CONTROL:
            path = path_of(endpoint, text)
            reply = await front.call(endpoint.method, path)
            assert (reply.status, reply.code) == (400, "malformed_request"), path


@pytest.mark.parametrize("name", ["a%00b", "%1f", "name%0a"])
async def test_a_parameters_own_name_is_judged_too(front: Front, name: str) -> None:
    """It is quoted in the answer, and in a log."""
    reply = await front.call("GET", f"/v1/tasks?{name}=1")
    assert (reply.status, reply.code) == (400, "invalid_query")
    assert not any(ord(character) < 32 for character in reply.json["detail"])
