"""`duly migrate` on a real database: forward, back, status, and how it fails."""

import json
from typing import Any

import asyncpg
import pytest

from duly.cli.main import run
from duly.store.migrate import read_migrations
from tests.processes import child
from tests.servers import ServerOfTheRun

NAMES = [migration.name for migration in read_migrations()]


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(capsys.readouterr().out)
    return decoded


@pytest.fixture(autouse=True)
def _logs_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command configures the logs of its process, which here is everybody's."""
    monkeypatch.setattr("duly.cli.migrate.configure_logs", lambda *_: None)


def test_it_goes_forward_back_and_tells_its_status(
    empty_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The way out of a bad release is one command; it must do what it says."""
    url = ["--database-url", empty_url, "--json"]
    assert run(["migrate", *url, "--status"]) == 0
    assert [item["applied_at"] for item in answer(capsys)["items"]] == [None] * len(NAMES)
    assert run(["migrate", *url]) == 0
    assert answer(capsys) == {"ran": NAMES}
    assert run(["migrate", *url]) == 0
    assert answer(capsys) == {"ran": []}
    assert run(["migrate", *url, "--status"]) == 0
    items = answer(capsys)["items"]
    assert [item["name"] for item in items] == NAMES
    assert all(item["applied_at"] for item in items)
    assert run(["migrate", *url, "--to", "0"]) == 0
    assert answer(capsys) == {"ran": [f"reverse of {name}" for name in reversed(NAMES)]}


def test_status_does_not_touch_an_empty_database(
    empty_url: str, server: ServerOfTheRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """Looking must not create anything in a database that may be somebody else's."""
    assert run(["migrate", "--database-url", empty_url, "--status"]) == 0
    assert "pending" in capsys.readouterr().out
    assert server.run(schemas_named_duly(empty_url)) == 0


async def schemas_named_duly(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        question = "SELECT count(*) FROM pg_namespace WHERE nspname = 'duly'"
        return int(await connection.fetchval(question))
    finally:
        await connection.close()


def test_a_version_that_does_not_exist_is_exit_code_1(
    owner_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was understood and refused: not a usage error, and one line."""
    beyond = str(len(NAMES) + 1)
    assert run(["migrate", "--database-url", owner_url, "--to", beyond]) == 1
    assert capsys.readouterr().err.startswith(f"duly: migration {beyond} failed: there is no")


def test_a_newer_schema_is_exit_code_2(
    owner_url: str, server: ServerOfTheRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """The deploy script must stop, and say which duly to use."""
    server.run(pretend_newer(owner_url))
    assert run(["migrate", "--database-url", owner_url]) == 2
    assert "upgrade duly" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [["migrate"], ["migrate", "--status"], ["up", "--port", "0"], ["serve", "--port", "0"]],
)
def test_a_schema_from_before_the_first_release_is_exit_code_2(
    owner_url: str, server: ServerOfTheRun, command: list[str]
) -> None:
    """Started on it, duly would fail later and somewhere else; one line says what to do instead."""
    server.run(pretend_before_the_first_release(owner_url))
    with child("-m", "duly", *command, "--database-url", owner_url) as process:
        assert process.wait() == 2
        assert "made by a version before 0.1" in process.said_on_errors
        assert "new data directory (DULY_DATA_DIR) or an empty database" in process.said_on_errors
        assert process.said_on_errors.count("\n") == 1


async def pretend_before_the_first_release(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("DELETE FROM duly.migrations WHERE number > 1")
        await connection.execute("UPDATE duly.migrations SET name = '0001_pre_foundation'")
        insert = "INSERT INTO duly.migrations (number, name) VALUES (2, '0002_pre_tasks')"
        await connection.execute(insert)
    finally:
        await connection.close()


async def pretend_newer(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        insert = "INSERT INTO duly.migrations (number, name) VALUES ($1, 'from the future')"
        await connection.execute(insert, len(NAMES) + 1)
    finally:
        await connection.close()
