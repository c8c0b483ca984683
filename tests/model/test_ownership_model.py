"""One slot, two nodes, every order of events: an exhaustive search of the hand-over protocol.

A statement is sent, takes effect and is answered at three moments; a node may give up waiting, and
the statement may still take effect later. Nodes may stop at any step, for as long as they like. The
rules are those of `store/ownership.sql` and `coordinator/ownership.py`, written again, small.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from tests.model.search import Found, search

NODES = (0, 1)
LEASE = 2
TICKET = 1
NOBODY = -1
# Bounds of the search: changes of hands, and answers that never arrive.
EPOCHS_MAX = 3
FAULTS_MAX = 1


class Row(NamedTuple):
    """The truth. All times are counted from now, so that the same situation is one state."""

    holder: int = NOBODY
    epoch: int = 0
    expires: int = -TICKET
    void: int = 0


class Call(NamedTuple):
    """A statement on its way; the epoch of a claim names a stray. Once run it carries an answer."""

    verb: str
    epoch: int
    sent: int = 0
    has_run: bool = False
    answer: tuple[int, int] | None = None


class Belief(NamedTuple):
    """What a node remembers: its epoch, how long it trusts it, and when capped work may start."""

    epoch: int
    trusted: int
    void: int


class State(NamedTuple):
    row: Row = Row()
    beliefs: tuple[Belief | None, ...] = (None,) * len(NODES)
    calls: tuple[Call | None, ...] = (None,) * len(NODES)
    # A statement that its sender gave up, and that has not run yet, with the sender.
    late: tuple[int, Call] | None = None
    faults: int = 0
    # Tickets for capped work: for how long the newest of each epoch is good.
    tickets: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Rules:
    """The protocol; a variant breaks one of them."""

    renewal_names_epoch: bool = True
    renewal_names_holder: bool = True
    claim_checks_expiry: bool = True
    claim_raises_epoch: bool = True
    claim_names_stray: bool = True
    claim_voids_later: bool = True
    release_voids_later: bool = True
    forgets_before_release: bool = True
    trusts_from_sending: bool = True
    trust_ends: bool = True


SOUND = Rules()


def run(row: Row, call: Call, node: int, rules: Rules) -> Row | None:
    """What the statement does to the row; None if it finds nothing to change."""
    is_ours, is_epoch = row.holder == node, row.epoch == call.epoch
    if call.verb == "renew":
        if (is_ours or not rules.renewal_names_holder) and (
            is_epoch or not rules.renewal_names_epoch
        ):
            return row._replace(expires=LEASE)
        return None
    if call.verb == "release":
        void = max(row.void, TICKET) if rules.release_voids_later else row.void
        return row._replace(holder=NOBODY, expires=0, void=void) if is_ours and is_epoch else None
    is_stray = is_ours and (is_epoch or not rules.claim_names_stray)
    is_free = row.holder == NOBODY or row.expires <= 0 or not rules.claim_checks_expiry
    if not is_free and not is_stray:
        return None
    void = row.void
    if row.holder != NOBODY and rules.claim_voids_later:
        void = max(void, row.expires + TICKET)
    return Row(node, row.epoch + rules.claim_raises_epoch, LEASE, void)


def with_node(
    state: State, node: int, belief: Belief | None, call: Call | None, **changes: Any
) -> State:
    beliefs, calls = list(state.beliefs), list(state.calls)
    beliefs[node], calls[node] = belief, call
    return state._replace(beliefs=tuple(beliefs), calls=tuple(calls), **changes)


def sendings(state: State, node: int, rules: Rules) -> Iterator[State]:
    """A node with nothing on its way may send; a claim is for any seat, also one it remembers."""
    belief = state.beliefs[node]
    is_stray = state.row.holder == node and (belief is None or belief.epoch != state.row.epoch)
    yield with_node(state, node, belief, Call("claim", state.row.epoch if is_stray else 0))
    if belief is not None:
        yield with_node(state, node, belief, Call("renew", belief.epoch))
        kept = None if rules.forgets_before_release else belief
        yield with_node(state, node, kept, Call("release", belief.epoch))


def believed(belief: Belief | None, call: Call, rules: Rules) -> Belief | None:
    """What the node thinks after the answer."""
    if call.answer is None:
        return belief if call.verb == "claim" else None
    epoch, void = call.answer
    trusted = LEASE + (call.sent if rules.trusts_from_sending else 0)
    return Belief(epoch if call.verb == "claim" else call.epoch, max(trusted, 0), void)


def moves(state: State, node: int, call: Call, rules: Rules) -> Iterator[State]:
    """A statement on its way runs, is answered, or is given up."""
    belief = state.beliefs[node]
    may_fail = state.faults < FAULTS_MAX
    if call.has_run:
        yield with_node(state, node, believed(belief, call, rules), None)
        if may_fail:
            yield with_node(state, node, belief, None, faults=state.faults + 1)
        return
    row = run(state.row, call, node, rules)
    answer = (row.epoch, row.void) if row and call.verb != "release" else None
    done = call._replace(has_run=True, answer=answer)
    yield with_node(state, node, belief, done, row=row or state.row)
    if state.late is None and may_fail:
        faults = state.faults + 1
        late = (node, call._replace(sent=0))
        yield with_node(state, node, belief, None, late=late, faults=faults)


def later(state: State, rules: Rules) -> State:
    """One unit of time passes; what is too long ago to matter is all the same."""
    row = state.row._replace(
        expires=max(state.row.expires - 1, -TICKET), void=max(state.row.void - 1, 0)
    )
    trust_lost = 1 if rules.trust_ends else 0
    beliefs = tuple(
        belief
        and Belief(belief.epoch, max(belief.trusted - trust_lost, 0), max(belief.void - 1, 0))
        for belief in state.beliefs
    )
    calls = tuple(call and aged(call) for call in state.calls)
    tickets = frozenset((epoch, good - 1) for epoch, good in state.tickets if good > 1)
    return State(row, beliefs, calls, state.late, state.faults, tickets)


def aged(call: Call) -> Call:
    answer = call.answer and (call.answer[0], max(call.answer[1] - 1, 0))
    sent = 0 if call.verb == "release" else max(call.sent - 1, -LEASE)
    return call._replace(sent=sent, answer=answer)


def steps(state: State, rules: Rules) -> Iterator[State]:
    yield later(state, rules)
    for node in NODES:
        belief, call = state.beliefs[node], state.calls[node]
        if call is None:
            yield from sendings(state, node, rules)
        else:
            yield from moves(state, node, call, rules)
        if belief is not None and belief.trusted > 0 and belief.void <= 0:
            yield state._replace(tickets=state.tickets | {(belief.epoch, TICKET)})
    if state.late is not None:
        node, call = state.late
        row = run(state.row, call, node, rules)
        yield state._replace(row=row or state.row, late=None)


def alike(state: State) -> State:
    """One state for all that cannot differ: an untrusted belief has no void, and nodes no names."""
    beliefs = tuple(
        belief and (belief if belief.trusted else belief._replace(void=0))
        for belief in state.beliefs
    )
    tidy = state._replace(beliefs=beliefs)
    if tidy.row.holder != 1:
        return tidy
    return tidy._replace(
        row=tidy.row._replace(holder=0),
        beliefs=beliefs[::-1],
        calls=tidy.calls[::-1],
        late=tidy.late and (1 - tidy.late[0], tidy.late[1]),
    )


def violation(state: State) -> str | None:
    trusting = [belief for belief in state.beliefs if belief is not None and belief.trusted > 0]
    if len(trusting) > 1:
        return "two nodes trust that they own the slot"
    if any(belief.epoch != state.row.epoch for belief in trusting):
        return "a node dispatches under an epoch that is not the row's"
    if len({epoch for epoch, _ in state.tickets}) > 1:
        return "tickets of two owners are good at once"
    return None


def explore(rules: Rules, until: str | None = None) -> Found[State]:
    def following(state: State) -> Iterator[State]:
        local_tickets = map(alike, steps(state, rules))
        return (other for other in local_tickets if other.row.epoch <= EPOCHS_MAX)

    return search(State(), following, violation, until)


def test_no_order_of_events_gives_a_slot_two_owners() -> None:
    """Two owners exceed every cap of the slot; a wrong epoch makes an old ticket look new."""
    found = explore(SOUND)
    assert found.violations == set()
    # The search went somewhere: the slot changed hands, and came back.
    assert len(found.states) > 10_000
    assert {state.row.epoch for state in found.states} == set(range(EPOCHS_MAX + 1))


TWO_OWNERS = "two nodes trust that they own the slot"
WRONG_EPOCH = "a node dispatches under an epoch that is not the row's"
TWO_TICKETS = "tickets of two owners are good at once"


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        (Rules(renewal_names_epoch=False), WRONG_EPOCH),
        (Rules(renewal_names_holder=False, renewal_names_epoch=False), WRONG_EPOCH),
        (Rules(claim_checks_expiry=False), TWO_OWNERS),
        (Rules(claim_raises_epoch=False), TWO_OWNERS),
        (Rules(claim_names_stray=False), WRONG_EPOCH),
        (Rules(claim_voids_later=False), TWO_TICKETS),
        (Rules(release_voids_later=False), TWO_TICKETS),
        (Rules(forgets_before_release=False), TWO_OWNERS),
        (Rules(trusts_from_sending=False), TWO_OWNERS),
        (Rules(trust_ends=False), WRONG_EPOCH),
    ],
    ids=[
        "renewal without epoch",
        "renewal without holder and epoch",
        "claim without expiry check",
        "claim without a new epoch",
        "claim of any stray",
        "claim that ignores a dead owner's tickets",
        "release that ignores its own tickets",
        "release before forgetting",
        "trust from the answer on",
        "trust without end",
    ],
)
def test_every_broken_rule_is_caught(rules: Rules, problem: str) -> None:
    """A search that finds nothing in a broken protocol has looked at nothing."""
    assert problem in explore(rules, until=problem).violations
