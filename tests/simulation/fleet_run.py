"""One seed of a fleet from beginning to end: real roles, faults, heal, liveness, verdict."""

import asyncio
import contextlib
import logging
import traceback
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import asyncpg
import structlog

from duly.domain.states import Outcome
from duly.store import tenants
from duly.store.database import Database
from duly.store.ownership import SLOT, list_ownership
from duly.store.tenants import PauseKind
from duly.verify.check import Violation
from duly.verify.history import LogEntry, Operation
from tests.simulation.clients import CLIENTS, submit
from tests.simulation.cluster import keep_back
from tests.simulation.database import Postgres
from tests.simulation.fleet import Fleet, register_fleet_task, run_roles
from tests.simulation.fleet_plan import (
    FleetPlan,
    confined,
    constants,
    make_fleet_plan,
    replaced,
)
from tests.simulation.loop import run_virtually
from tests.simulation.plan import Actor
from tests.simulation.run import Verdict, finish, judge
from tests.simulation.schedule_clients import keep_schedules
from tests.simulation.schedule_model import judge_rulings, read_ledger, read_model
from tests.simulation.witness import WITNESSED
from tests.simulation.workflow_clients import start_workflows
from tests.simulation.workflow_facts import Terms, read_workflow_tables
from tests.simulation.workflow_model import judge_workflows

# Everything ends within this once nothing breaks any more, and every slot has an owner.
LIVENESS_S_MAX = 400.0
OWNED_S_MAX = 30.0
# The first few tell enough.
FINDINGS_MAX = 3
# Of a seed that ran before in the same database.
LEFTOVERS = (
    "DELETE FROM duly.tenants",
    "DELETE FROM duly.pauses",
    "DELETE FROM duly.breakers",
    "DELETE FROM duly.nodes",
    "DELETE FROM duly.ready_tickets",
    "DELETE FROM duly.schedules",
    "DELETE FROM duly.schedule_timers",
    "DELETE FROM duly.workflow_timers",
    "UPDATE duly.ownership SET holder = NULL, epoch = 0, expires_at = 'epoch', void_at = 'epoch'",
)
ADD_TENANT = """INSERT INTO duly.tenants (id, name, weight, in_flight_max, dispatch_rate)
                VALUES ($1, $2, $3, $4, $5)"""


class Outside(Database):
    """An operator's own connection, which never breaks."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        async with self.fleet.turn:
            return self.fleet.postgres.fetch(self.fleet.database_now(), statement, *arguments)


def run_fleet_seed(postgres: Postgres, seed: int) -> Verdict:
    """A seed's tenants are its own, so seeds share a database; one seed runs in it only once."""
    return run_fleet_plan(postgres, make_fleet_plan(seed))


def run_fleet_plan(postgres: Postgres, plan: FleetPlan) -> Verdict:
    """Whatever an earlier seed left of nodes and owners is swept away first."""
    verdict = Verdict(plan)
    with quietly(), confined(plan), replaced([*constants(plan), *WITNESSED]):
        prepare_fleet(postgres, plan)
        try:
            run_virtually(simulate(plan, postgres, verdict), register_fleet_task, keep_back)
        except Exception:
            verdict.failures.append(traceback.format_exc())
        finally:
            postgres.end_transaction()
    return verdict


def prepare_fleet(postgres: Postgres, plan: FleetPlan) -> None:
    for statement in LEFTOVERS:
        postgres.fetch(plan.start, statement)
    for tenant, limits in plan.limits.items():
        postgres.fetch(plan.start, ADD_TENANT, tenant, f"tenant-{tenant}", *limits[:3])


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Roles say that the database is away; here it is away all the time."""
    kept = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**kept)


async def simulate(plan: FleetPlan, postgres: Postgres, verdict: Verdict) -> None:
    before = postgres.statements
    behaviours = [run_roles, submit, *(CLIENTS[a] for a in CLIENTS if a in plan.actors)]
    if Actor.KEEPER in plan.actors:
        behaviours.append(keep_schedules)
    if Actor.WORKFLOWS in plan.actors:
        behaviours.append(start_workflows)
    fleet = Fleet(plan, postgres, behaviours)
    verdict.trace = fleet.recorder.trace
    verdict.crash_points = fleet.recorder.crash_points
    fleet.start()
    others = [asyncio.create_task(fleet.disturb()), asyncio.create_task(operate(fleet))]
    await asyncio.sleep(plan.safety_s)
    fleet.heal()
    healed_at = fleet.database_now()
    await judge(fleet, verdict)
    await asyncio.gather(*others)
    await finish(fleet, verdict, LIVENESS_S_MAX)
    await all_owned(fleet, verdict)
    await judge_the_end(fleet, verdict)
    await judge_ended_workflows(fleet, verdict, healed_at)
    verdict.violations += executed_twice(verdict) + fleet.findings[:FINDINGS_MAX]
    verdict.failures += fleet.failures
    verdict.virtual_s = fleet.elapsed_s()
    verdict.statements = postgres.statements - before


async def judge_the_end(fleet: Fleet, verdict: Verdict) -> None:
    """Nothing is due any more, so every occurrence that the model knows has its verdict."""
    async with fleet.turn:
        now = fleet.database_now()
        model = read_model(fleet.postgres, now, fleet.plan.tenants)
        ledger = read_ledger(fleet.postgres, now, fleet.plan.tenants)
    await judge(fleet, verdict, model.expected)
    verdict.violations += list(judge_rulings(model, ledger, verdict.tables))[:FINDINGS_MAX]


async def judge_ended_workflows(fleet: Fleet, verdict: Verdict, healed_at: datetime) -> None:
    async with fleet.turn:
        tables = read_workflow_tables(fleet.postgres, fleet.database_now(), fleet.plan.tenants)
    asked = (entry for entry in verdict.logs.entries if is_cancel(entry))
    cancelled = {entry.task for entry in asked if entry.task is not None}
    erased = (entry for entry in verdict.logs.entries if entry.operation is Operation.PURGE)
    purged = frozenset(entry.task for entry in erased if entry.task is not None)
    terms = Terms(cancelled, healed_at, purged, Actor.MOVER in fleet.plan.actors)
    found = judge_workflows([asked.wanted for asked in fleet.workflows], tables, terms)
    verdict.violations += list(found)[:FINDINGS_MAX]


def is_cancel(entry: LogEntry) -> bool:
    """A client asks for it, or the handler itself says that its attempt is cancelled."""
    by_handler = entry.operation is Operation.SETTLE and entry.outcome == Outcome.CANCELLED
    return by_handler or entry.operation is Operation.CANCEL


def executed_twice(verdict: Verdict) -> list[Violation]:
    """A lease is one execution, however often its ticket or its answer came."""
    counts = Counter((effect.task, effect.fence) for effect in verdict.logs.effects)
    return [
        Violation("I5", task, f"was executed {count} times with fence {fence}")
        for (task, fence), count in counts.items()
        if count > 1
    ]


async def operate(fleet: Fleet) -> None:
    """An operator who pauses and resumes, and resumes everything in the end."""
    outside, plan = Outside(fleet), fleet.fleet_plan
    while plan.has_pauses and not fleet.is_healed:
        await asyncio.sleep(plan.tick_s * fleet.random.uniform(0.5, 3.0))
        tenant = fleet.random.choice(plan.tenants)
        kind, name = fleet.random.choice([(PauseKind.TENANT, ""), (PauseKind.POOL, "default")])
        if fleet.random.random() < 0.5:
            await tenants.set_pause(outside, tenant, kind, name, "operator", "because")
        else:
            await tenants.clear_pause(outside, tenant, kind, name)
    for tenant in plan.tenants:
        await tenants.clear_pause(outside, tenant, PauseKind.TENANT, "")
        await tenants.clear_pause(outside, tenant, PauseKind.POOL, "default")


async def all_owned(fleet: Fleet, verdict: Verdict) -> None:
    """Every slot by a living node, which knows it."""
    ends_at = fleet.elapsed_s() + OWNED_S_MAX
    while lacking := await unowned(fleet):
        await asyncio.sleep(fleet.plan.tick_s)
        if fleet.elapsed_s() > ends_at:
            told = f"slots {lacking[:5]} have no owner that knows of it"
            verdict.violations.append(Violation("owner", None, told))
            return


async def unowned(fleet: Fleet) -> list[int]:
    known = {
        (node.member.id, number): owned.epoch
        for node in fleet.living
        for number, owned in node.coordinator.owned.items()
    }
    return [
        row.number
        for row in await list_ownership(Outside(fleet))
        if row.kind == SLOT
        and (
            row.holder is None
            or not row.is_owned
            or known.get((row.holder, row.number)) != row.epoch
        )
    ]
