"""The two sessions and the observer of a race, and a stage with this month's partitions."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import asyncpg
import pytest

from duly.environment import Environment
from duly.store.database import Database
from duly.store.partitions import create_partitions
from tests.interleaving.orders import Race
from tests.interleaving.scenes import Stage


@pytest.fixture
async def stage(database: Database, owner: asyncpg.Connection) -> Stage:
    await create_partitions(database, months_ahead=1)
    return Stage(database, owner, Environment(random=Random(1)))


@pytest.fixture
async def race(engine_url: str, stage: Stage) -> AsyncIterator[Race]:
    connections = [await asyncpg.connect(engine_url) for _ in range(3)]
    yield Race(engine_url, connections)
    await asyncio.gather(*(connection.close() for connection in connections))
