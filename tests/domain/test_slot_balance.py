"""Fair shares: everybody reckons alike, nothing is left over, and what is even stays as it is."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from duly.domain.slot_balance import fair_shares

SEATS = 64
nodes = st.integers(0, 2**16).map(lambda number: UUID(int=number))
held = st.dictionaries(nodes, st.integers(0, SEATS), min_size=1, max_size=80)


@given(held)
def test_shares_add_up_and_differ_by_one_at_most(counts: dict[UUID, int]) -> None:
    """A seat in nobody's share stays free for ever; one node with most of them is no cluster."""
    shares = fair_shares(counts, SEATS)
    assert shares.keys() == counts.keys()
    assert sum(shares.values()) == SEATS
    assert max(shares.values()) - min(shares.values()) <= 1


@given(held)
def test_what_is_even_stays_as_it_is(counts: dict[UUID, int]) -> None:
    """Nodes that swap a seat for ever dispatch nothing from it."""
    shares = fair_shares(counts, SEATS)
    assert fair_shares(shares, SEATS) == shares


@given(held)
def test_the_order_of_the_counts_does_not_matter(counts: dict[UUID, int]) -> None:
    """Two nodes that reckon differently would take from each other."""
    backwards = dict(reversed(counts.items()))
    assert fair_shares(backwards, SEATS) == fair_shares(counts, SEATS)


@given(held)
def test_whoever_holds_more_is_given_no_less(counts: dict[UUID, int]) -> None:
    """The remainder on a node that has little would move seats without need."""
    shares = fair_shares(counts, SEATS)
    for node, count in counts.items():
        lighter = [shares[other] for other in counts if counts[other] < count]
        assert shares[node] >= max(lighter, default=0)
