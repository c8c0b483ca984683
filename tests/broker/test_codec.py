"""Tickets as bytes: nothing is lost on the way, and nothing is believed that was not written."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.broker.codec import BODY_AT, decode_ticket, encode_ticket
from duly.broker.contract import Delivery
from duly.domain.lanes import Lane, Ticket

KEY, OTHER_KEY = b"a" * 32, b"b" * 32
LANE = Lane(7, 1, 2)
TICKET = Ticket(UUID(int=7), 3, datetime(2026, 1, 1, tzinfo=UTC), True, 1.5)

numbers = st.integers(0, 2**31 - 1)
tickets = st.builds(
    Ticket,
    st.uuids(),
    numbers,
    st.none() | st.datetimes(timezones=st.just(UTC)),
    st.booleans(),
    st.none() | st.floats(allow_nan=False),
)


@given(st.builds(Lane, numbers, numbers, numbers), tickets)
def test_every_field_comes_back(lane: Lane, ticket: Ticket) -> None:
    """A field that a carrier drops is a lease that is counted, placed or measured wrongly."""
    assert decode_ticket(KEY, encode_ticket(KEY, lane, ticket), 5) == Delivery(lane, ticket, 5)


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_changed_byte_makes_it_no_ticket(spot: int, change: int) -> None:
    """Another tenant, fence or deadline would be a lease that its owner did not grant (I9, I10)."""
    wire = bytearray(encode_ticket(KEY, LANE, TICKET))
    wire[spot % len(wire)] ^= change
    assert decode_ticket(KEY, bytes(wire)) is None


@pytest.mark.parametrize("wire", [b"", b"\x01", b"x" * BODY_AT, b"not a ticket at all, but long"])
def test_what_was_not_written_here_is_no_ticket(wire: bytes) -> None:
    """A queue of a carrier may have other writers."""
    assert decode_ticket(KEY, wire) is None


def test_a_ticket_of_another_installation_is_no_ticket() -> None:
    """Two installations may share a carrier by mistake."""
    assert decode_ticket(OTHER_KEY, encode_ticket(KEY, LANE, TICKET)) is None
