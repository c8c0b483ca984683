"""Ownership in PostgreSQL: rows of `duly.ownership` and `duly.nodes`, by the database's clock."""

from collections.abc import Mapping

from duly.domain.lanes import TICKET_S
from duly.store.database import Database
from duly.store.ownership import (
    Assignment,
    Node,
    NodeReport,
    OwnershipClaim,
    View,
    claim_assignments,
    keep_assignments,
    release_assignments,
)

LEASE_S = 10.0


class PostgresOwnership:
    """An OwnershipStore (contract.py)."""

    def __init__(
        self, database: Database, *, lease_s: float = LEASE_S, ticket_s: float = TICKET_S
    ) -> None:
        self.database = database
        self.lease_s = lease_s
        self.ticket_s = ticket_s

    async def keep(
        self, node: Node, held: Mapping[Assignment, OwnershipClaim], report: NodeReport
    ) -> View:
        return await keep_assignments(
            self.database, node, held, self.lease_s, self.ticket_s, report
        )

    async def claim(
        self, node: Node, kind: str, most: int, view: View
    ) -> dict[Assignment, OwnershipClaim]:
        return await claim_assignments(
            self.database, node.id, kind, most, view.strays, self.lease_s, self.ticket_s
        )

    async def release(
        self, node: Node, held: Mapping[Assignment, OwnershipClaim], *, is_leaving: bool = False
    ) -> None:
        await release_assignments(
            self.database, node.id, held, self.ticket_s, is_leaving=is_leaving
        )
