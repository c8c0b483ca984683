"""One database that several duly processes use in turn: what outlives each of them."""

from typing import Any

import asyncpg

from duly.environment import Environment
from duly.store.database import Database
from duly.store.keys import make_first_key
from tests.servers import ServerOfTheRun

# As if the lease of 15 s and the ownership of 10 s had passed.
RUN_OUT = """
UPDATE duly.timers SET lease_until = duly.now(), due_at = duly.now() WHERE holder IS NOT NULL;
UPDATE duly.ownership SET expires_at = duly.now() WHERE holder IS NOT NULL;
"""


class Installation:
    """`owner` sees every tenant's rows; `environ` is what a duly needs to work here."""

    def __init__(
        self, server: ServerOfTheRun, owner_url: str, engine_url: str, owner: asyncpg.Connection
    ) -> None:
        self.server = server
        self.engine_url = engine_url
        self.owner = owner
        self.environ = {"DULY_DATABASE_URL": engine_url, "DULY_MIGRATION_DATABASE_URL": owner_url}

    def let_leases_run_out(self) -> None:
        self.server.run(self.owner.execute(RUN_OUT))

    def fetch(self, statement: str) -> list[Any]:
        return list(self.server.run(self.owner.fetch(statement)))

    def make_key(self) -> str:
        return self.server.run(self.make_key_in_database())

    async def make_key_in_database(self) -> str:
        database = await Database.open(self.engine_url, 1)
        try:
            key = await make_first_key(database, Environment())
        finally:
            await database.close()
        assert key is not None
        return key
