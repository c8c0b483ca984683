"""Two parents, their children, a cancel, every order of statements on READ COMMITTED: the fan-in.

A transaction is a row of statements. Each sees what is committed when it begins, and what its own
transaction wrote; a row that another transaction changed is waited for, and the guards are read
again on its newest version. The rules are those of `duly.release_children`, `store/finish.sql`,
`store/retry.sql` and `store/workflow_control.sql`, written again, small.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pytest

from tests.model.search import Found, search

STRANDED = "a node waits for parents that have decided"
EARLY = "a node was released though its rule is not met"
TWICE = "a node was released twice"
MISCOUNTED = "the workflow counts other nodes than those that live"
AFTER_STOP = "a node was released after the workflow was stopped"
LEFT_BEHIND = "a cancelled workflow has a node that will run"
DEADLOCK = "transactions wait for each other"

# Settlements that are under way at once, and how often the first parent is tried again.
SETTLING_MAX = 2
RETRIES_MAX = 1


@dataclass(frozen=True)
class Graph:
    """Nodes by number; the first two are roots, and held when the search begins."""

    parents: tuple[tuple[int, ...], ...]
    rules: tuple[str, ...]

    def children(self, node: int) -> list[int]:
        return [child for child, above in enumerate(self.parents) if node in above]


# A join with a node behind it; and a node that needs one of its two parents.
JOIN = Graph(((), (), (0, 1), (2,)), ("root", "root", "all_completed", "all_completed"))
ANY = Graph(((), (), (0, 1)), ("root", "root", "any_completed"))


class Row(NamedTuple):
    """A timer. `pending` is None in what is due or held."""

    fence: int = 1
    is_held: bool = False
    is_requested: bool = False
    pending: int | None = None
    good: int = 0
    bad: int = 0


class Tables(NamedTuple):
    """What is committed."""

    rows: tuple[Row | None, ...]
    ends: tuple[str | None, ...]
    releases: tuple[int, ...]
    live: int
    is_stopped: bool = False


class Sent(NamedTuple):
    node: int
    fence: int
    outcome: str


class Transaction(NamedTuple):
    """Under way. `todo`: what its present statement has still to write, row by row."""

    kind: str
    step: str
    sent: tuple[Sent, ...] = ()
    seen: Tables | None = None
    todo: tuple[tuple[int, Row], ...] = ()
    ended: tuple[tuple[int, str], ...] = ()
    doomed: tuple[int, ...] = ()
    writes: tuple[tuple[int, Row | None, str | None, int], ...] = ()
    live_change: int = 0
    has_workflow: bool = False
    is_stop: bool = False

    @property
    def locked(self) -> frozenset[int]:
        return frozenset(write[0] for write in self.writes)


class State(NamedTuple):
    tables: Tables
    active: tuple[Transaction, ...] = ()
    # Bites of the cancel that were begun, and committed.
    bites_begun: int = 0
    bites_done: int = 0
    retries: int = 0
    repeats: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class Rules:
    """The protocol; a variant breaks one of them."""

    # first: before any row; late: where the workflow counts; none: it is not counted in a row.
    lock: str = "first"
    counts: bool = True
    fresh_snapshot: bool = True
    counts_what_was_deleted: bool = True
    sums_for_each_child: bool = True
    releases_only_waiting: bool = True
    skips_cascade: bool = True
    skips_are_ends: bool = True
    minds_stop: bool = True
    cancel_asks_again: bool = True
    retry_minds_request: bool = True


SOUND = Rules()


def first_state(graph: Graph) -> State:
    rows = tuple(
        Row(pending=len(parents)) if parents else Row(is_held=True) for parents in graph.parents
    )
    nodes = len(rows)
    return State(Tables(rows, (None,) * nodes, (0,) * nodes, nodes))


def decide(rule: str, pending: int, good: int, bad: int) -> str:
    if rule == "all_completed":
        return "skip" if bad else "release" if pending == 0 else "wait"
    return "release" if good else "skip" if pending == 0 else "wait"


def with_writes(tables: Tables, transaction: Transaction) -> Tables:
    """As the transaction sees these tables, or as they are once it has committed."""
    rows, ends, releases = list(tables.rows), list(tables.ends), list(tables.releases)
    for node, row, end, released in transaction.writes:
        rows[node] = row
        ends[node] = end
        releases[node] = released
    return Tables(
        tuple(rows),
        tuple(ends),
        tuple(releases),
        tables.live + transaction.live_change,
        tables.is_stopped or transaction.is_stop,
    )


def written(
    transaction: Transaction,
    now: Tables,
    node: int,
    row: Row | None,
    end: str | None = None,
    *,
    is_release: bool = False,
) -> Transaction:
    """`now` is what the transaction sees."""
    kept = tuple(write for write in transaction.writes if write[0] != node)
    write = (node, row, end, now.releases[node] + is_release)
    return transaction._replace(writes=(*kept, write))


class Move(NamedTuple):
    """One step of one transaction: what it becomes, and what was seen to go wrong."""

    transaction: Transaction
    problem: str | None = None


def may_have(state: State, mine: Transaction, node: int | None) -> bool:
    """Whether no other transaction holds that row; None: the row of the workflow."""
    return not any(
        other is not mine and (other.has_workflow if node is None else node in other.locked)
        for other in state.active
    )


def move(state: State, mine: Transaction, graph: Graph, rules: Rules) -> Move | None:
    """None: it waits."""
    match mine.step:
        case "lock":
            if not may_have(state, mine, None):
                return None
            return Move(mine._replace(step="end", has_workflow=True))
        case "end":
            return end_row(state, mine, rules)
        case "count":
            if rules.lock != "none" and not may_have(state, mine, None):
                return None
            return Move(count(state, mine, rules))
        case "look":
            return Move(look(state, mine, graph, rules))
        case "write":
            return write_child(state, mine, graph, rules)
        case "stop":
            if not may_have(state, mine, None):
                return None
            stopping = mine._replace(step="list", has_workflow=True, is_stop=True)
            return Move(stopping)
        case "list":
            return Move(list_live(state, mine, graph))
        case _:
            assert mine.step == "cancel"
            return cancel_row(state, mine, rules)


def end_row(state: State, mine: Transaction, rules: Rules) -> Move | None:
    """The next settlement that was sent: guards on the newest version of its row."""
    if not mine.sent:
        return Move(mine._replace(step="count" if mine.ended else "commit"))
    sent, *rest = mine.sent
    if not may_have(state, mine, sent.node):
        return None
    now = with_writes(state.tables, mine)
    row = now.rows[sent.node]
    after = mine._replace(sent=tuple(rest))
    if row is None or row.fence != sent.fence or not row.is_held:
        if not rules.counts_what_was_deleted and sent.outcome != "again":
            after = after._replace(ended=(*after.ended, (sent.node, sent.outcome)))
        return Move(after)
    end = sent.outcome
    if end == "again" and not (row.is_requested and rules.retry_minds_request):
        again = row._replace(fence=row.fence + 1, is_held=False, is_requested=False)
        return Move(written(after, now, sent.node, again))
    end = "cancelled" if row.is_requested and end != "completed" else end
    after = written(after, now, sent.node, None, end)
    return Move(after._replace(ended=(*after.ended, (sent.node, end))))


def count(state: State, mine: Transaction, rules: Rules) -> Transaction:
    """The ends of one wave; where the workflow is stopped or over, nothing is released."""
    counted = [end for _, end in mine.ended if rules.skips_are_ends or end != "skipped"]
    after = mine._replace(
        live_change=mine.live_change - len(counted),
        has_workflow=mine.has_workflow or rules.lock != "none",
    )
    now = with_writes(state.tables, after)
    is_over = now.live == 0 or (now.is_stopped and rules.minds_stop)
    return after._replace(step="commit" if is_over else "look")


def look(state: State, mine: Transaction, graph: Graph, rules: Rules) -> Transaction:
    """One statement's snapshot, and what it makes of the children."""
    basis = state.tables if rules.fresh_snapshot or mine.seen is None else mine.seen
    seen = with_writes(basis, mine)
    todo = []
    for child in sorted({c for node, _ in mine.ended for c in graph.children(node)}):
        row = seen.rows[child]
        if row is None or (row.pending is None and rules.releases_only_waiting):
            continue
        ends = [end for node, end in mine.ended if child in graph.children(node)]
        if not rules.sums_for_each_child:
            ends = ends[:1]
        good, bad = row.good + ends.count("completed"), row.bad + len(ends)
        bad -= ends.count("completed")
        pending = (row.pending or 0) - len(ends)
        if not rules.counts:
            above = [seen.ends[parent] for parent in graph.parents[child]]
            pending, good = above.count(None), above.count("completed")
            bad = len(above) - pending - good
        todo.append((child, row._replace(pending=pending, good=good, bad=bad)))
    return mine._replace(step="write", todo=tuple(todo), ended=())


def write_child(state: State, mine: Transaction, graph: Graph, rules: Rules) -> Move | None:
    if not mine.todo:
        doomed = tuple((node, "skipped") for node in mine.doomed)
        more = bool(doomed) and rules.skips_cascade
        change = 0 if more or not doomed or not rules.skips_are_ends else -len(doomed)
        return Move(
            mine._replace(
                step="count" if more else "commit",
                ended=doomed if more else (),
                doomed=(),
                live_change=mine.live_change + change,
            )
        )
    (child, wanted), *rest = mine.todo
    if not may_have(state, mine, child):
        return None
    after = mine._replace(todo=tuple(rest))
    now = with_writes(state.tables, mine)
    row = now.rows[child]
    if row is None or (row.pending is None and rules.releases_only_waiting):
        return Move(after)
    pending = max(wanted.pending or 0, 0)
    verdict = decide(graph.rules[child], pending, wanted.good, wanted.bad)
    if verdict == "skip":
        after = written(after, now, child, None, "skipped")
        return Move(after._replace(doomed=(*after.doomed, child)))
    if verdict == "wait":
        return Move(written(after, now, child, wanted))
    after = written(after, now, child, row._replace(pending=None), is_release=True)
    above = [now.ends[parent] for parent in graph.parents[child]]
    true_verdict = decide(
        graph.rules[child],
        above.count(None),
        above.count("completed"),
        len(above) - above.count(None) - above.count("completed"),
    )
    problem = EARLY if true_verdict != "release" else None
    return Move(after, AFTER_STOP if now.is_stopped else problem)


def list_live(state: State, mine: Transaction, graph: Graph) -> Transaction:
    """A bite of the cancel: first the roots, then the others."""
    now = with_writes(state.tables, mine)
    bite = range(2) if mine.kind == "cancel" else range(2, len(graph.parents))
    live = [(node, row) for node in bite if (row := now.rows[node]) is not None]
    return mine._replace(step="cancel", todo=tuple(live))


def cancel_row(state: State, mine: Transaction, rules: Rules) -> Move | None:
    """Unheld: it ends. Held: it is asked to. Changed since it was seen: asked about again."""
    if not mine.todo:
        return Move(mine._replace(step="count" if mine.ended else "commit"))
    (node, seen), *rest = mine.todo
    if not may_have(state, mine, node):
        return None
    after = mine._replace(todo=tuple(rest))
    now = with_writes(state.tables, mine)
    row = now.rows[node]
    if row is None or (row.is_held != seen.is_held and not rules.cancel_asks_again):
        return Move(after)
    if row.is_held:
        return Move(written(after, now, node, row._replace(is_requested=True)))
    after = written(after, now, node, None, "cancelled")
    return Move(after._replace(ended=(*after.ended, (node, "cancelled"))))


def commit(state: State, mine: Transaction) -> State:
    others = tuple(other for other in state.active if other is not mine)
    done = state.bites_done + mine.kind.startswith("cancel")
    tables = with_writes(state.tables, mine)
    return state._replace(tables=tables, active=others, bites_done=done)


def going_on(state: State, graph: Graph, rules: Rules) -> Iterator[State]:
    for place, mine in enumerate(state.active):
        if mine.step == "commit":
            yield commit(state, mine)
            continue
        moved = move(state, mine, graph, rules)
        if moved is not None:
            active = (*state.active[:place], moved.transaction, *state.active[place + 1 :])
            yield state._replace(active=active, problem=moved.problem)


def beginnings(state: State, rules: Rules) -> Iterator[State]:
    """Settlements of what is held, one that comes twice, both parents in one batch; the cancel."""
    step = "lock" if rules.lock == "first" else "end"
    begin = partial(Transaction, "settle", step, seen=state.tables)
    settling = [each for each in state.active if each.kind == "settle"]
    busy = {sent.node for each in settling for sent in each.sent} | {
        node for each in settling for node in each.locked
    }
    if len(settling) < SETTLING_MAX:
        for node, row in enumerate(state.tables.rows):
            if row is None or not row.is_held or node in busy:
                continue
            for outcome in ("completed", "failed"):
                yield with_active(state, begin((Sent(node, row.fence, outcome),)))
            if node == 0 and state.retries < RETRIES_MAX:
                again = with_active(state, begin((Sent(0, row.fence, "again"),)))
                yield again._replace(retries=state.retries + 1)
        if state.repeats == 0 and state.tables.rows[0] is None:
            repeated = with_active(state, begin((Sent(0, 1, "completed"),)))
            yield repeated._replace(repeats=1)
        roots = state.tables.rows[:2]
        if not busy and all(row is not None and row.is_held for row in roots):
            both = tuple(Sent(n, row.fence, "completed") for n, row in enumerate(roots) if row)
            yield with_active(state, begin(both))
    if state.bites_begun == state.bites_done < 2:
        kind = "cancel" if state.bites_begun == 0 else "cancel the rest"
        cancelling = with_active(state, Transaction(kind, "stop"))
        yield cancelling._replace(bites_begun=state.bites_begun + 1)


def with_active(state: State, transaction: Transaction) -> State:
    return state._replace(active=(*state.active, transaction))


def leases(state: State) -> Iterator[State]:
    """One statement on one row, which no lock of a workflow keeps back."""
    taken = {node for each in state.active for node in each.locked}
    for node, row in enumerate(state.tables.rows):
        if row is None or row.is_held or row.pending is not None or node in taken:
            continue
        rows = list(state.tables.rows)
        rows[node] = row._replace(is_held=True, fence=row.fence + 1)
        yield state._replace(tables=state.tables._replace(rows=tuple(rows)))


def steps(state: State, graph: Graph, rules: Rules) -> Iterator[State]:
    yield from going_on(state, graph, rules)
    yield from beginnings(state, rules)
    yield from leases(state)


def violation(state: State, graph: Graph, rules: Rules) -> str | None:
    tables = state.tables
    if state.problem is not None:
        return state.problem
    if state.active and next(going_on(state, graph, rules), None) is None:
        return DEADLOCK
    if any(times > 1 for times in tables.releases):
        return TWICE
    if state.active:
        return None
    if tables.live != sum(row is not None for row in tables.rows):
        return MISCOUNTED
    for node, row in enumerate(tables.rows):
        if row is None:
            continue
        if state.bites_done == 2 and not (row.is_held and row.is_requested):
            return LEFT_BEHIND
        above = [tables.ends[parent] for parent in graph.parents[node]]
        good, pending = above.count("completed"), above.count(None)
        verdict = decide(graph.rules[node], pending, good, len(above) - pending - good)
        if row.pending is not None and verdict != "wait" and not tables.is_stopped:
            return STRANDED
    return None


def explore(graph: Graph, rules: Rules, until: str | None = None) -> Found[State]:
    return search(
        first_state(graph),
        lambda state: steps(state, graph, rules),
        lambda state: violation(state, graph, rules),
        until,
    )


@pytest.mark.parametrize("graph", [JOIN, ANY], ids=["join", "any"])
def test_no_order_of_statements_breaks_the_fan_in(graph: Graph) -> None:
    """A node that is released twice runs twice; one that is not released waits for ever."""
    found = explore(graph, SOUND)
    assert found.violations == set()
    ends = {end for state in found.states for end in state.tables.ends}
    assert ends == {None, "completed", "failed", "cancelled", "skipped"}
    assert any(state.tables.releases[2] == 1 for state in found.states)
    assert any(len(state.active) == SETTLING_MAX + 1 for state in found.states)


@pytest.mark.parametrize(
    ("graph", "rules", "problem"),
    [
        (JOIN, Rules(lock="none"), STRANDED),
        (JOIN, Rules(lock="late"), DEADLOCK),
        (JOIN, Rules(lock="none", counts=False), STRANDED),
        (JOIN, Rules(fresh_snapshot=False), STRANDED),
        (JOIN, Rules(fresh_snapshot=False, counts=False), STRANDED),
        (JOIN, Rules(counts_what_was_deleted=False), EARLY),
        (JOIN, Rules(sums_for_each_child=False), STRANDED),
        (ANY, Rules(releases_only_waiting=False), TWICE),
        (JOIN, Rules(skips_cascade=False), STRANDED),
        (JOIN, Rules(skips_are_ends=False), MISCOUNTED),
        (JOIN, Rules(minds_stop=False), AFTER_STOP),
        (JOIN, Rules(cancel_asks_again=False), LEFT_BEHIND),
        (JOIN, Rules(retry_minds_request=False), LEFT_BEHIND),
    ],
    ids=[
        "no lock of the workflow",
        "lock where the workflow counts",
        "are all siblings done",
        "counts of before the lock",
        "are all siblings done, before the lock",
        "counts what was sent",
        "one match for each child",
        "release of what was released",
        "skip that does not cascade",
        "skip that is no end",
        "release after a stop",
        "cancel that looks once",
        "retry after a request",
    ],
)
def test_every_broken_rule_is_caught(graph: Graph, rules: Rules, problem: str) -> None:
    """A search that finds nothing in a broken protocol has looked at nothing."""
    assert problem in explore(graph, rules, until=problem).violations
