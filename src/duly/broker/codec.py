"""Tickets as bytes, for carriers outside of this process: a version, an HMAC over the rest, and all
fields of lane and ticket; of one, or of several that travel as one message.

A carrier is a cache that others may be able to write to: what bears no good HMAC, or comes from a
version that this one does not know, is no ticket. It goes to the carrier's dead letters, and its
task is published again.
"""

import hashlib
import hmac
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

import msgspec

from duly.broker.contract import Delivery
from duly.domain.lanes import Lane, Ticket

VERSION = b"\x01"
MAC_BYTES = 16
BODY_AT = len(VERSION) + MAC_BYTES


class WireTicket(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Fields are only ever added at the end, with a default: nodes of two releases share lanes."""

    tenant: int
    pool: int
    band: int
    id: bytes
    fence: int
    deadline: datetime | None
    in_place: bool
    fires_at: float | None


ENCODER = msgspec.msgpack.Encoder()
DECODER = msgspec.msgpack.Decoder(list[WireTicket])


def encode_tickets(key: bytes, tickets: Iterable[tuple[Lane, Ticket]]) -> bytes:
    body = ENCODER.encode(
        [
            WireTicket(
                *lane,
                ticket.id.bytes,
                ticket.fence,
                ticket.deadline,
                ticket.in_place,
                ticket.fires_at,
            )
            for lane, ticket in tickets
        ]
    )
    return VERSION + mac(key, body) + body


def decode_tickets(key: bytes, wire: bytes) -> list[tuple[Lane, Ticket]]:
    """None at all: not written by a node of this installation, or by one that is too new."""
    body = wire[BODY_AT:]
    if not hmac.compare_digest(wire[:BODY_AT], VERSION + mac(key, body)):
        return []
    return [
        (
            Lane(each.tenant, each.pool, each.band),
            Ticket(UUID(bytes=each.id), each.fence, each.deadline, each.in_place, each.fires_at),
        )
        for each in DECODER.decode(body)
    ]


def encode_ticket(key: bytes, lane: Lane, ticket: Ticket) -> bytes:
    return encode_tickets(key, [(lane, ticket)])


def decode_ticket(key: bytes, wire: bytes, token: object | None = None) -> Delivery | None:
    """Of one ticket, for carriers whose messages hold no more."""
    tickets = decode_tickets(key, wire)
    return Delivery(*tickets[0], token) if len(tickets) == 1 else None


def mac(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, VERSION + body, hashlib.sha256)[:MAC_BYTES]
