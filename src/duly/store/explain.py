"""Facts for `explain`: one task, its tenant's limits, what is in flight and queued with it.

Reads under row-level security and decides nothing: the words are made in `domain/explain.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from duly.domain.explain import LastAttempt, RateLevel, Situation, next_token_at, said
from duly.domain.gates import GateFacts
from duly.domain.ids import shard_of, slot_of, tenant_shard
from duly.domain.lanes import LANE_DEPTH_MAX, SHARED_LANES, Lane, depth_max, queue_of
from duly.domain.states import State, live_state
from duly.domain.task import BANDS, WEBHOOK_POOL
from duly.domain.token_bucket import burst_of
from duly.store.breakers import named
from duly.store.database import Session
from duly.store.policies import decode_policy
from duly.store.statements import statements_beside
from duly.store.tenants import PauseKind

SQL = statements_beside(__file__)
# As a kind of pause, in the statement that explains.
SUSPENSION = "suspension"
AHEAD_MAX = 1000
HOLDERS_MAX = 5
WORKERS_MAX = 100
SILENT_WORKERS_MAX = 10_000
# How far past a cap that was lowered its excess is counted.
EXCESS_MAX = 1000

# Tickets of a lane whose queue is in this process.
LaneDepth = Callable[[Lane], int]


class KeyHolder(NamedTuple):
    id: UUID
    lease_until: datetime
    holder: str


@dataclass(frozen=True)
class Contention:
    """Counts of what competes with a task that is not leased."""

    in_flight: int = 0
    key_in_flight: int = 0
    ahead: int = 0
    workers: int = 0
    worker_seen_at: datetime | None = None
    lane_depth: int = 0
    lane_depth_max: int | None = None
    key_holders: list[KeyHolder] = field(default_factory=list)


NO_CONTENTION = Contention()


async def read_situation(
    session: Session,
    tenant: int,
    task_id: UUID,
    lane_depth: LaneDepth | None = None,
    lane_depth_max: int = LANE_DEPTH_MAX,
) -> Situation | None:
    """None: there is no such task of this tenant. At most three statements, all of them bounded."""
    shard = shard_of(task_id)
    home = slot_of(tenant_shard(tenant, spread=1, choice=0))
    rows = await session.fetch(SQL.explain_task, tenant, shard, task_id, slot_of(shard), home)
    if not rows:
        return None
    row = rows[0]
    state = state_of(row)
    contention = NO_CONTENTION
    if state in (State.SCHEDULED, State.READY):
        contention = await read_contention(
            session, tenant, task_id, row, lane_depth, lane_depth_max
        )
    is_live = row["is_live"]
    return Situation(
        id=task_id,
        state=state,
        facts=gate_facts(row, contention),
        slot=row["slot"],
        has_owner=row["has_owner"],
        max_attempts=decode_policy(row["policy"]).retry.max_attempts,
        attempt=row["charged"] + (1 if row["holder"] is not None else 0),
        due_at=row["due_at"],
        last=last_attempt(row),
        holder=row["holder_name"] or (str(row["holder"]) if row["holder"] else None),
        started_at=row["started_at"],
        lease_until=row["lease_until"],
        cancel_requested=is_live and row["cancel_requested"],
        pool=None if row["pool"] == WEBHOOK_POOL else row["pool_name"],
        workers=contention.workers,
        worker_seen_at=contention.worker_seen_at,
        has_executor=row["has_executor"],
        ahead=contention.ahead,
        ahead_max=AHEAD_MAX,
        dispatch_rate=row["dispatch_rate"],
        key_free_at=key_free_at(row, contention),
    )


def state_of(row: Any) -> State:
    if row["is_live"]:
        return live_state(row["due_at"], row["holder"], row["now"])
    return State(row["last_state"])


async def read_contention(
    session: Session,
    tenant: int,
    task_id: UUID,
    row: Any,
    lane_depth: LaneDepth | None,
    lane_depth_max: int,
) -> Contention:
    shard, key = shard_of(task_id), row["concurrency_key"]
    pool, band = divmod(row["queue"] - 1, BANDS)
    cap = row["in_flight_max"]
    (counts,) = await session.fetch(
        SQL.count_contention,
        tenant,
        shard,
        row["queue"],
        row["due_at"],
        task_id,
        key,
        row["pool_name"],
        AHEAD_MAX,
        0 if cap is None else cap + EXCESS_MAX,
        0 if key is None else row["concurrency_limit"] + EXCESS_MAX,
        WORKERS_MAX,
        pool,
        band,
        SHARED_LANES * lane_depth_max,
        SILENT_WORKERS_MAX,
    )
    lane = Lane(tenant, pool, band)
    depth, queue_depth = counts["lane_depth"], counts["queue_depth"]
    if lane_depth is not None:
        depth, queue_depth = lane_depth(lane), lane_depth(queue_of(lane))
    most = depth_max(lane, row["weight"] or 1.0, queue_depth, lane_depth_max)
    holders = []
    if counts["key_in_flight"]:
        rows = await session.fetch(SQL.list_key_holders, tenant, shard, key, HOLDERS_MAX)
        holders = [KeyHolder(*holder) for holder in rows]
    return Contention(
        counts["in_flight"],
        counts["key_in_flight"],
        counts["ahead"],
        counts["workers"],
        counts["worker_seen_at"],
        # No further than full: of other tenants' webhooks in the queue nothing else is told.
        min(depth, most),
        most,
        holders,
    )


def gate_facts(row: Any, contention: Contention) -> GateFacts:
    """The same facts that dispatch hands to the gates, as the database knows them."""
    is_counted = row["concurrency_key"] is not None or row["in_flight_max"] is not None
    holders = [f"{each.id} at {each.holder}" for each in contention.key_holders]
    return GateFacts(
        now=row["now"],
        tenant=row["tenant_name"] or "",
        paused_by=pause_words(row),
        paused_unblock=pause_unblock(row),
        start_by=row["start_by"],
        breaker_open_until=row["breaker_open_until"],
        **breaker_facts(row),
        transfer_until=row["void_at"] if is_counted and row["has_owner"] else None,
        rate_ready_at=rate_ready_at(row, contention.ahead),
        in_flight=contention.in_flight,
        in_flight_max=row["in_flight_max"],
        concurrency_key=row["concurrency_key"],
        key_in_flight=contention.key_in_flight,
        key_limit=row["concurrency_limit"],
        key_holders=tuple(holders),
        key_unblock=f"duly tasks cancel {contention.key_holders[0].id}" if holders else None,
        lane_depth=contention.lane_depth,
        lane_depth_max=contention.lane_depth_max,
        lane_unblock="duly serve"
        if row["pool"] == WEBHOOK_POOL
        else f"start more workers for the pool {row['pool_name']}",
    )


def breaker_facts(row: Any) -> dict[str, str]:
    if row["breaker_subject"] is None:
        return {}
    kind, name = named(row["breaker_subject"], row["pool_name"])
    return {"breaker_of": f"{kind} {name}", "breaker_unblock": f"duly breakers close {kind} {name}"}


def pause_words(row: Any) -> str | None:
    if row["pause_kind"] is None:
        return None
    if row["pause_kind"] == SUSPENSION:
        return f"the tenant {row['tenant_name']} was suspended at {said(row['paused_at'])}"
    kind = PauseKind(row["pause_kind"])
    subject = row["tenant_name"] if kind is PauseKind.TENANT else row["pause_name"]
    by = f"paused by {row['pause_actor']} at {said(row['paused_at'])}: {row['pause_reason']}"
    return f"the {kind} {subject} was {by}"


def pause_unblock(row: Any) -> str | None:
    if row["pause_kind"] is None:
        return None
    if row["pause_kind"] == SUSPENSION:
        return f"duly tenants resume {row['tenant_name']}"
    return f"duly pauses resume {row['pause_kind']} {row['pause_name']}".rstrip()


def rate_ready_at(row: Any, ahead: int) -> datetime | None:
    rate, due_at = row["dispatch_rate"], row["due_at"]
    if rate is None or row["told_at"] is None or due_at is None:
        return None
    if (row["rate"], row["burst"]) != (rate, burst_of(rate, row["dispatch_burst"])):
        # The limits changed since: the owner soon reports the bucket under the new ones.
        return None
    level = RateLevel(row["tokens"], row["rate"], row["burst"], row["told_at"])
    return next_token_at(level, row["now"], due_at, ahead)


def key_free_at(row: Any, contention: Contention) -> datetime | None:
    """When so many leases have ended that the key has room for one more."""
    excess = contention.key_in_flight - (row["concurrency_limit"] or 0)
    if row["concurrency_key"] is None or not 0 <= excess < len(contention.key_holders):
        return None
    return contention.key_holders[excess].lease_until


def last_attempt(row: Any) -> LastAttempt | None:
    if row["last_outcome"] is None:
        return None
    return LastAttempt(
        row["last_outcome"],
        row["last_charged"],
        row["last_ended_at"],
        row["last_state"],
        row["last_reason"],
        row["last_error"],
    )


async def tell_rate_levels(session: Session, levels: Mapping[int, RateLevel]) -> None:
    """Report rate levels: by the owner of each tenant's home shard, every few seconds while a
    bucket is in use."""
    told = sorted(levels.items())
    await session.fetch(
        SQL.tell_rate_levels,
        [tenant for tenant, _ in told],
        [level.tokens for _, level in told],
        [level.rate for _, level in told],
        [level.burst for _, level in told],
    )
