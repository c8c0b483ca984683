"""Cursors: signed for one list, one filter and one tenant, and good on every node."""

import asyncio
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest

from duly.api.asgi import Endpoint
from duly.api.cursors import CURSOR_CHARACTERS_MAX, Cursors, encoded
from duly.api.server import Listener, make_server
from tests.api.conftest import STOP_S, Front, Reply
from tests.api.scheduling import define

TASK = {"type": "a.b", "delay_s": 3600}
# Of a bounded number of items, all on one page.
WHOLE_LISTS = {"/v1/webhook-secrets", "/v1/notifications"}
# What lists once took, or nearly took, in the plain, and a few that nobody ever gave out.
PLAIN = [
    "-5 ",
    "-1 ",
    "0 ",
    "٣ ",
    "0",
    "999999999999",
    "tenant:",
    "a.b",
    str(UUID(int=7)),
    "2026-01-01T00:00:00Z",
    f"2026-01-01T00:00:00Z|{UUID(int=7)}",
    f"2026-01-01T00:00:00Z~{UUID(int=7)}",
    "1~a~a.b~exhausted",
    "x",
    "A",
    "AQ",
    "AQ==",
    encoded(b"\x01" + bytes(16) + b"0 "),
    encoded(b"\x02" + bytes(16)),
    "A" * CURSOR_CHARACTERS_MAX,
]


async def ids_of(front: Front) -> dict[str, str]:
    task = await front.call("POST", "/v1/tasks", TASK)
    return {"tasks": task.json["id"], "schedules": (await define(front))["id"]}


def listing(front: Front) -> list[Endpoint]:
    return [endpoint for endpoint in front.door.endpoints() if endpoint.takes_cursor]


async def ask(front: Front, endpoint: Endpoint, ids: dict[str, str], cursor: object) -> Reply:
    path = endpoint.path.replace("{id}", ids.get(endpoint.segments[1], ""))
    if endpoint.method == "GET":
        return await front.call("GET", f"{path}?cursor={quote(str(cursor))}")
    body = {"filter": {}, "dry_run": True, "cursor": cursor}
    return await front.call("POST", path, body | ({"reason": "x"} if "pause" in path else {}))


async def test_no_list_takes_a_cursor_that_it_did_not_give(front: Front) -> None:
    """A plain cursor is a parameter that no schema describes: one of them was answered with 500."""
    ids = await ids_of(front)
    endpoints = listing(front)
    assert len(endpoints) >= 15
    for endpoint in endpoints:
        for cursor in PLAIN:
            reply = await ask(front, endpoint, ids, cursor)
            where = f"{endpoint.method} {endpoint.path} {cursor!r}"
            assert (reply.status, reply.code) == (400, "invalid_query"), where


async def test_a_list_that_is_offered_has_a_cursor_of_this_kind(front: Front) -> None:
    """A list that is added later must not hand out plain positions."""
    for endpoint in front.door.endpoints():
        if endpoint.path in WHOLE_LISTS:
            continue
        answers = [each for each in endpoint.answers.values() if each is not None]
        fields = {name for each in answers for name in fields_of(each)}
        assert endpoint.takes_cursor == ("next_cursor" in fields), endpoint.path


def fields_of(model: Any) -> tuple[str, ...]:
    found: tuple[str, ...] = getattr(model, "__struct_fields__", ())
    return found or getattr(getattr(model, "__origin__", None), "__struct_fields__", ())


@pytest.mark.parametrize("position", ["999999999999", 999999999999])
async def test_a_number_is_no_cursor_in_a_body(front: Front, position: object) -> None:
    """It was taken, and the tasks that match were said to be none."""
    body = {"filter": {}, "cursor": position}
    reply = await front.call("POST", "/v1/tasks/cancel", body)
    assert reply.status in (400, 422)


async def page_of(front: Front, path: str = "/v1/tasks?limit=1", key: str = "") -> str:
    reply = await front.call("GET", path, key=key)
    cursor: str = reply.json["next_cursor"]
    return cursor


async def test_a_cursor_that_was_altered_is_refused(front: Front) -> None:
    """What a reader can change is not opaque, and ends in the database."""
    for _ in range(2):
        await front.call("POST", "/v1/tasks", TASK)
    cursor = await page_of(front)
    assert (await front.call("GET", f"/v1/tasks?cursor={cursor}")).status == 200
    others = [
        cursor[:at] + ("A" if cursor[at] != "A" else "B") + cursor[at + 1 :]
        for at in range(len(cursor))
    ]
    others += [cursor[:-1], cursor[1:], cursor + "A", cursor + "=", cursor + "\n", cursor + cursor]
    for altered in others:
        reply = await front.call("GET", f"/v1/tasks?cursor={quote(altered)}")
        assert (reply.status, reply.code) == (400, "invalid_query"), altered


async def test_a_cursor_is_good_for_its_own_query_alone(front: Front) -> None:
    """Continued with another filter, a list skips items and says nothing."""
    for _ in range(2):
        await front.call("POST", "/v1/tasks", TASK)
    cursor = await page_of(front, "/v1/tasks?type=a.b&limit=1")
    for path in (
        "/v1/tasks",
        "/v1/tasks?type=a.c",
        "/v1/tasks?type=a.b&state=SCHEDULED",
        "/v1/schedules",
        "/v1/tasks?type=a.b&tenant=other",
    ):
        mark = "&" if "?" in path else "?"
        reply = await front.call("GET", f"{path}{mark}cursor={cursor}")
        assert (reply.status, reply.code) == (400, "invalid_query"), path
    for limit in (1, 200):
        path = f"/v1/tasks?type=a.b&limit={limit}&cursor={cursor}"
        assert (await front.call("GET", path)).status == 200


async def test_a_cursor_of_one_tenant_is_refused_for_another(front: Front) -> None:
    """A position is an id of the tenant that it was given to."""
    for key in (front.producer, front.other_producer):
        for _ in range(2):
            await front.call("POST", "/v1/tasks", TASK, key=key)
    cursor = await page_of(front, key=front.producer)
    reply = await front.call("GET", f"/v1/tasks?cursor={cursor}", key=front.other_producer)
    assert (reply.status, reply.code) == (400, "invalid_query")
    # An operator who names the tenant reads the same list.
    assert (await front.call("GET", f"/v1/tasks?tenant=default&cursor={cursor}")).status == 200


async def test_a_cursor_of_one_node_is_good_on_another(front: Front) -> None:
    """Behind a load balancer every second page would be refused."""
    for _ in range(2):
        await front.call("POST", "/v1/tasks", TASK)
    cursor = await page_of(front)
    listener = Listener("127.0.0.1", 0)
    server = make_server(front.door.application(), STOP_S)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve([listener.socket]))
        try:
            headers = {"Authorization": f"Bearer {front.admin}"}
            url = f"{listener.url}/v1/tasks?cursor={cursor}"
            async with front.client.get(url, headers=headers) as response:
                assert (response.status, len((await response.json())["items"])) == (200, 1)
        finally:
            server.should_exit = True
            await serving
            listener.close()


async def test_the_secret_is_out_of_reach_of_tenants(front: Front) -> None:
    """With it, a cursor can be made for every position."""
    cursors = Cursors(front.database)
    await cursors.load()
    assert len(cursors.secret) == 32
    with pytest.raises(Exception, match="permission denied"):
        async with front.database.tenant(front.tenant.id) as session:
            await session.fetch("SELECT secret FROM duly.installation_secrets")
