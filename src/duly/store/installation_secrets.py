"""Secrets that all nodes of an installation share. Each is made once, by a migration."""

from duly.store.database import Database
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
CURSORS = "cursors"
TICKETS = "tickets"


async def read_installation_secret(database: Database, name: str) -> bytes:
    (row,) = await database.fetch(SQL.read_secret, name)
    secret: bytes = row["secret"]
    return secret
