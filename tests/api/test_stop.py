"""What callers hear when the server stops before their call is over."""

import asyncio
import logging

import asyncpg
import pytest

from duly.api.server import Listener, make_server
from tests.api.conftest import Front, Reply

STOP_S = 1.0
WAIT_S = 30.0
SOMEBODY_WAITS = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'duly.task_types'::regclass"


async def test_a_call_that_the_stop_cuts_off_is_told_to_try_again(
    front: Front, owner: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """A bare 500 is given up by clients, and a traceback wakes people up for a deployment."""
    listener = Listener("127.0.0.1", 0)
    server = make_server(front.door.application(), STOP_S)
    serving = asyncio.create_task(server.serve([listener.socket]))
    async with asyncio.timeout(WAIT_S), owner.transaction():
        await owner.execute("LOCK TABLE duly.task_types")
        asking = asyncio.create_task(ask(front, listener.url + "/v1/task-types"))
        while not await owner.fetch(SOMEBODY_WAITS):  # noqa: ASYNC110 (a lock has no signal)
            await asyncio.sleep(0.01)
        with caplog.at_level(logging.INFO):
            server.should_exit = True
            reply = await asking
            await serving
    assert (reply.status, reply.code) == (503, "unavailable")
    assert reply.headers["Retry-After"] == "1"
    assert reply.headers["Content-Type"] == "application/problem+json"
    assert "Exception in ASGI application" not in caplog.text
    listener.close()


async def ask(front: Front, url: str) -> Reply:
    headers = {"Authorization": f"Bearer {front.admin}"}
    async with front.client.get(url, headers=headers) as response:
        return Reply(response.status, response.headers, await response.read())
