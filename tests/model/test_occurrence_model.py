"""One schedule, two schedulers that fire it, every order of events and every crash.

Firing is one transaction: write the verdict for the nominal time into the ledger, make the task
only if that row is new, move the schedule's timer from where it was read. A scheduler acts on what
it read some time ago, and may die before each step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from tests.model.search import Found, search

SCHEDULERS = (0, 1)
# Bounds of the search: nominal times, and changes by an operator (an edit, a pause).
TIMES = 3
EDITS_MAX = 1

TWO_TASKS = "one nominal time made two tasks"
TWO_VERDICTS = "one nominal time has two verdicts"
SKIPPED = "a nominal time was passed without a verdict"
NO_TASK = "a verdict says fired, and there is no task"
PAUSED = "a task was made after the pause was answered"


class Schedule(NamedTuple):
    """The timer: the next nominal time, the fence that rises whenever it moves, and the pause."""

    at: int = 0
    fence: int = 0
    is_paused: bool = False


class Firing(NamedTuple):
    """What a scheduler read, how far it is, and what its open transaction wrote."""

    read: Schedule
    stage: str = "ledger"
    # The verdict's key as this scheduler reckons it, once it is written.
    verdict: tuple[int, int] | None = None
    is_new: bool = False


class State(NamedTuple):
    schedule: Schedule = Schedule()
    # Nominal time and, in a broken variant, who wrote it.
    ledger: tuple[tuple[int, int], ...] = ()
    # Nominal times of the tasks that were made.
    tasks: tuple[int, ...] = ()
    firings: tuple[Firing | None, ...] = (None,) * len(SCHEDULERS)
    # Who holds the ledger row of a nominal time in an open transaction.
    open_by: int | None = None
    edits: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class Rules:
    """The protocol; a variant breaks one of them."""

    ledger_is_unique: bool = True
    ledger_gates_task: bool = True
    key_is_nominal: bool = True
    one_transaction: bool = True
    timer_is_compared: bool = True
    timer_moves_last: bool = True
    edit_raises_fence: bool = True


SOUND = Rules()
DIED = None


def with_firing(state: State, who: int, firing: Firing | None) -> State:
    firings = list(state.firings)
    firings[who] = firing
    return state._replace(firings=tuple(firings))


def write_verdict(state: State, who: int, firing: Firing, rules: Rules) -> Iterator[State]:
    """Waits for an open transaction on the same row; a row that exists is no verdict of ours."""
    key = (firing.read.at, 0 if rules.key_is_nominal else who)
    if state.open_by is not None and rules.ledger_is_unique and rules.key_is_nominal:
        return
    is_new = key not in state.ledger or not rules.ledger_is_unique
    written = firing._replace(stage="task", verdict=key, is_new=is_new)
    after = with_firing(state, who, written)
    if rules.one_transaction:
        yield after._replace(open_by=who) if is_new and state.open_by is None else after
    else:
        ledger = (*after.ledger, key) if is_new else after.ledger
        yield after._replace(ledger=tuple(sorted(ledger)))


def make_task(state: State, who: int, firing: Firing, rules: Rules) -> State:
    """Where each step is its own commit, the task is there at once."""
    after = with_firing(state, who, firing._replace(stage="timer"))
    if rules.one_transaction or not (firing.is_new or not rules.ledger_gates_task):
        return after
    return after._replace(tasks=tuple(sorted((*after.tasks, firing.read.at))))


def move_timer(schedule: Schedule, firing: Firing, rules: Rules) -> Schedule | None:
    """None if the timer is no longer where it was read."""
    if rules.timer_is_compared and schedule.fence != firing.read.fence:
        return None
    return schedule._replace(at=firing.read.at + 1, fence=schedule.fence + 1)


def commit(state: State, who: int, firing: Firing, rules: Rules) -> State:
    """All of it or nothing: a timer that moved meanwhile undoes verdict and task as well."""
    closed = state._replace(open_by=None) if state.open_by == who else state
    moved = move_timer(state.schedule, firing, rules)
    done = with_firing(closed, who, None)
    if not rules.one_transaction:
        return done._replace(schedule=moved or state.schedule)
    if moved is None:
        return done
    ledger, tasks = done.ledger, done.tasks
    if firing.is_new and firing.verdict is not None:
        ledger = tuple(sorted((*ledger, firing.verdict)))
    if firing.is_new or not rules.ledger_gates_task:
        tasks = tuple(sorted((*tasks, firing.read.at)))
        if state.schedule.is_paused:
            done = done._replace(problem=PAUSED)
    return done._replace(schedule=moved, ledger=ledger, tasks=tasks)


def firing_steps(state: State, who: int, rules: Rules) -> Iterator[State]:
    firing = state.firings[who]
    if firing is None:
        if state.schedule.at < TIMES and not state.schedule.is_paused:
            yield start(state, who, rules)
        return
    died = state._replace(open_by=None) if state.open_by == who else state
    yield with_firing(died, who, DIED)
    if firing.stage == "ledger":
        yield from write_verdict(state, who, firing, rules)
    elif firing.stage == "task":
        yield make_task(state, who, firing, rules)
    else:
        yield commit(state, who, firing, rules)


def start(state: State, who: int, rules: Rules) -> State:
    """Reads the schedule; a broken one moves the timer first, in a commit of its own."""
    begun = with_firing(state, who, Firing(state.schedule))
    if rules.timer_moves_last:
        return begun
    moved = move_timer(state.schedule, Firing(state.schedule), rules)
    assert moved is not None
    read = state.schedule._replace(fence=moved.fence)
    return with_firing(state._replace(schedule=moved), who, Firing(read))


def operate(state: State, rules: Rules) -> Iterator[State]:
    """An operator pauses; the answer means that nothing is made from now on."""
    if state.edits < EDITS_MAX and not state.schedule.is_paused:
        fence = state.schedule.fence + rules.edit_raises_fence
        paused = state.schedule._replace(is_paused=True, fence=fence)
        yield state._replace(schedule=paused, edits=state.edits + 1)


def steps(state: State, rules: Rules) -> Iterator[State]:
    for who in SCHEDULERS:
        yield from firing_steps(state, who, rules)
    yield from operate(state, rules)


def violation(state: State) -> str | None:
    if state.problem is not None:
        return state.problem
    times = [at for at, _ in state.ledger]
    if len(set(state.tasks)) < len(state.tasks):
        return TWO_TASKS
    if len(set(times)) < len(times):
        return TWO_VERDICTS
    if any(at not in times for at in range(state.schedule.at)):
        return SKIPPED
    is_under_way = any(firing is not None for firing in state.firings)
    if not is_under_way and any(at not in state.tasks for at in times):
        return NO_TASK
    return None


def explore(rules: Rules, until: str | None = None) -> Found[State]:
    return search(State(), lambda state: steps(state, rules), violation, until)


def test_no_order_of_events_fires_a_nominal_time_twice_or_never() -> None:
    """A nightly invoice that is sent twice, or not at all, because a scheduler died."""
    found = explore(SOUND)
    assert found.violations == set()
    assert any(state.tasks == tuple(range(TIMES)) for state in found.states)
    assert any(state.schedule.is_paused and state.open_by is not None for state in found.states)


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        (Rules(ledger_is_unique=False, timer_is_compared=False), TWO_TASKS),
        (Rules(ledger_gates_task=False, timer_is_compared=False), TWO_TASKS),
        (Rules(key_is_nominal=False, timer_is_compared=False), TWO_TASKS),
        (Rules(ledger_is_unique=False, one_transaction=False), TWO_VERDICTS),
        (Rules(key_is_nominal=False, one_transaction=False), TWO_VERDICTS),
        (Rules(one_transaction=False), NO_TASK),
        (Rules(timer_moves_last=False), SKIPPED),
        (Rules(edit_raises_fence=False), PAUSED),
    ],
    ids=[
        "unique key of the ledger dropped",
        "task made without asking the ledger",
        "key with the jittered time",
        "unique key dropped, several commits",
        "two keys for one time",
        "verdict and task in two commits",
        "timer moved before the verdict",
        "pause that leaves the fence",
    ],
)
def test_every_broken_rule_is_caught(rules: Rules, problem: str) -> None:
    """A search that finds nothing in a broken protocol has looked at nothing."""
    assert problem in explore(rules, until=problem).violations


def test_one_of_two_guards_is_enough_to_make_one_task() -> None:
    """Ledger and fence stand for each other: neither hides that the other is gone."""
    for rules in (Rules(ledger_is_unique=False), Rules(timer_is_compared=False)):
        assert TWO_TASKS not in explore(rules).violations
