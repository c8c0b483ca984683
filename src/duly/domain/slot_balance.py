"""Slot balance: how many of a number of equal assignments each node should have. Pure.

All nodes compute the same result from the same counts, so they agree without messages: each may
hold the quotient, and the remainder stays with those that hold most already. Where counts are as
even as possible, nothing moves.
"""

from collections.abc import Mapping
from uuid import UUID


def fair_shares(held: Mapping[UUID, int], assignments: int) -> dict[UUID, int]:
    """What each of the nodes in `held` should have; the shares add up to `assignments`."""
    assert held, "no node to assign to"
    quotient, remainder = divmod(assignments, len(held))
    by_load = sorted(held, key=lambda node: (-held[node], node))
    return {node: quotient + (rank < remainder) for rank, node in enumerate(by_load)}
