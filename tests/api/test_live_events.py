"""Server-Sent Events: an open page learns of changes of its own tenant, and of no other."""

import asyncio

import aiohttp
import pytest

from duly.api import live_events
from tests.api.conftest import Front

PATIENCE_S = 10.0


async def next_event(stream: aiohttp.ClientResponse) -> str:
    """The next block with an event; comments and the retry time are passed over."""
    async with asyncio.timeout(PATIENCE_S):
        block = ""
        while True:
            line = (await stream.content.readline()).decode()
            assert line, "the stream ended"
            block += line
            if line == "\n":
                if "event:" in block:
                    return block
                block = ""


def opened(front: Front, key: str, **headers: str) -> "aiohttp.client._RequestContextManager":
    headers = {"Authorization": f"Bearer {key}"} | headers
    return front.client.get(front.url + "/v1/events", headers=headers)


def change(front: Front, tenant: int) -> None:
    front.door.changes.note_here([str(tenant)])


async def test_a_change_of_the_tenant_is_heard_and_of_another_is_not(front: Front) -> None:
    """A page that reloads for its neighbours' work tells when they work."""
    async with opened(front, front.producer) as mine, opened(front, front.other_producer) as theirs:
        assert mine.headers["Content-Type"] == "text/event-stream"
        await mine.content.readline()
        await theirs.content.readline()
        change(front, front.tenant.id)
        assert "event: changed" in await next_event(mine)
        change(front, front.other.id)
        assert "id: 1\n" in await next_event(theirs)


async def test_a_stream_that_comes_back_reads_once_more(front: Front) -> None:
    """What changed while the connection was gone is told by nothing else."""
    async with opened(front, front.producer, **{"Last-Event-ID": "41"}) as stream:
        assert "id: 42\n" in await next_event(stream)


@pytest.mark.parametrize("last_id", ["-1", "x", "9" * 400, "٣"])
async def test_an_odd_event_id_is_only_a_number_that_is_not_known(
    front: Front, last_id: str
) -> None:
    """The header is the browser's; whatever stands in it, the stream opens."""
    async with opened(front, front.producer, **{"Last-Event-ID": last_id}) as stream:
        assert stream.status == 200
        assert "event: changed" in await next_event(stream)


async def test_a_stream_needs_a_credential(front: Front) -> None:
    """When a tenant works is the tenant's own."""
    assert (await front.call("GET", "/v1/events", key=None)).status == 401


async def test_streams_of_one_tenant_are_bounded(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tenant's thousand forgotten pages would be everybody's connections."""
    monkeypatch.setattr(live_events, "STREAMS_PER_TENANT_MAX", 1)
    async with opened(front, front.producer) as first:
        await first.content.readline()
        refused = await front.call("GET", "/v1/events", key=front.producer)
        assert (refused.status, refused.code) == (503, "overloaded")
        async with opened(front, front.other_producer) as other:
            assert other.status == 200


async def test_a_stream_ends_so_that_its_credential_is_asked_again(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A revoked key that keeps an old stream would go on watching."""
    monkeypatch.setattr(live_events, "STREAM_S_MAX", 0.0)
    async with asyncio.timeout(PATIENCE_S), opened(front, front.producer) as stream:
        assert b"retry" in await stream.read()


async def test_streams_end_when_the_process_stops(front: Front) -> None:
    """A stop that waits for open pages is no stop."""
    async with asyncio.timeout(PATIENCE_S), opened(front, front.producer) as stream:
        await stream.content.readline()
        front.door.changes.close()
        await stream.read()
