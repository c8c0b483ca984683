"""Signals: what is told to a workflow from outside, each for one waiting node.

| event | what happens |
|---|---|
| nothing waits for it yet | kept, for the first node that begins to |
| several nodes wait for it | the one with the lowest number gets it |
| its sender has a lower role than every node of that name wants | REFUSED, and not kept |
| a signal and a timeout come together | the lock decides: one of them ends the node |
| the workflow is paused | the node ends; what that releases is held |
| the same key, the same signal | the first one's answer; another signal: MISMATCH |
| the workflow has ended | ENDED; a repeated call is answered all the same |
| killed before the commit | neither the signal nor what it ends |
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from duly.domain.access import Access
from duly.domain.ids import node_id_of, node_number, shard_of, workflow_of
from duly.domain.node_spec import WaitSpec
from duly.domain.states import Outcome, State
from duly.store.database import Session
from duly.store.finish import NodeEnd, Released, end_node
from duly.store.statements import statements_beside
from duly.store.workflow_nodes import lock_workflow

SQL = statements_beside(__file__)
# Of one workflow, kept or consumed.
SIGNALS_MAX = 10_000
# Inside the result of the node that gets it.
PAYLOAD_BYTES_MAX = 32 * 1024
# Who may send what wants this role.
SENDERS = {
    Access.PRODUCER: frozenset({Access.PRODUCER, Access.OPERATOR, Access.ADMIN}),
    Access.OPERATOR: frozenset({Access.OPERATOR, Access.ADMIN}),
    Access.ADMIN: frozenset({Access.ADMIN}),
}


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal as it is sent. `payload` is JSON."""

    name: str
    payload: str
    sender: str
    access: Access
    idempotency_key: str | None = None
    # Digest of the request, for the key.
    asked: bytes = b""


class SignalRefused(StrEnum):
    UNKNOWN = "unknown"
    ENDED = "ended"
    FORBIDDEN = "forbidden"
    TOO_MANY = "too_many"
    MISMATCH = "mismatch"


class SentSignal(NamedTuple):
    """A signal as it stands. `node`: which one got it."""

    number: int
    name: str
    sender: str
    access: Access
    payload: str | None
    received_at: datetime
    node: str | None
    consumed_at: datetime | None
    idempotency_key: str | None
    is_replay: bool = False


class SignalResult(msgspec.Struct, frozen=True):
    """What a wait node answers."""

    payload: msgspec.Raw
    sender: str
    role: str
    received_at: datetime
    timed_out: bool = False


async def send_signal(
    session: Session, tenant: int, workflow_id: UUID, signal: Signal, released: Released
) -> SentSignal | SignalRefused:
    """Stored, and in the same commit the end of the node that waits for it."""
    row = await lock_workflow(session, workflow_id)
    if row is None or row["tenant"] != tenant:
        return SignalRefused.UNKNOWN
    shard = shard_of(workflow_id)
    (known,) = await session.fetch(SQL.read_known, shard, workflow_id, signal.idempotency_key)
    if known["number"] is not None:
        is_same = known["request_hash"] == signal.asked
        return sent_from(known, is_replay=True) if is_same else SignalRefused.MISMATCH
    if row["ended_at"] is not None:
        return SignalRefused.ENDED
    if known["signals"] >= SIGNALS_MAX:
        return SignalRefused.TOO_MANY
    taken_by = None
    if row["stop_reason"] is None:
        taken_by = await give(session, workflow_id, signal, row["now"], released)
    if taken_by is None and not await is_welcome(session, workflow_id, signal):
        return SignalRefused.FORBIDDEN
    number = known["signals"] + 1
    (stored,) = await session.fetch(
        *(SQL.store_signal, shard, tenant, workflow_id, number, signal.name, signal.sender),
        *(signal.access.value, signal.payload, signal.idempotency_key, signal.asked),
        None if taken_by is None else taken_by["node"],
    )
    return SentSignal(
        *(number, signal.name, signal.sender, signal.access, signal.payload),
        stored["received_at"],
        None if taken_by is None else taken_by["name"],
        stored["consumed_at"],
        signal.idempotency_key,
    )


async def give(
    session: Session, workflow_id: UUID, signal: Signal, now: datetime, released: Released
) -> Any | None:
    """The node that gets it, which has ended with it."""
    roles = roles_served(signal.access)
    asked = shard_of(workflow_id), workflow_id, signal.name, roles
    result = result_of(signal.payload, signal.sender, signal.access, now)
    end = NodeEnd(Outcome.COMPLETED, State.COMPLETED, result=result)
    # A node that was cancelled by itself leaves its timer; the next one may wait still.
    while rows := await session.fetch(SQL.take_waiting, *asked):
        if await end_node(session, node_id_of(workflow_id, rows[0]["node"]), end, released):
            return rows[0]
    return None


async def is_welcome(session: Session, workflow_id: UUID, signal: Signal) -> bool:
    """A node of that name may come later; where there are some, one of them takes it of this
    role."""
    shard = shard_of(workflow_id)
    rows = await session.fetch(SQL.read_wanted_roles, shard, workflow_id, signal.name)
    return not rows or any(signal.access in SENDERS[Access(row["role"])] for row in rows)


async def take_signal(session: Session, node_id: UUID, wait: WaitSpec) -> str | None:
    """The result of a node that begins to wait and finds what it waits for; under the lock."""
    rows = await session.fetch(
        *(SQL.take_signal, shard_of(node_id), workflow_of(node_id), wait.signal),
        *(sorted(SENDERS[wait.role]), node_number(node_id)),
    )
    if not rows:
        return None
    row = rows[0]
    return result_of(row["payload"], row["sender"], Access(row["access"]), row["received_at"])


async def list_signals(
    session: Session, tenant: int, workflow_id: UUID, after: int, limit: int
) -> list[SentSignal]:
    shard = shard_of(workflow_id)
    rows = await session.fetch(SQL.list_signals, tenant, shard, workflow_id, after, limit)
    return [sent_from(row) for row in rows]


def roles_served(sender: Access) -> list[str]:
    return sorted(role.value for role, senders in SENDERS.items() if sender in senders)


def result_of(payload: str | None, sender: str, access: Access, received_at: datetime) -> str:
    raw = msgspec.Raw((payload or "null").encode())
    return msgspec.json.encode(SignalResult(raw, sender, access.value, received_at)).decode()


def sent_from(row: Any, *, is_replay: bool = False) -> SentSignal:
    return SentSignal(
        *(row["number"], row["name"], row["sender"], Access(row["access"]), row["payload"]),
        *(row["received_at"], row["node"], row["consumed_at"], row["idempotency_key"], is_replay),
    )
