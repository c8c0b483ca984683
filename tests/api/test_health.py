"""The probes tell the truth: alive is not ready, and ready means database, schema and roles."""

from collections.abc import AsyncIterator

import asyncpg
import msgspec
import pytest

from duly.api.health import HealthRoutes
from duly.api.request import Answer, Call
from duly.api.server import Listener
from duly.domain.errors import PortInUse
from duly.store.database import Database
from duly.store.migrate import read_migrations
from duly.telemetry import Metrics

LATEST = len(read_migrations())
SCOPE = {"method": "GET", "path": "/", "headers": [], "query_string": b""}


class Doors:
    """A health door whose roles the test sets."""

    def __init__(self, database: Database) -> None:
        self.problems: dict[str, str | None] = {}
        self.metrics = Metrics()
        self.door = HealthRoutes(database, self.metrics, LATEST, lambda: self.problems)


@pytest.fixture
async def doors(engine_url: str) -> AsyncIterator[Doors]:
    database = await Database.open(engine_url, 2)
    yield Doors(database)
    await database.close()


async def nothing() -> dict[str, object]:
    return {"type": "http.request"}


def a_call() -> Call:
    return Call(dict(SCOPE), nothing)


def body_of(answer: Answer) -> dict[str, object]:
    body: dict[str, object] = msgspec.json.decode(answer.encoded())
    return body


async def test_everything_in_order_is_ready(doors: Doors) -> None:
    """A false alarm takes a healthy node out of service."""
    doors.problems = {"scheduler": None}
    response = await doors.door.ready(a_call())
    assert response.status == 200
    assert body_of(response) == {
        "status": "ready",
        "checks": {"database": "ok", "schema": "ok", "role:scheduler": "ok"},
    }


async def test_a_role_that_fails_is_not_ready_and_is_named_with_its_cause(doors: Doors) -> None:
    """An API that takes tasks which nobody fires looks healthy from outside."""
    doors.problems = {"scheduler": None, "executor": "failing: OSError, 4 times in 2 s"}
    response = await doors.door.ready(a_call())
    assert response.status == 503
    checks = body_of(response)["checks"]
    assert isinstance(checks, dict)
    assert checks["role:executor"] == "failing: OSError, 4 times in 2 s"
    numbers = (await doors.door.numbers(a_call())).encoded().decode()
    assert 'duly_role_failing{role="executor"} 1.0' in numbers
    assert 'duly_role_failing{role="scheduler"} 0.0' in numbers


async def test_an_older_schema_is_not_ready_and_a_newer_one_is(
    doors: Doors, owner: asyncpg.Connection
) -> None:
    """The schema was migrated back under a running node; the other way is how every upgrade
    looks."""
    insert = "INSERT INTO duly.migrations (number, name) VALUES ($1, 'newer')"
    await owner.execute(insert, LATEST + 1)
    assert (await doors.door.ready(a_call())).status == 200
    await owner.execute("DELETE FROM duly.migrations WHERE number >= $1", LATEST)
    response = await doors.door.ready(a_call())
    assert response.status == 503
    assert f"at {LATEST - 1}, needs {LATEST}" in str(body_of(response))


async def test_without_a_database_it_is_alive_and_not_ready(doors: Doors) -> None:
    """Restarting a process because its database is away makes an outage longer."""
    await doors.door.database.close()
    assert (await doors.door.alive(a_call())).status == 200
    response = await doors.door.ready(a_call())
    assert response.status == 503
    assert body_of(response)["checks"] == {"database": "unreachable", "schema": "unknown"}


async def test_a_database_that_hangs_is_not_ready_within_the_probes_time(
    doors: Doors, owner: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that waits for ever tells its caller nothing."""
    monkeypatch.setattr("duly.api.health.PROBE_TIMEOUT_S", 0.1)
    async with owner.transaction():
        await owner.execute("LOCK TABLE duly.migrations IN ACCESS EXCLUSIVE MODE")
        assert (await doors.door.ready(a_call())).status == 503
    assert (await doors.door.ready(a_call())).status == 200


async def test_numbers_come_in_the_form_prometheus_reads(doors: Doors) -> None:
    """With another content type the scrape is refused."""
    response = await doors.door.numbers(a_call())
    assert response.content_type.startswith(b"text/plain; version=")
    assert b"# TYPE duly_build_info gauge" in response.encoded()


def test_a_taken_port_is_known_before_anything_starts() -> None:
    """Found out after the migration, it would be too late to say so in one line."""
    first = Listener("127.0.0.1", 0)
    try:
        assert first.url == f"http://127.0.0.1:{first.port}"
        with pytest.raises(PortInUse, match=f"127.0.0.1:{first.port}: Address already in use"):
            Listener("127.0.0.1", first.port)
    finally:
        first.close()
    Listener("127.0.0.1", first.port).close()


@pytest.mark.parametrize("host", ["999.1.2.3", "no such host", "203.0.113.1"])
def test_an_address_that_is_not_ours_is_refused_in_one_line(host: str) -> None:
    """A name that does not resolve, or an address of another machine, is a setting to correct."""
    with pytest.raises(PortInUse, match=host):
        Listener(host, 0)
