"""Whether workflows keep their word (I7): counts against live parents, releases against the rules.

Pure; `check.py` runs this with the other invariants.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from duly.domain.states import State
from duly.domain.workflow import Decision, ParentCounts, WaitRule, fan_in
from duly.verify.history import Evidence, Finding, WorkflowNodeRow, WorkflowRow

# States of parents by which these rules are met.
DECIDING = {
    WaitRule.ANY_COMPLETED: frozenset({State.COMPLETED}),
    WaitRule.ANY_FAILED: frozenset({State.FAILED, State.CANCELLED}),
}


def nodes_follow_their_parents(evidence: Evidence) -> Iterator[Finding]:
    """A node starts only when its rule is met; none waits for parents that have ended; what a
    workflow counts is how its nodes ended; an ended workflow has no live node."""
    for workflow in evidence.workflows:
        nodes = {node.number: node for node in workflow.nodes}
        yield from miscounted_ends(workflow)
        yield from miscounted_items(workflow, nodes)
        yield from misplaced_pause(workflow)
        yield from misgiven_signals(workflow, nodes)
        for node in workflow.nodes:
            yield from misled(evidence, workflow, node, nodes)


def miscounted_ends(workflow: WorkflowRow) -> Iterator[Finding]:
    ends = Counter(node.state for node in workflow.nodes if node.state is not None)
    live = sum(node.is_live for node in workflow.nodes) + sum(i.live for i in workflow.items)
    for made in workflow.items:
        ends.update({state: count for state, count in made.counts.items() if count})
    if workflow.is_ended and live:
        yield workflow.id, f"the workflow has ended, and {live} of its nodes have not"
    counted = {state: count for state, count in workflow.counts.items() if count}
    if not workflow.is_deferred and (counted != dict(ends) or workflow.live != live):
        yield (
            workflow.id,
            f"the workflow counts {workflow.live}, {counted}, and has {live}, {dict(ends)}",
        )


def miscounted_items(
    workflow: WorkflowRow, nodes: Mapping[int, WorkflowNodeRow]
) -> Iterator[Finding]:
    """A map counts its live items, and ends when none of them is live; each place has one item."""
    live = {made.map_number: made.live for made in workflow.items}
    for made in workflow.items:
        if not made.is_gapless:
            yield nodes[made.map_number].id, "has no item in some place, or two"
    for node in workflow.nodes:
        found = live.get(node.number, 0)
        if node.items_pending is not None and node.items_pending != found:
            if not workflow.is_deferred:
                yield node.id, f"waits for {node.items_pending} items, and {found} are live"
        elif node.is_map and node.state in (State.COMPLETED, State.FAILED) and found:
            yield node.id, f"has ended, and {found} of its items have not"


def misplaced_pause(workflow: WorkflowRow) -> Iterator[Finding]:
    """Nothing of a paused workflow may start, and nothing is held without a pause."""
    due = sum(node.may_start for node in workflow.nodes) + sum(i.may_start for i in workflow.items)
    held = sum(node.is_held for node in workflow.nodes) + sum(i.held for i in workflow.items)
    if workflow.is_paused and due:
        yield workflow.id, f"the workflow is paused, and {due} of its nodes are due"
    if held and not workflow.is_paused:
        yield workflow.id, f"waits for ever: {held} of its nodes are held, and it is not paused"


def misgiven_signals(
    workflow: WorkflowRow, nodes: Mapping[int, WorkflowNodeRow]
) -> Iterator[Finding]:
    """A signal ends the one node that it was given to."""
    for number, signals in workflow.given_signals.items():
        node = nodes.get(number)
        if node is None or node.state is not State.COMPLETED:
            state = "no node" if node is None else node.state or "live"
            yield workflow.id, f"gave a signal to node {number}, which is {state}"
        elif signals > 1:
            yield node.id, f"was given {signals} signals"


def is_early(evidence: Evidence, node: WorkflowNodeRow, parents: Sequence[WorkflowNodeRow]) -> bool:
    """Of an `any` rule the first parent that met it decided, of the others the last."""
    assert node.started_at is not None
    wanted = DECIDING.get(node.rule, frozenset(State))
    ends = [each.ended_at for each in parents if each.state in wanted and each.ended_at is not None]
    if not ends:
        return False
    decided_at = min(ends) if node.rule in DECIDING else max(ends)
    return evidence.is_before(node.started_at, decided_at)


def may_be_skipped(node: WorkflowNodeRow, decision: Decision) -> bool:
    """By its rule; or by its `if`, or the end of its wait, once its parents let it run."""
    return decision is Decision.SKIP or (node.is_step and decision is Decision.RELEASE)


def misled(
    evidence: Evidence,
    workflow: WorkflowRow,
    node: WorkflowNodeRow,
    nodes: Mapping[int, WorkflowNodeRow],
) -> Iterator[Finding]:
    if node.ran_again:
        yield node.id, "reuses an earlier run, and ran again"
    if node.is_stranded and not workflow.is_deferred:
        yield node.id, "waits for ever: nothing will decide what it does"
    parents = [nodes[number] for number in node.parents if number in nodes]
    if not parents or (node.is_paged and node.started_at is not None):
        return
    counts = ParentCounts(len(parents))
    for parent in parents:
        if parent.state is not None:
            counts = counts.after(parent.state)
    decision = fan_in(node.rule, counts)
    if node.started_at is not None and is_early(evidence, node, parents):
        yield node.id, f"started before its parents met {node.rule.name.lower()}"
    if node.started_at is not None and decision is not Decision.RELEASE:
        yield node.id, f"started, and its rule {node.rule.name.lower()} is not met: {counts}"
    elif node.state is State.SKIPPED and not may_be_skipped(node, decision):
        yield node.id, f"was skipped, and its rule {node.rule.name.lower()} can be met: {counts}"
    if node.pending is None or workflow.is_deferred:
        return
    # Between a stop and the cancel of what waits, nothing is counted any more.
    if decision is not Decision.WAIT:
        yield node.id, f"waits for ever: its parents have decided ({counts})"
    elif node.pending != counts.pending:
        yield node.id, f"waits for {node.pending} parents, and {counts.pending} are live"
