"""The committed schema is the migrated one: a reviewer reads it instead of running migrations."""

import difflib

import asyncpg
import pytest

from duly.store.binaries import find_binaries
from tests.schema_dump import HEADER, SCHEMA, dump_schema, normalise


async def test_the_committed_schema_is_what_the_migrations_make(
    owner: asyncpg.Connection, owner_url: str
) -> None:
    """A stale dump shows reviewers a schema that no database has."""
    major = int(await owner.fetchval("SHOW server_version_num")) // 10000
    if major != find_binaries("").major:
        pytest.skip("another version of PostgreSQL writes the same schema differently")
    made = HEADER + "\n" + dump_schema(owner_url)
    committed = SCHEMA.read_text() if SCHEMA.exists() else ""
    difference = difflib.unified_diff(
        committed.splitlines(), made.splitlines(), "committed", "migrated", lineterm="", n=1
    )
    assert made == committed, "schema.sql is stale; run `make schema`\n" + "\n".join(difference)


def test_what_changes_without_the_schema_is_left_out() -> None:
    """A new pg_dump, or a random token of one run, would make the file stale by itself."""
    dump = "--\n-- PostgreSQL database dump\n--\n\\restrict x1\n\nSET lock_timeout = 0;\n\n"
    dump += "CREATE TABLE duly.a (\n    n integer\n);\n\n\n\n\\unrestrict x1\n"
    assert normalise(dump) == "CREATE TABLE duly.a (\n    n integer\n);\n"
