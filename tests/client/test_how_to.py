"""The SQL of the how-to pages about producers, run as it is printed."""

from random import Random

import asyncpg
import pytest

from duly.client.asynchronous import AsyncClient
from duly.client.relay import Relay, Round, create_outbox
from duly.environment import Environment, SystemClock
from duly.store.database import Database
from duly.store.tenants import create_tenant
from tests.api.conftest import open_front
from tests.client.producers import count
from tests.processes import PROJECT
from tests.tidy.markdown import blocks

pytestmark = pytest.mark.slow


def sql_of(page: str) -> list[str]:
    found = [block.text for block in blocks("sql") if block.page.endswith(page)]
    assert found, f"{page} has no SQL in it, or is not under {PROJECT}"
    return found


async def test_the_sql_of_the_transactional_page_runs(
    owner: asyncpg.Connection, database: Database
) -> None:
    """The first thing that a producer tries is what stands there."""
    await create_tenant(database, "default")
    grant, transaction = sql_of("submit-in-your-transaction.md")
    _, grant = grant.strip().splitlines()  # Logins belong to all databases of the server.
    await owner.execute(grant.replace("your_app", "CURRENT_USER"))
    await owner.execute(transaction)
    assert await count(owner, "timers") == 2


async def test_the_sql_of_the_outbox_page_runs(
    owner: asyncpg.Connection, database: Database, empty_url: str
) -> None:
    """Written, forwarded, refused, mended: in the words of the page."""
    write, look, mend = sql_of("relay-an-outbox.md")
    await create_outbox(empty_url)
    producer = await asyncpg.connect(empty_url)
    try:
        async with (
            open_front(database, Environment(SystemClock(), Random(7))) as front,
            AsyncClient(front.url, front.producer) as client,
        ):
            await producer.execute(write)
            assert await Relay(empty_url, client).drain() == Round(stored=2)
            await producer.execute(
                """INSERT INTO duly_outbox (type, options) VALUES ('e', '{"priority": 10}')"""
            )
            assert await Relay(empty_url, client).drain() == Round(refused=1)
            (refused,) = await producer.fetch(look)
            assert "priority: expected" in refused["error"]
            await producer.execute(mend)
            assert await Relay(empty_url, client).drain() == Round(stored=1)
            assert await producer.fetch(look) == []
    finally:
        await producer.close()
    assert await count(owner, "timers") == 3
