"""What the driver asks on every new connection about the array types in its statements. To find the
answer takes PostgreSQL 13 ms under our login's planner settings, twice before the first task of a
process is dispatched; and of its own types it is the same on every server, so the driver need not
query it.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import asyncpg

# Whatever a user created has a higher number; below it, a number means the same on every server.
USER_OIDS_FROM = 16384
# What the driver reads of a type is its own affair: taken for granted only where it was tried.
TRIED_VERSIONS = ("0.32.",)
# Arrays: their numbers and names, the numbers of their elements, and what all of them share.
ARRAYS = (
    (1000, "_bool", 16),
    (1001, "_bytea", 17),
    (1005, "_int2", 21),
    (1007, "_int4", 23),
    (1009, "_text", 25),
    (1016, "_int8", 20),
    (1022, "_float8", 701),
    (1185, "_timestamptz", 1184),
    (2951, "_uuid", 2950),
)
COMMON: Mapping[str, Any] = {
    "ns": "pg_catalog",
    "kind": b"b",
    "elemdelim": b",",
    "basetype": None,
    "range_subtype": None,
    "attrtypoids": None,
}


def known_types(version: str) -> dict[int, Mapping[str, Any]]:
    """What a server would say of them, for a driver of that version."""
    if not version.startswith(TRIED_VERSIONS):
        return {}
    return {
        oid: {**COMMON, "oid": oid, "name": name, "elemtype": element, "elemtype_name": name[1:]}
        for oid, name, element in ARRAYS
    }


class Asked:
    """Stands for the driver's own statement, which was not needed: nothing has to be parsed again
    on its account."""

    name = "asked before"


class Connection(asyncpg.Connection):  # type: ignore[misc]
    """Overrides a method that the driver keeps to itself. Should a later one call it otherwise, its
    connections ask again: slower, and nothing else."""

    # By number, what a server says. The driver knows the elements of ours; those of other arrays
    # come before them, as it needs them.
    known: ClassVar[dict[int, Mapping[str, Any]]] = known_types(asyncpg.__version__)

    async def _introspect_types(
        self, typeoids: set[int], timeout: float | None
    ) -> tuple[list[Mapping[str, Any]], Any]:
        if typeoids <= self.known.keys():
            return list(self.known.values()), Asked
        rows, statement = await super()._introspect_types(typeoids, timeout)
        if all(row["oid"] < USER_OIDS_FROM for row in rows):
            self.known.update((row["oid"], row) for row in rows)
        return rows, statement
