"""Fixtures that every test may use: a real PostgreSQL, a manual clock, a fixed seed."""

import logging
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random

import asyncpg
import pytest
import structlog

from duly.environment import Environment
from duly.store.database import Database
from duly.testing.clock import ManualClock
from tests.servers import ServerOfTheRun
from tests.store.world import make_months

SEED = 20260101
# Suites that search, race or kill: minutes together, so `make check` leaves them to `make test`.
SLOW_FOLDERS = frozenset(
    {
        "api",
        "broker",
        "client",
        "coordinator",
        "guards",
        "integrations",
        "interleaving",
        "maintenance",
        "model",
        "plans",
        "store",
    }
)
# Many small tests, none of which minds that others wrote to its database before it was emptied.
USED_AGAIN = frozenset(
    {
        "api",
        "broker",
        "cli",
        "client",
        "coordinator",
        "execution",
        "guards",
        "interleaving",
        "maintenance",
        "scheduler",
        "testing",
    }
)
POOL_CONNECTIONS_MAX = 10


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SLOW_FOLDERS & set(item.path.relative_to(item.config.rootpath).parts):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="session")
def settings_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The person who runs the tests may have settings of their own; no test may see them."""
    for name in list(os.environ):
        if name.startswith("DULY_") and not name.startswith("DULY_TEST_"):
            del os.environ[name]
    nowhere = tmp_path_factory.mktemp("nobody")
    os.environ["XDG_CONFIG_HOME"] = str(nowhere / "config")
    os.environ["XDG_DATA_HOME"] = str(nowhere / "data")


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A command that runs within a test configures logs for the whole process, and workers follow
    what structlog was told: the next test is to meet neither."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    access, errors = logging.getLogger("uvicorn.access"), logging.getLogger("uvicorn.error")
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    access.disabled = False
    errors.setLevel(logging.NOTSET)
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all workers of this run."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "run"


@pytest.fixture(scope="session")
def server(run_folder: Path) -> Iterator[ServerOfTheRun]:
    server = ServerOfTheRun(run_folder)
    server.open()
    yield server
    server.close()


@pytest.fixture
def database_name(request: pytest.FixtureRequest, server: ServerOfTheRun) -> Iterator[str]:
    """A migrated and empty database, for this test alone."""
    is_used_again = USED_AGAIN & set(request.path.relative_to(request.config.rootpath).parts)
    if "world" in request.fixturenames:
        # Which has months of its own.
        database = server.used_database("world", make_months)
    elif is_used_again:
        database = server.used_database()
    else:
        database = server.database()
    with database as name:
        yield name


@pytest.fixture
def owner_url(server: ServerOfTheRun, database_name: str) -> str:
    return server.url(database_name)


@pytest.fixture
def engine_url(server: ServerOfTheRun, database_name: str) -> str:
    return server.engine_url(database_name)


@pytest.fixture
def empty_url(server: ServerOfTheRun) -> Iterator[str]:
    """A database that duly never touched, as its owner."""
    with server.database("template0") as name:
        yield server.url(name)


@pytest.fixture
async def database(engine_url: str) -> AsyncIterator[Database]:
    database = await Database.open(engine_url, POOL_CONNECTIONS_MAX)
    yield database
    await database.close()


@pytest.fixture
async def owner(owner_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(owner_url)
    yield connection
    await connection.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def environment(clock: ManualClock) -> Environment:
    return Environment(clock=clock, random=Random(SEED))
