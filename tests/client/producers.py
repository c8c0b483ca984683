"""Producers for tests: their login, their calls of the SQL function, and the rows it stores."""

from typing import Any
from uuid import UUID

import asyncpg
import msgspec

# Rows of two submissions of one request differ in these and in nothing else.
OWN = {"id", "created_at", "run_at", "due_at"}


def as_producer(url: str) -> str:
    """The same login, reduced to the role that a producer is given."""
    return url + ("&" if "?" in url else "?") + "options=-c%20role%3Dduly_producer"


async def call(connection: asyncpg.Connection, tenant: str, task_type: str, **given: Any) -> UUID:
    """`duly.submit_task` with these arguments and its own defaults for the rest."""
    casts = {
        "payload": "::text::json",
        "options": "::text::jsonb",
        "run_at": "::timestamptz",
        "start_by": "::timestamptz",
        "delay_s": "::double precision",
        "notify": "::boolean",
    }
    if "options" in given:
        given["options"] = msgspec.json.encode(given["options"]).decode()
    named = [f", {name} => ${n}{casts[name]}" for n, name in enumerate(given, 3)]
    statement = f"SELECT duly.submit_task($1::text, $2::text{''.join(named)})"
    task_id: UUID = await connection.fetchval(statement, tenant, task_type, *given.values())
    return UUID(str(task_id))


async def rows_of(owner: asyncpg.Connection, task_id: UUID | str) -> dict[str, dict[str, Any]]:
    """The task and its timer, without what no two submissions share; tags and policy as values."""
    found = {}
    for table in ("tasks", "timers"):
        row = await owner.fetchrow(f"SELECT * FROM duly.{table} WHERE id = $1", UUID(str(task_id)))
        assert row is not None, f"nothing in {table}"
        found[table] = {name: value for name, value in row.items() if name not in OWN}
    found["later_by"] = {
        "task": await owner.fetchval(
            "SELECT run_at - created_at FROM duly.tasks WHERE id = $1", UUID(str(task_id))
        )
    }
    return found


async def count(owner: asyncpg.Connection, table: str) -> int:
    rows: int = await owner.fetchval(f"SELECT count(*) FROM duly.{table}")
    return rows
