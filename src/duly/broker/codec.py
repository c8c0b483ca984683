"""Tickets as bytes, for carriers outside of this process: a version, an HMAC over the rest, and all
fields of lane and ticket.

A carrier is a cache that others may be able to write to: what bears no good HMAC, or comes from a
version that this one does not know, is no ticket. It goes to the carrier's dead letters, and its
task is published again.
"""

import hashlib
import hmac
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
DECODER = msgspec.msgpack.Decoder(WireTicket)


def encode_ticket(key: bytes, lane: Lane, ticket: Ticket) -> bytes:
    body = ENCODER.encode(
        WireTicket(
            *lane, ticket.id.bytes, ticket.fence, ticket.deadline, ticket.in_place, ticket.fires_at
        )
    )
    return VERSION + mac(key, body) + body


def decode_ticket(key: bytes, wire: bytes, token: object | None = None) -> Delivery | None:
    """None: not written by a node of this installation, or by one that is too new."""
    body = wire[BODY_AT:]
    is_ours = hmac.compare_digest(wire[:BODY_AT], VERSION + mac(key, body))
    if not is_ours:
        return None
    each = DECODER.decode(body)
    ticket = Ticket(UUID(bytes=each.id), each.fence, each.deadline, each.in_place, each.fires_at)
    return Delivery(Lane(each.tenant, each.pool, each.band), ticket, token)


def mac(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, VERSION + body, hashlib.sha256)[:MAC_BYTES]
