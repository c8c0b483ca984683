"""What stories share: a database of their own for processes that come and go."""

from collections.abc import Iterator

import asyncpg
import pytest

from tests.servers import ServerOfTheRun
from tests.story.installation import Installation


@pytest.fixture
def installation(server: ServerOfTheRun, owner_url: str, engine_url: str) -> Iterator[Installation]:
    owner = server.run(asyncpg.connect(owner_url))
    yield Installation(server, owner_url, engine_url, owner)
    server.run(owner.close())
