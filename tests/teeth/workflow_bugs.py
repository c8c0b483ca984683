"""Deliberate bugs of workflows, for seeds of fleets with a starter of workflows to notice.

What only two transactions at once could show is for the search in `tests/model` and the raced pairs
of `tests/interleaving`: a seed runs one transaction at a time.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from duly.domain import map_plan, workflow_resume
from duly.domain.node_spec import MapSpec
from duly.domain.states import State
from duly.domain.workflow_resume import ResumePlan
from duly.store import (
    control,
    finish,
    insert,
    retry,
    workflow_appends,
    workflow_compensations,
    workflow_control,
    workflow_maps,
    workflow_pauses,
    workflow_signals,
    workflow_steps,
    workflow_timers,
    workflow_waits,
    workflows,
)
from duly.store.database import Session
from duly.store.finish import Released
from duly.store.workflow_callbacks import WorkflowCallbacks
from duly.store.workflow_maps import OpenMap
from duly.store.workflow_waits import OVER
from tests.teeth.planted import Both, Bug, Slip

ENDED_IDS = "(SELECT array_agg(ended.id) FROM ended)"
ENDED_STATES = "(SELECT array_agg(ended.state) FROM ended)"
ALL_COMPLETED = "array_fill('COMPLETED'::text, ARRAY[cardinality({})])"
NO_IDS = "NULL::uuid[]"
ADVANCE = workflow_maps.advance


async def nothing_follows() -> None:
    """After a commit."""


async def tell_nobody(
    _callbacks: WorkflowCallbacks, _session: Session, _ended: Any
) -> Callable[[], Awaitable[None]]:
    return nothing_follows


async def arm_nothing(*_: object, **__: object) -> None:
    """What is left of a cancel is forgotten."""


async def any_is_wanted(*_: object) -> bool:
    """Whatever the parents said."""
    return True


async def cancel_what_goes_on(
    session: Session, found: OpenMap, row: Any, released: Released
) -> None:
    """Items of a map that neither failed nor was cancelled."""
    await ADVANCE(session, found, row, released)
    await workflow_maps.cancel_items(session, found, released)


def tolerate_one_more(spec: MapSpec, total: int | None) -> int | None:
    most = map_plan.failed_max(spec, total)
    return None if most is None else most + 1


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
    Slip("an if is not asked", workflow_steps, "is_wanted", any_is_wanted),
    Slip("a timeout is as good as a signal", workflow_waits, "end_of", lambda _: OVER),
    Bug(
        "a signal is given and kept as well",
        workflow_signals.SQL,
        "store_signal",
        "duly.now(), $11,",
        "duly.now(), nullif($11::integer, $11::integer),",
        ("CASE WHEN $11::integer IS NOT NULL THEN duly.now() END", "NULL::timestamptz"),
    ),
    Bug(
        "a signal is not kept for a node that comes to wait",
        workflow_signals.SQL,
        "take_signal",
        "AND name = $3",
        "AND name = $3 AND false",
    ),
    Slip("a map minds no most of open items", map_plan, "open_max", lambda _: 1000),
    Slip("a map tolerates one more", workflow_maps, "failed_max", tolerate_one_more),
    Bug(
        "the made items of a map are not counted",
        workflow_maps.SQL,
        "make_items",
        "timers.parents_pending + $5",
        "timers.parents_pending + $5 * 0",
    ),
    Slip("the rest of a map is forgotten", workflow_maps, "arm_map", arm_nothing),
    Slip("a map that goes on cancels its items", workflow_maps, "advance", cancel_what_goes_on),
    Bug(
        "an added node hears of no parent that has ended",
        workflow_appends.SQL,
        "count_ended",
        "$1::uuid[],",
        "($1::uuid[])[:0],",
    ),
    Bug(
        "parents do not hear of a node that is added",
        workflow_appends.SQL,
        "append_nodes",
        "workflow_nodes.children || added.children::integer[]",
        "workflow_nodes.children",
    ),
    Slip("a pause holds nothing", workflow_pauses, "hold_nodes", arm_nothing),
    Slip("a step goes on in a pause", workflow_control, "PARKED", ()),
    Bug(
        "a parked step is not looked at again",
        workflow_pauses.SQL,
        "unpark",
        "SET due_at = duly.now(),",
        "SET due_at = workflow_timers.due_at,",
    ),
    Slip(
        "a resume reuses what failed", workflow_resume, "UNFINISHED", frozenset({State.CANCELLED})
    ),
    Slip("a resume tells nothing of what it reuses", ResumePlan, "told", lambda *_: []),
    Bug(
        "what was undone first is undone last",
        workflow_compensations.SQL,
        "list_ended",
        "ORDER BY last.ended_at DESC",
        "ORDER BY last.ended_at",
    ),
    Bug(
        "compensations do not wait for one another",
        workflow_compensations.SQL,
        "make_compensations",
        "WHEN $5 AND duly.node_number(id) > $3 THEN",
        "WHEN $5 AND $3 IS NULL THEN",
    ),
]
