"""What the witnesses of a run say: effect logs and tables, read once it is over, and what only this
harness can ask of them. The verdict is the checker's."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from duly.domain.ids import shard_of
from duly.domain.task import concurrency_limit_of
from duly.store.policies import decode_policy
from duly.store.verify import SQL, workflow_tables
from duly.verify.check import Violation, check, find_overdue
from duly.verify.history import (
    AttemptRow,
    DeadLetterRow,
    Effect,
    KeyRow,
    Logs,
    Operation,
    Tables,
    TaskRow,
    TimerRow,
)
from tests.simulation.tables import (
    ATTEMPTS,
    CAPS,
    LETTERS,
    TIMERS,
    WORKFLOWS,
    is_of_workflow,
)
from tests.simulation.workflow_facts import STATEMENTS, Terms, WantedWorkflow, WorkflowTables
from tests.simulation.workflow_facts import workflow_tables as tables_of_workflows
from tests.simulation.workflow_model import judge_workflows

GRACE = timedelta(seconds=30)
NOBODY = UUID(int=0)
TASKS = """SELECT id, tenant, run_at, policy, execution_key, payload::json ->> 'request' AS request
             FROM duly.tasks WHERE tenant = ANY($1::integer[]) ORDER BY id"""
KEYS = """SELECT tenant, key, task_id FROM duly.idempotency_keys
           WHERE tenant = ANY($1::integer[]) AND NOT duly.is_node(task_id)"""
OWNERLESS = """SELECT count(*) FROM duly.ownership
                WHERE kind = 'slot' AND (holder IS NULL OR expires_at <= now())"""


@dataclass(frozen=True, slots=True)
class Flows:
    """The workflows that clients asked for, what became of them, and since when nothing breaks."""

    wanted: list[WantedWorkflow]
    tables: WorkflowTables
    healed_at: datetime


@dataclass(frozen=True, slots=True)
class Told:
    """A line of an effect log. A webhook does not say who holds its lease."""

    pid: int
    task: UUID
    fence: int
    holder: UUID | None
    at: datetime


def read_effects(folder: Path) -> list[Told]:
    """A line that a kill cut short had no effect after it."""
    told = []
    for path in sorted(folder.glob("effects-*.jsonl")):
        pid = int(path.stem.removeprefix("effects-"))
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                task, fence, holder, at = json.loads(line)
                known = None if holder is None else UUID(holder)
                told.append(Told(pid, UUID(task), fence, known, datetime.fromisoformat(at)))
    return told


async def read_tables(connection: asyncpg.Connection, tenants: list[int]) -> Tables:
    async def rows(statement: str) -> list[Any]:
        found: list[Any] = await connection.fetch(statement, tenants)
        return found

    workflows = await rows(WORKFLOWS)
    asked = [shard_of(row["id"]) for row in workflows], [row["id"] for row in workflows]
    parts = [
        await connection.fetch(each, *asked)
        for each in (SQL.read_nodes, SQL.read_items, SQL.read_given_signals)
    ]
    return Tables(
        tasks=tuple(map(task_row, await rows(TASKS))),
        timers=tuple(TimerRow(*row) for row in await rows(TIMERS)),
        attempts=tuple(AttemptRow(*row) for row in await rows(ATTEMPTS)),
        dead_letters=tuple(DeadLetterRow(*row) for row in await rows(LETTERS)),
        keys=tuple(KeyRow(*row) for row in await rows(KEYS)),
        caps={row["id"]: row["in_flight_max"] for row in await rows(CAPS)},
        workflows=workflow_tables(workflows, *parts).workflows,
    )


async def read_workflow_tables(
    connection: asyncpg.Connection, tenants: list[int]
) -> WorkflowTables:
    return tables_of_workflows(*[await connection.fetch(each, tenants) for each in STATEMENTS])


def task_row(row: Any) -> TaskRow:
    policy = decode_policy(row["policy"])
    return TaskRow(
        id=row["id"],
        tenant=row["tenant"],
        run_at=row["run_at"],
        max_attempts=policy.retry.max_attempts,
        execution_key=row["execution_key"],
        request=None if is_of_workflow(row) else row["request"],
        concurrency_key=policy.concurrency_key,
        concurrency_limit=concurrency_limit_of(policy),
    )


def holders_of(tables: Tables) -> dict[tuple[UUID, int], UUID | None]:
    recorded: dict[tuple[UUID, int], UUID | None] = {
        (row.id, row.fence): row.holder for row in tables.attempts
    }
    return recorded | {(row.id, row.fence): row.holder for row in tables.timers}


def effects_of(told: Iterable[Told], tables: Tables) -> tuple[Effect, ...]:
    """For a webhook, whoever is on record; if nobody is, the checker will say so."""
    recorded = holders_of(tables)
    return tuple(
        Effect(
            line.task,
            line.fence,
            line.holder or recorded.get((line.task, line.fence)) or NOBODY,
            line.at,
        )
        for line in told
    )


def judge(
    logs: Logs,
    tables: Tables,
    batches: Iterable[list[str]],
    now: datetime,
    flows: Flows | None = None,
) -> list[Violation]:
    return [
        *check(logs, tables),
        *find_overdue(tables, now, GRACE),
        *torn_batches(tables, batches),
        *(judge_flows(logs, flows) if flows else ()),
    ]


def judge_flows(logs: Logs, flows: Flows) -> Iterator[Violation]:
    cancelled = {
        entry.task
        for entry in logs.entries
        if entry.operation is Operation.CANCEL and entry.task is not None
    }
    terms = Terms(cancelled, flows.healed_at, is_serial=False)
    yield from judge_workflows(flows.wanted, flows.tables, terms)


def torn_batches(tables: Tables, batches: Iterable[list[str]]) -> list[Violation]:
    """A batch is stored whole or not at all, and not twice, whatever its caller heard."""
    stored = Counter(row.request for row in tables.tasks)
    found = []
    for requests in batches:
        times = {stored[request] for request in requests}
        if times not in ({0}, {1}):
            problem = f"the batch from {requests[0]} is stored {sorted(times)} times"
            found.append(Violation("batch", None, problem))
    return found
