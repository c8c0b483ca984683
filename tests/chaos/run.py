"""One chaos run: load and faults at once, then everything heals, then the verdict."""

import asyncio
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg

from duly.verify.check import Violation
from duly.verify.history import CallPhase, Logs, Tables
from tests.chaos.cluster import Cluster
from tests.chaos.evidence import (
    OWNERLESS,
    Flows,
    Told,
    effects_of,
    judge,
    read_effects,
    read_tables,
    read_workflow_tables,
)
from tests.chaos.injector import Injector
from tests.chaos.plan import make_plan
from tests.chaos.recovery import figures
from tests.chaos.workflows import WorkflowLoad
from tests.simulation.tables import LIVE

HEAL_S = 240.0
# A slot whose owner was killed last is owned again after its lease.
OWNED_S = 30.0
POLL_S = 0.5
# A process that is paused in a transaction, or a machine without a free processor, holds it open.
COMMIT_S = 30.0
BAR_WIDTH = 30


@dataclass
class Result:
    seed: int
    seconds: float
    report: dict[str, Any]
    violations: list[Violation]
    logs: Logs
    tables: Tables
    flows: Flows
    told: list[Told] = field(default_factory=list)
    batches: list[list[str]] = field(default_factory=list)


async def run(seconds: float, seed: int, rate: float, folder: Path) -> Result:
    cluster = Cluster(folder, seed)
    async with cluster.running():
        load = WorkflowLoad(cluster, rate, seed, folder / "client.jsonl")
        injector = Injector(cluster, folder / "faults.jsonl")
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            showing = group.create_task(show_progress(load, injector, seconds))
            group.create_task(load.run())
            await injector.follow(make_plan(seed, seconds))
            await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
            load.is_over.set()
            showing.cancel()
        healed_s, tables, flows, late = await heal(cluster, load)
    told = read_effects(folder)
    effects = effects_of(told, tables)
    logs = Logs(tuple(load.entries), effects, tuple(injector.faults), COMMIT_S)
    violations = [*judge(logs, tables, load.batches, datetime.now(UTC), flows), *late]
    violations += [
        Violation("survival", None, problem)
        for member in cluster.members.values()
        for problem in member.unexplained
    ]
    report = make_report(cluster, load, injector, told, tables, flows) | {
        "healed_s": round(healed_s, 2),
        "early_starts": sum(each.invariant == "I12" for each in violations),
        "violations": [str(each) for each in violations],
    }
    return Result(seed, seconds, report, violations, logs, tables, flows, told, load.batches)


async def heal(
    cluster: Cluster, load: WorkflowLoad
) -> tuple[float, Tables, Flows, list[Violation]]:
    """Nothing is broken any more: every task comes to its end, every slot to an owner."""
    tenants = [tenant.id for tenant in cluster.tenants]
    late: list[Violation] = []
    began, healed_at = time.monotonic(), datetime.now(UTC)
    connection = await cluster.connect()
    try:
        async with asyncio.timeout(HEAL_S):
            await load.unpause_all()
        if not await reaches_zero(connection, LIVE, tenants, HEAL_S):
            late.append(Violation("liveness", None, f"live tasks are left after {HEAL_S:g} s"))
        healed_s = time.monotonic() - began
        if not await reaches_zero(connection, OWNERLESS, None, OWNED_S):
            late.append(Violation("liveness", None, "a slot has no owner after everything healed"))
        flows = Flows(load.wanted, await read_workflow_tables(connection, tenants), healed_at)
        return healed_s, await read_tables(connection, tenants), flows, late
    finally:
        await connection.close()


async def reaches_zero(
    connection: asyncpg.Connection, statement: str, tenants: list[int] | None, within_s: float
) -> bool:
    arguments = () if tenants is None else (tenants,)
    deadline = time.monotonic() + within_s
    while await connection.fetchval(statement, *arguments):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


def make_report(
    cluster: Cluster,
    load: WorkflowLoad,
    injector: Injector,
    told: list[Told],
    tables: Tables,
    flows: Flows,
) -> dict[str, Any]:
    answers = Counter(f"{entry.operation}_{entry.phase}" for entry in load.entries)
    kinds = Counter(fault.kind for fault in injector.faults)
    return {
        "tasks": len(tables.tasks),
        "tasks_acknowledged": len(
            {entry.task for entry in load.entries if entry.phase is CallPhase.OK and entry.task}
        ),
        "effects": len(told),
        "attempts": dict(Counter(row.outcome for row in tables.attempts).most_common()),
        "ends": dict(Counter(row.state for row in tables.attempts if row.state).most_common()),
        "workflows": dict(Counter(row["state"] for row in flows.tables.workflows).most_common()),
        "nodes": dict(
            Counter(
                node.state for nodes in flows.tables.nodes.values() for node in nodes.values()
            ).most_common()
        ),
        "dead_letters": len(tables.dead_letters),
        "client_log": dict(sorted(answers.items())),
        "faults": dict(sorted(kinds.items())),
        "workers_killed_by_poison": sum(each.poisoned for each in cluster.members.values()),
        "starts_refused_while_broken": sum(each.failed_starts for each in cluster.members.values()),
        "recovery": {
            figure.name: figure.summary
            for figure in figures(injector.measured, injector.taken_over_s, told, tables)
        },
    }


async def show_progress(load: WorkflowLoad, injector: Injector, seconds: float) -> None:
    """On a terminal only."""
    began = time.monotonic()
    while sys.stderr.isatty():
        part = min(1.0, (time.monotonic() - began) / seconds)
        bar = "#" * round(part * BAR_WIDTH)
        line = f"[{bar:<{BAR_WIDTH}}] {load.wishes} tasks, {len(injector.faults)} faults"
        sys.stderr.write(f"\r{line}")
        sys.stderr.flush()
        await asyncio.sleep(1.0)
