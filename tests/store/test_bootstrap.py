"""Preparing the database at the start, when the server goes away in the middle of it."""

import asyncio
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from duly.domain.errors import DatabaseUnavailable
from duly.environment import Environment
from duly.settings import Settings
from duly.store import bootstrap as place_module
from duly.store.bootstrap import EMBEDDED_LOGIN, DatabaseTarget, prepare_engine, prepare_target
from duly.store.database import check_server

END_ITSELF = "SELECT pg_terminate_backend(pg_backend_pid())"


@pytest.mark.parametrize("step", [0, 1])
async def test_a_server_that_goes_away_during_a_start_is_told_in_one_line(
    owner_url: str, engine_url: str, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """A supervisor starts a process while PostgreSQL restarts, and needs one line."""
    checks = 0

    async def check_and_end(
        connection: asyncpg.Connection, url: str, *, allow_unsafe: bool
    ) -> None:
        nonlocal checks
        checks += 1
        if checks > step:
            await connection.fetch(END_ITSELF)
        await check_server(connection, url, allow_unsafe=allow_unsafe)

    monkeypatch.setattr(place_module, "check_server", check_and_end)
    place = DatabaseTarget(owner_url, engine_url, "a test's")
    with pytest.raises(DatabaseUnavailable):
        await prepare_target(place, Settings(), Environment())
    assert checks == step + 1


async def test_processes_that_start_together_all_start(
    owner_url: str, engine_url: str, owner: asyncpg.Connection
) -> None:
    """On a fresh database they give one login its settings, which the catalogue takes from one."""
    login = f"fresh_{uuid4().hex}"
    password = urlsplit(engine_url).password
    await owner.execute(
        f"CREATE ROLE {login} LOGIN PASSWORD '{password}' IN ROLE duly_engine, duly_tenant"
    )
    try:
        place = DatabaseTarget(
            owner_url, engine_url.replace(f"{EMBEDDED_LOGIN}:", f"{login}:"), "a test's"
        )
        await asyncio.gather(*(prepare_engine(place, Settings()) for _ in range(16)))
    finally:
        await owner.execute(f"DROP ROLE {login}")
