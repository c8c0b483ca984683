"""Contract of an ownership store, over which the coordinator decides. PostgreSQL is the only one
today.

| the store must | because otherwise |
|---|---|
| raise the epoch with every change of owner, also when it is replaced by an empty one | an old owner's claim looks like the new one's: a store that elects elsewhere registers its winner in `duly.ownership` (epoch + 1, compared and set) before it answers |
| answer `renewed` only for what this node still holds under the epoch it named | two nodes dispatch one slot |
| give `void_at` by the database's clock, one ticket lifetime after the former owner's last ticket | capped work runs above its cap |
| call a claim or release of unknown outcome a stray of this node, until it is claimed again | slots without an owner |
| raise a DulyError while it cannot be reached | the node would forget what it may still trust until its lease ends |
| tell the other nodes of a release and of a new node, best effort | they find it a third of a lease later |
"""  # noqa: E501 (a table row is one line)

from collections.abc import Mapping
from typing import Protocol

from duly.store.ownership import Assignment, Node, NodeReport, OwnershipClaim, View


class OwnershipStore(Protocol):
    """Where assignments (slots and singleton roles) are kept, each with holder and epoch."""

    # How long a claim lasts unless it is renewed.
    lease_s: float
    # How long a ticket of a former owner may still become a lease.
    ticket_s: float

    async def keep(
        self, node: Node, held: Mapping[Assignment, OwnershipClaim], report: NodeReport
    ) -> View:
        """Announce the node with what it reports, renew what it holds, and see the others."""
        ...

    async def claim(
        self, node: Node, kind: str, most: int, view: View
    ) -> dict[Assignment, OwnershipClaim]:
        """Up to `most` assignments of a kind that are free or strays of this node."""
        ...

    async def release(
        self, node: Node, held: Mapping[Assignment, OwnershipClaim], *, is_leaving: bool = False
    ) -> None:
        """Give assignments back, if they are still this node's; a node that leaves is forgotten."""
        ...
