"""One idempotency key, two nodes that submit, a broom, every order of events and every crash.

A submit is one transaction of several statements: claim the key, read whose it is, store the task,
commit. A node may die before each of them; its client then asks again, anywhere, with a new id. The
rules are those of `store/submit.sql` and `store/submit.py`, written again, small.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from tests.model.search import Found, search

NODES = (0, 1)
# The bodies that the clients of the two nodes send under the one key.
BODIES = ("a", "b")
LIFETIME = 1
# Bounds of the search: submits, and the passing of time.
IDS_MAX = 3
TICKS_MAX = 2

TWO_TASKS = "one key made two tasks in its lifetime"
NO_MISMATCH = "another request under the key was taken for the first"
NO_TASK = "a client was told of a task that does not exist"
EMPTY_KEY = "a key stands for a task that does not exist"
GIVEN_AWAY = "a key that still lived was given away"


class Key(NamedTuple):
    """The row: whose it is, and how long it lives."""

    task: int
    body: str
    left: int


class Submit(NamedTuple):
    """A transaction under way: what it asked, and how far it is."""

    task: int
    body: str
    stage: str = "new"
    # What the claim found: won, or who else had it.
    won: bool = False
    answer: str | None = None


class State(NamedTuple):
    key: Key | None = None
    # Uncommitted: the node whose open transaction holds the row, and what it wrote.
    locked: tuple[int, Key] | None = None
    tasks: frozenset[tuple[int, str]] = frozenset()
    submits: tuple[Submit | None, ...] = (None,) * len(NODES)
    next_id: int = 0
    ticks: int = 0
    # The broom saw this key past its time.
    doomed: Key | None = None
    # Tasks stored since the key was last free, and what clients were answered meanwhile.
    since_free: frozenset[tuple[int, str]] = frozenset()
    problem: str | None = None


@dataclass(frozen=True)
class Rules:
    """The protocol; a variant breaks one of them."""

    key_is_unique: bool = True
    claim_spares_the_living: bool = True
    claim_waits_for_open: bool = True
    one_transaction: bool = True
    answers_after_commit: bool = True
    compares_bodies: bool = True
    broom_looks_again: bool = True
    loser_stores_nothing: bool = True


SOUND = Rules()


def with_submit(state: State, node: int, submit: Submit | None) -> State:
    submits = list(state.submits)
    submits[node] = submit
    return state._replace(submits=tuple(submits))


def is_free(key: Key | None) -> bool:
    return key is None or key.left <= 0


def claim(state: State, node: int, submit: Submit, rules: Rules) -> Iterator[State]:
    """Waits while another open transaction holds the row; then the committed row decides."""
    if state.locked is not None and rules.claim_waits_for_open and rules.key_is_unique:
        return
    wins = is_free(state.key) or not rules.claim_spares_the_living or not rules.key_is_unique
    claimed = submit._replace(stage="claimed", won=wins)
    if not wins:
        yield with_submit(state, node, claimed)
        return
    mine = Key(submit.task, submit.body, LIFETIME)
    if rules.one_transaction:
        yield with_submit(state._replace(locked=(node, mine)), node, claimed)
    else:
        yield with_submit(take(state, mine), node, claimed)


def take(state: State, key: Key) -> State:
    """The key is committed. If it was free, a new life begins; if not, somebody lost it."""
    if is_free(state.key):
        return state._replace(key=key, since_free=frozenset())
    assert state.key is not None
    same = (state.key.task, state.key.body) == (key.task, key.body)
    return state._replace(key=key, problem=None if same else GIVEN_AWAY)


def decide(state: State, node: int, submit: Submit, rules: Rules) -> State:
    """The second statement: store the task, or hear whose the key is."""
    if submit.won:
        answer = f"stored {submit.task}"
    else:
        held = state.key
        if held is None:
            # It went meanwhile: from the beginning.
            return with_submit(state, node, submit._replace(stage="new"))
        is_same = held.body == submit.body or not rules.compares_bodies
        if held.body != submit.body and is_same:
            state = state._replace(problem=NO_MISMATCH)
        answer = f"stored {held.task}" if is_same else "mismatch"
    decided = submit._replace(stage="decided", answer=answer)
    told = with_submit(state, node, decided)
    return told if rules.answers_after_commit else hear(told, decided)


def commit(state: State, node: int, submit: Submit, rules: Rules) -> State:
    """Key and task at once; then the client hears of it."""
    after = state
    if state.locked is not None and state.locked[0] == node:
        after = take(state._replace(locked=None), state.locked[1])
    if submit.won or not rules.loser_stores_nothing:
        made = (submit.task, submit.body)
        since = after.since_free | {made}
        problem = TWO_TASKS if len(since) > 1 else after.problem
        after = after._replace(tasks=after.tasks | {made}, since_free=since, problem=problem)
    if rules.answers_after_commit:
        after = hear(after, submit)
    return with_submit(after, node, None)


def hear(state: State, submit: Submit) -> State:
    """What the client learns must be true at once: it may never ask again."""
    if submit.answer is None or not submit.answer.startswith("stored"):
        return state
    number = int(submit.answer.split()[1])
    if not any(task == number for task, _ in state.tasks):
        return state._replace(problem=state.problem or NO_TASK)
    return state


def crash(state: State, node: int) -> State:
    """Whatever the open transaction wrote is undone."""
    is_mine = state.locked is not None and state.locked[0] == node
    undone = state._replace(locked=None) if is_mine else state
    return with_submit(undone, node, None)


def submitting(state: State, node: int, rules: Rules) -> Iterator[State]:
    submit = state.submits[node]
    if submit is None:
        if state.next_id < IDS_MAX:
            for body in BODIES:
                asked = Submit(state.next_id, body)
                yield with_submit(state._replace(next_id=state.next_id + 1), node, asked)
        return
    yield crash(state, node)
    if submit.stage == "new":
        yield from claim(state, node, submit, rules)
    elif submit.stage == "claimed":
        yield decide(state, node, submit, rules)
    else:
        yield commit(state, node, submit, rules)


def sweep(state: State, rules: Rules) -> Iterator[State]:
    """The broom finds what has run out, waits for its row, and looks once more."""
    if state.doomed is None:
        if state.key is not None and state.key.left <= 0:
            yield state._replace(doomed=state.key)
        return
    if state.locked is not None:
        return
    rests = state.key is not None and state.key.left <= 0
    if rests or (state.key is not None and not rules.broom_looks_again):
        problem = None if rests else GIVEN_AWAY
        yield state._replace(key=None, doomed=None, problem=problem)
    else:
        yield state._replace(doomed=None)


def steps(state: State, rules: Rules) -> Iterator[State]:
    if state.ticks < TICKS_MAX and state.key is not None and state.key.left > 0:
        key = state.key._replace(left=state.key.left - 1)
        yield state._replace(key=key, ticks=state.ticks + 1)
    for node in NODES:
        yield from submitting(state, node, rules)
    yield from sweep(state, rules)


def violation(state: State) -> str | None:
    if state.problem is not None:
        return state.problem
    is_empty = state.key is not None and (state.key.task, state.key.body) not in state.tasks
    return EMPTY_KEY if is_empty else None


def explore(rules: Rules, until: str | None = None) -> Found[State]:
    return search(State(), lambda state: steps(state, rules), violation, until)


def test_no_order_of_events_makes_two_tasks_of_one_key() -> None:
    """A client that retries after a lost answer pays twice."""
    found = explore(SOUND)
    assert found.violations == set()
    assert any(len(state.tasks) > 1 for state in found.states), "no key was ever free again"
    submits = [submit for state in found.states for submit in state.submits if submit]
    assert {submit.won for submit in submits if submit.stage == "decided"} == {True, False}
    assert "mismatch" in {submit.answer for submit in submits}


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        (Rules(key_is_unique=False), TWO_TASKS),
        (Rules(claim_spares_the_living=False), TWO_TASKS),
        (Rules(claim_waits_for_open=False), TWO_TASKS),
        (Rules(one_transaction=False), EMPTY_KEY),
        (Rules(answers_after_commit=False), NO_TASK),
        (Rules(compares_bodies=False), NO_MISMATCH),
        (Rules(broom_looks_again=False), GIVEN_AWAY),
        (Rules(loser_stores_nothing=False), TWO_TASKS),
    ],
    ids=[
        "unique key dropped",
        "claim of a living key",
        "claim that ignores an open transaction",
        "key and task in two commits",
        "answer before the commit",
        "bodies not compared",
        "broom that does not look again",
        "task stored by whoever lost the key",
    ],
)
def test_every_broken_rule_is_caught(rules: Rules, problem: str) -> None:
    """A search that finds nothing in a broken protocol has looked at nothing."""
    assert problem in explore(rules, until=problem).violations
