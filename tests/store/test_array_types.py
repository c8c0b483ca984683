"""Of PostgreSQL's own array types nothing is asked; of others, what one connection learned the next
one need not ask."""

from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import pytest

from duly.store.array_types import ARRAYS, Connection, known_types
from duly.store.database import Database
from tests.store.world import World

EVERYTHING = """
SELECT $1::smallint[], $2::integer[], $3::uuid[], $4::timestamptz[], $5::double precision[],
       $6::bytea[], $7::boolean[], $8::text[]
"""
VALUES = (
    [1, None],
    [2],
    [UUID(int=3)],
    [datetime(2026, 11, 16, tzinfo=UTC)],
    [0.5],
    [b"\x00"],
    [True],
    ["x"],
)


async def asked_by_a_new_connection(database: Database) -> list[str]:
    """The statements, beside ours, with which it finds out what it does not know."""
    asked: list[str] = []

    def note(query: asyncpg.connection.LoggedQuery) -> None:
        asked.append(query.query)

    async with database.connections.acquire() as first, database.connections.acquire() as second:
        await first.fetch("SELECT 1")
        with second.query_logger(note):
            (row,) = await second.fetch(EVERYTHING, *VALUES)
    assert tuple(row) == VALUES
    return [query for query in asked if query != EVERYTHING]


async def test_a_new_process_asks_nothing(world: World) -> None:
    """It would be slower by that before its first task; where the driver's version is new, see
    whether what is written down of types still fits it."""
    assert known_types(asyncpg.__version__)
    assert await asked_by_a_new_connection(world.database) == []


async def test_what_is_taken_for_granted_is_what_the_server_says(world: World) -> None:
    """A wrong number would read one type as another."""
    rows = await world.database.fetch(
        "SELECT oid, typname, typelem, typdelim, typtype FROM pg_type WHERE oid = ANY ($1::oid[])",
        [oid for oid, _, _ in ARRAYS],
    )
    said = {(row["oid"], row["typname"], row["typelem"]) for row in rows}
    assert said == set(ARRAYS)
    assert {(row["typdelim"], row["typtype"]) for row in rows} == {(b",", b"b")}


def test_of_a_driver_that_was_not_tried_nothing_is_taken_for_granted() -> None:
    """It may want to know more of a type than is written down, and would fail without it."""
    assert known_types("0.33.0") == {}
    assert known_types("0.3.2") == {}


async def test_one_connection_asks_for_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "known", {})
    database = await Database.open(world.database.url, 2)
    try:
        assert await asked_by_a_new_connection(database)
        # A new process asks; a second connection of it does not.
        other = await Database.open(world.database.url, 2)
        try:
            assert await asked_by_a_new_connection(other) == []
        finally:
            await other.close()
    finally:
        await database.close()


async def test_types_that_a_user_made_are_asked_for_each_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their numbers mean something else in another database."""
    monkeypatch.setattr(Connection, "known", {})
    async with world.database.connections.acquire() as connection, connection.transaction():
        await connection.execute("CREATE TYPE pg_temp.mood AS ENUM ('fine')")
        assert await connection.fetchval("SELECT 'fine'::pg_temp.mood") == "fine"
        assert Connection.known == {}
