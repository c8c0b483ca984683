"""Gates: why a due task may not be dispatched yet, in order, as one pure function.

Dispatch asks for the first closed gate; `explain` shows all of them. Both hand in the same facts,
so they can never disagree. A gate never loses a task: what it holds back stays in its timer row.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Gate(StrEnum):
    """In the order in which they are asked."""

    PAUSED = "paused"
    EXPIRED = "expired"
    BREAKER = "breaker"
    OWNERSHIP_TRANSFER = "ownership_transfer"
    TENANT_RATE = "tenant_rate"
    TENANT_IN_FLIGHT = "tenant_in_flight"
    CONCURRENCY_KEY = "concurrency_key"
    LANE_FULL = "lane_full"


@dataclass(frozen=True, slots=True)
class Refusal:
    gate: Gate
    reason: str
    until: datetime | None = None
    unblock: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFacts:
    """The inputs of the gates, for one task at one instant."""

    now: datetime
    tenant: str = ""
    paused_by: str | None = None
    paused_unblock: str | None = None
    start_by: datetime | None = None
    breaker_open_until: datetime | None = None
    # "host example.com", "type invoice.charge", "pool billing".
    breaker_of: str = ""
    breaker_unblock: str | None = None
    transfer_until: datetime | None = None
    rate_ready_at: datetime | None = None
    in_flight: int = 0
    in_flight_max: int | None = None
    concurrency_key: str | None = None
    key_in_flight: int = 0
    key_limit: int | None = None
    key_holders: tuple[str, ...] = ()
    key_unblock: str | None = None
    lane_depth: int = 0
    lane_depth_max: int | None = None
    lane_unblock: str = "start more workers for its pool"


def paused(facts: GateFacts) -> Refusal | None:
    if facts.paused_by is None:
        return None
    return Refusal(Gate.PAUSED, facts.paused_by, unblock=facts.paused_unblock)


def expired(facts: GateFacts) -> Refusal | None:
    if facts.start_by is None or facts.now < facts.start_by:
        return None
    return Refusal(Gate.EXPIRED, f"it had to start by {facts.start_by.isoformat()}")


def breaker(facts: GateFacts) -> Refusal | None:
    if facts.breaker_open_until is None or facts.now >= facts.breaker_open_until:
        return None
    reason = f"nearly all attempts of the {facts.breaker_of} failed; the next probe is due then"
    until = facts.breaker_open_until
    return Refusal(Gate.BREAKER, reason, until=until, unblock=facts.breaker_unblock)


def ownership_transfer(facts: GateFacts) -> Refusal | None:
    """Tickets of the slot's former owner may still become leases that we do not count."""
    if facts.transfer_until is None or facts.now >= facts.transfer_until:
        return None
    reason = "its slot has a new owner; capped tasks wait until the old tickets are void"
    return Refusal(Gate.OWNERSHIP_TRANSFER, reason, until=facts.transfer_until)


def tenant_rate(facts: GateFacts) -> Refusal | None:
    if facts.rate_ready_at is None or facts.now >= facts.rate_ready_at:
        return None
    return Refusal(
        Gate.TENANT_RATE,
        "the tenant's dispatch rate is used up",
        until=facts.rate_ready_at,
        unblock=f"duly tenants set {facts.tenant} --dispatch-rate ...",
    )


def tenant_in_flight(facts: GateFacts) -> Refusal | None:
    if facts.in_flight_max is None or facts.in_flight < facts.in_flight_max:
        return None
    return Refusal(
        Gate.TENANT_IN_FLIGHT,
        f"{facts.in_flight} of the tenant's tasks are in flight, and {facts.in_flight_max} may be",
        unblock=f"duly tenants set {facts.tenant} --in-flight-max ...",
    )


def concurrency_key(facts: GateFacts) -> Refusal | None:
    if facts.concurrency_key is None or facts.key_limit is None:
        return None
    if facts.key_in_flight < facts.key_limit:
        return None
    holders = f" ({', '.join(facts.key_holders)})" if facts.key_holders else ""
    return Refusal(
        Gate.CONCURRENCY_KEY,
        f"{facts.key_in_flight} tasks with the key {facts.concurrency_key!r} are in flight"
        f"{holders}, and {facts.key_limit} may be",
        unblock=facts.key_unblock,
    )


def lane_full(facts: GateFacts) -> Refusal | None:
    if facts.lane_depth_max is None or facts.lane_depth < facts.lane_depth_max:
        return None
    ahead = f"{facts.lane_depth} tasks are ahead of it in its lane"
    if not facts.lane_depth:
        ahead = "the queue that webhooks of all tenants share is full"
    reason = f"{ahead}, and consumers do not take them fast enough"
    return Refusal(Gate.LANE_FULL, reason, unblock=facts.lane_unblock)


# The one list: dispatch and explain both walk it. To add a gate, add its facts and its function.
GATES: tuple[tuple[Gate, Callable[[GateFacts], Refusal | None]], ...] = (
    (Gate.PAUSED, paused),
    (Gate.EXPIRED, expired),
    (Gate.BREAKER, breaker),
    (Gate.OWNERSHIP_TRANSFER, ownership_transfer),
    (Gate.TENANT_RATE, tenant_rate),
    (Gate.TENANT_IN_FLIGHT, tenant_in_flight),
    (Gate.CONCURRENCY_KEY, concurrency_key),
    (Gate.LANE_FULL, lane_full),
)


def refusals(facts: GateFacts) -> Iterator[tuple[Gate, Refusal | None]]:
    """Every gate with its answer, in order."""
    for gate, ask in GATES:
        yield gate, ask(facts)


def first_refusal(facts: GateFacts) -> Refusal | None:
    """The gate that binds, or None: the task may be dispatched."""
    for _, ask in GATES:
        refusal = ask(facts)
        if refusal is not None:
            return refusal
    return None
