"""One seed from beginning to end: safety with faults, heal, liveness, and the checker's verdict."""

import asyncio
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from duly.store import load
from duly.store.partitions import SQL
from duly.verify.check import Violation, check, find_overdue
from duly.verify.history import CallPhase, Logs, Tables
from tests.simulation.clients import CLIENTS, submit
from tests.simulation.cluster import Cluster, register_task
from tests.simulation.database import Postgres
from tests.simulation.loop import run_virtually
from tests.simulation.plan import Plan, make_plan
from tests.simulation.tables import (
    count_live,
    due_schedules,
    due_workflow_timers,
    read_tables,
)
from tests.simulation.workers import WORKERS

LIVENESS_S_MAX = 1500.0
# Ten times what any honest seed needs: more is somebody who spins, and virtual time hardly passes.
STATEMENTS_MAX = 20_000
MONTHS_AHEAD = 3
# Schedules and their nominal times, as a model has them.
Expected = frozenset[tuple[UUID, datetime]]
# Small enough that the placements of one tenant do not fit on a page.
PLACEMENTS_PAGE = 4


@dataclass
class Verdict:
    """What became of one seed."""

    plan: Plan
    logs: Logs = field(default_factory=Logs)
    tables: Tables = field(default_factory=Tables)
    violations: list[Violation] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    crash_points: Counter[str] = field(default_factory=Counter)
    statements: int = 0
    virtual_s: float = 0.0

    @property
    def is_clean(self) -> bool:
        return not self.violations and not self.failures

    @property
    def operations(self) -> Counter[str]:
        return Counter(
            f"{entry.operation} {entry.answer or entry.phase}"
            for entry in self.logs.entries
            if entry.phase is not CallPhase.INVOKE
        )

    @property
    def node_ends(self) -> Counter[str]:
        """How the nodes of its workflows ended."""
        nodes = (node for workflow in self.tables.workflows for node in workflow.nodes)
        return Counter(str(node.state or "live") for node in nodes)

    @property
    def faults(self) -> Counter[str]:
        return Counter(fault.kind for fault in self.logs.faults)


def prepare(postgres: Postgres) -> None:
    """The months in which virtual time passes."""
    postgres.fetch(make_plan(0).start.replace(month=1, day=2), SQL.create_ahead, MONTHS_AHEAD)


def run_seed(postgres: Postgres, seed: int) -> Verdict:
    """A seed's tenants are its own, so seeds share a database; one seed runs in it only once."""
    return run_plan(postgres, make_plan(seed))


def run_plan(postgres: Postgres, plan: Plan) -> Verdict:
    verdict = Verdict(plan)
    page, load.PLACEMENTS_PAGE = load.PLACEMENTS_PAGE, PLACEMENTS_PAGE
    try:
        run_virtually(simulate(plan, postgres, verdict), register_task)
    except Exception:
        verdict.failures.append(traceback.format_exc())
    finally:
        load.PLACEMENTS_PAGE = page
        postgres.end_transaction()
    return verdict


async def simulate(plan: Plan, postgres: Postgres, verdict: Verdict) -> None:
    before = postgres.statements
    behaviours = [*WORKERS, submit, *(CLIENTS[a] for a in CLIENTS if a in plan.actors)]
    cluster = Cluster(plan, postgres, behaviours)
    verdict.trace = cluster.recorder.trace
    verdict.crash_points = cluster.recorder.crash_points
    cluster.start()
    disturbance = asyncio.create_task(cluster.disturb())
    await asyncio.sleep(plan.safety_s)
    cluster.heal()
    await judge(cluster, verdict)
    await finish(cluster, verdict)
    await disturbance
    await judge(cluster, verdict)
    verdict.violations += cluster.findings
    verdict.failures += cluster.failures
    verdict.virtual_s = cluster.elapsed_s()
    verdict.statements = postgres.statements - before


async def finish(cluster: Cluster, verdict: Verdict, limit_s: float = LIVENESS_S_MAX) -> None:
    """Everything that is due gets done, once nothing breaks any more."""
    while True:
        await asyncio.sleep(cluster.plan.tick_s)
        async with cluster.turn:
            now = cluster.database_now()
            if count_live(cluster.postgres, now, cluster.plan.tenants) == 0:
                return
        statements = cluster.postgres.statements - cluster.statements_before
        if statements > STATEMENTS_MAX:
            verdict.failures.append(f"{statements} statements, and no end")
        if statements > STATEMENTS_MAX or cluster.elapsed_s() > cluster.plan.safety_s + limit_s:
            tables = await snapshot(cluster)
            overdue = find_overdue(tables, now, timedelta(seconds=cluster.plan.tick_s))
            unfinished = [Violation("liveness", row.id, "never ends") for row in tables.timers]
            verdict.violations += overdue or unfinished
            verdict.violations += [
                Violation("liveness", schedule, f"a schedule is still due, at {due_at}")
                for schedule, due_at in due_schedules(cluster.postgres, now, cluster.plan.tenants)
            ]
            left = due_workflow_timers(cluster.postgres, now, cluster.plan.tenants)
            verdict.violations += [
                Violation("liveness", workflow, f"its {kind} is left to do, since {due_at}")
                for workflow, kind, due_at in left
            ]
            return


async def snapshot(cluster: Cluster) -> Tables:
    """Between two transactions; virtual time stands still, so all tables are of one instant."""
    async with cluster.turn:
        return read_tables(
            cluster.postgres,
            cluster.database_now(),
            cluster.plan.tenants,
            with_limits=cluster.has_schedulers,
        )


async def judge(cluster: Cluster, verdict: Verdict, expected: Expected | None = None) -> None:
    """Also in the middle of everything: calls without an answer are unknown to the checker too."""
    verdict.tables = replace(await snapshot(cluster), expected=expected)
    verdict.logs = cluster.recorder.logs
    known = set(verdict.violations)
    found = check(verdict.logs, verdict.tables)
    verdict.violations += [violation for violation in found if violation not in known]


def tell_story(verdict: Verdict, task: UUID | None) -> list[str]:
    """What the trace says of one task, with the faults and deaths around it."""
    if task is None:
        return verdict.trace
    names = (str(task), "FAULT", " dies ", " starts ", "heals")
    return [line for line in verdict.trace if any(name in line for name in names)]
