"""How the nodes of each workflow may have ended, from what was asked for and how their parents did:
the rules written down once more, without any code of the engine. And whether it is so."""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from duly.verify.check import Violation
from tests.simulation.database import Postgres

WORKFLOWS = """SELECT id, tenant, name, state, stop_reason, created_at, deadline_at, ended_at, live,
                      completed, failed, skipped, cancelled
                 FROM duly.workflows WHERE tenant = ANY($1::integer[]) ORDER BY id"""
NODES = """SELECT duly.workflow_of(node.id) AS workflow, node.id,
                  duly.node_number(node.id) AS number,
                  max(attempts.state) AS state, min(attempts.started_at) AS started_at,
                  max(attempts.ended_at) FILTER (WHERE attempts.state IS NOT NULL) AS ended_at,
                  count(attempts.state) AS ends
             FROM duly.workflow_nodes AS node
             LEFT JOIN duly.attempts USING (shard, id)
            WHERE node.tenant = ANY($1::integer[])
            GROUP BY node.id ORDER BY node.id"""
CALLBACKS = """SELECT execution_key, payload FROM duly.tasks
                WHERE tenant = ANY($1::integer[]) AND execution_key LIKE '%:end'
                  AND replay_of IS NULL"""
# What `workflow_tables` is made of, each read for tenants.
STATEMENTS = (WORKFLOWS, NODES, CALLBACKS)
ENDS = ("COMPLETED", "FAILED", "SKIPPED", "CANCELLED")
# Beyond its deadline, or the end of all faults, before a workflow counts as forgotten.
LATE = timedelta(seconds=30)


class Seen(NamedTuple):
    """What a reader was told."""

    at: datetime
    state: str


@dataclass(kw_only=True)
class WantedWorkflow:
    """One that was asked for, as its client knows it. No other one has its name."""

    tenant: int
    name: str
    # Of each node: the numbers of those it comes after, from 1; its rule; its delay.
    parents: list[list[int]]
    rules: list[str]
    delays_s: list[float]
    on_failure: str
    has_key: bool
    has_callback: bool
    ids: set[UUID] = field(default_factory=set)
    is_cancel_asked: bool = False
    cancelled_at: datetime | None = None
    seen: list[Seen] = field(default_factory=list)

    @property
    def id(self) -> UUID | None:
        return next(iter(self.ids), None)


class Terms(NamedTuple):
    """What else is known of a run. `cancelled`: the nodes that a client asked to cancel.
    `is_serial`: no two transactions overlapped, so that instants tell which came first."""

    cancelled: Collection[UUID]
    healed_at: datetime
    may_be_moved: bool = False
    is_serial: bool = True


class Node(NamedTuple):
    id: UUID
    number: int
    state: str | None
    started_at: datetime | None
    ended_at: datetime | None
    ends: int


class Decided(NamedTuple):
    """Whether a rule was met in the end, and when that was certain; None for a root."""

    runs: bool
    at: datetime | None


@dataclass(frozen=True)
class Story:
    """One workflow: what was asked for, its row, its nodes by number."""

    wanted: WantedWorkflow
    row: Any
    nodes: dict[int, Node]

    @property
    def failed_at(self) -> datetime | None:
        """When the first node failed."""
        ends = [node.ended_at for node in self.nodes.values() if node.state == "FAILED"]
        return min((at for at in ends if at is not None), default=None)


class WorkflowTables(NamedTuple):
    workflows: list[Any]
    nodes: dict[UUID, dict[int, Node]]
    callbacks: list[Any]


def read_workflow_tables(
    postgres: Postgres, now: datetime, tenants: Iterable[int]
) -> WorkflowTables:
    return workflow_tables(*(postgres.fetch(now, each, list(tenants)) for each in STATEMENTS))


def workflow_tables(
    workflows: list[Any], nodes: Iterable[Any], callbacks: list[Any]
) -> WorkflowTables:
    return WorkflowTables(workflows, nodes_by_number(nodes), callbacks)


def nodes_by_number(rows: Iterable[Any]) -> dict[UUID, dict[int, Node]]:
    nodes: dict[UUID, dict[int, Node]] = defaultdict(dict)
    for workflow, *facts in rows:
        node = Node(*facts)
        nodes[workflow][node.number] = node
    return nodes


def judge_workflows(
    wanted: Collection[WantedWorkflow], tables: WorkflowTables, terms: Terms
) -> Iterator[Violation]:
    """After everything has ended."""
    rows = defaultdict(list)
    for row in tables.workflows:
        rows[row["name"], row["tenant"]].append(row)
    for flow in wanted:
        stored = rows.pop((flow.name, flow.tenant), [])
        yield from judge_start(flow, stored)
        for row in stored:
            story = Story(flow, row, tables.nodes.get(row["id"], {}))
            for problem in judge_story(story, terms):
                yield Violation("workflow", row["id"], f"{flow.name}: {problem}")
            for node in story.nodes.values():
                for problem in judge_node(story, node, terms):
                    yield Violation("workflow", node.id, f"{flow.name} n{node.number}: {problem}")
    for left in rows.values():
        yield Violation("workflow", left[0]["id"], "is stored, and was never asked for")
    yield from judge_callbacks(wanted, tables)


def judge_start(flow: WantedWorkflow, stored: list[Any]) -> Iterator[Violation]:
    if len(stored) > 1 and flow.has_key:
        yield Violation(
            "workflow", None, f"{flow.name} with one key was stored {len(stored)} times"
        )
    missing = flow.ids - {row["id"] for row in stored}
    if missing or len(flow.ids) > 1:
        yield Violation("workflow", None, f"{flow.name} was answered {flow.ids}, lacks {missing}")


def judge_story(story: Story, terms: Terms) -> Iterator[str]:
    row, flow = story.row, story.wanted
    states = [node.state for node in story.nodes.values()]
    if len(states) != len(flow.parents):
        yield f"has {len(states)} nodes, and {len(flow.parents)} were asked for"
    if None in states or row["live"] or row["ended_at"] is None:
        yield f"has not ended: {states}, counts {row['live']} live, ended at {row['ended_at']}"
        return
    counts = {state: row[state.lower()] for state in ENDS}
    if counts != {state: states.count(state) for state in ENDS}:
        yield f"counts {counts}, and its nodes are {Counter(states)}"
    expected = end_of(states, row["stop_reason"])
    if row["state"] != expected:
        yield f"ended as {row['state']}, not {expected}: {Counter(states)}, {row['stop_reason']}"
    yield from judge_stop(story, terms.healed_at)
    for seen in flow.seen:
        if seen.state != row["state"]:
            yield f"was seen {seen.state} at {seen.at}, and is {row['state']}"


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
    if reason == "failure" and (flow.on_failure != "stop" or story.failed_at is None):
        yield "stopped because of a failure, and none was to stop it"
    if reason == "deadline" and not (row["deadline_at"] and row["deadline_at"] <= row["ended_at"]):
        yield f"stopped for its deadline {row['deadline_at']}, and ended at {row['ended_at']}"
    if reason is not None:
        return
    if flow.cancelled_at is not None:
        yield f"goes on, though it was cancelled at {flow.cancelled_at}"
    if flow.on_failure == "stop" and story.failed_at is not None:
        yield f"goes on, though a node failed at {story.failed_at}"
    deadline_at = row["deadline_at"]
    if deadline_at is not None and row["ended_at"] > max(deadline_at, healed_at) + LATE:
        yield f"goes on until {row['ended_at']}, though its deadline was {deadline_at}"


def decided(story: Story, node: Node) -> Decided:
    """From how all parents ended, each rule as the documentation tells it."""
    above = [story.nodes[number] for number in story.wanted.parents[node.number - 1]]
    if not above:
        return Decided(runs=True, at=None)
    good = [parent.ended_at for parent in above if parent.state == "COMPLETED"]
    bad = [parent.ended_at for parent in above if parent.state in ("FAILED", "CANCELLED")]
    ends = [parent.ended_at for parent in above if parent.ended_at is not None]
    match story.wanted.rules[node.number - 1]:
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
    if any(other.ended_at is None for other in story.nodes.values()):
        # Told of the workflow already.
        return
    if node.ends != 1:
        yield f"ended {node.ends} times"
    verdict = decided(story, node)
    rule = story.wanted.rules[node.number - 1] if verdict.at else "root"
    if node.started_at is None:
        if node.state in ("COMPLETED", "FAILED"):
            yield f"is {node.state}, and never started"
        if node.state == "SKIPPED" and verdict.runs:
            yield f"was skipped, and its rule {rule} is met"
        is_asked = story.row["stop_reason"] is not None or node.id in terms.cancelled
        if node.state == "CANCELLED" and not is_asked:
            yield "was cancelled, and by no client"
        return
    if not verdict.runs or node.state == "SKIPPED":
        yield f"ran, and its rule {rule} is not met"
    if verdict.at is None:
        return
    due_at = verdict.at + timedelta(seconds=story.wanted.delays_s[node.number - 1])
    # Of two ends at once, the one that counted last may have begun first: the delay is from there.
    is_exact = terms.is_serial and not terms.may_be_moved
    if node.started_at < (due_at if is_exact else verdict.at):
        yield f"started at {node.started_at}, and its parents decided at {verdict.at}"
    if terms.is_serial:
        yield from judge_release(story, verdict.at)


def judge_release(story: Story, released_at: datetime) -> Iterator[str]:
    flow = story.wanted
    if flow.on_failure == "stop" and story.failed_at and released_at > story.failed_at:
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
