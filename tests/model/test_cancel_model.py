"""One task, one holder at a time, a client who cancels, every order of events: the cancel race.

A settlement is two moments: the decision between another try and the end, made on what was read,
and the statement. A cancel looks at the row only in its statement; its answer is heard or lost. The
rules are those of `store/control.sql` and `store/settle.sql`, written again, small.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from tests.model.search import Found, search

# Bounds of the search: leases of the task, and cancels.
LEASES_MAX = 3
CANCELS_MAX = 2

LATER_ATTEMPT = "a lease after the cancel was answered CANCELLED"
LATER_RETRY = "another try after the cancel was requested"
LOST = "a task is neither live nor ended"
TAKEN_AWAY = "a running task was taken from its holder"
WRONG_END = "a task that was to be cancelled failed, or a completed one is called cancelled"


class Row(NamedTuple):
    is_held: bool = False
    cancel_requested: bool = False


class Cancel(NamedTuple):
    """What the client knows: nothing yet, what it saw (only where it looks first), its answer."""

    saw_held: bool | None = None
    answer: str | None = None


class State(NamedTuple):
    row: Row | None = Row()
    end: str | None = None
    leases: int = 0
    # The settlement that the holder has decided upon.
    decided: str | None = None
    cancel: Cancel | None = None
    cancels: int = 0
    # The strongest thing that any client was told, or that took effect without an answer.
    promised: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Rules:
    """The protocol; a variant breaks one of them."""

    ends_only_unheld: bool = True
    requests_only_held: bool = True
    cancel_looks_in_statement: bool = True
    retry_minds_request: bool = True
    final_minds_request: bool = True
    completed_stays: bool = True
    lost_lease_minds_request: bool = True
    end_removes_timer: bool = True
    nothing_done_is_an_answer: bool = True


SOUND = Rules()
DECISIONS = ("completed", "failed", "again")


def lease(state: State) -> State:
    problem = None
    if state.promised == "cancelled":
        problem = LATER_ATTEMPT
    elif state.promised == "requested":
        problem = LATER_RETRY
    assert state.row is not None
    row = state.row._replace(is_held=True)
    return state._replace(row=row, leases=state.leases + 1, decided=None, problem=problem)


def finish(state: State, end: str, rules: Rules) -> State:
    """The timer goes, and the last attempt says how."""
    is_wrong = end == "FAILED" and state.row is not None and state.row.cancel_requested
    row = None if rules.end_removes_timer else state.row and state.row._replace(is_held=False)
    return state._replace(row=row, end=end, decided=None, problem=WRONG_END if is_wrong else None)


def settle(state: State, row: Row, decision: str, rules: Rules) -> State:
    """A retry that finds a requested cancel changes nothing, and is then settled as cancelled."""
    if not row.is_held:
        return state._replace(decided=None)
    if decision == "completed":
        if row.cancel_requested and not rules.completed_stays:
            ended = finish(state, "CANCELLED", rules)
            return ended._replace(problem=ended.problem or WRONG_END)
        return finish(state, "COMPLETED", rules)
    if decision == "failed":
        is_cancelled = row.cancel_requested and rules.final_minds_request
        return finish(state, "CANCELLED" if is_cancelled else "FAILED", rules)
    minds = rules.lost_lease_minds_request if decision == "lost" else rules.retry_minds_request
    if row.cancel_requested and minds:
        return finish(state, "CANCELLED", rules)
    return state._replace(row=Row(), decided=None)


def cancel(state: State, rules: Rules) -> State:
    """Unheld: ended at once. Held: only requested. Gone: told how it ended."""
    row, asked = state.row, state.cancel
    assert asked is not None
    if row is None:
        return state._replace(cancel=Cancel(answer="too late"))
    held = row.is_held if rules.cancel_looks_in_statement else bool(asked.saw_held)
    cancelled = Cancel(answer="cancelled")
    if not rules.ends_only_unheld or (not held and not row.is_held):
        ended = finish(state, "CANCELLED", rules)
        problem = TAKEN_AWAY if row.is_held else ended.problem
        return ended._replace(cancel=cancelled, promised="cancelled", problem=problem)
    if not held and not rules.nothing_done_is_an_answer:
        return state._replace(cancel=cancelled, promised="cancelled")
    if row.is_held or not rules.requests_only_held:
        requested = state._replace(row=row._replace(cancel_requested=True))
        promised = state.promised or "requested"
        return requested._replace(cancel=Cancel(answer="requested"), promised=promised)
    # Neither part matched: asked again.
    return state._replace(cancel=Cancel())


def cancelling(state: State, rules: Rules) -> Iterator[State]:
    if state.cancel is None:
        if state.cancels < CANCELS_MAX:
            yield state._replace(cancel=Cancel(), cancels=state.cancels + 1)
        return
    if state.cancel.answer is not None:
        # Heard or lost, the client is free to cancel again.
        yield state._replace(cancel=None)
        return
    if not rules.cancel_looks_in_statement and state.cancel.saw_held is None:
        held = state.row is not None and state.row.is_held
        yield state._replace(cancel=Cancel(saw_held=held))
        return
    yield cancel(state, rules)


def steps(state: State, rules: Rules) -> Iterator[State]:
    row = state.row
    if row is not None and not row.is_held and state.leases < LEASES_MAX:
        yield lease(state)
    if row is not None and row.is_held and state.decided is None:
        for decision in DECISIONS:
            yield state._replace(decided=decision)
    if row is not None and state.decided is not None:
        yield settle(state, row, state.decided, rules)
    if row is not None and row.is_held:
        # The holder died, and the reaper finds out.
        yield settle(state, row, "lost", rules)
    yield from cancelling(state, rules)


def violation(state: State) -> str | None:
    if state.problem is not None:
        return state.problem
    if (state.row is None) == (state.end is None):
        return LOST
    return None


def explore(rules: Rules, until: str | None = None) -> Found[State]:
    return search(State(), lambda state: steps(state, rules), violation, until)


def test_no_order_of_events_breaks_the_answer_to_a_cancel() -> None:
    """A client that was told CANCELLED pays for an execution that comes later."""
    found = explore(SOUND)
    assert found.violations == set()
    ends = {state.end for state in found.states}
    assert ends == {None, "COMPLETED", "FAILED", "CANCELLED"}
    assert {state.promised for state in found.states} == {None, "requested", "cancelled"}
    assert any(s.promised == "requested" and s.end == "COMPLETED" for s in found.states)


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        (Rules(ends_only_unheld=False), TAKEN_AWAY),
        (Rules(requests_only_held=False, cancel_looks_in_statement=False), LATER_RETRY),
        (Rules(retry_minds_request=False), LATER_RETRY),
        (Rules(lost_lease_minds_request=False), LATER_RETRY),
        (Rules(final_minds_request=False), WRONG_END),
        (Rules(completed_stays=False), WRONG_END),
        (Rules(end_removes_timer=False), LOST),
        (
            Rules(cancel_looks_in_statement=False, nothing_done_is_an_answer=False),
            LATER_ATTEMPT,
        ),
    ],
    ids=[
        "cancel takes a running task away",
        "request that looks first and marks what nobody holds",
        "retry after a request",
        "lost lease that is tried again after a request",
        "failure after a request",
        "completed and called cancelled",
        "end that leaves a timer",
        "cancel that looks first and does not see that it changed nothing",
    ],
)
def test_every_broken_rule_is_caught(rules: Rules, problem: str) -> None:
    """A search that finds nothing in a broken protocol has looked at nothing."""
    assert problem in explore(rules, until=problem).violations
