"""How the nodes of each workflow may have ended, from what was asked for and how their parents did:
the rules written down once more, without any code of the engine. And whether it is so."""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from duly.verify.check import Violation
from tests.simulation.resume_model import judge_chains, judge_resume, run_again
from tests.simulation.step_model import (
    PLAIN,
    Standing,
    WantedMap,
    holds,
    judge_map,
    judge_pauses,
    judge_signals,
    judge_undoing,
    judge_wait,
)
from tests.simulation.workflow_facts import (
    ENDS,
    LATE,
    Decided,
    Node,
    Plan,
    Story,
    Terms,
    WantedWorkflow,
    WorkflowTables,
)


def judge_workflows(
    wanted: Collection[WantedWorkflow], tables: WorkflowTables, terms: Terms
) -> Iterator[Violation]:
    """After everything has ended."""
    rows = defaultdict(list)
    for row in tables.workflows:
        rows[row["name"], row["tenant"], row["resumed_from"]].append(row)
    for flow in wanted:
        stored = rows.pop((flow.name, flow.tenant, flow.resumed_from), [])
        yield from judge_start(flow, stored)
        for row in stored:
            yield from judge_one(flow, row, tables, terms)
    for left in rows.values():
        yield Violation("workflow", left[0]["id"], "is stored, and was never asked for")
    yield from judge_chains(tables)
    yield from judge_callbacks(wanted, tables)


def judge_one(
    flow: WantedWorkflow, row: Any, tables: WorkflowTables, terms: Terms
) -> Iterator[Violation]:
    nodes = tables.nodes.get(row["id"], {})
    story = Story(
        flow,
        row,
        nodes,
        plans_of(flow, nodes),
        tables.items.get(row["id"], {}),
        tables.signals.get(row["id"], []),
        tables.starts.get(row["id"], []),
        tables.undoing.get(row["id"], []),
    )
    if flow.resumed_from is not None:
        earlier = tables.nodes.get(flow.resumed_from, {})
        story = replace(story, again=run_again(flow, earlier, story.plans, nodes))
        for problem in judge_resume(story, earlier):
            yield Violation("workflow", row["id"], f"{flow.name}: {problem}")
    for problem in judge_story(story, terms):
        yield Violation("workflow", row["id"], f"{flow.name}: {problem}")
    for node in story.nodes.values():
        if story.again is not None and node.number not in story.again:
            continue
        for problem in judge_node(story, node, terms):
            yield Violation("workflow", node.id, f"{flow.name} {node.name}: {problem}")


def plans_of(flow: WantedWorkflow, nodes: Mapping[int, Node]) -> dict[int, Plan]:
    """By number. Nodes that were added have the numbers that are stored with their names."""
    plans = {
        number: Plan(parents, rule, delay_s, flow.steps.get(number, PLAIN))
        for number, (parents, rule, delay_s) in enumerate(
            zip(flow.parents, flow.rules, flow.delays_s, strict=True), 1
        )
    }
    numbers = {node.name: node.number for node in nodes.values()}
    for append in flow.added:
        for name, parents, rule in zip(append.names, append.parents, append.rules, strict=True):
            if name in numbers:
                above = [numbers[parent] for parent in parents if parent in numbers]
                plans[numbers[name]] = Plan(above, rule)
    return plans


def judge_start(flow: WantedWorkflow, stored: list[Any]) -> Iterator[Violation]:
    if flow.resumed_from is None and len(stored) > 1 and flow.has_key:
        yield Violation(
            "workflow", None, f"{flow.name} with one key was stored {len(stored)} times"
        )
    missing = flow.ids - {row["id"] for row in stored}
    if missing or (flow.resumed_from is None and len(flow.ids) > 1):
        yield Violation("workflow", None, f"{flow.name} was answered {flow.ids}, lacks {missing}")


def judge_story(story: Story, terms: Terms) -> Iterator[str]:
    row, flow = story.row, story.wanted
    states = [node.state for node in story.nodes.values()]
    items = [item.state for made in story.items.values() for item in made]
    items += [each.state for each in story.undoing]
    if story.nodes.keys() != story.plans.keys():
        yield f"has the nodes {sorted(story.nodes)}, and {sorted(story.plans)} were asked for"
    yield from judge_appends(story)
    if None in states or None in items or row["live"] or row["ended_at"] is None:
        yield f"has not ended: {states}, counts {row['live']} live, ended at {row['ended_at']}"
        return
    counts = {state: row[state.lower()] for state in ENDS}
    if counts != {state: [*states, *items].count(state) for state in ENDS}:
        yield f"counts {counts}, and its nodes are {Counter(states)}, its items {Counter(items)}"
    expected = end_of(states, row["stop_reason"])
    if row["state"] != expected:
        yield f"ended as {row['state']}, not {expected}: {Counter(states)}, {row['stop_reason']}"
    yield from judge_stop(story, terms.healed_at)
    waits = {number for number, plan in story.plans.items() if plan.step.wait is not None}
    yield from judge_signals(flow.signals, story.signals, waits)
    yield from judge_pauses(flow.pauses, story.starts)
    has_failed = end_of(states, row["stop_reason"]) == "FAILED"
    must = flow.on_failure == "compensate" and has_failed
    may = must or (flow.on_failure == "compensate" and row["stop_reason"] == "cancelled")
    yield from judge_undoing(story.undoing, undoable(story), must=must, may=may)
    for seen in flow.seen:
        if seen.state != row["state"]:
            yield f"was seen {seen.state} at {seen.at}, and is {row['state']}"


def judge_appends(story: Story) -> Iterator[str]:
    """All nodes of one or none; none that was answered is missing; with the end of the node that
    added them, once, and not without it."""
    numbers = {node.name: node.number for node in story.nodes.values()}
    for append in story.wanted.added:
        found = [name for name in append.names if name in numbers]
        if found and len(found) < len(append.names):
            yield f"has {found} of the added {append.names}"
        if append.is_answered and not found:
            yield f"lacks {append.names}, which were added"
        if append.is_refused and found:
            yield f"has {found}, which were refused"
        if append.by is None:
            continue
        by = story.nodes[append.by]
        if by.state == "COMPLETED" and not found:
            yield f"{by.name} completed, and what it adds is missing: {append.names}"
        if by.state != "COMPLETED" and found and story.wanted.resumed_from is None:
            yield f"{by.name} is {by.state}, and has added {found}"


def undoable(story: Story) -> dict[int, datetime]:
    """What completed and can be undone, and when: an item with its map."""
    ends: dict[int, datetime] = {}
    for number, plan in story.plans.items():
        node = story.nodes.get(number)
        if not plan.step.is_undoable or node is None or node.ended_at is None:
            continue
        if plan.step.map is not None:
            made = story.items.get(number, [])
            ends |= {node_number(i.id): node.ended_at for i in made if i.state == "COMPLETED"}
        elif node.state == "COMPLETED":
            ends[number] = node.ended_at
    return ends


def node_number(node: UUID) -> int:
    return int(node.hex[-6:], 16)


def end_of(states: Collection[str | None], stop_reason: str | None) -> str:
    if set(states) <= {"COMPLETED"}:
        return "COMPLETED"
    if stop_reason == "cancelled":
        return "CANCELLED"
    if stop_reason is not None or "FAILED" in states:
        return "FAILED"
    return "CANCELLED" if "CANCELLED" in states else "COMPLETED"


def judge_stop(story: Story, healed_at: datetime) -> Iterator[str]:
    """It stops for a reason, and for every reason."""
    row, flow, reason = story.row, story.wanted, story.row["stop_reason"]
    if reason == "cancelled" and not flow.is_cancel_asked:
        yield "was cancelled by no client"
    if reason == "failure" and (flow.on_failure == "finish_branches" or story.failed_at is None):
        yield "stopped because of a failure, and none was to stop it"
    if reason == "deadline" and not (row["deadline_at"] and row["deadline_at"] <= row["ended_at"]):
        yield f"stopped for its deadline {row['deadline_at']}, and ended at {row['ended_at']}"
    if reason is not None:
        return
    if flow.cancelled_at is not None:
        yield f"goes on, though it was cancelled at {flow.cancelled_at}"
    if flow.on_failure != "finish_branches" and story.failed_at is not None:
        yield f"goes on, though a node failed at {story.failed_at}"
    deadline_at = row["deadline_at"]
    if deadline_at is not None and row["ended_at"] > max(deadline_at, healed_at) + LATE:
        yield f"goes on until {row['ended_at']}, though its deadline was {deadline_at}"


def decided(story: Story, node: Node) -> Decided:
    """From how all parents ended, each rule as the documentation tells it."""
    above = [story.nodes[number] for number in story.plans[node.number].parents]
    if not above:
        return Decided(runs=True, at=None)
    good = [parent.ended_at for parent in above if parent.state == "COMPLETED"]
    bad = [parent.ended_at for parent in above if parent.state in ("FAILED", "CANCELLED")]
    ends = [parent.ended_at for parent in above if parent.ended_at is not None]
    match story.plans[node.number].rule:
        case "all_completed":
            return Decided(len(good) == len(above), max(ends))
        case "none_failed":
            return Decided(not bad, max(ends))
        case "all_done":
            return Decided(runs=True, at=max(ends))
        case "any_completed":
            return Decided(bool(good), first_of(good) or max(ends))
        case rule:
            assert rule == "any_failed", rule
            return Decided(bool(bad), first_of(bad) or max(ends))


def first_of(instants: list[datetime | None]) -> datetime | None:
    return min((at for at in instants if at is not None), default=None)


def judge_node(story: Story, node: Node, terms: Terms) -> Iterator[str]:
    ends = [other.ended_at for other in story.nodes.values()]
    ends += [item.ended_at for some in story.items.values() for item in some]
    if node.number not in story.plans or None in ends:
        # Told of the workflow already.
        return
    if node.ends != 1:
        yield f"ended {node.ends} times"
    plan, verdict = story.plans[node.number], decided(story, node)
    is_wanted = holds(plan.step.condition, *ends_above(story, plan, terms))
    standing = standing_of(story, node, terms)
    if node.started_at is None:
        if node.state == "CANCELLED" and not standing.may_be_cancelled:
            yield "was cancelled, and by no client"
        if node.state in ("COMPLETED", "FAILED") and plan.step.map is None:
            yield f"is {node.state}, and never started"
        if node.state == "SKIPPED" and verdict.runs and is_wanted:
            yield f"was skipped, and its rule {plan.rule} is met"
    else:
        yield from judge_begin(story, node, terms, verdict)
        if is_wanted is False:
            yield f"ran, and its if does not hold: {plan.step.condition}"
        if plan.step.wait is not None:
            yield from judge_wait(
                standing, plan.step.wait, story.signals, is_serial=terms.is_serial
            )
    if plan.step.map is not None:
        made = story.items.get(node.number, [])
        yield from judge_map(
            standing, plan.step.map, made, terms.cancelled, is_serial=terms.is_serial
        )


def judge_begin(story: Story, node: Node, terms: Terms, verdict: Decided) -> Iterator[str]:
    """Of a node that started: that it was let, and not before."""
    plan = story.plans[node.number]
    wait, paged = plan.step.wait, plan.step.map is not None and plan.step.map.is_paged
    if not (verdict.runs or paged) or (node.state == "SKIPPED" and wait is None):
        yield f"ran, and its rule {plan.rule} is not met"
    if verdict.at is None or paged:
        return
    assert node.started_at is not None
    # An added node comes after its parents may have ended, a resumed one always.
    known_at = max([verdict.at, *([node.created_at] if node.created_at else [])])
    due_at = known_at + timedelta(seconds=plan.delay_s)
    # Of two ends at once, the one that counted last may have begun first: the delay is from there.
    # What a resume releases at once waits for no delay again.
    is_exact = terms.is_serial and not terms.may_be_moved and known_at == verdict.at
    if node.started_at < (due_at if is_exact else known_at):
        yield f"started at {node.started_at}, and its parents decided at {verdict.at}"
    if terms.is_serial:
        yield from judge_release(story, verdict.at)


def ends_above(
    story: Story, plan: Plan, terms: Terms
) -> tuple[dict[int, str], dict[int, int | None]]:
    """How the parents ended, and the numbers that they answered; None of one that may be erased."""
    states: dict[int, str] = {}
    answers: dict[int, int | None] = {}
    for number in plan.parents:
        parent = story.nodes[number]
        states[number] = parent.state or ""
        spoken = story.wanted.spoken.get(number)
        is_erased = not terms.purged.isdisjoint({parent.id, parent.source})
        answers[number] = None if is_erased or spoken is None else spoken.answer
    return states, answers


def standing_of(story: Story, node: Node, terms: Terms) -> Standing:
    may_be_cancelled = story.row["stop_reason"] is not None or node.id in terms.cancelled
    total, is_refused = None, False
    step = story.plans[node.number].step
    if step.map is not None:
        total, is_refused = items_of(story, step.map, terms)
    return Standing(
        *(node.number, node.state, node.started_at, node.ended_at, node.result),
        *(may_be_cancelled, total, is_refused),
    )


def items_of(story: Story, wanted: WantedMap, terms: Terms) -> tuple[int | None, bool]:
    """How many there should be, and whether it can have none of them."""
    total = wanted.numbers
    if wanted.source is not None:
        source = story.nodes[wanted.source]
        if wanted.is_paged and source.source is not None:
            # Its items are those of the earlier run, or it has none.
            return None, False
        if source.state != "COMPLETED":
            return 0, True
        if not wanted.is_paged and not terms.purged.isdisjoint({source.id, source.source}):
            return None, False
        total = len(story.wanted.spoken[wanted.source].items)
    assert total is not None
    return total, total > wanted.max_items


def judge_release(story: Story, released_at: datetime) -> Iterator[str]:
    flow = story.wanted
    is_stopped = flow.on_failure != "finish_branches"
    if is_stopped and story.failed_at and released_at > story.failed_at:
        yield f"was released at {released_at}, after a failure at {story.failed_at}"
    if flow.cancelled_at is not None and released_at > flow.cancelled_at:
        yield f"was released at {released_at}, after the cancel at {flow.cancelled_at}"


def judge_callbacks(
    wanted: Iterable[WantedWorkflow], tables: WorkflowTables
) -> Iterator[Violation]:
    """One for each end that was to be told, and what it tells is so."""
    told = Counter(row["execution_key"] for row in tables.callbacks)
    bodies = {row["execution_key"]: row["payload"] for row in tables.callbacks}
    asked = {flow.name: flow.has_callback for flow in wanted}
    for row in tables.workflows:
        key = f"{row['id']}:end"
        times = told.pop(key, 0)
        if times != (row["ended_at"] is not None and asked.get(row["name"], False)):
            yield Violation("workflow", row["id"], f"{row['name']}: its end was told {times} times")
        # What was purged says nothing.
        body = json.loads(bodies.get(key) or "null")
        if body is not None and (body["name"], body["state"]) != (row["name"], row["state"]):
            yield Violation("workflow", row["id"], f"{row['name']} {row['state']}: told {body}")
    for key in told:
        yield Violation("workflow", None, f"an end was told of what is not stored: {key}")
