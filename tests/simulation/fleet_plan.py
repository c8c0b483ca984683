"""What a seed decides for a fleet of nodes with the real scheduler: carrier, bounds, pace.

Periods are short and bounds are small, so that a seed sees many take-overs in few statements.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from random import Random
from types import ModuleType
from typing import Any

from duly.broker import lease_queue, memory
from duly.broker import postgres as postgres_broker
from duly.domain import map_plan, occurrence_plan
from duly.execution import executor
from duly.scheduler import cron, dispatcher, gatekeeper, loader, ready_state, reaper
from duly.scheduler import workflows as workflow_role
from duly.store import fire_schedules as store_recur
from duly.store import (
    load,
    ready_tickets,
    workflow_compensations,
    workflow_control,
    workflow_maps,
    workflow_timers,
)
from duly.store.tenants import TenantLimits
from tests.simulation.plan import TENANTS_MAX, Actor, FaultKind, Plan

# Far from the tenants of the other kind of seed.
FIRST_TENANT = 1_000_000_000
FAULTS = (
    FaultKind.ERROR_BEFORE,
    FaultKind.ANSWER_LOST,
    FaultKind.CONFLICT,
    FaultKind.OUTAGE,
    FaultKind.LATENCY,
    FaultKind.CRASH,
    FaultKind.KILL,
    FaultKind.FREEZE,
    FaultKind.STOP,
    FaultKind.NODE_CLOCK,
    FaultKind.RING_LOST,
    FaultKind.TICKET_LOST,
    FaultKind.TICKET_REPEATED,
    FaultKind.TICKET_STALE,
    FaultKind.TICKET_LATE,
    FaultKind.REORDER,
    FaultKind.QUEUE_WIPED,
)
ACTORS = (
    Actor.BULK,
    Actor.KEYED,
    Actor.CANCELLER,
    Actor.MOVER,
    Actor.REPLAYER,
    Actor.PURGER,
    Actor.READER,
    Actor.EXPIRER,
)
# A schedule is late soon, and catching up takes several bites.
GRACE_S = 3.0
FIRES_MAX = 3
RULINGS_MAX = 5
# Asked at every statement, unlike what is asked now and then.
AT_EVERY_STATEMENT = {
    FaultKind.ERROR_BEFORE,
    FaultKind.ANSWER_LOST,
    FaultKind.CONFLICT,
    FaultKind.CRASH,
}
AT_EVERY_TICKET = {
    FaultKind.TICKET_LOST,
    FaultKind.TICKET_REPEATED,
    FaultKind.TICKET_STALE,
    FaultKind.TICKET_LATE,
}
PLACEMENTS_OF_ALL = "WHERE (tenant, shard, queue) >"
# What is in another real transaction is real time; here nobody commits late.
OLDEST_WRITER = "SELECT min(xact_start) FROM pg_stat_activity"


class CarrierKind(StrEnum):
    MEMORY = "memory"
    POSTGRES = "postgres"
    SIMULATED = "simulated"


@dataclass(frozen=True, kw_only=True)
class FleetPlan(Plan):
    carrier: CarrierKind
    slot_lease_s: float
    ticket_s: float
    reap_s: float
    sweep_s: float
    bounds_s: float
    running_max: int
    lane_depth: int
    parked: int
    limits: dict[int, TenantLimits]
    has_pauses: bool
    poison_share: float
    hang_share: float


def make_fleet_plan(seed: int) -> FleetPlan:
    random = Random(f"fleet plan {seed}")
    nodes = random.choice([1, 2, 2, 3])
    lease_s = random.uniform(1.5, 5.0)
    kinds = [kind for kind in FAULTS if random.random() < 0.45]
    tenants = tuple(
        FIRST_TENANT + seed * TENANTS_MAX + n for n in range(random.randint(1, TENANTS_MAX))
    )
    start = random.choice([datetime(2026, 1, 15, 12, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)])
    shared = [
        CarrierKind.POSTGRES,
        CarrierKind.SIMULATED,
        CarrierKind.SIMULATED,
        CarrierKind.SIMULATED,
    ]
    plan = FleetPlan(
        seed=seed,
        tenants=tenants,
        start=start - timedelta(seconds=random.uniform(0, 20)),
        safety_s=random.uniform(10.0, 25.0),
        tick_s=random.uniform(0.5, 2.0),
        lease_s=lease_s,
        timeout_s=lease_s * random.choice([1.5, 4.0, 20.0]),
        handler_s=lease_s * random.choice([0.1, 0.5, 1.5]),
        delay_s=random.choice([0.0, 2.0, 8.0]),
        backoff_s=random.choice([0.0, 0.3, 2.0]),
        latency_s=random.choice([0.01, 0.1, 0.5]),
        nodes=nodes,
        batch=random.randint(1, 5),
        page=random.choice([1, 2, 5, 50]),
        max_attempts=random.randint(1, 4),
        submissions=random.randint(10, 40),
        rates={kind: random.choice(rates_of(kind)) for kind in kinds},
        actors=frozenset(actor for actor in ACTORS if random.random() < 0.4) | keepers(seed),
        outcome_weights=random.choice(
            [(8, 2, 1, 1, 1, 1), (10, 0, 0, 0, 0, 0), (2, 6, 0, 0, 1, 1)]
        ),
        key_limits={"a": random.choice([1, 2]), "b": random.choice([1, 3])},
        has_webhooks=random.random() < 0.7,
        carrier=CarrierKind.MEMORY
        if nodes == 1 and random.random() < 0.5
        else random.choice(shared),
        slot_lease_s=random.uniform(2.5, 6.0),
        ticket_s=random.choice([random.uniform(2.0, 6.0), random.uniform(6.0, 12.0)]),
        reap_s=random.uniform(0.7, 1.5),
        sweep_s=random.uniform(2.0, 4.0),
        bounds_s=random.uniform(1.5, 4.0),
        running_max=random.choice([2, 5, 50]),
        lane_depth=random.choice([2, 5, 100]),
        parked=random.choice([1, 3, 64]),
        limits={tenant: choose_limits(random) for tenant in tenants},
        has_pauses=random.random() < 0.4,
        poison_share=random.choice([0.0, 0.0, 0.1]),
        hang_share=random.choice([0.0, 0.1]),
    )
    return hurried(plan) if Random(f"fleet hurry {seed}").random() < 0.3 else plan


def hurried(plan: FleetPlan) -> FleetPlan:
    """A tenant without limits, tasks that nothing holds back, and real carriers: many go straight
    to who waits for them."""
    return replace(
        plan,
        actors=plan.actors | {Actor.HURRIED},
        limits=plan.limits | {plan.tenants[0]: TenantLimits()},
        carrier=CarrierKind.MEMORY if plan.nodes == 1 else CarrierKind.POSTGRES,
    )


def keepers(seed: int) -> frozenset[Actor]:
    """By a draw of their own: whoever takes no part changes nothing for the others."""
    has_schedules = Random(f"fleet schedules {seed}").random() < 0.4
    has_workflows = Random(f"fleet workflows {seed}").random() < 0.5
    kept = [Actor.KEEPER] * has_schedules + [Actor.WORKFLOWS] * has_workflows
    return frozenset(kept)


def cancelled_at_once(seed: int) -> int:
    """Nodes that one commit cancels: a few, so that most cancels go on by a timer, or all."""
    return Random(f"fleet cancels {seed}").choice([1, 3, 1000])


def made_at_once(seed: int) -> int:
    """Items that one commit makes: so few that most maps are made by several."""
    return Random(f"fleet items {seed}").choice([1, 2, 1000])


def in_place_min(seed: int) -> int:
    """How many leases of one queue are enough to leave them there: any, few, or hardly ever."""
    return Random(f"fleet stay {seed}").choice([1, 1, 2, 10])


def rates_of(kind: FaultKind) -> list[float]:
    if kind in AT_EVERY_STATEMENT:
        return [0.01, 0.03]
    return [0.1, 0.3] if kind in AT_EVERY_TICKET else [0.05, 0.15]


def choose_limits(random: Random) -> TenantLimits:
    return TenantLimits(
        weight=random.choice([1.0, 3.0]),
        in_flight_max=random.choice([None, 1, 2, 4]),
        dispatch_rate=random.choice([None, None, None, 2.0]),
    )


def constants(plan: FleetPlan) -> list[tuple[ModuleType, str, Any]]:
    """What the roles take from their modules."""
    return [
        # A lease counts from the ask on: one that comes at the end of the wait must last.
        (executor, "TAKE_WAIT_S", min(2.0, plan.lease_s / 2)),
        (dispatcher, "TICKET_S", plan.ticket_s),
        (dispatcher, "DISPATCH_MAX", 10),
        (dispatcher, "IN_PLACE_MIN", in_place_min(plan.seed)),
        (memory, "TICKET_S", plan.ticket_s),
        (ready_tickets, "TICKET_S", plan.ticket_s),
        (postgres_broker, "SWEEP_EVERY_S", plan.ticket_s / 2),
        (lease_queue, "POLL_FIRST_S", 0.05),
        (lease_queue, "POLL_LAST_S", 1.0),
        (reaper, "REAP_S", plan.reap_s),
        (loader, "RELOAD_S", plan.sweep_s / 2),
        (loader, "SWEEP_S", plan.sweep_s),
        (loader, "PLACEMENTS_S", plan.sweep_s),
        (loader, "PAGE", plan.page),
        (ready_state, "QUEUE_ENTRIES_MAX", 2 * plan.page),
        (ready_state, "PARKED_MAX", plan.parked),
        (gatekeeper, "REFRESH_S", plan.bounds_s),
        (cron, "HORIZON_S", 2 * plan.sweep_s),
        (cron, "LOAD_S", plan.sweep_s),
        (cron, "SWEEP_S", 2 * plan.sweep_s),
        (cron, "SWEEP_PAGE", plan.page),
        (cron, "PAGE", plan.page),
        (cron, "LATE_PAGE", plan.page),
        (cron, "BATCH", plan.batch),
        (cron, "CATCH_UP_PER_S", 3.0),
        (cron, "GRACE_S", GRACE_S),
        (occurrence_plan, "GRACE_S", GRACE_S),
        (occurrence_plan, "FIRES_MAX", FIRES_MAX),
        (occurrence_plan, "RULINGS_MAX", RULINGS_MAX),
        (store_recur, "FIRES_MAX", FIRES_MAX),
        (store_recur, "BATCHES_MAX", 5),
        (workflow_role, "LOOK_S", plan.sweep_s),
        (workflow_role, "AGAIN_S", plan.sweep_s),
        (workflow_role, "AGAIN_S_MAX", 2 * plan.sweep_s),
        (workflow_role, "TIMERS_AT_ONCE", plan.batch),
        (workflow_timers, "TIMERS_AT_ONCE", plan.batch),
        (workflow_control, "CANCELLED_AT_ONCE", cancelled_at_once(plan.seed)),
        (workflow_maps, "CANCELLED_AT_ONCE", cancelled_at_once(plan.seed)),
        (workflow_compensations, "COMPENSATED_AT_ONCE", made_at_once(plan.seed)),
        (map_plan, "MADE_AT_ONCE", made_at_once(plan.seed)),
    ]


@contextlib.contextmanager
def replaced(values: list[tuple[Any, str, Any]]) -> Iterator[None]:
    kept = [(place, name, getattr(place, name)) for place, name, _ in values]
    try:
        for place, name, value in values:
            setattr(place, name, value)
        yield
    finally:
        for place, name, value in reversed(kept):
            setattr(place, name, value)


@contextlib.contextmanager
def confined(plan: FleetPlan) -> Iterator[None]:
    """The places of other seeds, and the real time of other connections, are no part of this."""
    kept = dict(load.SQL.blocks)
    mine = f"WHERE tenant IN {(0, *plan.tenants)} AND (tenant, shard, queue) >"
    changes = {
        "list_placements": (PLACEMENTS_OF_ALL, mine),
        "read_frontier": (OLDEST_WRITER, "SELECT NULL::timestamptz FROM pg_stat_activity"),
    }
    for name, (old, new) in changes.items():
        assert old in kept[name], f"{name} has no longer: {old}"
        load.SQL.blocks[name] = kept[name].replace(old, new)
    try:
        yield
    finally:
        load.SQL.blocks.update(kept)
