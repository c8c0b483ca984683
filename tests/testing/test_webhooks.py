"""A webhook from end to end: a real duly, a real receiver behind the middleware, one effect."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import asyncpg
import pytest
import uvicorn

from duly import AsyncClient, WebhookReceiver
from duly.api.server import HttpServer
from duly.client.receiver_app import Receive, Scope, Send
from duly.testing.clock import MovableClock
from duly.testing.server import TestTenant

pytestmark = pytest.mark.slow

SOON_S = 30.0


@contextlib.asynccontextmanager
async def served(application: WebhookReceiver) -> AsyncIterator[str]:
    config = uvicorn.Config(application, port=0, lifespan="off", log_config=None, ws="none")
    server = HttpServer(config)
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(SOON_S):
        while not server.started:  # noqa: ASYNC110 (uvicorn has no signal)
            await asyncio.sleep(0.005)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/hooks/charge"
    finally:
        server.should_exit = True
        await serving


async def test_an_effect_of_a_webhook_happens_once_though_it_is_delivered_twice(
    duly_tenant: TestTenant, duly_clock: MovableClock, empty_url: str
) -> None:
    """The receiver did its work and then failed to say so: the usual way to charge twice."""
    deliveries = []

    async def charge(scope: Scope, receive: Receive, send: Send) -> None:
        delivery = scope["duly"]
        deliveries.append(delivery)
        connection = await asyncpg.connect(empty_url)
        try:
            async with connection.transaction(), delivery.once(connection, step="charge") as first:
                if first:
                    await connection.execute("INSERT INTO charges VALUES (1)")
        finally:
            await connection.close()
        status = 500 if len(deliveries) == 1 else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b'"done"'})

    owner = await asyncpg.connect(empty_url)
    await owner.execute("CREATE TABLE charges (n integer)")
    async with AsyncClient() as client:
        made = await client.call("POST", "/v1/webhook-secrets")
        duly_clock.advance(days=2)
        application = WebhookReceiver(charge, made["secret"], path="/hooks/", now=duly_clock.now)
        async with served(application) as url:
            task = await client.submit(
                "order.charge", {"n": 1}, url=url, idempotency_key="order-7", timeout_s=20
            )
            async with asyncio.timeout(SOON_S):
                while not deliveries:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                while (await client.get(task.id)).state == "RUNNING":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            duly_clock.advance(hours=1)
            done = await client.wait(task.id, timeout_s=SOON_S)
    assert (done.state, done.output) == ("COMPLETED", "done")
    first, second = deliveries
    assert first.execution_key == second.execution_key == "order-7"
    assert first.fence < second.fence
    assert await owner.fetchval("SELECT count(*) FROM charges") == 1
    await owner.close()
