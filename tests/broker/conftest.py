"""Fixtures of the carriers' tests: a world with a movable clock, on a database of its own."""

from collections.abc import AsyncIterator

import pytest

from tests.store.world import World


@pytest.fixture
async def world(engine_url: str, owner_url: str) -> AsyncIterator[World]:
    async with World.open(engine_url, owner_url) as world:
        yield world
