"""What the driver asks on every new connection about the array types in its statements. The answer
is the same on every server, and to find it takes PostgreSQL 13 ms under our login's planner
settings; so a process asks once.
"""

from typing import Any, ClassVar

import asyncpg

# Whatever a user created has a higher number; below it, a number means the same on every server.
USER_OIDS_FROM = 16384


class Asked:
    """Stands for the driver's own statement, which was not needed: nothing has to be parsed again
    on its account."""

    name = "asked before"


class Connection(asyncpg.Connection):  # type: ignore[misc]
    """Overrides a method that the driver keeps to itself. Should a later one call it otherwise, its
    connections ask again: slower, and nothing else."""

    # By number, what the server said; elements come before their arrays, as the driver needs them.
    known: ClassVar[dict[int, asyncpg.Record]] = {}

    async def _introspect_types(
        self, typeoids: set[int], timeout: float | None
    ) -> tuple[list[asyncpg.Record], Any]:
        if typeoids <= self.known.keys():
            return list(self.known.values()), Asked
        rows, statement = await super()._introspect_types(typeoids, timeout)
        if all(row["oid"] < USER_OIDS_FROM for row in rows):
            self.known.update((row["oid"], row) for row in rows)
        return rows, statement
