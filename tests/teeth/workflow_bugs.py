"""Deliberate bugs of workflows, for seeds of fleets with a starter of workflows to notice.

What only two transactions at once could show is for the search in `tests/model` and the raced pairs
of `tests/interleaving`: a seed runs one transaction at a time.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from duly.store import control, finish, insert, retry, workflow_control, workflow_timers, workflows
from duly.store.database import Session
from duly.store.workflow_callbacks import WorkflowCallbacks
from tests.teeth.planted import Both, Bug, Slip

ENDED_IDS = "(SELECT array_agg(ended.id) FROM ended)"
ENDED_STATES = "(SELECT array_agg(ended.state) FROM ended)"
ALL_COMPLETED = "array_fill('COMPLETED'::text, ARRAY[cardinality({})])"
NO_IDS = "NULL::uuid[]"


async def nothing_follows() -> None:
    """After a commit."""


async def tell_nobody(
    _callbacks: WorkflowCallbacks, _session: Session, _ended: Any
) -> Callable[[], Awaitable[None]]:
    return nothing_follows


async def arm_nothing(*_: object, **__: object) -> None:
    """What is left of a cancel is forgotten."""


WORKFLOW_BUGS: list[Bug | Slip | Both] = [
    Bug(
        "children count what was sent",
        finish.SQL,
        "finish_completed_nodes",
        ENDED_IDS,
        "$1",
        (ENDED_STATES, ALL_COMPLETED.format("$1")),
    ),
    Bug(
        "a completed node releases no child",
        finish.SQL,
        "finish_completed_nodes",
        ENDED_IDS,
        NO_IDS,
    ),
    Bug("a failed node counts for nothing", finish.SQL, "finish_terminal_nodes", ENDED_IDS, NO_IDS),
    Bug(
        "a failed node counts as completed",
        finish.SQL,
        "finish_terminal_nodes",
        ENDED_STATES,
        ALL_COMPLETED.format(ENDED_IDS),
    ),
    Bug(
        "a cancelled node counts for nothing",
        finish.SQL,
        "finish_cancelled_nodes",
        ENDED_IDS,
        NO_IDS,
    ),
    Bug(
        "a retry of a node keeps the fence",
        retry.SQL,
        "retry_nodes",
        "fence = timers.fence + 1,",
        "fence = timers.fence,",
    ),
    Bug(
        "a node with parents waits for none",
        insert.SQL,
        "insert_nodes",
        "nullif(cardinality(parents), 0)",
        "NULL::integer",
    ),
    Bug(
        "a node that waits is moved",
        control.SQL,
        "reschedule_tasks",
        "AND timers.due_at IS NOT NULL",
        "",
    ),
    Bug(
        "a key begins a second workflow",
        workflows.SQL,
        "start_keyed",
        "sent.id NOT IN (SELECT lost.id FROM lost)",
        "true",
        ("duly.workflow_of(sent.id) NOT IN (SELECT lost.id FROM lost)", "true"),
        ("SELECT lost.id FROM lost", "SELECT lost.id FROM lost WHERE false"),
    ),
    Bug(
        "a cancelled workflow goes on",
        workflow_control.SQL,
        "stop",
        "coalesce(workflows.stop_reason, $4)",
        "CASE WHEN $4::text IS NULL THEN $4 ELSE workflows.stop_reason END",
    ),
    Bug(
        "a deadline is never looked at",
        workflow_timers.SQL,
        "find_due_timers",
        "AND shard = ANY",
        "AND kind <> 'deadline' AND shard = ANY",
    ),
    Bug(
        "a cascade of skips is not gone on with",
        workflow_control.SQL,
        "cascade",
        "duly.release_children($1::uuid[],",
        "duly.release_children(($1::uuid[])[:0],",
    ),
    Slip("the rest of a cancel is forgotten", workflow_control, "arm", arm_nothing),
    Slip("an end is told to nobody", WorkflowCallbacks, "store", tell_nobody),
]
