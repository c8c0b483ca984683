"""Fixtures of the maintenance tests: the store's world, and metrics of their own."""

from collections.abc import AsyncIterator

import pytest

from duly.telemetry import Metrics
from tests.store.world import World


@pytest.fixture
async def world(engine_url: str, owner_url: str) -> AsyncIterator[World]:
    async with World.open(engine_url, owner_url) as world:
        yield world


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()
