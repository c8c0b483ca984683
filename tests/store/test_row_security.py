"""The second wall between tenants: under the tenant's role, one tenant's rows are all there is.

Generated over the tables as they are, so that a table that comes later cannot be left out.
"""

from typing import Any, NamedTuple

import asyncpg
import pytest

from duly.store.database import Database

ONE, OTHER = 11, 12

TABLES = """
SELECT relation.relname AS name,
       relation.relrowsecurity AND relation.relforcerowsecurity AS is_walled,
       EXISTS (SELECT FROM pg_policy
                WHERE polrelid = relation.oid AND polname = 'own_rows') AS has_policy,
       has_table_privilege('duly_tenant', relation.oid, 'SELECT') AS is_read,
       has_table_privilege('duly_tenant', relation.oid, 'DELETE, TRUNCATE, TRIGGER')
           OR has_any_column_privilege('duly_tenant', relation.oid,
                                       'SELECT, INSERT, UPDATE, REFERENCES') AS is_open,
       relation.relispartition AS is_partition
  FROM pg_class relation
 WHERE relation.relnamespace = 'duly'::regnamespace
   AND relation.relkind IN ('r', 'p')
   AND EXISTS (SELECT FROM pg_attribute
                WHERE attrelid = relation.oid AND attname = 'tenant' AND NOT attisdropped)
 ORDER BY 1
"""
COLUMNS = """
SELECT attname AS name, format_type(atttypid, NULL) AS type
  FROM pg_attribute
 WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped
   AND attnotnull AND NOT atthasdef AND attidentity = ''
"""
# What a check wants; everything else is made by type.
CHOSEN = {
    "schedules": {
        "cron": "'* * * * *'",
        "dst_gap": "'shift'",
        "dst_repeat": "'first'",
        "misfire": "'skip'",
        "overlap": "'skip'",
    },
    "schedule_timers": {"cursor_at": "now() - interval '1 hour'"},
    "occurrences": {"verdict": "'COALESCED'"},
    "api_keys": {"role": "'producer'", "reach": "'tenant'", "secret_hash": "'\\x00'"},
    "attempts": {"outcome": "'failed'"},
    "dead_letters": {"reason": "'exhausted'"},
    "notifications": {"per_minute": "1"},
    "notification_events": {"event": "'lag'"},
    "pauses": {"kind": "'type'"},
    "bulk_operations": {"action": "'cancel'", "rate_per_s": "1"},
    "workflows": {
        "nodes": "0",
        "live": "0",
        "on_failure": "'stop'",
        "state": "'COMPLETED'",
        "ended_at": "now()",
    },
    "workflow_nodes": {"wait_rule": "0", "parents": "'{}'", "children": "'{}'"},
    "workflow_timers": {"kind": "'cancel'"},
}
# Names no tenant: these hold what the installation knows, or are reached by no tenant's role.
TENANTLESS = {
    "installation_secrets",
    "migrations",
    "nodes",
    "nonces",
    "request_tokens",
    "ownership",
    "tenants",
}
# A row here moves on at its commit; that no tenant's role reaches the table is tested all the same.
MOVES_ON = {"new_placements"}


class Walled(NamedTuple):
    database: Database
    owner: asyncpg.Connection
    tables: list[asyncpg.Record]
    rows: dict[str, dict[str, str]]

    def insert(self, table: str, tenant: int, number: int) -> str:
        """SQL that makes one valid row of this tenant."""
        values = self.rows[table] | {"tenant": str(tenant)}
        filled = ", ".join(value.replace("@", f"{tenant}{number}") for value in values.values())
        return f"INSERT INTO duly.{table} ({', '.join(values)}) VALUES ({filled})"

    async def facts(self, table: str, tenant: int) -> list[str]:
        statement = f"SELECT kept::text AS row FROM duly.{table} kept WHERE tenant = {tenant}"
        return sorted(row["row"] for row in await self.owner.fetch(statement))

    async def attempt(self, statement: str) -> list[Any] | None:
        """As tenant ONE: the rows it concerned; None if it was denied."""
        try:
            async with self.database.tenant(ONE) as session:
                return list(await session.fetch(statement))
        except asyncpg.InsufficientPrivilegeError:
            return None


def value_of(column: asyncpg.Record) -> str:
    by_type = {
        "smallint": "@::smallint" if column["name"] == "shard" else "1",
        "integer": "1",
        "boolean": "true",
        "bigint": "1",
        "text": "'x@'",
        "uuid": "duly.id_bound(now())",
        "timestamp with time zone": "now()",
        "bytea": "'\\x00'",
        "text[]": "'{}'",
        "bigint[]": "'{}'",
        "double precision": "1",
        "real": "1",
        "date": "'2026-01-01'",
        "date[]": "'{}'",
        "uuid[]": "'{}'",
        "integer[]": "'{}'",
    }
    return by_type[column["type"]]


@pytest.fixture
async def walled(database: Database, owner: asyncpg.Connection) -> Walled:
    """Every table with one row of each of two tenants, as the owner made them."""
    tables = await owner.fetch(TABLES)
    rows: dict[str, dict[str, str]] = {}
    for table in tables:
        columns = await owner.fetch(COLUMNS, f"duly.{table['name']}")
        made = {column["name"]: value_of(column) for column in columns}
        rows[table["name"]] = made | CHOSEN.get(table["name"], {})
    seeded = [
        table for table in tables if not table["is_partition"] and table["name"] not in MOVES_ON
    ]
    opened = Walled(database, owner, seeded, rows)
    for table in opened.tables:
        for tenant in (ONE, OTHER):
            await owner.execute(opened.insert(table["name"], tenant, 0))
    return opened


async def test_every_table_of_tenants_is_walled_or_closed(owner: asyncpg.Connection) -> None:
    """A new table without a policy is a hole that every other test steps over."""
    for table in await owner.fetch(TABLES):
        is_safe = not table["is_open"] or (table["is_walled"] and table["has_policy"])
        assert is_safe, f"duly.{table['name']} is open to duly_tenant without a wall"
        assert not (table["is_partition"] and table["is_open"]), table["name"]
    others = await owner.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'duly'::regnamespace "
        "AND relkind IN ('r', 'p') AND NOT EXISTS (SELECT FROM pg_attribute "
        "WHERE attrelid = pg_class.oid AND attname = 'tenant' AND NOT attisdropped)"
    )
    assert {row["relname"] for row in others} == TENANTLESS


async def test_a_tenant_sees_its_own_rows_and_no_others(walled: Walled) -> None:
    """A statement that forgot its tenant would show everybody's everything."""
    seen = set()
    for table in walled.tables:
        found = await walled.attempt(f"SELECT tenant FROM duly.{table['name']}")
        assert (found is not None) == table["is_read"], table["name"]
        if found is not None:
            assert [row["tenant"] for row in found] == [ONE], table["name"]
            seen.add(table["name"])
    assert {"tasks", "timers", "attempts", "dead_letters", "api_keys", "audit"} <= seen


async def test_a_tenant_writes_nothing_for_another(walled: Walled) -> None:
    """A row that one tenant plants at another runs with the other's rights."""
    for table in walled.tables:
        name = table["name"]
        before = await walled.facts(name, OTHER)
        assert len(before) == 1, name
        assert await walled.attempt(walled.insert(name, OTHER, 1)) is None, name
        hers = f"UPDATE duly.{name} SET tenant = {ONE} WHERE tenant = {OTHER} RETURNING 1"
        assert not await walled.attempt(hers), name
        given = f"UPDATE duly.{name} SET tenant = {OTHER} RETURNING 1"
        assert await walled.attempt(given) is None, name
        assert not await walled.attempt(
            f"DELETE FROM duly.{name} WHERE tenant = {OTHER} RETURNING 1"
        ), name
        assert await walled.attempt(f"TRUNCATE duly.{name}") is None, name
        assert await walled.facts(name, OTHER) == before, name
        assert len(await walled.facts(name, ONE)) == 1, name


async def test_a_tenant_writes_its_own_rows_where_it_may(walled: Walled) -> None:
    """A wall that stops everything would pass every other test here."""
    written = {
        table["name"]
        for table in walled.tables
        if await walled.attempt(walled.insert(table["name"], ONE, 2)) is not None
    }
    assert {"pauses", "api_keys", "task_types", "remembered_calls", "audit"} <= written


async def test_a_tenant_sees_itself_alone_and_never_changes_its_limits(
    database: Database, owner: asyncpg.Connection
) -> None:
    """Its own limits are what holds it back from the others' share."""
    for number, name in ((ONE, "one"), (OTHER, "other")):
        await owner.execute(
            "INSERT INTO duly.tenants (id, name) OVERRIDING SYSTEM VALUE VALUES ($1, $2)",
            number,
            name,
        )
    async with database.tenant(ONE) as session:
        found = await session.fetch("SELECT name FROM duly.tenants")
    assert [row["name"] for row in found] == ["one"]
    for statement in (
        "UPDATE duly.tenants SET weight = 100",
        "DELETE FROM duly.tenants",
        "INSERT INTO duly.tenants (name) VALUES ('third')",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with database.tenant(ONE) as session:
                await session.fetch(statement)


async def test_without_a_tenant_the_role_sees_nothing(walled: Walled) -> None:
    """A transaction that became the role and forgot to say for whom must find no rows."""
    for table in walled.tables:
        if not table["is_read"]:
            continue
        async with walled.database.transaction() as session:
            await session.fetch("SELECT set_config('role', 'duly_tenant', true)")
            assert not await session.fetch(f"SELECT tenant FROM duly.{table['name']}")


async def test_the_role_ends_with_its_transaction(walled: Walled) -> None:
    """A connection that stays one tenant's serves the next caller as that tenant."""
    async with walled.database.tenant(ONE):
        pass
    rows = await walled.database.fetch("SELECT tenant FROM duly.timers ORDER BY tenant")
    assert [row["tenant"] for row in rows] == [ONE, OTHER]
