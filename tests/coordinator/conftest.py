"""Fixtures of the ownership tests: a cluster on a database with a movable clock."""

from collections.abc import AsyncIterator

import pytest

from tests.coordinator.nodes import Cluster
from tests.store.world import World


@pytest.fixture
async def cluster(engine_url: str, owner_url: str) -> AsyncIterator[Cluster]:
    async with World.open(engine_url, owner_url) as world:
        yield Cluster(world)
