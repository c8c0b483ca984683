"""Rules of workflows: when a node waits, runs or is skipped, and which graphs are none. No I/O.

`duly.fan_in` and `duly.workflow_end` in SQL are the same rules; tests/store/test_twins.py compares
them.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import IntEnum, StrEnum
from itertools import islice
from typing import NamedTuple

from duly.domain.limits import Problem
from duly.domain.states import State

NODES_MAX = 10_000
EDGES_MAX = 100_000
DEPTH_MAX = 10_000
# Nodes that one call adds to a workflow that lives.
APPENDED_MAX = 1_000
# Workflows within each other, the outermost counted.
NESTED_MAX = 10
NODE_NAME_CHARACTERS_MAX = 64
# Nodes or edges that a check looks at before its caller may let others run.
CHECKED_AT_ONCE = 2_000
PROBLEMS_MAX = 50
# Nodes of a cycle that its problem names.
CYCLE_NAMED_MAX = 20


class WaitRule(IntEnum):
    """When a node with parents runs. A rule that can no longer be met skips the node. A cancelled
    parent counts as failed."""

    ALL_COMPLETED = 0
    # Each parent completed or was skipped.
    NONE_FAILED = 1
    ALL_DONE = 2
    # At the first parent that completes, or fails.
    ANY_COMPLETED = 3
    ANY_FAILED = 4


WAIT_RULES = {rule.name.lower(): rule for rule in WaitRule}


class Decision(IntEnum):
    SKIP = -1
    WAIT = 0
    RELEASE = 1


class ParentCounts(NamedTuple):
    """How many parents of a node have not ended, and how the others did."""

    pending: int
    completed: int = 0
    failed: int = 0
    skipped: int = 0

    def after(self, state: State) -> "ParentCounts":
        """When one more has ended."""
        return ParentCounts(
            self.pending - 1,
            self.completed + (state is State.COMPLETED),
            self.failed + (state in (State.FAILED, State.CANCELLED)),
            self.skipped + (state is State.SKIPPED),
        )


def fan_in(rule: WaitRule, parents: ParentCounts) -> Decision:
    is_last = parents.pending == 0
    match rule:
        case WaitRule.ALL_COMPLETED if parents.failed or parents.skipped:
            return Decision.SKIP
        case WaitRule.NONE_FAILED if parents.failed:
            return Decision.SKIP
        case WaitRule.ANY_COMPLETED if parents.completed:
            return Decision.RELEASE
        case WaitRule.ANY_FAILED if parents.failed:
            return Decision.RELEASE
        case WaitRule.ANY_COMPLETED | WaitRule.ANY_FAILED:
            return Decision.SKIP if is_last else Decision.WAIT
        case _:
            return Decision.RELEASE if is_last else Decision.WAIT


class OnFailure(StrEnum):
    """What the first failed node means for the others: those that do not depend on it go on, or
    everything that does not run yet is cancelled."""

    FINISH_BRANCHES = "finish_branches"
    STOP = "stop"
    # As with stop; then what completed is undone.
    COMPENSATE = "compensate"


class WorkflowStop(StrEnum):
    """Why nothing of a workflow is released any more; the first reason stands. But a cancel always
    means that nothing is undone from then on."""

    CANCELLED = "cancelled"
    FAILURE = "failure"
    DEADLINE = "deadline"


def workflow_end(stop: WorkflowStop | None, failed: int, cancelled: int, skipped: int) -> State:
    """How a workflow ends whose last node has ended."""
    if failed + cancelled + skipped == 0:
        return State.COMPLETED
    if stop is WorkflowStop.CANCELLED:
        return State.CANCELLED
    if stop is not None or failed:
        return State.FAILED
    return State.CANCELLED if cancelled else State.COMPLETED


class Compensation(NamedTuple):
    """How far what completed of a workflow is undone. `failed`: what could not be, or was
    cancelled."""

    started_at: datetime
    completed: int
    failed: int
    state: State


def compensation_state(stop: WorkflowStop | None, failed: int, *, is_over: bool) -> State:
    if not is_over:
        return State.RUNNING
    if stop is WorkflowStop.CANCELLED:
        return State.CANCELLED
    return State.FAILED if failed else State.COMPLETED


class Graph(NamedTuple):
    """A sound one: parents and children of each node, which are numbered from 1 in their order."""

    names: list[str]
    parents: list[list[int]]
    children: list[list[int]]

    @property
    def edges(self) -> int:
        return sum(map(len, self.parents))


class GraphRefused(Exception):
    """What is wrong with a graph, with a pointer to each. Raised by `build_graph` alone."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__()
        self.problems = problems


def build_graph(
    after: Mapping[str, Sequence[str]], *, is_open: bool = False
) -> Iterator[Graph | None]:
    """The last that it yields is the graph; None before that, now and then, so that its caller can
    let others run. GraphRefused: unknown parents, a parent given twice, cycles, too many edges.
    `is_open`: of nodes that are added to others; parents that are not among them are left out."""
    names = list(after)
    numbers = {name: number for number, name in enumerate(names, 1)}
    parents: list[list[int]] = []
    children: list[list[int]] = [[] for _ in names]
    problems: list[Problem] = []
    edges = looked_at = 0
    for number, (name, given) in enumerate(after.items(), 1):
        edges += len(given)
        if edges > EDGES_MAX:
            raise GraphRefused([Problem("/nodes", f"have more than {EDGES_MAX} edges in all")])
        problems += islice(edge_problems(name, given, numbers, is_open), PROBLEMS_MAX)
        if len(problems) >= PROBLEMS_MAX:
            break
        own = [numbers[parent] for parent in given if parent in numbers]
        parents.append(own)
        for parent in own:
            children[parent - 1].append(number)
        looked_at += 1 + len(given)
        if looked_at >= CHECKED_AT_ONCE:
            looked_at = 0
            yield None
    if problems:
        raise GraphRefused(problems[:PROBLEMS_MAX])
    graph = Graph(names, parents, children)
    yield from check_order(graph)
    yield graph


def edge_problems(
    name: str, given: Sequence[str], numbers: Mapping[str, int], is_open: bool
) -> Iterator[Problem]:
    seen: set[str] = set()
    for position, parent in enumerate(given):
        at = f"/nodes/{pointer_name(name)}/after/{position}"
        if parent == name:
            yield Problem(at, "is the node itself")
        elif parent not in numbers and not is_open:
            yield unknown_parent(name, position, parent)
        elif parent in seen:
            yield Problem(at, f"names {parent!r} twice")
        seen.add(parent)


def unknown_parent(name: str, position: int, parent: str) -> Problem:
    at = f"/nodes/{pointer_name(name)}/after/{position}"
    return Problem(at, f"names {parent[:NODE_NAME_CHARACTERS_MAX]!r}, which is no node")


def pointer_name(name: str) -> str:
    return name[:NODE_NAME_CHARACTERS_MAX].replace("~", "~0").replace("/", "~1")


def check_order(graph: Graph) -> Iterator[None]:
    """Level by level from the roots; what is never reached is on a cycle or behind one."""
    waiting = [len(parents) for parents in graph.parents]
    level = [number for number, count in enumerate(waiting, 1) if not count]
    reached = depth = looked_at = 0
    while level:
        depth += 1
        reached += len(level)
        following = []
        for number in level:
            for child in graph.children[number - 1]:
                waiting[child - 1] -= 1
                if not waiting[child - 1]:
                    following.append(child)
            looked_at += 1 + len(graph.children[number - 1])
            if looked_at >= CHECKED_AT_ONCE:
                looked_at = 0
                yield None
        level = following
    if reached < len(graph.names):
        raise GraphRefused([cycle_problem(graph, waiting)])
    if depth > DEPTH_MAX:
        raise GraphRefused([Problem("/nodes", f"are deeper than {DEPTH_MAX} levels")])


def cycle_problem(graph: Graph, waiting: Sequence[int]) -> Problem:
    """From any node that was never reached, along parents that were not either, until one comes
    again."""
    number = next(number for number, count in enumerate(waiting, 1) if count)
    places: dict[int, int] = {}
    path: list[int] = []
    while number not in places:
        places[number] = len(path)
        path.append(number)
        number = next(parent for parent in graph.parents[number - 1] if waiting[parent - 1])
    cycle = [graph.names[each - 1] for each in reversed(path[places[number] :])]
    named = [*cycle[:CYCLE_NAMED_MAX], *(["..."] if len(cycle) > CYCLE_NAMED_MAX else [])]
    pointer = f"/nodes/{pointer_name(cycle[0])}/after"
    return Problem(pointer, f"makes a cycle: {' -> '.join([*named, cycle[0]])}")


class NodeTime(NamedTuple):
    """What is known, or estimated, of one node's time."""

    parents: Sequence[int]
    # None: it has not ended.
    ended_s: float | None
    # How long it still takes once it may start; 0 of one that has ended.
    remaining_s: float


def ended_at(number: int, nodes: Mapping[int, NodeTime], finish: Mapping[int, float]) -> float:
    known = nodes[number].ended_s
    return finish.get(number, 0.0) if known is None else known


def critical_path(nodes: Mapping[int, NodeTime]) -> tuple[list[int], float]:
    """The chain of nodes that decides when the workflow ends, and how long from now that takes.
    Numbers rise along edges nowhere in particular: a node is visited when its parents were."""
    finish: dict[int, float] = {}
    through: dict[int, int | None] = {}
    stack = list(nodes)
    while stack:
        number = stack[-1]
        if number in finish:
            stack.pop()
            continue
        node = nodes[number]
        known = [parent for parent in node.parents if parent in nodes]
        missing = [parent for parent in known if parent not in finish]
        if missing and node.ended_s is None:
            stack += missing
            continue
        stack.pop()
        last = max(known, key=lambda parent: ended_at(parent, nodes, finish), default=None)
        through[number] = last
        if node.ended_s is not None:
            finish[number] = node.ended_s
        else:
            before = 0.0 if last is None else max(finish[last], 0.0)
            finish[number] = before + node.remaining_s
    if not finish:
        return [], 0.0
    number_or_none: int | None = max(finish, key=lambda number: finish[number])
    assert number_or_none is not None
    left_s = max(finish[number_or_none], 0.0)
    path: list[int] = []
    while number_or_none is not None and len(path) <= len(nodes):
        path.append(number_or_none)
        number_or_none = through.get(number_or_none)
    return path[::-1], left_s
