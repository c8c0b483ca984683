"""pytest fixtures for programs that use duly: `pytest_plugins = ["duly.testing.plugin"]`.

`duly_server` is one real duly for the session; each test has a tenant of its own on it. Nothing is
started before a test asks for it.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from duly.client.inline_mode import Ran
    from duly.client.synchronous import Client
    from duly.testing.clock import MovableClock
    from duly.testing.inline import Inline
    from duly.testing.server import DulyServer, TestTenant


@pytest.fixture(scope="session")
def duly_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[DulyServer]":
    """A real duly in this process, on an embedded PostgreSQL and a free port."""
    from duly.testing.server import DulyServer

    with DulyServer(tmp_path_factory.mktemp("duly")) as server:
        yield server


@pytest.fixture
def duly_clock(duly_server: "DulyServer") -> "MovableClock":
    """Of the server and its database: `duly_clock.advance(days=7)`. It is never set back."""
    return duly_server.clock


@pytest.fixture
def duly_tenant(
    duly_server: "DulyServer", monkeypatch: pytest.MonkeyPatch
) -> "Iterator[TestTenant]":
    """A tenant of this test's own. `Client()`, `Worker()` and handles without arguments are its."""
    from duly.client.shared_clients import forget_shared_clients

    tenant = duly_server.make_tenant()
    monkeypatch.setenv("DULY_URL", tenant.url)
    monkeypatch.setenv("DULY_API_KEY", tenant.api_key)
    forget_shared_clients()
    yield tenant
    forget_shared_clients()


@pytest.fixture
def duly_client(duly_tenant: "TestTenant") -> "Iterator[Client]":
    """A `duly.Client` of that tenant, closed after the test."""
    from duly.client.synchronous import Client

    with Client(duly_tenant.url, duly_tenant.api_key) as client:
        yield client


@pytest.fixture
def duly_inline(duly_server: "DulyServer", duly_tenant: "TestTenant") -> "Inline":
    """What the two below are methods of."""
    from duly.testing.inline import Inline

    return Inline(duly_server, duly_tenant)


@pytest.fixture
def run_inline(duly_inline: "Inline") -> "Callable[..., list[Ran]]":
    """`run_inline(worker)`: run what is due. `until=timedelta(days=7)`: let that much time pass."""
    return duly_inline.run


@pytest.fixture
def arun_inline(duly_inline: "Inline") -> "Callable[..., Awaitable[list[Ran]]]":
    """`await arun_inline(worker)`, for tests that run in an event loop."""
    return duly_inline.arun
