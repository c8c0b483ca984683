"""How many of a number of equal seats each node should have. Pure; nobody is moved here.

All nodes reckon alike from the same counts, so they agree without talking: each may hold the whole
quotient, and the remainder stays with those who hold most already. Where counts are as even as they
can be, everybody has what it should, and nothing moves.
"""

from collections.abc import Mapping
from uuid import UUID


def fair_shares(held: Mapping[UUID, int], assignments: int) -> dict[UUID, int]:
    """What each of the nodes in `held` should have; the shares add up to `seats`."""
    assert held, "seats that nobody can have"
    quotient, remainder = divmod(assignments, len(held))
    by_load = sorted(held, key=lambda node: (-held[node], node))
    return {node: quotient + (rank < remainder) for rank, node in enumerate(by_load)}
