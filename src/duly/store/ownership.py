"""Ownership rows: the holder of each slot and singleton role; one statement for each move. Decides
nothing.

The row decides. Each statement names what it believes (holder and epoch), so a node that was
replaced changes nothing and learns of it. Assignments are slots and singleton roles alike.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

import msgspec

from duly.store.database import Database
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
SLOT = "slot"
MAINTENANCE = "maintenance"
SCHEDULER_ROLE = "scheduler"
# An expiry this many leases ahead was written before the clock stepped back.
FAR_LEASES = 3.0
NODES_MAX = 1000
ASSIGNMENTS_MAX = 1000
NODE_SILENCE_S = 3600.0
NONE_FAILING: Mapping[str, str] = MappingProxyType({})


class Assignment(NamedTuple):
    """What can be owned: a slot by its number, or a singleton role (number 0)."""

    kind: str
    number: int


class OwnershipClaim(NamedTuple):
    """Our claim to an assignment. Before `void_at`, by the database's clock, capped work must
    wait."""

    epoch: int
    void_at: datetime


class AssignmentRow(NamedTuple):
    kind: str
    number: int
    holder: UUID | None
    node: str | None
    epoch: int
    expires_at: datetime
    void_at: datetime
    is_owned: bool


@dataclass(frozen=True)
class Node:
    """One start of one process; its id is never used again."""

    id: UUID
    name: str
    version: str
    roles: tuple[str, ...]


class CarrierState(msgspec.Struct, frozen=True):
    """The carrier of the ready queue as one process sees it. `problem`: why it takes no tickets;
    then these go through PostgreSQL, if it `falls_back`, or tasks wait in their rows."""

    kind: str
    address: str = ""
    problem: str | None = None
    falls_back: bool = True


class NodeReport(NamedTuple):
    """What a node tells of itself: its roles that do not do their work, and why; its carrier."""

    failing: Mapping[str, str] = NONE_FAILING
    carrier: CarrierState | None = None


NOTHING_REPORTED = NodeReport()


@dataclass(frozen=True)
class View:
    """What the database said at a tick: ours, the others', and what is to be had."""

    renewed: Mapping[Assignment, OwnershipClaim]
    slots_of_others: Mapping[UUID, int]
    free: Mapping[str, int]
    # In our name, and we did not name them: a claim or release of unknown outcome.
    strays: Mapping[Assignment, int]
    next_expiry_s: float | None


async def keep_assignments(
    database: Database,
    node: Node,
    assignments: Mapping[Assignment, OwnershipClaim],
    lease_s: float,
    ticket_s: float,
    report: NodeReport = NOTHING_REPORTED,
) -> View:
    """Announce the node and renew its assignments; those missing from `renewed` are no longer
    ours."""
    (row,) = await database.fetch(
        SQL.keep_assignments,
        node.id,
        node.name,
        node.version,
        list(node.roles),
        lease_s,
        *assignment_columns(assignments),
        lease_s * FAR_LEASES,
        NODES_MAX,
        ticket_s,
        msgspec.json.encode(dict(report.failing)).decode(),
        None if report.carrier is None else msgspec.json.encode(report.carrier).decode(),
    )
    renewed = map(Assignment, row["renewed_kinds"], row["renewed_numbers"])
    void_at = dict(zip(renewed, row["renewed_void_at"], strict=True))
    return View(
        renewed={
            assignment: assignments[assignment]._replace(void_at=at)
            for assignment, at in void_at.items()
        },
        slots_of_others=dict(zip(row["node_ids"], row["node_slots"], strict=True)),
        free=Counter(row["free_kinds"]),
        strays=dict(
            zip(
                map(Assignment, row["stray_kinds"], row["stray_numbers"]),
                row["stray_epochs"],
                strict=True,
            )
        ),
        next_expiry_s=row["next_expiry_s"],
    )


async def claim_assignments(
    database: Database,
    holder: UUID,
    kind: str,
    most: int,
    strays: Mapping[Assignment, int],
    lease_s: float,
    ticket_s: float,
) -> dict[Assignment, OwnershipClaim]:
    """Claim up to `most` assignments of a kind that are free, or ours by a claim of unknown
    outcome."""
    named = sorted(
        (assignment.number, epoch)
        for assignment, epoch in strays.items()
        if assignment.kind == kind
    )
    rows = await database.fetch(
        SQL.claim_assignments,
        holder,
        kind,
        [number for number, _ in named],
        most,
        lease_s,
        ticket_s,
        lease_s * FAR_LEASES,
        [epoch for _, epoch in named],
    )
    return {
        Assignment(row["kind"], row["number"]): OwnershipClaim(row["epoch"], row["void_at"])
        for row in sorted(rows, key=lambda row: row["number"])
    }


async def release_assignments(
    database: Database,
    holder: UUID,
    assignments: Mapping[Assignment, OwnershipClaim],
    ticket_s: float,
    *,
    is_leaving: bool = False,
) -> int:
    """Release assignments and notify the other nodes; answers how many were still ours."""
    (row,) = await database.fetch(
        SQL.release_assignments, holder, *assignment_columns(assignments), ticket_s, is_leaving
    )
    released: int = row["released"]
    return released


async def list_ownership(database: Database) -> list[AssignmentRow]:
    return [
        AssignmentRow(*row) for row in await database.fetch(SQL.list_ownership, ASSIGNMENTS_MAX)
    ]


async def delete_dead_nodes(
    database: Database, limit: int, silence_s: float = NODE_SILENCE_S
) -> int:
    return len(await database.fetch(SQL.delete_dead_nodes, silence_s, limit))


def assignment_columns(
    assignments: Mapping[Assignment, OwnershipClaim],
) -> tuple[Sequence[str], Sequence[int], Sequence[int]]:
    """In the one order in which assignments are locked."""
    ordered = sorted(assignments)
    return (
        [assignment.kind for assignment in ordered],
        [assignment.number for assignment in ordered],
        [assignments[assignment].epoch for assignment in ordered],
    )
