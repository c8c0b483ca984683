"""Search over HTTP: what a task says, within a bounded window, of one tenant."""

from typing import Any
from urllib.parse import quote

import pytest

from duly.store import search
from tests.api.conftest import Front
from tests.api.letters import HOLDER, fail


async def submit(front: Front, **more: Any) -> str:
    body = {"type": "mail.send", "delay_s": 3600} | more
    reply = await front.call("POST", "/v1/tasks", body, key=front.producer)
    assert reply.status == 201, reply.body
    task_id: str = reply.json["id"]
    return task_id


async def found(front: Front, query: str, key: str | None = "") -> list[str]:
    reply = await front.call("GET", f"/v1/search?{query}", key=key)
    assert reply.status == 200, reply.body
    return [item["id"] for item in reply.json["items"]]


async def test_a_task_is_found_by_everything_that_it_says(front: Front) -> None:
    """An operator has a customer's number, and no id."""
    wanted = await submit(front, payload={"order": "A-4711"}, tags={"env": "Prod"})
    await submit(front, type="report.write", payload={"order": "B-1"})
    for query in ("q=a-4711", "q=env:prod", f"q={wanted[:23]}", "q=mail.s", "type=mail.send"):
        assert await found(front, query) == [wanted], query
    assert await found(front, "tag=env:Prod") == [wanted]
    assert await found(front, "q=a-4711&type=report.write") == []
    assert await found(front, "q=nothing-of-this-kind") == []


async def test_a_failed_task_is_found_by_its_error_and_its_worker(front: Front) -> None:
    """The same message in ten types is one incident."""
    failed = str(await fail(front, error="Connection REFUSED by db-7"))
    await submit(front, payload={"error": "connection refused"})
    assert await found(front, "error=refused%20by") == [failed]
    assert failed in await found(front, "q=connection%20refused")
    assert await found(front, f"worker={HOLDER}") == [failed]
    assert await found(front, "worker=unknown") == []


async def test_a_window_ends_and_the_cursor_goes_on(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a bound, one search of a tenant with ten million tasks holds a connection for
    minutes."""
    oldest = await submit(front, payload="needle")
    for _ in range(5):
        await submit(front, payload="hay")
    monkeypatch.setattr(search, "SEARCH_WINDOW", 2)
    monkeypatch.setattr(search, "SEARCHED_MAX", 4)
    first = (await front.call("GET", "/v1/search?q=needle")).json
    assert (first["items"], first["searched"]) == ([], 4)
    rest = await found(front, f"q=needle&cursor={first['next_cursor']}")
    assert rest == [oldest]
    refused = await front.call("GET", f"/v1/search?q=other&cursor={first['next_cursor']}")
    assert refused.code == "invalid_query"


async def test_what_another_tenant_wrote_is_not_found(front: Front) -> None:
    """I9: payloads are what a search would leak first."""
    await submit(front, payload="needle")
    assert await found(front, "q=needle", key=front.other_producer) == []
    assert (await front.call("GET", "/v1/search?q=x", key=front.worker)).status == 403


@pytest.mark.parametrize("text", ["%", "_", "'", '"', "\\", "{", "<script>", "\u202e", "$1"])
async def test_a_text_is_taken_as_it_is(front: Front, text: str) -> None:
    """A pattern character that is obeyed finds everything."""
    await submit(front, payload="plain")
    wanted = await submit(front, payload={"text": f"odd {text} one"})
    ids = await found(front, f"q={quote(text)}")
    assert wanted in ids or text in '"\\\u202e'
    assert len(ids) < 2 or text in '"{'


@pytest.mark.parametrize(
    "query", ["q=", "q=" + "x" * 201, "tag=x", "type=A%20B", "limit=0", "words=x", "q=%00"]
)
async def test_bad_queries_are_refused(front: Front, query: str) -> None:
    """A mistyped filter that is ignored shows what was not asked for."""
    reply = await front.call("GET", f"/v1/search?{query}")
    assert (reply.status, reply.code) == (400, "invalid_query"), reply.body
