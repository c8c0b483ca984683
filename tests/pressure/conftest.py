"""Fixtures of the pressure tests: a pool that counts its statements, and the owner's hand."""

from collections.abc import AsyncIterator

import pytest

from tests.pressure.counting import CountingDatabase

CONNECTIONS_MAX = 12


@pytest.fixture
async def pool(engine_url: str) -> AsyncIterator[CountingDatabase]:
    opened = await CountingDatabase.open(engine_url, CONNECTIONS_MAX)
    assert isinstance(opened, CountingDatabase)
    yield opened
    await opened.close()
