"""One task, two workers and a reaper, every order of events: leases and fences.

A statement is sent and takes effect at two moments, its answer may be lost, and one that its sender
gave up may still take effect later. Any old ticket may turn up. The reaper looks first and ends a
lease later. The rules are those of `store/lease.sql`, `store/settle.sql` and `store/reap.sql`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from tests.model.search import Found, search

WORKERS = (0, 1)
NOBODY = -1
LEASE = 1
# Bounds of the search: fences of one task, and statements or answers that get lost.
FENCE_MAX = 4
FAULTS_MAX = 1

TWO_LEASES = "two workers hold living leases"
OLD_FENCE = "a fence was granted twice"
OLD_TICKET = "a ticket of an earlier time became a lease"
STALE = "a call of somebody who holds no such lease changed something"
REAPED_ALIVE = "a lease that still lived was reaped"
UNRECORDED = "a lease ended without a record"
EARLY = "a task was leased before its instant"


class Row(NamedTuple):
    """The timer. Times are counted from now, so that the same situation is one state."""

    fence: int = 0
    holder: int = NOBODY
    left: int = 0
    due: int = 1


class Call(NamedTuple):
    """A statement on its way, with the fence of a ticket or a lease."""

    verb: str
    fence: int


class State(NamedTuple):
    # None once the task has ended.
    row: Row | None = Row()
    calls: tuple[Call | None, ...] = (None,) * len(WORKERS)
    beliefs: tuple[int | None, ...] = (None,) * len(WORKERS)
    late: tuple[int, Call] | None = None
    faults: int = 0
    # What the reaper saw expired: fence and holder.
    seen: tuple[int, int] | None = None
    # What was truly promised, by the database's clock: worker, fence, time left.
    promised: frozenset[tuple[int, int, int]] = frozenset()
    granted: tuple[int, ...] = ()
    recorded: tuple[int, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Rules:
    """The protocol; a variant breaks one of them."""

    lease_names_fence: bool = True
    lease_wants_nobody: bool = True
    lease_wants_due: bool = True
    lease_raises_fence: bool = True
    end_raises_fence: bool = True
    beat_names_fence: bool = True
    beat_names_holder: bool = True
    settle_names_fence: bool = True
    settle_names_holder: bool = True
    reap_looks_again: bool = True
    reap_names_fence: bool = True
    end_is_recorded: bool = True


SOUND = Rules()


def lease(state: State, row: Row, worker: int, call: Call, rules: Rules) -> State:
    if (
        (row.fence != call.fence and rules.lease_names_fence)
        or (row.holder != NOBODY and rules.lease_wants_nobody)
        or (row.due > 0 and rules.lease_wants_due)
    ):
        return state
    fence = row.fence + rules.lease_raises_fence
    problem = EARLY if row.due > 0 else OLD_TICKET if row.fence != call.fence else None
    problem = OLD_FENCE if fence in state.granted else problem
    return state._replace(
        row=Row(fence, worker, LEASE, 0),
        promised=state.promised | {(worker, fence, LEASE)},
        granted=tuple(sorted({*state.granted, fence})),
        problem=problem,
    )


def beat(state: State, row: Row, worker: int, call: Call, rules: Rules) -> State:
    is_fence = row.fence == call.fence or not rules.beat_names_fence
    is_holder = row.holder == worker or not rules.beat_names_holder
    if row.holder == NOBODY or not is_fence or not is_holder:
        return state
    is_ours = (row.fence, row.holder) == (call.fence, worker)
    kept = {promise for promise in state.promised if promise[:2] != (worker, row.fence)}
    return state._replace(
        row=row._replace(left=LEASE),
        promised=frozenset(kept | {(worker, row.fence, LEASE)}),
        problem=None if is_ours else STALE,
    )


def end(state: State, row: Row, rules: Rules, *, goes_on: bool) -> State:
    """The lease is over, whoever ended it: recorded, and the fence rises if the task goes on."""
    fence = row.fence + rules.end_raises_fence
    record = (row.fence,) if rules.end_is_recorded else ()
    return state._replace(
        row=Row(fence, NOBODY, 0, 0) if goes_on else None,
        recorded=tuple(sorted(state.recorded + record)),
        promised=frozenset(p for p in state.promised if p[:2] != (row.holder, row.fence)),
    )


def settle(state: State, row: Row, worker: int, call: Call, rules: Rules) -> State:
    is_fence = row.fence == call.fence or not rules.settle_names_fence
    is_holder = row.holder == worker or not rules.settle_names_holder
    if row.holder == NOBODY or not is_fence or not is_holder:
        return state
    is_ours = (row.fence, row.holder) == (call.fence, worker)
    told = state._replace(problem=None if is_ours else STALE)
    return end(told, row, rules, goes_on=call.verb == "retry")


STATEMENTS = {"lease": lease, "beat": beat, "retry": settle, "complete": settle}


def run(state: State, worker: int, call: Call, rules: Rules) -> State:
    if state.row is None:
        return state
    return STATEMENTS[call.verb](state, state.row, worker, call, rules)


def reap(state: State, rules: Rules) -> Iterator[State]:
    row = state.row
    if state.seen is None:
        if row is not None and row.holder != NOBODY and row.left <= 0:
            yield state._replace(seen=(row.fence, row.holder))
        return
    done = state._replace(seen=None)
    is_it = row is not None and (
        (row.fence, row.holder) == state.seen
        or (not rules.reap_names_fence and row.holder != NOBODY)
    )
    if row is None or not is_it or (rules.reap_looks_again and row.left > 0):
        yield done
        return
    told = done._replace(problem=REAPED_ALIVE if row.left > 0 else None)
    for goes_on in (True, False):
        yield end(told, row, rules, goes_on=goes_on)


def with_worker(state: State, worker: int, belief: int | None, call: Call | None) -> State:
    beliefs, calls = list(state.beliefs), list(state.calls)
    beliefs[worker], calls[worker] = belief, call
    return state._replace(beliefs=tuple(beliefs), calls=tuple(calls))


def sendings(state: State, worker: int) -> Iterator[State]:
    """With a ticket: lease. With a lease, or pretending to have one: heartbeat and settle."""
    belief, row = state.beliefs[worker], state.row
    if belief is not None:
        calls = [Call(verb, belief) for verb in ("beat", "retry", "complete")]
    elif row is not None:
        calls = [Call("lease", fence) for fence in range(row.fence + 1)]
        if row.holder not in (NOBODY, worker):
            calls += [Call(verb, row.fence) for verb in ("beat", "complete")]
    else:
        calls = []
    yield from (with_worker(state, worker, belief, call) for call in calls)


def moves(state: State, worker: int, call: Call, rules: Rules) -> Iterator[State]:
    """A statement on its way runs and is answered or not, or is given up and may run later."""
    belief = state.beliefs[worker]
    ran = run(state, worker, call, rules)
    if call.verb == "lease":
        after = ran.row.fence if ran.row is not None and ran.row != state.row else None
    else:
        after = belief if call.verb == "beat" else None
    yield with_worker(ran, worker, after, None)
    if state.faults < FAULTS_MAX:
        yield with_worker(ran._replace(faults=state.faults + 1), worker, belief, None)
        given_up = state._replace(late=(worker, call), faults=state.faults + 1)
        yield with_worker(given_up, worker, belief, None)


def later(state: State) -> State:
    """One unit of time passes."""
    row = state.row and state.row._replace(
        left=max(state.row.left - 1, 0), due=max(state.row.due - 1, 0)
    )
    promised = frozenset((who, fence, left - 1) for who, fence, left in state.promised if left > 1)
    return state._replace(row=row, promised=promised)


def steps(state: State, rules: Rules) -> Iterator[State]:
    yield later(state)
    for worker in WORKERS:
        call = state.calls[worker]
        if call is None:
            yield from sendings(state, worker)
        else:
            yield from moves(state, worker, call, rules)
    yield from reap(state, rules)
    if state.late is not None:
        yield run(state, *state.late, rules)._replace(late=None)


def violation(state: State) -> str | None:
    if state.problem is not None:
        return state.problem
    if len(state.promised) > 1:
        return TWO_LEASES
    held = state.row.fence if state.row is not None and state.row.holder != NOBODY else None
    if any(fence not in state.recorded and fence != held for fence in state.granted):
        return UNRECORDED
    return None


def explore(rules: Rules, until: str | None = None) -> Found[State]:
    def following(state: State) -> Iterator[State]:
        local_tickets = steps(state, rules)
        return (
            other for other in local_tickets if other.row is None or other.row.fence <= FENCE_MAX
        )

    return search(State(), following, violation, until)


def test_no_order_of_events_gives_a_task_two_holders() -> None:
    """Two holders run one task at once, and a late one undoes what the next one did."""
    found = explore(SOUND)
    assert found.violations == set()
    # The search went somewhere: tasks ended, and were leased more than once.
    assert any(state.row is None for state in found.states)
    assert any(len(state.granted) > 1 for state in found.states)
    assert any(state.seen is not None and state.late is not None for state in found.states)


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        (Rules(lease_names_fence=False), OLD_TICKET),
        (Rules(lease_wants_nobody=False), TWO_LEASES),
        (Rules(lease_wants_due=False), EARLY),
        (Rules(lease_raises_fence=False, end_raises_fence=False), OLD_FENCE),
        (Rules(beat_names_fence=False), STALE),
        (Rules(beat_names_holder=False), STALE),
        (Rules(settle_names_fence=False), STALE),
        (Rules(settle_names_holder=False), STALE),
        (Rules(reap_looks_again=False), REAPED_ALIVE),
        (Rules(reap_names_fence=False, reap_looks_again=False), REAPED_ALIVE),
        (Rules(end_is_recorded=False), UNRECORDED),
    ],
    ids=lambda value: "" if isinstance(value, str) else broken(value),
)
def test_every_broken_rule_is_caught(rules: Rules, problem: str) -> None:
    """A search that finds nothing in a broken protocol has looked at nothing."""
    assert problem in explore(rules, until=problem).violations


def broken(rules: Rules) -> str:
    return " and ".join(f"not {name}" for name, holds in vars(rules).items() if not holds)
