"""Half a minute of chaos on every test run: the promises hold, and the harness would notice."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from duly.verify.history import CallPhase, Effect
from tests.chaos.evidence import judge
from tests.chaos.run import Result, run
from tests.store.folders import server_folder

SEED = 7
SECONDS = 33.0
RATE = 40.0
KINDS_MIN = 6
TASKS_MIN = 100
WORKFLOWS_MIN = 10


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_half_a_minute_of_chaos_breaks_no_promise() -> None:
    """Each part survives its own tests; what kills a cluster is two faults at once."""
    with server_folder() as data:
        result = asyncio.run(run(SECONDS, SEED, RATE, data.parent))
    assert result.violations == []
    faults = {fault.kind for fault in result.logs.faults}
    assert {"kill", "pause", "crash-postgres", "end-backends"} <= faults
    assert len(faults) >= KINDS_MIN
    assert len(result.tables.tasks) >= TASKS_MIN
    assert len(result.flows.tables.workflows) >= WORKFLOWS_MIN
    assert result.tables.workflows
    # On a busy machine no lease may be lost; then callers were left in doubt.
    is_lost = "lease_lost" in result.report["attempts"]
    is_in_doubt = any(entry.phase is CallPhase.UNKNOWN for entry in result.logs.entries)
    assert is_lost or is_in_doubt, "nothing that was broken had an effect"
    blind_spots = [name for name, spoil in SPOILERS.items() if not is_noticed(result, spoil)]
    assert blind_spots == [], "the verdict would have been the same without its evidence"


def is_noticed(result: Result, spoil: Callable[[Result], Result]) -> bool:
    spoilt = spoil(result)
    found = judge(spoilt.logs, spoilt.tables, spoilt.batches, datetime.now(UTC), spoilt.flows)
    return found != []


def lose_a_task(result: Result) -> Result:
    """Acknowledged, and gone without a trace."""
    (lost, *_) = {entry.task for entry in result.logs.entries if entry.answer == "stored"}
    tables = replace(
        result.tables,
        tasks=tuple(row for row in result.tables.tasks if row.id != lost),
        attempts=tuple(row for row in result.tables.attempts if row.id != lost),
        keys=tuple(row for row in result.tables.keys if row.task != lost),
    )
    return replace(result, tables=tables)


def lose_an_attempt(result: Result) -> Result:
    return replace(result, tables=replace(result.tables, attempts=result.tables.attempts[1:]))


def repeat_an_attempt(result: Result) -> Result:
    attempts = result.tables.attempts
    return replace(result, tables=replace(result.tables, attempts=(*attempts, attempts[0])))


def start_early(result: Result) -> Result:
    attempts = [
        replace(row, started_at=row.started_at - timedelta(minutes=5)) if row.started_at else row
        for row in result.tables.attempts
    ]
    return replace(result, tables=replace(result.tables, attempts=tuple(attempts)))


def act_without_a_lease(result: Result) -> Result:
    task = result.tables.tasks[0].id
    effect = Effect(task, 1_000, UUID(int=1), datetime.now(UTC))
    return replace(result, logs=replace(result.logs, effects=(*result.logs.effects, effect)))


def store_a_part_of_a_batch(result: Result) -> Result:
    """Of one batch; the tasks of workflows, which may be stored first, have no request."""
    requests = (row.request for row in result.tables.tasks if row.request is not None)
    return replace(result, batches=[*result.batches, [next(requests), "?"]])


def lose_a_workflow(result: Result) -> Result:
    """Answered, and not stored."""
    known = {workflow for flow in result.flows.wanted for workflow in flow.ids}
    kept = [row for row in result.flows.tables.workflows if row["id"] not in known]
    return with_tables(result, workflows=kept)


def run_what_was_not_released(result: Result) -> Result:
    """A node that was skipped or cancelled has started all the same."""
    at = datetime.now(UTC)
    nodes = {
        workflow: {
            number: node if node.started_at else node._replace(started_at=at, state="SKIPPED")
            for number, node in some.items()
        }
        for workflow, some in result.flows.tables.nodes.items()
    }
    return with_tables(result, nodes=nodes)


def start_before_the_parents(result: Result) -> Result:
    at = result.flows.healed_at - timedelta(days=1)
    nodes = {
        workflow: {
            number: node._replace(started_at=at if node.started_at else None)
            for number, node in some.items()
        }
        for workflow, some in result.flows.tables.nodes.items()
    }
    return with_tables(result, nodes=nodes)


def with_tables(result: Result, **changed: Any) -> Result:
    tables = result.flows.tables._replace(**changed)
    return replace(result, flows=replace(result.flows, tables=tables))


SPOILERS: dict[str, Callable[[Result], Result]] = {
    spoil.__name__: spoil
    for spoil in (
        lose_a_task,
        lose_an_attempt,
        repeat_an_attempt,
        start_early,
        act_without_a_lease,
        store_a_part_of_a_batch,
        lose_a_workflow,
        run_what_was_not_released,
        start_before_the_parents,
    )
}
