"""Every pair of transactions that touch one task, enumerated: none is left out by forgetting.

What each is answered in words stands in the other files; here only that no order of their
statements gives what no serial order gives.
"""

import re
from itertools import combinations_with_replacement
from pathlib import Path

import pytest

from duly.domain.states import Outcome
from duly.store import statements
from tests.interleaving.calls import (
    SceneCall,
    add_node,
    beat,
    cancel,
    cancel_map,
    complete_and_add,
    complete_inside,
    complete_sibling,
    expire,
    go_on,
    hand_over,
    hand_to_receiver,
    hasten,
    lease_by,
    pause,
    postpone,
    purge,
    purge_letter,
    reap,
    replay,
    settle_as,
    signal,
    stop,
    stop_inside,
    take,
    unpause,
)
from tests.interleaving.orders import Race
from tests.interleaving.pairs import Pair, Setting, assert_serial
from tests.interleaving.scenes import Stage

WRITES = re.compile(r"(?:UPDATE|DELETE FROM|INSERT INTO) duly\.timers\b")

# For each statement that writes timers, the calls below that run it.
RACED = {
    "lease_tasks": {"lease"},
    "lease_tickets": {"take"},
    "extend_leases": {"heartbeat"},
    "accept_async": {"hand over"},
    "finish_completed": {"complete"},
    "finish_terminal": {"reject", "reap"},
    "retry_tasks": {"release", "reap"},
    "rearm_leases": {"reap"},
    "finish_unstarted": {"expire"},
    "finish_cancelled": {"cancel"},
    "reschedule_tasks": {"postpone", "run now"},
    "replay_dead_letters": {"replay"},
    "finish_completed_with_callbacks": {"complete told"},
    "finish_completed_nodes": {"complete node", "complete other parent"},
    "finish_terminal_nodes": {"reject node", "reap node"},
    "retry_nodes": {"release node", "reap node"},
    "finish_cancelled_nodes": {"cancel node", "stop workflow"},
    "finish_node": {"go on", "signal"},
    "finish_failed_node": {"time out"},
    "release_node": {"go on"},
    "begin_node": {"go on"},
    "open_map": {"expand", "hand over items"},
    "make_items": {"expand"},
    "close_map": {"expand"},
    "know_total": {"expand"},
    "note_failure": {"expand"},
    "make_compensations": {"undo"},
    "begin_inner": {"begin inside"},
    "hold_timers": {"pause workflow"},
    "release_timers": {"unpause workflow"},
}
# These only make tasks that nobody knows yet: test_submits.py, and a benchmark's own tenant.
MAKES_NEW = {
    *("insert_tasks", "insert_tasks_with_callbacks", "insert_nodes", "fill_waiting"),
    *("insert_keyed", "insert_keyed_with_callbacks"),
    *("arm_resumed", "pace_due", "make_compensations"),
}

# A reaper leaves what moved under its hands, and a taker what is in another's hand, to a next time.
PASSING = {
    *("reap", "reap node", "take", "go on", "time out", "expand", "undo", "begin inside"),
    "hear of the end",
}
UNHELD: dict[str, SceneCall] = {
    "lease": lease_by("second"),
    "take": take,
    "expire": expire,
    "cancel": cancel,
    "postpone": postpone,
    "run now": hasten,
    "erase": purge,
}
HELD: dict[str, SceneCall] = {
    "reap": reap,
    "heartbeat": beat,
    "complete": settle_as(Outcome.COMPLETED),
    "reject": settle_as(Outcome.REJECTED, "boom"),
    "release": settle_as(Outcome.RELEASED),
    "hand over": hand_to_receiver,
    "cancel": cancel,
    "postpone": postpone,
    "run now": hasten,
    "erase": purge,
}
ENDED: dict[str, SceneCall] = {
    "replay": replay,
    "purge letter": purge_letter,
    "erase": purge,
    "cancel": cancel,
    "complete": settle_as(Outcome.COMPLETED),
}
# Of a task with a callback: what ends it makes the end known, in the same commit.
TOLD: dict[str, SceneCall] = {
    "reap": reap,
    "complete told": settle_as(Outcome.COMPLETED),
    "reject": settle_as(Outcome.REJECTED, "boom"),
    "release": settle_as(Outcome.RELEASED),
    "cancel": cancel,
}
# One of two parents of a node: what ends it counts for the child, under the lock of the workflow.
NODE: dict[str, SceneCall] = {
    "reap node": reap,
    "complete node": settle_as(Outcome.COMPLETED),
    "reject node": settle_as(Outcome.REJECTED, "boom"),
    "release node": settle_as(Outcome.RELEASED),
    "cancel node": cancel,
    "stop workflow": stop,
    "complete other parent": complete_sibling,
    "pause workflow": pause,
    "add a node": add_node,
    "complete node and add": complete_and_add,
}
FREE_NODE: dict[str, SceneCall] = {
    "lease": lease_by("second"),
    "cancel node": cancel,
    "stop workflow": stop,
    "complete other parent": complete_sibling,
    "pause workflow": pause,
    "add a node": add_node,
}
# The same in a paused workflow.
HELD_NODE: dict[str, SceneCall] = {
    "unpause workflow": unpause,
    "run now": hasten,
    "cancel node": cancel,
    "stop workflow": stop,
    "complete other parent": complete_sibling,
    "add a node": add_node,
}
# A node that waits for its step, or in its wait.
STEP: dict[str, SceneCall] = {
    "go on": go_on,
    "cancel node": cancel,
    "stop workflow": stop,
    "complete other parent": complete_sibling,
    "pause workflow": pause,
}
# A node that waits for a signal, and whose timeout has come.
WAIT: dict[str, SceneCall] = {
    "signal": signal,
    "time out": go_on,
    "cancel node": cancel,
    "stop workflow": stop,
    "complete other parent": complete_sibling,
    "pause workflow": pause,
}
# An item of a map that has to make more.
ITEM: dict[str, SceneCall] = {
    "expand": go_on,
    "complete item": settle_as(Outcome.COMPLETED),
    "reject item": settle_as(Outcome.REJECTED, "boom"),
    "release item": settle_as(Outcome.RELEASED),
    "reap node": reap,
    "cancel item": cancel,
    "cancel map": cancel_map,
    "stop workflow": stop,
    "pause workflow": pause,
}
# A map before its first item.
UNOPENED: dict[str, SceneCall] = {
    "expand": go_on,
    "cancel node": cancel,
    "stop workflow": stop,
    "pause workflow": pause,
}
# A node that starts a workflow; one whose workflow runs; and one whose workflow has ended.
UNBEGUN: dict[str, SceneCall] = {
    "begin inside": go_on,
    "cancel node": cancel,
    "stop workflow": stop,
    "pause workflow": pause,
}
# A node that hands over items to a map.
SOURCE: dict[str, SceneCall] = {
    "hand over items": hand_over,
    "expand": go_on,
    "complete node": settle_as(Outcome.COMPLETED),
    "reject node": settle_as(Outcome.REJECTED, "boom"),
    "reap node": reap,
    "cancel map": cancel_map,
    "stop workflow": stop,
    "pause workflow": pause,
}
# A workflow that is undone: before its first compensation, and while that runs.
UNDONE: dict[str, SceneCall] = {
    "undo": go_on,
    "stop workflow": stop,
    "pause workflow": pause,
    "add a node": add_node,
    "signal": signal,
}
UNDOING: dict[str, SceneCall] = {
    "reap node": reap,
    "complete node": settle_as(Outcome.COMPLETED),
    "reject node": settle_as(Outcome.REJECTED, "boom"),
    "release node": settle_as(Outcome.RELEASED),
    "cancel node": cancel,
    "stop workflow": stop,
    "pause workflow": pause,
    "add a node": add_node,
    "complete node and add": complete_and_add,
}
INSIDE: dict[str, SceneCall] = {
    "complete inside": complete_inside,
    "stop inside": stop_inside,
    "hear of the end": go_on,
    "cancel node": cancel,
    "stop workflow": stop,
    "complete other parent": complete_sibling,
    "pause workflow": pause,
}
INSIDE_ENDED = {name: INSIDE[name] for name in ("hear of the end", *UNBEGUN) if name in INSIDE}


def every_pair(where: str, setting: Setting, calls: dict[str, SceneCall]) -> list[Pair]:
    return [
        Pair(
            f"{where}: {left} and {right}",
            setting,
            calls[left],
            calls[right],
            set(),
            left_may_pass=left in PASSING,
            right_may_pass=right in PASSING,
        )
        for left, right in combinations_with_replacement(calls, 2)
    ]


PAIRS = [
    *every_pair("waiting", Stage.published, UNHELD),
    *every_pair("running", Stage.expired, HELD),
    # Here a reaper finds a lease that lives, and looks again later.
    *every_pair("prolonged", Stage.prolonged, HELD)[: len(HELD)],
    *every_pair("ended", Stage.dead, ENDED),
    *every_pair("told", Stage.told, TOLD),
    *every_pair("node", Stage.node, NODE),
    *every_pair("free node", Stage.free_node, FREE_NODE),
    *every_pair("held node", Stage.held_node, HELD_NODE)[: len(HELD_NODE)],
    *every_pair("undecided node", Stage.undecided_node, STEP)[: len(STEP)],
    *every_pair("timed node", Stage.timed_node, STEP)[: len(STEP)],
    *every_pair("item", Stage.open_map, ITEM)[: len(ITEM)],
    *every_pair("unopened map", Stage.unopened_map, UNOPENED)[: len(UNOPENED)],
    *every_pair("source", Stage.paged_map, SOURCE)[: 2 * len(SOURCE) - 1],
    *every_pair("approved node", Stage.approved_node, WAIT)[: 2 * len(WAIT) - 1],
    *every_pair("undone workflow", Stage.undone_workflow, UNDONE)[: 2 * len(UNDONE) - 1],
    *every_pair("undoing node", Stage.undoing_node, UNDOING),
    *every_pair("unbegun inside", Stage.unbegun_inner, UNBEGUN)[: len(UNBEGUN)],
    *every_pair("inside", Stage.begun_inner, INSIDE)[: 3 * len(INSIDE) - 3],
    *every_pair("ended inside", Stage.ended_inner, INSIDE)[
        2 * len(INSIDE) - 1 : 3 * len(INSIDE) - 3
    ],
]


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
async def test_two_transactions_are_as_one_after_the_other(
    pair: Pair, stage: Stage, race: Race
) -> None:
    """An order of statements that nobody thought of, and that only production plays."""
    await assert_serial(pair, stage, race)


def test_every_statement_that_writes_timers_is_raced() -> None:
    """A new transaction that nobody ever raced against the others."""
    written = {
        name
        for path in Path(statements.__file__).parent.glob("*.sql")
        if path.stem != "schema"
        for name, text in statements.parse_statements(path.read_text("utf-8")).items()
        if WRITES.search(text)
    }
    assert written == RACED.keys() | MAKES_NEW
    known = set().union(
        *(UNHELD, HELD, ENDED, TOLD, NODE, HELD_NODE, STEP, WAIT, ITEM, SOURCE, UNDONE),
        *(UNBEGUN, INSIDE),
    )
    assert set().union(*RACED.values()) <= known
